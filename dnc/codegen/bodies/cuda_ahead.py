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
from dnc.codegen import sync
from dnc.codegen.access import NearLists
from dnc.codegen.bodies.cuda_push import SIGNALS, Mailbox, Push
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

WIDE_ROWS = 4 * LANES  # a power of 2
LOOKING, COPYING = WARPS - 1, WARPS - 2  # warps that look ahead: of few cells they have none
TURNS = 4  # instructions whose words are kept, in turn: at hand, the next, the one being copied, a power of 2
# Behind the owners of the turns: twice the next instruction (opcode, row, rows, what is known), and then the
# first row and the rows that are pushed to it (see `cuda_push`): a level that pushes, or one behind which
# another polls, is not over for all threads when the next begins. Then the turn of the next level that may
# push, signals of two words, lists.
NEXT, NEXT_WORDS, PUSHED = TURNS, 6, 4
TURN = NEXT + 2 * NEXT_WORDS
SIGNAL = TURN + 2
WORDS = SIGNAL + 2 * SIGNALS
NOTHING = -1
KNOWN, FOLLOWED, TURN_BIT, AT_BIT = 1, 2, 2, 5


def near_lists(plan: Plan, segment: Segment) -> tuple[str, ...]:
    """The lists with a word a row whose words are copied ahead."""
    assert plan.tiling is not None
    if segment.mapping != UNIT or plan.program.stage(segment.stage).placement != LEVEL:
        return ()
    return tuple(dict.fromkeys(_lists(segment)))


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
    segments = {segment.name: segment for segment in plan.segments if near_lists(plan, segment)}
    found = (opcode for opcode in plan.opcodes if opcode.region == region)
    return {opcode.number: segments[opcode.name] for opcode in found if opcode.name in segments}


def near_rows(plan: Plan) -> int:
    """Rows of an instruction whose words are near: more than one for every lane only where levels are known
    to be wide at times, as that takes registers."""
    return WIDE_ROWS if plan.reduced else LANES


def turn_words(plan: Plan) -> int:
    """Words of lists of one instruction, at most."""
    return max((len(near_lists(plan, segment)) for segment in plan.segments), default=0) * near_rows(plan)


def ahead_words(plan: Plan) -> int:
    """Words of shared memory for all of it."""
    return WORDS + TURNS * turn_words(plan) if turn_words(plan) else 0


@attrs.frozen(eq=False)
class Ahead:
    """Shared memory for what is ahead. place: one word of it, that of the instruction at hand in the queue,
    for all threads where levels begin and end.

    look: emits the looks ahead, where the instruction at hand is one of a level; known: of that, whether the
    words of its first tile are there (KNOWN). Where it pushes or polls, its place in the queue is in the
    upper bits; where it pushes, so are its turn for that, and whether the same segment stands behind the
    next barrier (FOLLOWED).
    """

    memory: Any
    place: Any
    known: Expr = 0
    pushes: bool = False
    polls: bool = False
    look: Callable[[Worker], None] | None = None

    @property
    def at(self) -> Expr:
        """Where the instruction at hand stands in the queue."""
        return T.shift_right(self.known, AT_BIT) if self.carries else self.place[0]

    @property
    def carries(self) -> bool:
        """Whether what is known has more than one bit."""
        return self.pushes or self.polls

    def turn(self, at: Expr) -> Expr:
        """The turn of an instruction: its place is even or odd as the first of its level."""
        return at // 2 % TURNS

    def has(self, at: Expr) -> Expr:
        """Whether the words of an instruction are there, of its first tile: 0 or 1."""
        return T.cast(self.memory[self.turn(at)] == at, "int32")

    @property
    def turn_of_pushes(self) -> Expr:
        """See `cuda_push`."""
        return T.bitwise_and(T.shift_right(self.known, TURN_BIT), 7)

    def next_at(self) -> Expr:
        """Where the next instruction is noted."""
        if not self.carries:
            return NEXT
        turn = self.turn_of_pushes if self.pushes else self.level
        return NEXT + T.bitwise_and(turn, 1) * NEXT_WORDS

    @property
    def level(self) -> Expr:
        """A number of the level at hand: of the next one, one more."""
        return self.at // 2

    def next(self) -> tuple[Expr, list[Expr]]:
        """The opcode of the level's instruction behind the next barrier, below zero where that is not so, or
        not known; its row and rows, what is known of it, and behind a level that pushes how many rows are in
        its mailbox. After a block barrier behind `look`."""
        at = let("next_at", self.next_at())
        opcode = let("next", cuda.uniform(self.memory[at]))
        places = (1, 2, 3, PUSHED + 1) if self.pushes else (1, 2, 3)
        return opcode, [fixed("next_field", self.memory[at + i]) for i in places]


def clear(worker: Worker) -> None:
    """At the beginning, by one thread: nothing is known, nothing was pushed."""
    if ahead_words(worker.plan):
        for at in range(SIGNAL):
            put(worker.ahead.memory, at, NOTHING if at < NEXT else 0)
        if worker.plan.pushes:
            sync.open_signals(T.address_of(worker.ahead.memory[SIGNAL]), SIGNALS)


def pushing(worker: Worker, segment: Segment, box: Mailbox, row: Expr, rows: Expr) -> Push:
    """What a level pushes, and what was pushed to it."""
    ahead = worker.ahead
    turn = ahead.turn_of_pushes
    signals = partial(_signal, ahead.memory)
    follows = T.bitwise_and(ahead.known, FOLLOWED) != 0
    return Push(worker, segment, box, turn, row, rows, follows, partial(_pushed_to, ahead, turn), signals)


def _signal(memory: Any, number: Expr) -> Expr:
    """Address of a signal."""
    return T.address_of(memory[SIGNAL + 2 * number])


def _pushed_to(ahead: Ahead, turn: Expr) -> tuple[Expr, Expr]:
    """The first row, and the rows, that were pushed to the level of a turn: noted in the turn before."""
    at = NEXT + T.bitwise_and(turn + 1, 1) * NEXT_WORDS + PUSHED
    return ahead.memory[at], ahead.memory[at + 1]


def _note_pushed(worker: Worker, push: Push, same: Expr, rows: Expr) -> None:
    """What is pushed to the next level: same, whether that is one of the same segment, with so many rows."""
    put(worker.ahead.memory, TURN, push.next_turn)
    sync.expect(push.signal, push.bytes())
    first, joined = push.joined(rows)
    at = worker.ahead.next_at() + PUSHED
    put(worker.ahead.memory, at, first)
    put(worker.ahead.memory, at + 1, T.Select(same, joined, 0))


@attrs.frozen(eq=False)
class _Behind:
    """What stands behind the instruction at hand, at word `entry` of the window: opcodes of the next two
    levels, below zero where there is none or it is not known."""

    window: Any
    entry: Expr
    first: Expr
    second: Expr

    def fields(self, worker: Worker, level: int) -> list[Expr]:
        """Row and rows of the next or the second level."""
        names, place = isa.SEGMENT_FIELDS, self.entry + 2 * level * isa.INSTRUCTION_WORDS
        return [worker.field(name, place, self.window, names) for name in names]


def _behind(worker: Worker, window: Any, level: Mapping[int, Segment]) -> _Behind:
    assert worker.plan.tiling is not None
    size = isa.INSTRUCTION_WORDS
    entry = fixed("entry_here", worker.ahead.at % (worker.plan.tiling.window // size) * size)
    first, second = (_opcode_behind(worker.plan, window, entry, count, level) for count in (1, 2))
    return _Behind(window, entry, first, second)


def _opcode_behind(plan: Plan, window: Any, entry: Expr, count: int, level: Mapping[int, Segment]) -> Expr:
    """The opcode of the level's instruction behind the `count`-th barrier after a word of the window; below
    zero if nothing of the kind stands there, or that is not known."""
    assert plan.tiling is not None
    size, limit, barrier = isa.INSTRUCTION_WORDS, plan.tiling.window, plan.opcode(isa.REPLICA_BARRIER).number
    at = entry + (2 * count - 1) * size
    inside = let("inside", T.Select(at + 2 * size <= limit, at, entry))
    found = let("opcode_behind", window[inside + size])
    good = both(window[inside] == barrier, reduce(any_of, [found == number for number in level]))
    return let("behind", T.Select(good, found, NOTHING))


def known_of(plan: Plan, ahead: Ahead, window: Any, entry: Expr, level: Mapping[int, Segment]) -> Expr:
    """What is known of an instruction that was fetched, at word `entry` of the window."""
    at = ahead.place[0]
    if not ahead.carries:
        return ahead.has(at)
    if not ahead.pushes:
        return ahead.has(at) + T.shift_left(at, AT_BIT)
    same = _opcode_behind(plan, window, entry, 1, level) == window[entry]
    turn = T.shift_left(ahead.memory[TURN], TURN_BIT)
    return ahead.has(at) + T.Select(same, FOLLOWED, 0) + turn + T.shift_left(at, AT_BIT)


def look_ahead(worker: Worker, window: Any, level: Mapping[int, Segment]) -> None:
    """The look; the instruction at hand is one of `level`. In a plan that pushes, where levels take less
    time, one warp notes the next one, while another copies words of lists."""
    copies = _copying(worker.plan)
    with when(worker.warp == LOOKING):
        looking = _here(worker)
        behind = _behind(looking, window, level)
        _note(looking, behind)
        if copies == LOOKING:
            _copy_ahead(looking, behind, level)
    if copies != LOOKING:
        with when(worker.warp == copies):
            copying = _here(worker)
            _copy_ahead(copying, _behind(copying, window, level), level)


def _copying(plan: Plan) -> int:
    """The warp that copies, one for all segments: only it can wait for what it has begun, and what a level
    has begun the next one reads, which may be of another segment."""
    return COPYING if plan.pushes else LOOKING


def _here(worker: Worker) -> Worker:
    """The same worker; what follows from the fields of a level that pushes or polls is worked out in this
    place."""
    push = worker.push
    if not worker.ahead.carries:
        return worker
    known = fixed("known_here", cuda.NUMBER_HERE(worker.ahead.known))
    here = attrs.evolve(worker, ahead=attrs.evolve(worker.ahead, known=known))
    if push is None:
        return here
    row, rows = (fixed("field_here", cuda.NUMBER_HERE(field)) for field in (push.row, push.rows))
    return attrs.evolve(here, push=pushing(here, push.segment, push.box, row, rows))


def _note(worker: Worker, behind: _Behind) -> None:
    """Notes what the next level is."""
    ahead, push, first = worker.ahead, worker.push, behind.first
    row, rows = behind.fields(worker, 1)
    with when(worker.lane == 0):
        known = ahead.has(ahead.at + 2)
        if ahead.carries:
            known = known + T.shift_left(ahead.at + 2, AT_BIT)
        if push is not None:
            known = known + T.Select(both(first >= 0, behind.second == first), FOLLOWED, 0)
            known = known + T.shift_left(push.next_turn, TURN_BIT)
        for place, value in enumerate((first, row, rows, known)):
            put(ahead.memory, ahead.next_at() + place, value)
        if push is not None:
            _note_pushed(worker, push, first == behind.window[behind.entry], rows)


def _copy_ahead(worker: Worker, behind: _Behind, level: Mapping[int, Segment]) -> None:
    """Starts copying the words of the second level's lists."""
    plan, ahead = worker.plan, worker.ahead
    cuda.copy_wait(0)  # of the last look: seen by all after a block barrier
    at = let("at_second", ahead.at + 4)

    def copy(number: int) -> None:
        row, rows = behind.fields(worker, 2)
        _copy(worker, level[number], WORDS + ahead.turn(at) * turn_words(plan), row, rows)
        with when(worker.lane == 0):
            put(ahead.memory, ahead.turn(at), at)

    with when(both(behind.first >= 0, behind.second >= 0)):
        dispatch(behind.second, {number: partial(copy, number) for number in level})
    cuda.copy_commit()


def _copy(worker: Worker, segment: Segment, to: Expr, row: Expr, rows: Expr) -> None:
    """Starts copying the words of rows from `row` on, `near_rows` at most."""
    most = near_rows(worker.plan)

    def part(first: Expr) -> None:
        own = first + worker.lane
        with when(own < rows):
            for number, name in enumerate(near_lists(worker.plan, segment)):
                target = worker.ahead.memory[to + number * most + own]
                source = worker.words[worker.access.list_at(name) + row + own]
                cuda.copy1_async(T.address_of(target), T.address_of(source))

    part(0)
    if most > LANES:
        with when(rows > LANES), T.serial(1, most // LANES) as number:
            part(number * LANES)


def lists_at_hand(worker: Worker, segment: Segment, begin: Expr, row: Expr, rows: Expr) -> Worker:
    """The worker for a tile whose words are near: that of an instruction's rows which is `begin` behind the
    first one, `row`. Those of the first rows may be there already; no tile lies across the end of these."""
    names, most = near_lists(worker.plan, segment), near_rows(worker.plan)
    if not names:
        return worker
    ahead = worker.ahead

    def first() -> Expr:
        return WORDS + ahead.turn(ahead.at) * turn_words(worker.plan)

    unknown = (T.bitwise_and(ahead.known, KNOWN) if ahead.carries else ahead.known) == 0
    with when(both(T.bitwise_and(begin, most - 1) == 0, any_of(begin > 0, unknown))):
        with when(worker.warp == _copying(worker.plan)):
            _copy(worker, segment, let("copy_to", first()), row + begin, rows - begin)
        cuda.copy_commit()
        cuda.copy_wait(0)
        worker.synchronize()
    places = {name: number * most for number, name in enumerate(names)}
    near = NearLists(ahead.memory, first, places, row + T.bitwise_and(begin, -most))
    return attrs.evolve(worker, access=attrs.evolve(worker.access, near=near))
