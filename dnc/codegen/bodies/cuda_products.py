"""Products with weights in shared memory or L2 on CUDA, all lanes of a warp on one row of the weights.

In: a tile whose operands are staged. Out: statements that leave the sums in staging. A slice of R rows
and K columns is spread over the worker: warp w has the rows w * n .. + n, lane l the columns 128 c + 4 l
.. + 3 of every chunk c. Sums over lanes run in a fixed order (GRNN's output tiling).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_operands import NARROW, operand_stride
from dnc.codegen.bodies.cuda_staging import UnitTile
from dnc.codegen.bodies.cuda_weights import chunk_reader
from dnc.codegen.bodies.cuda_worker import CHUNK, Worker, chunks, rows_per_warp, slice_rows
from dnc.codegen.emit import (
    Expr,
    both,
    by_size,
    lane4,
    let,
    local,
    loop,
    put,
    quad_at,
    stride_loop,
    when,
)
from dnc.ir.plan import STREAMED, Product

ROW_BLOCK = 10  # rows a warp sums at a time: with 4 vertices, 40 accumulators
STREAMED_BLOCK = 5  # the same where weights come from L2: their addresses take registers, too
AHEAD_BLOCK = 16  # the same where registers hold no weights: so many loads are under way
UNROLLED_ROWS = 40  # of a warp; more, as those of a large vocabulary, are a loop
WIDE = 4  # vertices that are multiplied together where there are many


def forward(tile: UnitTile, product: Product, group: int) -> None:
    """Sums of a product for all vertices of a tile, `group` of them at a time where there are many.

    No barrier inside.
    """
    weights_at = tile.weights_at(product)

    def by(vertices: int) -> Callable[[], None]:
        def body() -> None:
            with stride_loop("vertex", 0, tile.count, vertices) as vertex:
                _forward_group(tile, product, weights_at, vertices, vertex)

        return body

    if group == 1:
        by(1)()
        return
    sizes = {1, NARROW, group}  # for so many vertices weights come once
    if tile.placement(product).residency == STREAMED:
        sizes.add(most_streamed(tile.worker))
    by_size(tile.count, [(size, by(size)) for size in sorted(sizes)])


def most_streamed(worker: Worker) -> int:
    """Vertices up to which weights from L2 come once."""
    return WIDE if worker.crowded else 2 * WIDE


def _forward_group(tile: UnitTile, product: Product, weights_at: Expr, vertices: int, first: Expr) -> None:
    """Rows of the worker times the staged operands of `vertices` vertices, from vertex `first` on."""
    worker, placement = tile.worker, tile.placement(product)
    stride = operand_stride(placement.columns)
    operand = first * stride
    weights = chunk_reader(worker, placement, weights_at)

    def block(partial: Any, row_begin: Any, count: int) -> None:
        def operand_of(vertex: int, chunk: Any) -> Expr:
            at = operand + vertex * stride + chunk * CHUNK + worker.lane * 4
            return let("x", worker.staging[quad_at(at)])

        def add(row: int, vertex: int, weight: list[Expr], x: Expr) -> None:
            index = row * vertices + vertex
            for i in range(4):
                put(partial, index, cuda.fma(weight[i], lane4(x, i), partial[index]))

        def accumulate(chunk: Any) -> None:
            operands = [operand_of(vertex, chunk) for vertex in range(vertices)]
            for row in range(count):
                weight = weights(row_begin + row, chunk)
                for vertex in range(vertices):
                    add(row, vertex, weight, operands[vertex])

        with loop("chunk", chunks(placement.columns)) as chunk:
            accumulate(chunk)

    together = ROW_BLOCK
    if placement.residency == STREAMED:
        together = STREAMED_BLOCK if worker.crowded else AHEAD_BLOCK * WIDE // max(WIDE, vertices)
    sum_rows(tile, product, vertices, first, together, block)


def sum_rows(
    tile: UnitTile,
    product: Product,
    vertices: int,
    first: Expr,
    together: int,
    add: Callable[[Any, Any, int], None],
) -> None:
    """The rows of the worker for `vertices` vertices from `first` on, a warp `together` rows at a time.

    add: adds what a lane has of so many rows of its warp, from one on, to its sums, vertices side by side.
    """
    worker, placement = tile.worker, tile.placement(product)
    plane = tile.staging.sums[product.result]
    rows = rows_per_warp(placement, worker.workers)
    total_rows = slice_rows(placement, worker.workers)

    def block(row_begin: Any, count: int) -> None:
        size = count * vertices
        partial = local("partial", "float32", T.float32(0.0), size)
        add(partial, row_begin, count)
        owned = cuda.warp_reduce_scatter(partial, size, worker.lane)
        for slot in range(owned.slots):
            with when(owned.valid[slot]):
                index = owned.first + slot
                own = let("own", row_begin + index // vertices)
                row = worker.warp * rows + own
                with when(both(own < rows, row < total_rows)):
                    put(worker.staging, plane.place(row, first + index % vertices), partial[slot])

    if rows <= UNROLLED_ROWS:
        for row_begin in range(0, rows, together):
            block(row_begin, min(together, rows - row_begin))
    else:
        with loop("block", -(-rows // together)) as number:
            block(let("first_row", number * together), together)
