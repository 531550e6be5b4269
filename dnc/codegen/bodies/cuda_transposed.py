"""Transposed products with weights in shared memory or L2 on CUDA: partial sums over the worker's rows.

In: a tile whose deltas are staged. Out: statements that store the partial sums, for the workers of a
replica to add up. Rows are spread over the warps, whose sums are added up through staging in a fixed
order; or every thread has a column, over all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_staging import UnitTile
from dnc.codegen.bodies.cuda_stores import store_columns
from dnc.codegen.bodies.cuda_weights import ChunkReader, chunk_reader, weight_place
from dnc.codegen.bodies.cuda_worker import CHUNK, chunks, rows_per_warp
from dnc.codegen.emit import (
    Expr,
    either,
    fixed,
    lane4,
    let,
    local,
    loop,
    named,
    put,
    quad_at,
    stride_loop,
    when,
)
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import STREAMED, Placement, TransposedProduct, unit_share

COLUMN_GROUP = 4  # chunks that are summed over the warps at a time, for several vertices
MOST_SUMS = 32  # that a thread holds
COLUMN_VERTICES = 16  # vertices whose sums a thread holds that has a column to itself
ROWS_TOGETHER = 2  # rows whose weights such a thread loads together
LOADS_AHEAD = 16  # of weights of several rows, which a thread starts together where registers hold none
FEW = 4  # vertices for which it is not worth giving every thread a column


def vertices_together(columns: int, tile: int) -> int:
    """Vertices that are summed together."""
    return min(tile, max(1, MOST_SUMS // (4 * min(COLUMN_GROUP, chunks(columns)))))


def _chunks_together(columns: int, vertices: int) -> int:
    """Chunks that are summed over the warps at a time: of one vertex all that a thread has sums for, in
    groups of about the same size."""
    most = MOST_SUMS // 4 if vertices == 1 else COLUMN_GROUP
    every = chunks(columns)
    return -(-every // -(-every // most))


def scratch_words(columns: int, tile: int, buffers: int) -> int:
    """Staging that `transposed` needs for the sums of the warps."""
    sizes = {1, vertices_together(columns, tile)}
    return buffers * WARPS * CHUNK * max(size * _chunks_together(columns, size) for size in sizes)


@attrs.frozen(eq=False)
class _Sums:
    """The partial sums that are made of a tile: `product` with the weights of `placement`."""

    tile: UnitTile
    product: TransposedProduct
    placement: Placement
    weights_at: Expr

    @property
    def rows(self) -> int:
        """Rows of the worker."""
        return self.placement.gates * unit_share(self.placement.units, self.tile.worker.workers)

    def delta_at(self, row: Expr, vertex: Expr) -> Expr:
        """The staged delta of a row of the worker and a vertex of the tile."""
        staging = self.tile.staging
        return staging.deltas[self.product.delta].place(row, vertex)


def transposed(tile: UnitTile, product: TransposedProduct) -> None:
    """Partial sums over the worker's rows for all vertices of a tile, a few at a time.

    `scratch_words` of staging from 0 on are for the sums of the warps. Barriers inside; ends with one.
    """
    placement = tile.placement(product)
    sums = _Sums(tile, product, placement, tile.weights_at(product))

    def by_rows(step: int) -> Callable[[], None]:
        return lambda: _by_rows(sums, step)

    step = vertices_together(placement.columns, tile.staging.tile)
    if tile.staging.tile % 4 == 0 and tile.staging.tile > FEW:
        either(tile.count <= FEW, by_rows(step), lambda: _by_columns(sums))
    elif step > 1:
        either(tile.count == 1, by_rows(1), by_rows(step))
    else:
        by_rows(1)()


def _by_columns(sums: _Sums) -> None:
    """A column a thread, over all rows of the worker: nothing to add up between warps."""
    tile, worker = sums.tile, sums.tile.worker
    weights, place = weight_place(worker, sums.placement, sums.weights_at)
    step = min(tile.staging.tile, COLUMN_VERTICES)
    blocks = stride_loop("column", worker.thread, sums.placement.columns, THREADS)
    with stride_loop("first", 0, tile.count, step) as first, blocks as column:
        totals = local("sums", "float32", T.float32(0.0), step)
        with loop("row", sums.rows, unroll=ROWS_TOGETHER) as row:
            weight = let("weight", weights[place(row, column)])
            for quad in range(0, step, 4):
                delta = let("delta", worker.staging[quad_at(sums.delta_at(row, first) + quad)])
                for i in range(4):
                    put(totals, quad + i, cuda.fma(weight, lane4(delta, i), totals[quad + i]))
        for v in range(step):
            with when(first + v < tile.count):
                store_columns(worker, sums.product, tile.first + first + v, column, totals[v], lambda at: at)
    worker.synchronize()


def _by_rows(sums: _Sums, step: int) -> None:
    """Rows spread over the warps, whose sums are added up through staging.

    With two buffers a warp goes on to the next sums while others still add up the last ones.
    """
    tile, worker, buffers = sums.tile, sums.tile.worker, sums.tile.staging.buffers
    weights = chunk_reader(worker, sums.placement, sums.weights_at)
    all_chunks = chunks(sums.placement.columns)
    together = _chunks_together(sums.placement.columns, step)
    groups = -(-all_chunks // together)
    size = WARPS * step * together * CHUNK
    with stride_loop("first", 0, tile.count, step) as first:
        for number, begin in enumerate(range(0, all_chunks, together)):
            group = range(begin, min(begin + together, all_chunks))
            scratch = fixed("scratch", (first // step * groups + number) % buffers * size)
            _sum_of_warp(sums, weights, group, step, first, scratch)
            worker.synchronize()
            _add_warps(sums, group, step, first, scratch)
            if buffers == 1:
                worker.synchronize()
    if buffers > 1:
        worker.synchronize()


def _sum_of_warp(
    sums: _Sums, weights: ChunkReader, group: range, step: int, first: Expr, scratch: Expr
) -> None:
    """The warp's sums over its rows of a group of chunks, for `step` vertices, into scratch."""
    worker, width = sums.tile.worker, len(group)
    rows = rows_per_warp(sums.placement, worker.workers)
    totals = local("sums", "float32", T.float32(0.0), step * width * 4)

    def add_row(row: Any) -> None:
        index = worker.warp * rows + row
        near = T.min(index, sums.rows - 1)
        delta = []
        for v in range(step):
            found = worker.staging[sums.delta_at(near, first) + v]
            delta.append(let("delta", T.Select(index < sums.rows, found, T.float32(0.0))))
        for chunk in range(width):
            weight = weights(row, group.start + chunk)
            for v in range(step):
                for i in range(4):
                    at = (v * width + chunk) * 4 + i
                    put(totals, at, cuda.fma(weight[i], delta[v], totals[at]))

    ahead = sums.placement.residency == STREAMED and not worker.crowded
    with loop("row", rows, unroll=LOADS_AHEAD // width if ahead else False) as row:
        add_row(row)
    for v in range(step):
        for chunk in range(width):
            at = scratch + (worker.warp * step + v) * width * CHUNK + chunk * CHUNK + worker.lane * 4
            value = totals[quad_at((v * width + chunk) * 4)]
            T.buffer_store(worker.staging, value, [quad_at(at)])


def _add_warps(sums: _Sums, group: range, step: int, first: Expr, scratch: Expr) -> None:
    """Adds up what the warps left in scratch, in their order, and stores it."""
    tile, worker, quads = sums.tile, sums.tile.worker, len(group) * LANES
    with stride_loop("item", worker.thread, step * quads, THREADS) as item:
        vertex = fixed("vertex", item // quads)
        column = fixed("column", (item - vertex * quads) * 4)
        total = named("total", T.alloc_local((4,), "float32"))
        for warp in range(WARPS):
            at = scratch + (warp * step + vertex) * (quads * 4) + column
            found = let("found", worker.staging[quad_at(at)])
            for i in range(4):
                put(total, i, lane4(found, i) if warp == 0 else total[i] + lane4(found, i))
        with when(first + vertex < tile.count):
            row = tile.first + first + vertex
            store_columns(worker, sums.product, row, group.start * CHUNK + column, total[quad_at(0)])
