"""Words of lists on CUDA, read ahead of the instruction of a level that needs them.

In: a segment of the recursion, rows of its space. Out: statements that read, for every row of a tile, the
words of its lists, and keep them in shared memory. An exchange empties L1, so a word would be a read of
L2 in front of what it leads to; but the host wrote the lists before the launch, so the kernel reads them
while it waits for the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from dnc.codegen.access import NearLists
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, both, local, put, when
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

ROWS = LANES  # of a tile whose lists are read ahead: a lane reads a row's word, a warp has a list


def near_lists(plan: Plan, segment: Segment) -> tuple[str, ...]:
    """The lists with a word a row whose words are read ahead: those of operands first."""
    if segment.mapping != UNIT or plan.program.stage(segment.stage).placement != LEVEL:
        return ()
    return tuple(dict.fromkeys(_lists(segment)))[:WARPS]


def _lists(segment: Segment) -> Iterator[str]:
    pieces = [piece.address for product in segment.products for piece in product.pieces]
    for address in (*pieces, *(load.address for load in segment.loads)):
        if isinstance(address, GatherAddress | IndexAddress):
            yield address.list
        elif isinstance(address, SlotsAddress):
            yield from (name for name in (address.plain, address.partial) if name is not None)
        elif isinstance(address, ParameterAddress) and address.select is not None:
            yield address.select


def ahead_words(plan: Plan) -> int:
    """Words of shared memory for the words of any segment."""
    return max((len(near_lists(plan, segment)) for segment in plan.segments), default=0) * ROWS


def read_ahead(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> Expr:
    """This thread's word of the lists of rows row .. row + rows, of the first `ROWS` of them."""
    names = near_lists(worker.plan, segment)
    word = local("word", "int32", 0)
    with when(both(worker.warp < len(names), worker.lane < rows)):
        at = worker.access.list_of([(warp, name) for warp, name in enumerate(names)], worker.warp)
        put(word, 0, worker.words[at + row + worker.lane])
    return word[0]


def with_near(worker: Worker, segment: Segment, first: Expr) -> Worker:
    """The worker for a tile whose words are kept; first: its first row."""
    names = near_lists(worker.plan, segment)
    if not names:
        return worker
    near = NearLists(worker.ahead, {name: index * ROWS for index, name in enumerate(names)}, first)
    return attrs.evolve(worker, access=attrs.evolve(worker.access, near=near))


def keep_ahead(worker: Worker, word: Expr) -> None:
    """Keeps what `read_ahead` found; a block barrier."""
    with when(worker.thread < ahead_words(worker.plan)):
        put(worker.ahead, worker.thread, word)
    worker.synchronize()
