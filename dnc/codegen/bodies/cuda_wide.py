"""UNIT segments on CUDA outside the recursion: many vertices at a time, with registers to spare.

In: a segment whose weights are in shared memory or streamed, and the fields of its instruction.
Out: the instruction's body. Products are tiled over the threads like a product of two matrices:
every thread sums 6 rows x 4 vertices, or 8 columns x 8 vertices in a transposed one. The cell runs
with a thread per vertex and four units, so that a load brings 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_operands import all_aligned, stage_quads
from dnc.codegen.bodies.cuda_products import store_columns, weight_place
from dnc.codegen.bodies.cuda_worker import THREADS, WARPS, Worker, share, source_row
from dnc.codegen.cells import UnitCell, tensor
from dnc.codegen.emit import (
    Expr,
    either,
    fixed,
    lane4,
    let,
    loop,
    named,
    put,
    quad_at,
    smaller,
    stride_loop,
    when,
)
from dnc.codegen.quads import QUAD, UnitQuad, fits_quads
from dnc.ir.cell import Value
from dnc.ir.plan import (
    REGISTER,
    SHARED,
    ParameterAddress,
    Placement,
    Segment,
    TransposedProduct,
    padded,
    product_parameters,
    shared_stride,
)

TILES = (64, 32)  # vertices of a tile: the first that fits into the staging area
BLOCK = 32  # vertices of a warp's part of a product
ROWS, ROW_LANES = 6, 4  # of a product: rows of a thread, threads side by side along the rows
VERTICES, VERTEX_LANES = 4, 8  # the same along the vertices
COLUMNS, COLUMN_LANES = 64, 8  # of a transposed product: columns of a warp, threads along them
LEAST_QUADS = 8  # of a row that a warp sums, when several share a row


@attrs.frozen
class Staging:
    """First words of the parts of the staging area, for tiles of `tile` vertices.

    A product's sums of local row r and vertex v are at sums + (part * rows + r) * pitch + v, in
    `parts` parts that are to be added up; deltas at deltas + r * pitch + v.
    """

    tile: int
    sums: dict[Value, int]
    parts: dict[Value, int]
    deltas: dict[Value, int]
    words: int

    @property
    def pitch(self) -> int:
        """Words from row to row: a multiple of 4, and four rows are in different banks."""
        return self.tile + 4


def _rows(value: Value, segment: Segment, units: int) -> int:
    return tensor(value).size // segment.units * units


def _parts(rows: int, columns: int) -> int:
    """Warps that share the sums of a row, so that few rows keep all warps busy."""
    parts = 1
    blocks = -(-rows // (ROWS * ROW_LANES))
    while 2 * parts * blocks <= WARPS and padded(columns) // 4 >= 2 * parts * LEAST_QUADS:
        parts *= 2
    return parts


def _layout(segment: Segment, units: int, tile: int) -> Staging:
    at, sums, parts, deltas = 0, {}, {}, {}
    for product in segment.products:
        at = max(at, tile * shared_stride(sum(piece.width for piece in product.pieces)))
    pitch = tile + 4
    for product in segment.products:
        rows = _rows(product.result, segment, units)
        parts[product.result] = _parts(rows, sum(piece.width for piece in product.pieces))
        sums[product.result] = at
        at += parts[product.result] * rows * pitch
    for turned in segment.transposed:
        if turned.delta not in deltas:
            deltas[turned.delta] = at
            at += _rows(turned.delta, segment, units) * pitch
    return Staging(tile, sums, parts, deltas, at)


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
    layouts = (_layout(segment, units, tile) for tile in TILES)
    return next((found for found in layouts if found.words <= worker.staging_words), None)


def wide_segment(worker: Worker, segment: Segment, staging: Staging, row: Expr, rows: Expr) -> None:
    """The body of the segment's instruction."""
    worker.stage(staging.words)
    units = share(segment.units, worker.workers)
    with stride_loop("tile", 0, rows, staging.tile) as begin:
        first = let("first", row + begin)
        count = let("count", smaller(rows - begin, staging.tile))
        _products(worker, segment, staging, first, count)
        quad_cells(worker, segment, staging, first, count, units)
        worker.synchronize()
        for product in segment.transposed:
            _transposed(worker, segment, product, staging, first, count)
        if segment.transposed:
            worker.synchronize()


# ---- products ----------------------------------------------------------------------------------------


def _products(worker: Worker, segment: Segment, staging: Staging, first: Expr, count: Expr) -> None:
    """Every product of the segment; products of one operand share its staging."""
    staged = None
    for product in segment.products:
        if product.pieces != staged:
            if staged is not None:
                worker.synchronize()
            columns = sum(piece.width for piece in product.pieces)
            stride = shared_stride(columns)
            stage_quads(worker, product.pieces, first, count, count, 0, stride, columns // 4)
            worker.synchronize()
            staged = product.pieces
        placement = worker.placement(product.parameter, segment.units)
        weights_at = let("weights_at", worker.access.weights(product.parameter, product.select, first))
        result = product.result
        rows = _rows(result, segment, share(segment.units, worker.workers))
        sizes = [size for size in (1, 2) if size < VERTICES]

        def body(
            vertices: int,
            placement: Placement = placement,
            at: Expr = weights_at,
            rows: int = rows,
            result: Value = result,
        ) -> Callable[[], None]:
            return lambda: _forward(worker, placement, at, staging, result, rows, count, vertices)

        by_size = body(VERTICES)
        for size in reversed(sizes):
            by_size = _choose(count <= size * VERTEX_LANES, body(size), by_size)
        by_size()
    if segment.products:
        worker.synchronize()


def _choose(condition: Expr, then: Callable[[], None], otherwise: Callable[[], None]) -> Callable[[], None]:
    return lambda: either(condition, then, otherwise)


def _forward(
    worker: Worker,
    placement: Placement,
    weights_at: Expr,
    staging: Staging,
    result: Value,
    rows: int,
    count: Expr,
    vertices: int,
) -> None:
    """Sums of all rows of the worker and `count` staged operands; a thread has 6 x `vertices` of them."""
    parts, stride = staging.parts[result], shared_stride(placement.columns)
    quads = padded(placement.columns) // 4
    share_of = -(-quads // parts)
    blocks = -(-rows // (ROWS * ROW_LANES))
    down = let("row_lane", worker.lane // VERTEX_LANES)
    across = let("vertex_lane", worker.lane % VERTEX_LANES)
    tasks = (count + BLOCK - 1) // BLOCK * (blocks * parts)
    with stride_loop("task", worker.warp, tasks, WARPS) as task:
        part = fixed("part", task % parts)
        block = fixed("block", task // parts % blocks)
        vertex = fixed("vertex", task // (parts * blocks) * BLOCK + across)
        begin = let("begin", block * (ROWS * ROW_LANES) + down)
        own = [fixed("own", smaller(begin + j * ROW_LANES, rows - 1)) for j in range(ROWS)]
        weights = [_row_reader(worker, placement, weights_at, row) for row in own]
        sums = named("sums", T.alloc_local((ROWS * vertices,), "float32"))
        for index in range(ROWS * vertices):
            put(sums, index, T.float32(0.0))
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
        to = let("to", staging.sums[result] + part * (rows * staging.pitch) + vertex)
        for j in range(ROWS):
            with when(begin + j * ROW_LANES < rows):
                for i in range(vertices):
                    at = to + (begin + j * ROW_LANES) * staging.pitch + i * VERTEX_LANES
                    put(worker.staging, at, sums[j * vertices + i])


def _row_reader(worker: Worker, placement: Placement, weights_at: Expr, row: Expr) -> Callable[[Expr], Expr]:
    """Reads four weights of a local row of the worker, from shared memory or the L2 cache."""
    if placement.residency == SHARED:
        at = let("row_at", placement.slot + row * shared_stride(placement.columns))
        return lambda column: let("weight", worker.shared_weights[quad_at(at + column)])
    source, valid = source_row(worker, placement, row)
    start = weights_at + source * padded(placement.columns)
    place = fixed("from", T.Select(valid != 0, start, T.int64(0)), "int64")
    there = fixed("there", T.Select(valid != 0, 1, 0))
    return lambda column: let("weight", worker.pool[quad_at(place + column * there)])


# ---- the cell ----------------------------------------------------------------------------------------


def quad_cells(
    worker: Worker, segment: Segment, staging: Staging, first: Expr, count: Expr, units: int
) -> None:
    """The cells of rows first .. first + count, with a thread per vertex and four units."""
    quads, pitch = units // QUAD, staging.pitch
    with stride_loop("cell", worker.thread, count * quads, THREADS) as item:
        vertex = fixed("vertex", item // quads)
        own = fixed("own", (item - vertex * quads) * QUAD)
        unit = fixed("unit", worker.rank * units + own)

        def product(result: Value, gate: int, i: int, own: Expr = own, vertex: Expr = vertex) -> Expr:
            at = staging.sums[result] + (gate * units + own + i) * pitch + vertex
            step = _rows(result, segment, units) * pitch
            total = worker.staging[at]
            for part in range(1, staging.parts[result]):
                total = total + worker.staging[at + part * step]
            return let("pre", total)

        def cell(own: Expr = own, vertex: Expr = vertex, unit: Expr = unit) -> None:
            row = fixed("row", first + vertex)
            made = UnitQuad(worker.access, worker.math, segment, row, unit, product)
            for i, one in enumerate(made.cells):
                give_vectors(worker, one, own + i)
            made.run()
            made.store()
            for value, at in staging.deltas.items():
                for i, found in enumerate(made.values(value)):
                    for gate, delta in enumerate(found):
                        put(worker.staging, at + (gate * units + own + i) * pitch + vertex, delta)

        inside_or_zeros(worker, segment, units, unit, cell, staging.deltas, own, QUAD, pitch, vertex)


def give_vectors(worker: Worker, cell: UnitCell, own: Expr) -> None:
    """Hands a cell what it reads of the vectors in shared memory; `own`: its unit among the worker's."""
    units = share(cell.segment.units, worker.workers)
    for load in cell.segment.loads:
        if isinstance(load.address, ParameterAddress) and load.address.select is None:
            slot = worker.vectors.get((load.address.parameter, cell.segment.units))
            if slot is not None and load.address.offset == 0:
                places = [slot + gate * units + own for gate in range(cell.gates(load.value))]
                cell.values[load.value] = [let("vector", worker.shared_weights[at]) for at in places]


def inside_or_zeros(
    worker: Worker,
    segment: Segment,
    units: int,
    unit: Expr,
    cell: Callable[[], None],
    deltas: dict[Value, int],
    own: Expr,
    lanes: int,
    pitch: int,
    vertex: Expr,
) -> None:
    """Runs the cell where its units exist; the deltas of units that do not are zero, for the products."""

    def zeros() -> None:
        for value, at in deltas.items():
            for gate in range(_rows(value, segment, units) // units):
                for i in range(lanes):
                    put(worker.staging, at + (gate * units + own + i) * pitch + vertex, T.float32(0.0))

    if units * worker.workers == segment.units:
        cell()
    else:
        either(unit < segment.units, cell, zeros)


# ---- transposed products -----------------------------------------------------------------------------


def _transposed(
    worker: Worker,
    segment: Segment,
    product: TransposedProduct,
    staging: Staging,
    first: Expr,
    count: Expr,
) -> None:
    """Partial sums over the worker's rows; a thread has 8 columns x 4 or 8 vertices of them."""
    either(
        count <= BLOCK // 2,
        lambda: _columns(worker, segment, product, staging, first, count, 1),
        lambda: _columns(worker, segment, product, staging, first, count, 2),
    )


def _columns(
    worker: Worker,
    segment: Segment,
    product: TransposedProduct,
    staging: Staging,
    first: Expr,
    count: Expr,
    quads: int,
) -> None:
    placement = worker.placement(product.parameter, segment.units)
    rows, pitch = placement.gates * share(placement.units, worker.workers), staging.pitch
    deltas = staging.deltas[product.delta]
    weights_at = let("weights_at", worker.access.weights(product.parameter, product.select, first))
    blocks = -(-product.columns // COLUMNS)
    halves = COLUMNS // (COLUMN_LANES * QUAD)
    across = let("column_lane", worker.lane % COLUMN_LANES * QUAD)
    down = let("vertex_lane", worker.lane // COLUMN_LANES * QUAD)
    tasks = (count + BLOCK - 1) // BLOCK * blocks
    with stride_loop("task", worker.warp, tasks, WARPS) as task:
        column = fixed("column", task % blocks * COLUMNS + across)
        vertex = fixed("vertex", task // blocks * BLOCK + down)
        sums = named("sums", T.alloc_local((quads * QUAD * halves * QUAD,), "float32"))
        for index in range(quads * QUAD * halves * QUAD):
            put(sums, index, T.float32(0.0))
        memory, place = weight_place(worker, placement, weights_at)
        last = padded(placement.columns) - QUAD  # where the matrix has ended any columns do
        near = [fixed("near", smaller(column + h * (COLUMNS // halves), last)) for h in range(halves)]
        with loop("row", rows, unroll=2) as row:
            weights = [let("weight", memory[quad_at(place(row, own))]) for own in near]
            for g in range(quads):
                at = deltas + row * pitch + vertex + g * (BLOCK // 2)
                delta = let("delta", worker.staging[quad_at(at)])
                for v in range(QUAD):
                    for h in range(halves):
                        for c in range(QUAD):
                            index = ((g * QUAD + v) * halves + h) * QUAD + c
                            put(sums, index, cuda.fma(lane4(weights[h], c), lane4(delta, v), sums[index]))
        for g in range(quads):
            for v in range(QUAD):
                now = let("now", vertex + g * (BLOCK // 2) + v)
                with when(now < count):
                    for h in range(halves):
                        index = ((g * QUAD + v) * halves + h) * QUAD
                        at = column + h * (COLUMNS // halves)
                        store_columns(worker, product, first + now, at, sums[quad_at(index)])
