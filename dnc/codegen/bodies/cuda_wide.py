"""UNIT segments on CUDA outside the recursion: many vertices at a time, with registers to spare.

In: a segment whose weights are in shared memory or streamed, and the fields of its instruction.
Out: the instruction's body. Products are tiled over the threads like a product of two matrices:
every thread sums 6 rows x 4 vertices, or 8 columns x 8 vertices in a transposed one; or over warps on
tensor cores (`cuda_wide_tensor.py`). The cell runs with a thread per vertex and four units.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_cells import quad_cells
from dnc.codegen.bodies.cuda_operands import all_aligned, stage_quads
from dnc.codegen.bodies.cuda_staging import (
    Plane,
    Staging,
    UnitTile,
    by_rows,
    each_product,
    lay_out,
    operand_columns,
    rows_of,
)
from dnc.codegen.bodies.cuda_stores import store_columns
from dnc.codegen.bodies.cuda_weights import row_reader, weight_place
from dnc.codegen.bodies.cuda_wide_tensor import (
    on_tensor_cores,
    tensor_forward,
    tensor_parts,
    tensor_transposed,
)
from dnc.codegen.bodies.cuda_worker import Worker, share
from dnc.codegen.emit import (
    Expr,
    either,
    fixed,
    lane4,
    let,
    local,
    loop,
    put,
    quad_at,
    smaller,
    stride_loop,
    when,
)
from dnc.codegen.quads import QUAD, fits_quads
from dnc.ir.machine import WARPS
from dnc.ir.plan import (
    REGISTER,
    Piece,
    Product,
    Segment,
    TransposedProduct,
    padded,
    product_parameters,
    shared_stride,
)

TILES = (64, 32)  # vertices of a tile: the first that fits into the staging area
BLOCK = 32  # vertices of a warp's part of a product
ROWS, ROW_LANES = 6, 4  # of a product: rows of a thread, threads side by side along the rows
VERTICES, VERTEX_LANES = (1, 2, 4), 8  # the same along the vertices: the fewest that are enough
COLUMNS, COLUMN_LANES = 64, 8  # of a transposed product: columns of a warp, threads along them
LEAST_QUADS = 8  # of a row that a warp sums, when several share a row


def wide_staging(worker: Worker, segment: Segment) -> Staging | None:
    """How a segment is staged; None where it cannot run this way."""
    units = share(segment.units, worker.workers)
    if not fits_quads(segment, units):
        return None
    used = product_parameters(segment)
    if any(worker.placement(name, segment.units).residency == REGISTER for name in used):
        return None
    if not all(all_aligned(worker, product.pieces) for product in segment.products):
        return None
    if any(turned.columns % 4 for turned in segment.transposed):
        return None
    stride = max((shared_stride(operand_columns(product)) for product in segment.products), default=0)
    parts = partial(tensor_parts if on_tensor_cores(worker.plan, segment) else _parts, segment, units)

    def plane(tile: int, rows: int, product: Product | TransposedProduct) -> Plane:
        return by_rows(tile, rows, parts(product) if isinstance(product, Product) else 1)

    layouts = (lay_out(segment, units, tile, tile * stride, plane) for tile in TILES)
    return next((found for found in layouts if found.words <= worker.staging_words), None)


def _parts(segment: Segment, units: int, product: Product) -> int:
    """Warps that share the sums of a row, so that few rows keep all warps busy."""
    parts = 1
    blocks = -(-rows_of(product.result, segment, units) // (ROWS * ROW_LANES))
    quads = padded(operand_columns(product)) // 4
    while 2 * parts * blocks <= WARPS and quads >= 2 * parts * LEAST_QUADS:
        parts *= 2
    return parts


def wide_segment(worker: Worker, segment: Segment, staging: Staging, row: Expr, rows: Expr) -> None:
    """The body of the segment's instruction."""
    worker.stage(staging.words)
    tensor = on_tensor_cores(worker.plan, segment)
    with stride_loop("tile", 0, rows, staging.tile) as begin:
        first = let("first", row + begin)
        count = let("count", smaller(rows - begin, staging.tile))
        tile = UnitTile(worker, segment, staging, first, count)
        _products(tile, tensor_forward if tensor else _forward_as_needed)
        quad_cells(tile)
        worker.synchronize()
        for product in segment.transposed:
            (tensor_transposed if tensor else _transposed)(tile, product)
        if segment.transposed:
            worker.synchronize()


# ---- products ----------------------------------------------------------------------------------------


def _products(tile: UnitTile, multiply: Callable[[UnitTile, Product], None]) -> None:
    """Sums of all products of the segment."""

    def stage(pieces: tuple[Piece, ...]) -> None:
        columns = sum(piece.width for piece in pieces)
        stride, rows = shared_stride(columns), tile.count
        stage_quads(tile.worker, pieces, tile.first, tile.count, rows, 0, stride, columns // 4)

    each_product(tile, stage, partial(multiply, tile))


def _forward_as_needed(tile: UnitTile, product: Product) -> None:
    """Sums of a product; a thread has as many vertices as the tile needs."""
    weights_at = let("weights_at", tile.weights_at(product))
    *fewer, most = VERTICES
    body = partial(_forward, tile, product, weights_at, most)
    for vertices in reversed(fewer):
        enough = tile.count <= vertices * VERTEX_LANES
        body = partial(either, enough, partial(_forward, tile, product, weights_at, vertices), body)
    body()


def _forward(tile: UnitTile, product: Product, weights_at: Expr, vertices: int) -> None:
    """Sums of all rows of the worker and all vertices of the tile; a thread has 6 x `vertices` of them."""
    worker, staging, placement = tile.worker, tile.staging, tile.placement(product)
    rows = rows_of(product.result, tile.segment, tile.units)
    plane, stride = staging.sums[product.result], shared_stride(placement.columns)
    parts = plane.parts
    quads = padded(placement.columns) // 4
    share_of = -(-quads // parts)
    blocks = -(-rows // (ROWS * ROW_LANES))
    down = let("row_lane", worker.lane // VERTEX_LANES)
    across = let("vertex_lane", worker.lane % VERTEX_LANES)
    tasks = (tile.count + BLOCK - 1) // BLOCK * (blocks * parts)
    with stride_loop("task", worker.warp, tasks, WARPS) as task:
        part = fixed("part", task % parts)
        block = fixed("block", task // parts % blocks)
        vertex = fixed("vertex", task // (parts * blocks) * BLOCK + across)
        begin = let("begin", block * (ROWS * ROW_LANES) + down)
        own = [fixed("own", smaller(begin + j * ROW_LANES, rows - 1)) for j in range(ROWS)]
        weights = [row_reader(worker, placement, weights_at, row) for row in own]
        sums = local("sums", "float32", T.float32(0.0), ROWS * vertices)
        with loop("quad", smaller(quads - part * share_of, share_of), unroll=2) as step:
            quad = let("at", (part * share_of + step) * 4)
            x = [
                let("x", worker.staging[quad_at((vertex + i * VERTEX_LANES) * stride + quad)])
                for i in range(vertices)
            ]
            for j in range(ROWS):
                weight = weights[j](quad)
                for i in range(vertices):
                    at = j * vertices + i
                    for k in range(4):
                        put(sums, at, cuda.fma(lane4(weight, k), lane4(x[i], k), sums[at]))
        to = let("to", plane.place(0, vertex) + part * plane.part)
        for j in range(ROWS):
            with when(begin + j * ROW_LANES < rows):
                for i in range(vertices):
                    at = to + (begin + j * ROW_LANES) * plane.row + i * VERTEX_LANES
                    put(worker.staging, at, sums[j * vertices + i])


# ---- transposed products -----------------------------------------------------------------------------


def _transposed(tile: UnitTile, product: TransposedProduct) -> None:
    """Partial sums over the worker's rows; a thread has 8 columns x 4 or 8 vertices of them."""
    columns = partial(_columns, tile, product)
    either(tile.count <= BLOCK // 2, partial(columns, 1), partial(columns, 2))


def _columns(tile: UnitTile, product: TransposedProduct, quads: int) -> None:
    worker, placement, deltas = tile.worker, tile.placement(product), tile.staging.deltas[product.delta]
    rows = placement.gates * share(placement.units, worker.workers)
    weights_at = let("weights_at", tile.weights_at(product))
    blocks = -(-product.columns // COLUMNS)
    halves = COLUMNS // (COLUMN_LANES * QUAD)
    across = let("column_lane", worker.lane % COLUMN_LANES * QUAD)
    down = let("vertex_lane", worker.lane // COLUMN_LANES * QUAD)
    tasks = (tile.count + BLOCK - 1) // BLOCK * blocks
    with stride_loop("task", worker.warp, tasks, WARPS) as task:
        column = fixed("column", task % blocks * COLUMNS + across)
        vertex = fixed("vertex", task // blocks * BLOCK + down)
        sums = local("sums", "float32", T.float32(0.0), quads * QUAD * halves * QUAD)
        memory, place = weight_place(worker, placement, weights_at)
        last = padded(placement.columns) - QUAD  # where the matrix has ended any columns do
        near = [fixed("near", smaller(column + h * (COLUMNS // halves), last)) for h in range(halves)]
        with loop("row", rows, unroll=2) as row:
            weights = [let("weight", memory[quad_at(place(row, own))]) for own in near]
            for g in range(quads):
                at = deltas.place(row, vertex) + g * (BLOCK // 2)
                delta = let("delta", worker.staging[quad_at(at)])
                for v in range(QUAD):
                    for h in range(halves):
                        for c in range(QUAD):
                            index = ((g * QUAD + v) * halves + h) * QUAD + c
                            put(sums, index, cuda.fma(lane4(weights[h], c), lane4(delta, v), sums[index]))
        for g in range(quads):
            for v in range(QUAD):
                now = let("now", vertex + g * (BLOCK // 2) + v)
                with when(now < tile.count):
                    for h in range(halves):
                        index = ((g * QUAD + v) * halves + h) * QUAD
                        at = column + h * (COLUMNS // halves)
                        store_columns(worker, product, tile.first + now, at, sums[quad_at(index)])
