"""Cells of wide segments on CUDA: what stands behind tiled products, or in front of transposed ones.

In: a tile whose sums are staged. Out: statements that run the cell of every vertex and four neighbouring
units, store what the segment stores, and stage the deltas. Outside the recursion a thread has several of
these cells at a time: all of their loads are under way before the first is used, as nothing else hides
how long they take. The bits are the same.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

from dnc.codegen.bodies.cuda_cells import inside_or_zeros, quad_cells, stage_deltas, staged_sum
from dnc.codegen.bodies.cuda_staging import UnitTile
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.cells import tensor
from dnc.codegen.emit import Expr, fixed, smaller, stride_loop, when
from dnc.codegen.quads import QUAD, UnitQuad
from dnc.ir.cell import Value
from dnc.ir.machine import THREADS
from dnc.ir.plan import IndexAddress, SeedAddress, Segment
from dnc.ir.program import LEVEL

MOST_TOGETHER = 8  # cells of four units
MOST_LOADED = 32  # registers of what they load


def wide_cells(tile: UnitTile) -> None:
    """All cells of a tile."""
    together = cells_together(tile.worker, tile.segment)
    if together > 1:
        _several(tile, together)
    else:
        quad_cells(tile)


def cells_together(worker: Worker, segment: Segment) -> int:
    """Cells of four units that a thread has at a time: one in the recursion, where registers are scarce,
    where nothing is loaded, and where a load is more than one access."""
    if worker.plan.program.stage(segment.stage).placement == LEVEL:
        return 1
    loaded = 0
    for load in segment.loads:
        address = load.address
        if worker.access.is_plain(address):
            loaded += max(1, tensor(load.value).size // segment.units) * QUAD
        elif not isinstance(address, IndexAddress | SeedAddress):
            return 1
    return min(MOST_TOGETHER, max(1, MOST_LOADED // loaded)) if loaded else 1


def _several(tile: UnitTile, together: int) -> None:
    worker, quads = tile.worker, tile.units // QUAD
    total = fixed("cells", tile.count * quads)
    last = tile.segment.units - QUAD

    def product(own: Expr, vertex: Expr, result: Value, gate: int, i: int) -> Expr:
        return staged_sum(tile, result, gate, own + i, vertex)

    with stride_loop("cell", worker.thread, total, THREADS * together) as item:
        made = []
        for part in range(together):
            index = item + part * THREADS
            near = fixed("item", smaller(index, total - 1) if part else index)
            vertex = fixed("vertex", near // quads)
            own = fixed("own", (near - vertex * quads) * QUAD)
            unit = fixed("unit", tile.first_unit + own)
            inside = unit if tile.units_end is None else fixed("near_unit", smaller(unit, last))
            row = fixed("row", tile.first + vertex)
            access, sums = worker.access, partial(product, own, vertex)
            cell = UnitQuad(access, worker.math, tile.segment, row, inside, sums)
            cell.load()
            made.append((index, vertex, own, unit, cell))
        for part, (index, vertex, own, unit, cell) in enumerate(made):

            def body(vertex: Expr = vertex, own: Expr = own, cell: UnitQuad = cell) -> None:
                cell.compute()
                cell.store()
                stage_deltas(tile, cell.cells, own, vertex)

            with when(index < total) if part else nullcontext():
                inside_or_zeros(tile, unit, body, own, QUAD, vertex)
