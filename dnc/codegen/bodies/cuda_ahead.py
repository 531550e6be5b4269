"""Looking ahead on CUDA: what the levels behind the one at hand need, before it is their turn.

In: the instruction at hand. Out: statements that one warp, while others compute cells, runs: they find the
instruction behind the replica's next barrier, and copy into shared memory the words of lists that the one
behind the second barrier reads, for every row. An exchange empties L1, so such a word would be a read of L2
in front of what it leads to; but the host wrote lists and instructions before the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.access import NearLists
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, any_of, both, dispatch, fixed, let, put, when
from dnc.ir import isa
from dnc.ir.machine import LANES, WARPS
from dnc.ir.plan import (
    UNIT,
    GatherAddress,
    IndexAddress,
    ParameterAddress,
    Plan,
    Segment,
    SlotsAddress,
)
from dnc.ir.program import LEVEL

ROWS = LANES  # of a tile: a lane copies a row's words
LOOKING = WARPS - 1  # the warp that looks ahead: of few cells it has none
TURNS = 4  # instructions whose words are kept, in turn: at hand, the next, the one being copied, a power of 2
# Behind the owners of the turns: the next instruction, and the words of lists.
NEXT, WORDS = TURNS, 2 * TURNS
NOTHING = -1


def near_lists(plan: Plan, segment: Segment) -> tuple[str, ...]:
    """The lists with a word a row whose words are copied ahead."""
    assert plan.tiling is not None
    if segment.mapping != UNIT or plan.program.stage(segment.stage).placement != LEVEL:
        return ()
    return tuple(dict.fromkeys(_lists(segment))) if plan.tiling.cluster > 1 else ()


def _lists(segment: Segment) -> Iterator[str]:
    pieces = [piece.address for product in segment.products for piece in product.pieces]
    for address in (*pieces, *(load.address for load in segment.loads)):
        if isinstance(address, GatherAddress | IndexAddress):
            yield address.list
        elif isinstance(address, SlotsAddress):
            yield from (name for name in (address.plain, address.partial) if name is not None)
        elif isinstance(address, ParameterAddress) and address.select is not None:
            yield address.select


def level_segments(plan: Plan, region: int) -> dict[int, Segment]:
    """By opcode the segments of a region whose words are copied ahead."""
    return {
        plan.opcode(segment.name).number: segment
        for segment in plan.segments
        if isa.segment_region(plan, segment) == region and near_lists(plan, segment)
    }


def turn_words(plan: Plan) -> int:
    """Words of lists of one instruction, at most."""
    return max((len(near_lists(plan, segment)) for segment in plan.segments), default=0) * ROWS


def ahead_words(plan: Plan) -> int:
    """Words of shared memory for all of it."""
    return WORDS + TURNS * turn_words(plan) if turn_words(plan) else 0


@attrs.frozen(eq=False)
class Ahead:
    """Shared memory for what is ahead. place: one word of it, that of the instruction at hand in the queue.

    look: emits the look ahead, where the instruction at hand is one of a level; known: 0 where the words of
    its first tile are not there.
    """

    memory: Any
    place: Any
    known: Expr = 0
    look: Callable[[], None] | None = None

    @property
    def at(self) -> Expr:
        """Where the instruction at hand stands in the queue."""
        return self.place[0]

    def turn(self, at: Expr) -> Expr:
        """The turn of an instruction: its place is even or odd as the first of its level."""
        return at // 2 % TURNS

    def has(self, at: Expr) -> Expr:
        """Whether the words of an instruction are there, of its first tile: 0 or 1."""
        return T.cast(self.memory[self.turn(at)] == at, "int32")

    def next(self) -> tuple[Expr, list[Expr]]:
        """The opcode of the level's instruction behind the next barrier, below zero where that is not so, or
        not known; its row and rows, and whether its words are there. After a block barrier behind `look`."""
        opcode = let("next", cuda.uniform(self.memory[NEXT]))
        return opcode, [fixed("next_field", self.memory[NEXT + i]) for i in (1, 2, 3)]


def clear(worker: Worker) -> None:
    """At the beginning, by one thread: nothing is known."""
    if ahead_words(worker.plan):
        for at in range(NEXT + 1):
            put(worker.ahead.memory, at, NOTHING)


def look_ahead(worker: Worker, window: Any, entry: Expr, level: Mapping[int, Segment]) -> None:
    """The look of one warp; the instruction at hand, at word `entry` of the window, is one of `level`."""
    plan, ahead, size = worker.plan, worker.ahead, isa.INSTRUCTION_WORDS
    assert plan.tiling is not None
    limit, barrier = plan.tiling.window, plan.opcode(isa.REPLICA_BARRIER).number

    def behind_barrier(at: Expr) -> Expr:
        """The opcode of a level's instruction behind the barrier that stands at a word of the window."""
        inside = let("inside", T.Select(at + 2 * size <= limit, at, entry))
        opcode = let("opcode_behind", window[inside + size])
        good = both(window[inside] == barrier, reduce(any_of, [opcode == number for number in level]))
        return let("behind", T.Select(good, opcode, NOTHING))

    cuda.copy_wait(0)  # of the last look: seen by all after a block barrier
    first = behind_barrier(entry + size)
    second = behind_barrier(entry + 3 * size)
    at = let("at_second", ahead.at + 4)

    def fields(place: Expr) -> list[Expr]:
        """Row and rows of the instruction at a word of the window."""
        names = isa.SEGMENT_FIELDS
        return [worker.field(name, place, window, names) for name in names]

    row, rows = fields(entry + 2 * size)
    with when(worker.lane == 0):
        for place, value in enumerate((first, row, rows, ahead.has(ahead.at + 2))):
            put(ahead.memory, NEXT + place, value)

    def copy(number: int) -> None:
        row, rows = fields(entry + 4 * size)
        to = WORDS + ahead.turn(at) * turn_words(plan)
        _copy(worker, level[number], to, row, rows)
        with when(worker.lane == 0):
            put(ahead.memory, ahead.turn(at), at)

    with when(both(first >= 0, second >= 0)):
        dispatch(second, {number: partial(copy, number) for number in level})
    cuda.copy_commit()


def _copy(worker: Worker, segment: Segment, to: Expr, row: Expr, rows: Expr) -> None:
    """Starts copying the words of rows from `row` on, a lane those of one."""
    lane = worker.lane
    with when(lane < rows):
        for number, name in enumerate(near_lists(worker.plan, segment)):
            target = worker.ahead.memory[to + number * ROWS + lane]
            source = worker.words[worker.access.list_at(name) + row + lane]
            cuda.copy1_async(T.address_of(target), T.address_of(source))


def lists_at_hand(worker: Worker, segment: Segment, begin: Expr, row: Expr, rows: Expr) -> Worker:
    """The worker for a tile whose words are near; begin: of the tile, the first one may be there already."""
    names = near_lists(worker.plan, segment)
    if not names:
        return worker
    ahead = worker.ahead

    def first() -> Expr:
        return WORDS + ahead.turn(ahead.at) * turn_words(worker.plan)

    with when(any_of(begin > 0, ahead.known == 0)):
        with when(worker.warp == LOOKING):
            _copy(worker, segment, let("copy_to", first()), row, rows)
        cuda.copy_commit()
        cuda.copy_wait(0)
        worker.synchronize()
    places = {name: number * ROWS for number, name in enumerate(names)}
    near = NearLists(ahead.memory, first, places, row)
    return attrs.evolve(worker, access=attrs.evolve(worker.access, near=near))
