"""Cells of wide segments on CUDA: what stands behind tiled products, in front of transposed ones, or alone.

In: a tile whose sums are staged. Out: statements that run the cell of every vertex and four neighbouring
units, store what the segment stores, and stage the deltas. Outside the recursion a thread has several of
these cells at a time: all of their loads are under way before the first is used, as nothing else hides
how long they take. The bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from dnc.codegen.bodies.cuda_cells import inside_or_zeros, quad_cells, stage_deltas, staged_sum
from dnc.codegen.bodies.cuda_staging import UnitTile
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, fixed, smaller, stride_loop, when
from dnc.codegen.quads import QUAD, UnitQuad
from dnc.codegen.slots import MOST_RUNS
from dnc.ir.cell import Value
from dnc.ir.machine import THREADS
from dnc.ir.plan import Address, IndexAddress, SeedAddress, Segment, SlotsAddress
from dnc.ir.program import LEVEL

MOST_TOGETHER = 8  # cells of four units
MOST_LOADED = 64  # registers of what they load


def wide_cells(tile: UnitTile) -> None:
    """All cells of a tile."""
    together = cells_together(tile.worker, tile.segment)
    if together > 1:
        _several(tile, together)
    else:
        quad_cells(tile)


def cells_together(worker: Worker, segment: Segment) -> int:
    """Cells of four units that a thread has at a time: one in the recursion, where registers are scarce,
    where nothing is loaded, and where nobody knows how much a load is."""
    if worker.plan.program.stage(segment.stage).placement == LEVEL:
        return 1
    loaded = 0
    for load in segment.loads:
        accesses = _accesses(worker, load.address)
        if accesses is None:
            return 1
        loaded += accesses * max(1, load.value.tensor.size // segment.units) * QUAD
    return min(MOST_TOGETHER, max(1, MOST_LOADED // loaded)) if loaded else 1


def _accesses(worker: Worker, address: Address) -> int | None:
    """How many loads a load of one element is; None if that depends on the row."""
    if worker.access.is_plain(address):
        return 1
    if isinstance(address, IndexAddress | SeedAddress):
        return 0
    if isinstance(address, SlotsAddress):  # of a list with one slot, as most are
        partial = address.partial
        added = worker.access.added and worker.plan.is_reduced(partial)
        runs = 0 if partial is None else 1 if added else worker.workers
        return (address.plain is not None) + runs if runs <= MOST_RUNS else None
    return None


def _several(tile: UnitTile, together: int) -> None:
    worker, quads = tile.worker, tile.units // QUAD
    last = tile.segment.units - QUAD

    def product(own: Expr, vertex: Expr, result: Value, gate: int, i: int) -> Expr:
        return staged_sum(tile, result, gate, own + i, vertex)

    def make(item: Expr) -> tuple[UnitQuad, Around]:
        vertex = fixed("vertex", item // quads)
        own = fixed("own", (item - vertex * quads) * QUAD)
        unit = fixed("unit", tile.first_unit + own)
        inside = unit if tile.units_end is None else fixed("near_unit", smaller(unit, last))
        row = fixed("row", tile.first + vertex)
        sums = partial(product, own, vertex)
        cell = UnitQuad(worker.access, worker.math, tile.segment, row, inside, sums)

        def around(run: Callable[[], None]) -> None:
            def body() -> None:
                run()
                stage_deltas(tile, cell.cells, own, vertex)

            inside_or_zeros(tile, unit, body, own, QUAD, vertex)

        return cell, around

    _in_rounds(fixed("cells", tile.count * quads), worker.thread, THREADS, together, make)


def cells_alone(worker: Worker, segment: Segment, row: Expr, rows: Expr, together: int) -> None:
    """All cells of a segment without products, `together` of a thread at a time: no unit is anybody's own
    then, so neighbouring threads have neighbouring units, and what a warp reads and writes lies side by side.

    Needs an exchange in front of the segment and one behind it, which stand between any two steps.
    """
    quads = segment.units // QUAD

    def make(item: Expr) -> tuple[UnitQuad, Around]:
        vertex = fixed("vertex", item // quads)
        unit = fixed("unit", (item - vertex * quads) * QUAD)
        cell = UnitQuad(worker.access, worker.math, segment, fixed("row", row + vertex), unit, no_product)
        return cell, lambda run: run()

    first = fixed("first_cell", worker.rank * THREADS + worker.thread)
    _in_rounds(fixed("cells", rows * quads), first, worker.workers * THREADS, together, make)


def no_product(result: Value, gate: int, unit: int) -> Expr:
    """The product of a cell that has none."""
    raise AssertionError(f"{result}: a product in a segment that has none")


Around = Callable[[Callable[[], None]], None]


def _in_rounds(
    total: Expr, first: Expr, apart: Expr, together: int, make: Callable[[Expr], tuple[UnitQuad, Around]]
) -> None:
    """Cells `first`, `first` + `apart`, ... of `total`, some together; `make` has the cell of a number, and
    what to do around its run."""
    with stride_loop("cell", first, total, apart * together) as item:
        numbers = [item + part * apart for part in range(together)]
        near = [item, *(fixed("item", smaller(number, total - 1)) for number in numbers[1:])]
        made = [make(number) for number in near]
        starts = [cell.place() for cell, _ in made]
        finishes = [start() for start in starts]
        for part, (number, (cell, around), finish) in enumerate(zip(numbers, made, finishes, strict=True)):

            def run(cell: UnitQuad = cell, finish: Callable[[], None] = finish) -> None:
                finish()
                cell.compute()
                cell.store()

            with when(number < total) if part else nullcontext():
                around(run)
