"""Products of UNIT segments on tensor cores, outside the recursion: many vertices, operands in tf32.

In: a tile of vertices whose operands or deltas are staged. Out: the sums in staging, or the partial sums
of a transposed product in the pool, as `cuda_wide.py` leaves them. A warp has 32 vertices and up to 48
rows of a product, of a part of the columns; or 32 vertices and 64 columns of a transposed one.
"""

from __future__ import annotations

from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_staging import UnitTile, operand_columns, rows_of
from dnc.codegen.bodies.cuda_stores import store_columns
from dnc.codegen.bodies.cuda_tensor import ACROSS, DEPTH, HIGH, pair_at, warp_sums
from dnc.codegen.bodies.cuda_weights import weight_place
from dnc.codegen.bodies.cuda_worker import share
from dnc.codegen.emit import both, fixed, let, loop, smaller, stride_loop, when
from dnc.ir.machine import WARPS
from dnc.ir.plan import FP32, Plan, Product, Segment, TransposedProduct, padded, shared_stride

BLOCK = 32  # vertices of a warp's part of a product
MOST_HIGH = 3  # blocks of 16 rows of a warp's part
MOST_PARTS = 4  # warps that share the sums of a row: their sums are staged side by side
COLUMNS = 64  # of a warp's part of a transposed product


def on_tensor_cores(plan: Plan, segment: Segment) -> bool:
    """Whether a segment's products run on tensor cores: all sums are over whole blocks."""
    assert plan.tiling is not None
    units = share(segment.units, plan.tiling.workers)
    depths = [padded(operand_columns(product)) for product in segment.products]
    depths += [rows_of(turned.delta, segment, units) for turned in segment.transposed]
    return plan.precision != FP32 and all(depth % DEPTH == 0 for depth in depths)


def _high(rows: int) -> int:
    """Blocks of 16 rows of a warp's part."""
    return min(MOST_HIGH, -(-rows // HIGH))


def tensor_parts(segment: Segment, units: int, product: Product) -> int:
    """Warps that share the sums of a row, so that few rows keep all warps busy."""
    rows, parts = rows_of(product.result, segment, units), 1
    blocks = -(-rows // (_high(rows) * HIGH))
    while 2 * parts * blocks <= WARPS and 2 * parts <= MOST_PARTS:
        parts *= 2
    return parts


def tensor_forward(tile: UnitTile, product: Product) -> None:
    """Sums of all rows of the worker and all vertices of the tile."""
    worker, staging, placement = tile.worker, tile.staging, tile.placement(product)
    rows, plane = rows_of(product.result, tile.segment, tile.units), staging.sums[product.result]
    parts = plane.parts
    stride, steps = shared_stride(placement.columns), padded(placement.columns) // DEPTH
    share_of, high = -(-steps // parts), _high(rows)
    blocks = -(-rows // (high * HIGH))
    memory, place = weight_place(worker, placement, let("weights_at", tile.weights_at(product)))
    with stride_loop(
        "task", worker.warp, (tile.count + BLOCK - 1) // BLOCK * (blocks * parts), WARPS
    ) as task:
        part = fixed("part", task % parts)
        row = fixed("row", task // parts % blocks * (high * HIGH))
        vertex = fixed("vertex", task // (parts * blocks) * BLOCK)
        sums = warp_sums(worker, high, BLOCK // ACROSS)
        with loop("step", smaller(steps - part * share_of, share_of), unroll=1) as step:
            sums.add(
                let("depth", (part * share_of + step) * DEPTH),
                lambda own, k: memory[place(smaller(row + own, rows - 1), k)],
                lambda k, own: worker.staging[(vertex + own) * stride + k],
            )
        to = let("to", plane.place(0, vertex) + part * plane.part)
        for own, across, index in sums.pairs():
            with when(row + own < rows):
                at = pair_at(to + (row + own) * plane.row + across)
                T.buffer_store(worker.staging, sums.pair(index), [at])


def tensor_transposed(tile: UnitTile, product: TransposedProduct) -> None:
    """Partial sums over the worker's rows for all vertices of the tile."""
    worker, placement, deltas = tile.worker, tile.placement(product), tile.staging.deltas[product.delta]
    rows = placement.gates * share(placement.units, worker.workers)
    memory, place = weight_place(worker, placement, let("weights_at", tile.weights_at(product)))
    blocks, last = -(-product.columns // COLUMNS), padded(placement.columns) - 1
    with stride_loop("task", worker.warp, (tile.count + BLOCK - 1) // BLOCK * blocks, WARPS) as task:
        column = fixed("column", task % blocks * COLUMNS)
        vertex = fixed("vertex", task // blocks * BLOCK)
        sums = warp_sums(worker, BLOCK // HIGH, COLUMNS // ACROSS)
        with loop("step", rows // DEPTH, unroll=1) as step:
            sums.add(
                step * DEPTH,
                lambda own, k: worker.staging[deltas.place(k, vertex + own)],
                # Where the matrix has ended any columns do.
                lambda k, own: memory[place(k, smaller(column + own, last))],
            )
        for own, across, index in sums.pairs():
            with when(both(vertex + own < tile.count, column + across < product.columns)):
                row = tile.first + vertex + own
                store_columns(worker, product, row, column + across, sums.pair(index), pair_at)
