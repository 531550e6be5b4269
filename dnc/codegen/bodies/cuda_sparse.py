"""Products with sparse weights in shared memory on CUDA: of every row what is not zero, with its columns.

In: a tile whose operands are staged. Out: statements that leave the sums in staging. A lane has two
neighbouring elements of every PAIRS, and gathers what they are multiplied with from the operands (Zhu et al.,
Sparse Persistent RNNs, 2018: pairs of index and value). All rows have as many elements, so warps have as much
work; in which order a row has them, `ir.sparse.pack` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_operands import operand_stride
from dnc.codegen.bodies.cuda_products import WIDE, sum_rows
from dnc.codegen.bodies.cuda_staging import UnitTile
from dnc.codegen.bodies.cuda_tensor import pair_at
from dnc.codegen.bodies.cuda_worker import columns_at, rows_per_warp, slice_rows
from dnc.codegen.emit import Expr, by_size, lane4, let, loop, put, smaller, stride_loop
from dnc.ir.plan import Product
from dnc.ir.sparse import PAIRS

TOGETHER = 8  # rows that a warp sums at a time


def forward(tile: UnitTile, product: Product, group: int) -> None:
    """Sums of a product for all vertices of a tile, up to WIDE at a time, for which the elements of a row
    come once. No barrier inside."""

    def by(vertices: int) -> Callable[[], None]:
        def body() -> None:
            with stride_loop("vertex", 0, tile.count, vertices) as vertex:
                add = partial(_add, tile, product, vertices, vertex)
                sum_rows(tile, product, vertices, vertex, TOGETHER, add)

        return body

    if group == 1:
        by(1)()
    else:
        by_size(tile.count, [(size, by(size)) for size in sorted({1, 2, min(group, WIDE)})])


def _add(
    tile: UnitTile, product: Product, vertices: int, first: Expr, sums: Any, row_begin: Expr, count: int
) -> None:
    """Adds what a lane has of `count` rows of its warp."""
    worker, placement = tile.worker, tile.placement(product)
    rows = rows_per_warp(placement, worker.workers)
    last = slice_rows(placement, worker.workers) - 1
    stride, pairs, weights = operand_stride(placement.columns), placement.pairs, worker.shared_weights
    operand = let("operand", first * stride)
    own = [let("own_row", smaller(worker.warp * rows + row_begin + row, last)) for row in range(count)]
    with loop("pair", pairs // PAIRS, unroll=1) as part:
        values = [
            let("values", weights[pair_at(placement.slot + row * pairs + part * PAIRS + worker.lane * 2)])
            for row in own
        ]
        at = columns_at(worker, placement) + part * (PAIRS // 2) + worker.lane
        columns = [let("columns", T.reinterpret("uint32", weights[at + row * (pairs // 2)])) for row in own]
        for row, (value, two) in enumerate(zip(values, columns, strict=True)):
            places = T.bitwise_and(two, T.uint32(0xFFFF)), T.shift_right(two, T.uint32(16))
            for i, place in enumerate(places):
                column = let("column", operand + T.cast(place, "int32"))
                for vertex in range(vertices):
                    x, index = worker.staging[column + vertex * stride], row * vertices + vertex
                    put(sums, index, cuda.fma(lane4(value, i), x, sums[index]))
