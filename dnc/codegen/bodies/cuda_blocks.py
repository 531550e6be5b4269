"""Cells alone on CUDA, a block of units of a vertex at a time, where they read many runs of partial sums.

In: a segment without products, and the fields of its instruction. Out: the body of the instruction. Without
a product no unit is a certain worker's: a warp takes 128 neighbouring units, so what it reads of a run lies
side by side, and all workers share the blocks. The fewer there are, the more warps add up the runs of one,
each some parts of them. Guaranteed: the runs of a slot are added up in the order of `Access.add_in_parts`.
Needs an exchange in front of the segment and one behind it, which stand between any two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_runs import slots_of_runs
from dnc.codegen.bodies.cuda_wide_cells import no_product
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (
    Expr,
    both,
    either,
    fixed,
    floats,
    let,
    local,
    put,
    quad_at,
    stride_loop,
    when,
    wide,
)
from dnc.codegen.quads import QUAD, UnitQuad, fits_quads
from dnc.codegen.slots import MOST_RUNS, each_slot, part_size, parts_of
from dnc.ir.machine import LANES, WARPS
from dnc.ir.plan import Segment, SlotsAddress

BLOCK = LANES * QUAD  # units


def takes_blocks(worker: Worker, segment: Segment) -> bool:
    """Whether a segment's cells run this way."""
    return (
        worker.workers > MOST_RUNS
        and not (segment.products or segment.transposed)
        and fits_quads(segment, QUAD)
        and bool(slots_of_runs(worker, segment))
    )


def cells_by_blocks(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The body of the segment's instruction. A round is as many blocks as there are, up to one a warp."""
    blocks = -(-segment.units // BLOCK)
    items = let("items", rows * blocks)
    each = fixed("each", (items + worker.workers - 1) // worker.workers)
    halved: Expr = T.int32(0)
    for number in range(WARPS.bit_length() - 1):
        halved = halved + T.Select(each > 1 << number, 1, 0)
    halved = fixed("halved", halved)
    together = fixed("together", T.shift_left(T.int32(1), halved))
    helpers = fixed("helpers", T.shift_right(T.int32(WARPS), halved))
    slot = fixed("slot", T.shift_right(worker.warp, WARPS.bit_length() - 1 - halved))
    helper = fixed("helper", T.bitwise_and(worker.warp, helpers - 1))
    with stride_loop("first_block", 0, each, together) as first:
        item = fixed("item", (first + slot) * worker.workers + worker.rank)
        vertex = fixed("vertex", item // blocks)
        unit = fixed("unit", (item - vertex * blocks) * BLOCK + worker.lane * QUAD)
        there = let("there", both(item < items, unit < segment.units))
        runs = _Runs(worker, segment, slot)
        with when(there):
            runs.add_up(row + vertex, unit, helper, helpers)
        worker.synchronize()
        with when(both(there, helper == 0)):
            access = attrs.evolve(worker.access, gathered=runs.gathered)
            cell = UnitQuad(access, worker.math, segment, row + vertex, unit, no_product)
            cell.run()
            cell.store()
        with when(first + together < each):
            worker.synchronize()


class _Runs:
    """The sums of all parts of the runs of a block, in staging: [slot of the round][address][part][unit]."""

    def __init__(self, worker: Worker, segment: Segment, slot: Expr) -> None:
        self.worker = worker
        self.addresses = slots_of_runs(worker, segment)
        self.parts = parts_of(worker.workers)
        words = self.parts * BLOCK
        worker.stage(WARPS * len(self.addresses) * words)
        self.first = fixed("sums_at", slot * (len(self.addresses) * words) + worker.lane * QUAD)

    def _place(self, address: SlotsAddress, part: Expr) -> Expr:
        return quad_at(self.first + (self.addresses.index(address) * self.parts + part) * BLOCK)

    def add_up(self, row: Expr, unit: Expr, helper: Expr, helpers: Expr) -> None:
        """Of all slots of a row's list: every `helpers`-th part from the `helper`-th on."""
        access = self.worker.access
        for address in self.addresses:
            assert address.partial is not None
            head = let("head", access.row_word(address.partial, row))
            with stride_loop("part", helper, self.parts, helpers) as part:
                total = local("some", *_zeros())
                each_slot(access.words, head, partial(self._add_slot, total, address, unit, part))
                T.buffer_store(self.worker.staging, total[0], [self._place(address, part)])

    def _add_slot(self, total: object, address: SlotsAddress, unit: Expr, part: Expr, place: Expr) -> None:
        """Adds the runs of a part; all are loaded before the first one is added."""
        pool, runs, width = self.worker.pool, self.worker.workers, address.width
        at = fixed("runs_at", wide(place) * 4 + address.offset + unit, "int64")
        size = part_size(runs)
        first = fixed("part_at", at + wide(part) * (size * width), "int64")

        def add(count: int) -> Callable[[], None]:
            def body() -> None:
                found = [let("run", pool[quad_at(first + number * width)]) for number in range(count)]
                for value in found:
                    put(total, 0, total[0] + value)  # type: ignore[index]

            return body

        if runs % size:
            either(part < self.parts - 1, add(size), add(runs % size))
        else:
            add(size)()

    def gathered(self, address: SlotsAddress) -> Expr:
        """The sum of the parts that lie in staging."""
        total = local("gathered", *_zeros())
        for part in range(self.parts):
            put(total, 0, total[0] + self.worker.staging[self._place(address, part)])
        return total[0]


def _zeros() -> tuple[str, Expr]:
    """The type and start of four sums."""
    return floats(0.0, quad_at(0))
