"""Readers of a worker's weight slice on CUDA: from shared memory or the L2 cache.

In: a placement and the position of the whole weight in the pool, which STREAMED slices are read from.
Out: functions that emit the read of some weights of a local row. Guaranteed: the same weights from
every residency; where a row does not exist, those of some other row or zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_worker import (
    CHUNK,
    Worker,
    rows_per_warp,
    slice_rows,
    source_row,
)
from dnc.codegen.emit import Expr, fixed, lane4, let, quad_at
from dnc.ir.plan import SHARED, Placement, padded, shared_stride

ChunkReader = Callable[[Any, Any], list[Expr]]  # (row of the warp, chunk) -> four weights


def chunk_reader(worker: Worker, placement: Placement, weights_at: Expr) -> ChunkReader:
    """Reads a lane's four weights of a row of the warp in a chunk."""
    rows, columns = rows_per_warp(placement, worker.workers), padded(placement.columns)

    def column_of(chunk: Expr) -> Expr:
        column = chunk * CHUNK + worker.lane * 4
        whole = placement.columns % CHUNK == 0
        return column if whole else T.Select(column < columns, column, 0)

    weights, place = weight_place(worker, placement, weights_at)
    last = slice_rows(placement, worker.workers) - 1

    def elsewhere(row: Any, chunk: Any) -> list[Expr]:
        index = worker.warp * rows + row
        near = T.min(index, last) if placement.residency == SHARED else index
        value = let("weight", weights[quad_at(place(near, column_of(chunk)))])
        return [lane4(value, i) for i in range(4)]

    return elsewhere


def weight_place(
    worker: Worker, placement: Placement, weights_at: Expr
) -> tuple[Any, Callable[[Expr, Expr], Expr]]:
    """The memory of a slice in shared memory or the L2 cache, and the index there of an element of a local
    row; of the pool's zeros where a streamed row does not exist."""
    if placement.residency == SHARED:
        stride = shared_stride(placement.columns)
        return worker.shared_weights, lambda row, column: placement.slot + row * stride + column
    base = let("weights", weights_at)

    def streamed(row: Expr, column: Expr) -> Expr:
        source, valid = source_row(worker, placement, row)
        at = T.Select(valid != 0, base + source * padded(placement.columns) + column, T.int64(0))
        return fixed("from", at, "int64")

    return worker.pool, streamed
