"""Products with a worker's weight slice on CUDA: forward rows and transposed partial sums.

A slice of R rows and K columns is spread over the worker: warp w has the rows w * n .. + n, lane l
the columns 128 c + 4 l .. + 3 of every chunk c. Weights come from literal registers, from shared
memory, or streamed from the L2 cache: the same code with another source. Sums over lanes and
warps run in a fixed order (GRNN's output tiling, VPPS's register residency).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_operands import padded_columns
from dnc.codegen.bodies.cuda_worker import (
    CHUNK,
    LANES,
    THREADS,
    WARPS,
    Worker,
    chunks,
    rows_per_warp,
    share,
    source_row,
)
from dnc.codegen.emit import (
    Expr,
    both,
    either,
    fixed,
    lane4,
    let,
    loop,
    named,
    put,
    quad_at,
    stride_loop,
    when,
)
from dnc.ir.plan import (
    REGISTER,
    SHARED,
    STREAMED,
    Placement,
    TransposedProduct,
    padded,
    shared_stride,
)

ROW_BLOCK = 10  # rows a warp sums at a time: with 4 vertices, 40 accumulators beside the weights
STREAMED_BLOCK = 5  # the same where weights come from L2: their addresses take registers, too
UNROLLED_ROWS = 40  # of a warp; more, as those of a large vocabulary, are a loop
COLUMN_GROUP = 4  # chunks of a transposed product that are summed over the warps at a time
TRANSPOSED_SUMS = 32  # sums a thread holds in a transposed product
COLUMN_VERTICES = 16  # vertices whose sums a thread holds that has a column to itself
ROWS_TOGETHER = 2  # rows whose weights such a thread loads together
FEW = 4  # vertices for which it is not worth giving every thread a column
NARROW = 2  # groups up to this size are multiplied one vertex at a time
WIDE = 4

Weights = Callable[[Any, Any], list[Expr]]  # (row of the warp, chunk) -> four weights


def pitch(tile: int) -> int:
    """Words between the rows of staged sums and deltas of a tile: neighbouring rows in different banks."""
    return tile + 4 if tile % 4 == 0 else tile


def _weights(worker: Worker, placement: Placement, at: Expr) -> Weights:
    """Four weights of a row of the warp in a chunk (literal for registers); at: as in `forward`."""
    rows, columns = rows_per_warp(placement, worker.workers), padded(placement.columns)
    if placement.residency == REGISTER:

        def resident(row: Any, chunk: Any) -> list[Expr]:
            first = placement.slot + (row * chunks(placement.columns) + chunk) * 4
            return [worker.registers[first + i] for i in range(4)]

        return resident

    def column_of(chunk: Expr) -> Expr:
        column = chunk * CHUNK + worker.lane * 4
        whole = placement.columns % CHUNK == 0
        return column if whole else T.Select(column < columns, column, 0)

    weights, place = weight_place(worker, placement, at)
    last = placement.gates * share(placement.units, worker.workers) - 1

    def elsewhere(row: Any, chunk: Any) -> list[Expr]:
        index = worker.warp * rows + row
        near = T.min(index, last) if placement.residency == SHARED else index
        value = let("weight", weights[quad_at(place(near, column_of(chunk)))])
        return [lane4(value, i) for i in range(4)]

    return elsewhere


def _each_chunk(placement: Placement, body: Callable[[Any], None]) -> None:
    """Chunks unrolled where weights are literal registers, else a loop."""
    if placement.residency == REGISTER:
        for chunk in range(chunks(placement.columns)):
            body(chunk)
    else:
        with loop("chunk", chunks(placement.columns)) as chunk:
            body(chunk)


def forward(
    worker: Worker,
    placement: Placement,
    weights_at: Expr,
    vertices: int,
    operand: Expr,
    sums: int,
    tile: int,
    first: Expr,
) -> None:
    """Rows of the worker times `vertices` staged operands.

    weights_at: position of the whole weight in the pool, used where it is STREAMED. operand: staging
    index of the first of them. The sum of local row r and vertex v goes to staging
    `sums` + r * pitch(tile) + first + v. No barrier inside.
    """
    rows = rows_per_warp(placement, worker.workers)
    total_rows = placement.gates * share(placement.units, worker.workers)
    stride = padded_columns(placement.columns)
    weights = _weights(worker, placement, weights_at)

    def block(row_begin: Any, count: int) -> None:
        size = count * vertices
        partial = named("partial", T.alloc_local((size,), "float32"))
        for index in range(size):
            put(partial, index, T.float32(0.0))

        def operand_of(vertex: int, chunk: Any) -> Expr:
            at = operand + vertex * stride + chunk * CHUNK + worker.lane * 4
            return let("x", worker.staging[quad_at(at)])

        def add(row: int, vertex: int, weight: list[Expr], x: Expr) -> None:
            index = row * vertices + vertex
            for i in range(4):
                put(partial, index, cuda.fma(weight[i], lane4(x, i), partial[index]))

        def accumulate(chunk: Any) -> None:
            if placement.residency == REGISTER:  # few live operands: the registers hold weights
                for vertex in range(vertices):
                    x = operand_of(vertex, chunk)
                    for row in range(count):
                        add(row, vertex, weights(row_begin + row, chunk), x)
                return
            operands = [operand_of(vertex, chunk) for vertex in range(vertices)]
            for row in range(count):
                weight = weights(row_begin + row, chunk)
                for vertex in range(vertices):
                    add(row, vertex, weight, operands[vertex])

        _each_chunk(placement, accumulate)
        owned = cuda.warp_reduce_scatter(partial, size, worker.lane)
        for slot in range(owned.slots):
            with when(owned.valid[slot]):
                index = owned.first + slot
                own = let("own", row_begin + index // vertices)
                row = worker.warp * rows + own
                with when(both(own < rows, row < total_rows)):
                    put(worker.staging, sums + row * pitch(tile) + first + index % vertices, partial[slot])

    together = STREAMED_BLOCK if placement.residency == STREAMED else ROW_BLOCK
    if placement.residency == REGISTER or rows <= UNROLLED_ROWS:
        for row_begin in range(0, rows, together):
            block(row_begin, min(together, rows - row_begin))
    else:
        with loop("block", -(-rows // together)) as number:
            block(let("first_row", number * together), together)


def transposed_step(columns: int, tile: int) -> int:
    """Vertices of a transposed product that are summed together."""
    return min(tile, max(1, TRANSPOSED_SUMS // (4 * min(COLUMN_GROUP, chunks(columns)))))


def scratch_words(columns: int, tile: int, buffers: int) -> int:
    """Staging that `transposed` needs for the sums of the warps."""
    group = min(COLUMN_GROUP, chunks(columns)) * CHUNK
    return buffers * WARPS * transposed_step(columns, tile) * group


def transposed(
    worker: Worker,
    product: TransposedProduct,
    placement: Placement,
    weights_at: Expr,
    deltas: int,
    tile: int,
    first: Expr,
    count: Expr,
    buffers: int,
) -> None:
    """Partial sums over the worker's rows for the rows first .. first + count, a few at a time.

    weights_at: as in `forward`. deltas: staging of the deltas, local row r and vertex v at
    r * pitch(tile) + v. `scratch_words` of staging from 0 on are for the sums of the warps. Barriers
    inside; ends with one.
    """

    def by_rows(step: int) -> Callable[[], None]:
        return lambda: _transposed_rows(
            worker, product, placement, weights_at, deltas, tile, first, count, buffers, step
        )

    def by_columns() -> None:
        _transposed_columns(worker, product, placement, weights_at, deltas, tile, first, count)

    step = transposed_step(placement.columns, tile)
    if placement.residency != REGISTER and tile % 4 == 0 and tile > FEW:
        either(count <= FEW, by_rows(step), by_columns)
    elif step > 1:
        either(count == 1, by_rows(1), by_rows(step))
    else:
        by_rows(1)()


def store_columns(worker: Worker, product: TransposedProduct, row: Expr, column: Expr, quad: Expr) -> None:
    """Writes four columns of a row of the result, from `column` on, to where they belong."""
    value = let("value", quad)
    for buffer, offset, low, high in product.stores:
        at = worker.access.record(buffer, row) + (offset - low) + column
        if low % 4 == high % 4 == offset % 4 == 0:
            with when(both(column >= low, column < high)):
                T.buffer_store(worker.pool, value, [quad_at(at)])
        else:
            for i in range(4):
                with when(both(column + i >= low, column + i < high)):
                    put(worker.pool, at + i, lane4(value, i))


def _transposed_columns(
    worker: Worker,
    product: TransposedProduct,
    placement: Placement,
    weights_at: Expr,
    deltas: int,
    tile: int,
    row_first: Expr,
    count: Expr,
) -> None:
    """A column a thread, over all rows of the worker: nothing to add up between warps."""
    total_rows = placement.gates * share(placement.units, worker.workers)
    weights, place = weight_place(worker, placement, weights_at)
    step = min(tile, COLUMN_VERTICES)
    blocks = stride_loop("column", worker.thread, placement.columns, THREADS)
    with stride_loop("first", 0, count, step) as first, blocks as column:
        sums = named("sums", T.alloc_local((step,), "float32"))
        for v in range(step):
            put(sums, v, T.float32(0.0))
        with loop("row", total_rows, unroll=ROWS_TOGETHER) as row:
            weight = let("weight", weights[place(row, column)])
            for quad in range(0, step, 4):
                at = deltas + row * pitch(tile) + first + quad
                delta = let("delta", worker.staging[quad_at(at)])
                for i in range(4):
                    put(sums, quad + i, cuda.fma(weight, lane4(delta, i), sums[quad + i]))
        for v in range(step):
            with when(first + v < count):
                for buffer, offset, low, high in product.stores:
                    with when(both(column >= low, column < high)):
                        at = worker.access.record(buffer, row_first + first + v) + (offset - low)
                        put(worker.pool, at + column, sums[v])
    worker.synchronize()


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


def _transposed_rows(
    worker: Worker,
    product: TransposedProduct,
    placement: Placement,
    weights_at: Expr,
    deltas: int,
    tile: int,
    row_first: Expr,
    count: Expr,
    buffers: int,
    step: int,
) -> None:
    """Rows spread over the warps, whose sums are added up through staging.

    With two buffers a warp goes on to the next sums while others still add up the last ones.
    """
    rows = rows_per_warp(placement, worker.workers)
    total_rows = placement.gates * share(placement.units, worker.workers)
    weights = _weights(worker, placement, weights_at)
    all_chunks = chunks(placement.columns)
    groups = -(-all_chunks // COLUMN_GROUP)
    size = WARPS * step * min(COLUMN_GROUP, all_chunks) * CHUNK
    with stride_loop("first", 0, count, step) as first:
        for number, begin in enumerate(range(0, all_chunks, COLUMN_GROUP)):
            group = min(COLUMN_GROUP, all_chunks - begin)
            scratch = fixed("scratch", (first // step * groups + number) % buffers * size)
            _partial_group(
                worker,
                weights,
                placement.residency == REGISTER,
                rows,
                total_rows,
                begin,
                group,
                deltas,
                tile,
                step,
                first,
                scratch,
            )
            worker.synchronize()
            quads = group * LANES
            with stride_loop("item", worker.thread, step * quads, THREADS) as item:
                vertex = fixed("vertex", item // quads)
                column = fixed("column", (item - vertex * quads) * 4)
                total = named("total", T.alloc_local((4,), "float32"))
                for warp in range(WARPS):
                    at = scratch + (warp * step + vertex) * (quads * 4) + column
                    found = let("found", worker.staging[quad_at(at)])
                    for i in range(4):
                        put(total, i, lane4(found, i) if warp == 0 else total[i] + lane4(found, i))
                with when(first + vertex < count):
                    row = row_first + first + vertex
                    store_columns(worker, product, row, begin * CHUNK + column, total[quad_at(0)])
            if buffers == 1:
                worker.synchronize()
    if buffers > 1:
        worker.synchronize()


def _partial_group(
    worker: Worker,
    weights: Weights,
    literal: bool,
    rows: int,
    total_rows: int,
    begin: int,
    group: int,
    deltas: int,
    tile: int,
    step: int,
    first: Expr,
    scratch: Expr,
) -> None:
    """The warp's sums over its rows of `group` chunks, for `step` vertices, into scratch."""
    sums = named("sums", T.alloc_local((step * group * 4,), "float32"))
    for index in range(step * group * 4):
        put(sums, index, T.float32(0.0))

    def add_row(row: Any) -> None:
        index = worker.warp * rows + row
        near = T.min(index, total_rows - 1)
        delta = []
        for v in range(step):
            found = worker.staging[deltas + near * pitch(tile) + first + v]
            delta.append(let("delta", T.Select(index < total_rows, found, T.float32(0.0))))
        for chunk in range(group):
            weight = weights(row, begin + chunk)
            for v in range(step):
                for i in range(4):
                    at = (v * group + chunk) * 4 + i
                    put(sums, at, cuda.fma(weight[i], delta[v], sums[at]))

    if literal:
        for row in range(rows):
            add_row(row)
    else:
        with loop("row", rows) as row:
            add_row(row)
    for v in range(step):
        for chunk in range(group):
            at = scratch + (worker.warp * step + v) * group * CHUNK + chunk * CHUNK + worker.lane * 4
            value = sums[quad_at((v * group + chunk) * 4)]
            T.buffer_store(worker.staging, value, [quad_at(at)])
