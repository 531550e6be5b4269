"""Transposed products with weights in shared memory or L2 on CUDA: partial sums over the worker's rows.

In: a tile whose deltas are staged. Out: statements that store the partial sums, for the workers of a
replica to add up. For few vertices every thread has four neighbouring columns, over all rows; of the columns
that are too few for all threads, several warps have some rows each, whose sums are added up through staging
in a fixed order. For many vertices a thread has a column.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_staging import UnitTile
from dnc.codegen.bodies.cuda_stores import store_columns
from dnc.codegen.bodies.cuda_weights import weight_place
from dnc.codegen.bodies.cuda_worker import slice_rows
from dnc.codegen.emit import (
    Expr,
    both,
    by_size,
    either,
    fixed,
    lane4,
    let,
    local,
    loop,
    put,
    quad_at,
    room,
    stride_loop,
    when,
)
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import STREAMED, Placement, TransposedProduct, padded

COLUMN_VERTICES = 16  # vertices whose sums a thread holds that has a column to itself
ROWS_TOGETHER = 2  # rows whose weights such a thread loads together
QUAD_ROWS = 4  # the same for a thread with four columns
LOADS_AHEAD = 16  # of weights, which a thread with four columns starts together where registers hold none
QUAD_STEPS = (1, 2, 4)  # vertices that such a thread sums together
FEW = QUAD_STEPS[-1]  # vertices up to which threads have four columns


@attrs.frozen
class _Spread:
    """How the quads of a row are spread over the threads.

    whole: quads of a thread, over all rows. rest: those behind, for which warps are divided into `parts` of
    `warps`; every part has some of the rows, and a lane a quad.
    """

    whole: int
    rest: int

    @property
    def warps(self) -> int:
        """Warps of a part."""
        return -(-self.rest // LANES)

    @property
    def parts(self) -> int:
        """Parts of the rows."""
        return WARPS // self.warps if self.rest else 1

    @property
    def scratch(self) -> int:
        """Words that the sums of all parts take, for a vertex."""
        return 4 * self.rest * self.parts if self.parts > 1 else 0


def _spread(columns: int) -> _Spread:
    return _Spread(*divmod(padded(columns) // 4, THREADS))


def scratch_words(columns: int, tile: int, buffers: int) -> int:
    """Staging that `transposed` needs for the sums of the parts."""
    return buffers * min(tile, FEW) * _spread(columns).scratch


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
        return slice_rows(self.placement, self.tile.worker.workers)

    def delta_at(self, row: Expr, vertex: Expr) -> Expr:
        """The staged delta of a row of the worker and a vertex of the tile."""
        staging = self.tile.staging
        return staging.deltas[self.product.delta].place(row, vertex)

    def deltas(self, row: Expr, first: Expr, count: int) -> list[Expr]:
        """Those of neighbouring vertices."""
        staging, at = self.tile.worker.staging, self.delta_at(row, first)
        if count % 4 or self.tile.staging.tile % 4:
            return [let("delta", staging[at + v]) for v in range(count)]
        quads = [let("delta", staging[quad_at(at + quad)]) for quad in range(0, count, 4)]
        return [lane4(quad, i) for quad in quads for i in range(4)]


def transposed(tile: UnitTile, product: TransposedProduct) -> None:
    """Partial sums over the worker's rows for all vertices of a tile.

    `scratch_words` of staging from 0 on are for the sums of parts of the rows. Ends with a barrier.
    """
    sums = _Sums(tile, product, tile.placement(product), tile.weights_at(product))
    size = tile.staging.tile
    steps = sorted({min(size, step) for step in QUAD_STEPS})

    def few() -> None:
        by_size(tile.count, [(step, partial(_by_quads, sums, step)) for step in steps])

    if size % 4 == 0 and size > FEW:
        either(tile.count <= FEW, few, lambda: _by_columns(sums))
    else:
        few()


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
            for v, delta in enumerate(sums.deltas(row, first, step)):
                put(totals, v, cuda.fma(weight, delta, totals[v]))
        for v in range(step):
            with when(first + v < tile.count):
                store_columns(worker, sums.product, tile.first + first + v, column, totals[v], lambda at: at)
    worker.synchronize()


def _by_quads(sums: _Sums, step: int) -> None:
    """Four columns a thread, for `step` vertices at a time.

    With two buffers a warp goes on to the next vertices while others still add up the last ones.
    """
    tile, worker, buffers = sums.tile, sums.tile.worker, sums.tile.staging.buffers
    spread = _spread(sums.placement.columns)
    size = step * spread.scratch
    with stride_loop("first", 0, tile.count, step) as first:
        scratch = fixed("scratch", first // step % buffers * size)
        if spread.rest:
            _sum_rest(sums, spread, step, first, scratch)
        if spread.whole:
            with stride_loop("quad", worker.thread, spread.whole * THREADS, THREADS) as quad:
                _store(sums, first, step, quad, _sum_rows(sums, quad, 0, sums.rows, step, first))
        if size:
            worker.synchronize()
            _add_parts(sums, spread, step, first, scratch)
            if buffers == 1:
                worker.synchronize()
    if not size or buffers > 1:
        worker.synchronize()


def _sum_rows(sums: _Sums, quad: Expr, begin: Expr, count: int, step: int, first: Expr) -> Any:
    """Sums of `count` rows from `begin` on in a quad of columns, for `step` vertices."""
    worker = sums.tile.worker
    weights, place = weight_place(worker, sums.placement, sums.weights_at)
    totals = local("sums", "float32", T.float32(0.0), 4 * step)
    ahead = sums.placement.residency == STREAMED and not worker.crowded
    is_part = not isinstance(begin, int)  # the last one may have fewer rows
    with loop("row", count, unroll=LOADS_AHEAD if ahead else QUAD_ROWS) as own:
        row = begin + own
        near = T.min(row, sums.rows - 1) if is_part else row
        deltas = sums.deltas(near, first, step)
        if is_part:
            deltas = [T.Select(row < sums.rows, delta, T.float32(0.0)) for delta in deltas]
        weight = let("weight", weights[quad_at(place(near, 4 * quad))])
        for v, delta in enumerate(deltas):
            for i in range(4):
                put(totals, 4 * v + i, cuda.fma(lane4(weight, i), delta, totals[4 * v + i]))
    return totals


def _store(sums: _Sums, first: Expr, step: int, quad: Expr, totals: Any) -> None:
    """Stores four columns of `step` vertices, of those that there are."""
    for v in range(step):
        with when(first + v < sums.tile.count):
            row, values = sums.tile.first + (first + v), totals[quad_at(4 * v)]
            store_columns(sums.tile.worker, sums.product, row, 4 * quad, values)


def _sum_rest(sums: _Sums, spread: _Spread, step: int, first: Expr, scratch: Expr) -> None:
    """The quads that are too few for all threads: stored, or a part's sums of them left in scratch."""
    worker, before = sums.tile.worker, spread.whole * THREADS
    if spread.parts == 1:
        with when(worker.thread < spread.rest):
            quad = before + worker.thread
            _store(sums, first, step, quad, _sum_rows(sums, quad, 0, sums.rows, step, first))
        return
    part = fixed("part", worker.warp // spread.warps)
    own = fixed("own", worker.thread - part * (spread.warps * LANES))
    rows = -(-sums.rows // spread.parts)
    with when(both(part < spread.parts, own < spread.rest)):
        totals = _sum_rows(sums, before + own, part * rows, rows, step, first)
        for v in range(step):
            at = scratch + ((part * step + v) * spread.rest + own) * 4
            T.buffer_store(worker.staging, totals[quad_at(4 * v)], [quad_at(at)])


def _add_parts(sums: _Sums, spread: _Spread, step: int, first: Expr, scratch: Expr) -> None:
    """Adds up what the parts left in scratch, in their order, and stores it."""
    worker = sums.tile.worker
    with stride_loop("item", worker.thread, step * spread.rest, THREADS) as item:
        vertex = fixed("vertex", item // spread.rest)
        total = room("total", 4)
        for part in range(spread.parts):
            at = scratch + (part * (step * spread.rest) + item) * 4
            found = let("found", worker.staging[quad_at(at)])
            for i in range(4):
                put(total, i, lane4(found, i) if part == 0 else total[i] + lane4(found, i))
        quad = spread.whole * THREADS + item - vertex * spread.rest
        _store(sums, first + vertex, 1, quad, total)
