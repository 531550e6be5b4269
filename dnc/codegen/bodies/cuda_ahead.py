"""Words of lists on CUDA, copied ahead of the instruction of a level that needs them.

In: a segment of the recursion, rows of its space. Out: statements that copy, for every row of a tile, the
words of its lists into shared memory. An exchange empties L1, so a word would be a read of L2 in front of
what it leads to; but the host wrote the lists before the launch, so they can be copied a level before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.access import NearLists
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, both, when
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

ROWS = LANES  # of a tile: a lane copies a row's word, a warp has a list


def near_lists(plan: Plan, segment: Segment) -> tuple[str, ...]:
    """The lists with a word a row whose words are copied ahead: those of operands first."""
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


@attrs.frozen(eq=False)
class Ahead:
    """Where words of lists lie in shared memory, those of two instructions in turn.

    half: 0 or 1, of the instruction at hand; ready: not zero where its first tile's words are there.
    """

    words: Any
    half: Expr = 0
    ready: Expr = 0


def ahead_words(plan: Plan) -> int:
    """Words of shared memory for the words of any segment."""
    return max((len(near_lists(plan, segment)) for segment in plan.segments), default=0) * ROWS


def copy_ahead(worker: Worker, segment: Segment, half: Expr, row: Expr, rows: Expr) -> None:
    """Starts copying the words of the lists of rows row .. row + rows, of the first `ROWS` of them."""
    names = near_lists(worker.plan, segment)
    with when(both(worker.warp < len(names), worker.lane < rows)):
        at = worker.access.list_of([(warp, name) for warp, name in enumerate(names)], worker.warp)
        to = half * ahead_words(worker.plan) + worker.thread
        source = worker.words[at + row + worker.lane]
        cuda.copy1_async(T.address_of(worker.ahead.words[to]), T.address_of(source))
    cuda.copy_commit()


def with_near(worker: Worker, segment: Segment, first: Expr) -> Worker:
    """The worker for a tile whose words are kept; first: its first row."""
    names = near_lists(worker.plan, segment)
    if not names:
        return worker
    begin = worker.ahead.half * ahead_words(worker.plan)
    near = NearLists(worker.ahead.words, begin, {name: i * ROWS for i, name in enumerate(names)}, first)
    return attrs.evolve(worker, access=attrs.evolve(worker.access, near=near))


def copy_now(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """Copies the words of the instruction at hand; a block barrier."""
    copy_ahead(worker, segment, worker.ahead.half, row, rows)
    cuda.copy_wait(0)
    worker.synchronize()
