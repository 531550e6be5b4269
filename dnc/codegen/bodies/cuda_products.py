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
    smaller,
    stride_loop,
    when,
    wide,
)
from dnc.ir.plan import (
    REGISTER,
    SHARED,
    STREAMED,
    Address,
    GatherAddress,
    Piece,
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
STAGED_TOGETHER = 4  # loads a thread has under way

Weights = Callable[[Any, Any], list[Expr]]  # (row of the warp, chunk) -> four weights


def pitch(tile: int) -> int:
    """Words between the rows of staged sums and deltas of a tile: neighbouring rows in different banks."""
    return tile + 4 if tile % 4 == 0 else tile


def padded_columns(columns: int) -> int:
    """Columns of a staged operand: whole chunks."""
    return chunks(columns) * CHUNK


def stage_operand(
    worker: Worker, pieces: tuple[Piece, ...], first: Expr, count: Expr, group: int, at: int
) -> None:
    """Copies the operands of rows first .. first + count into staging.

    Row v lies at `at` + v * padded columns, zeros behind its columns. What a product may read
    beyond the last row (`group` of them are multiplied together) is zero as well.
    """
    rows = let("staged", (count + group - 1) // group * group)
    stride = padded_columns(sum(piece.width for piece in pieces))
    if all_aligned(worker, pieces):
        together = STAGED_TOGETHER if group > 1 else 1
        stage_quads(worker, pieces, first, count, rows, at, stride, stride // 4, together)
    else:
        _stage_pieces(worker, pieces, first, count, rows, at)


def stage_quads(
    worker: Worker,
    pieces: tuple[Piece, ...],
    first: Expr,
    count: Expr,
    rows: Expr,
    at: int,
    stride: int,
    quads: int,
    together: int = STAGED_TOGETHER,
) -> None:
    """Copies aligned operands, 16 bytes at a time: `quads` of them a row, rows `stride` words apart.

    Rows first .. first + count; zeros up to `rows` of them, and behind the columns. A thread looks up
    `together` places before it starts the first copy.
    """
    columns = sum(piece.width for piece in pieces)
    total = let("quads", rows * quads)
    with stride_loop("item", worker.thread, total, THREADS * together) as item:
        places = []
        for part in range(together):
            index = fixed("index", item + part * THREADS) if part else item
            vertex = fixed("vertex", index // quads)
            element = fixed("element", (index - vertex * quads) * 4)
            near = let("near", first + smaller(vertex, count - 1))
            valid = vertex < count
            if quads * 4 > columns:
                valid = both(valid, element < columns)
            source = fixed("from", piece_at(worker, pieces, near, element, valid), "int64")
            places.append((fixed("to", at + vertex * stride + element), source))
        for part, (to, source) in enumerate(places):
            with when(item + part * THREADS < total):
                target = T.address_of(worker.staging[to])
                cuda.copy4_async(target, T.address_of(worker.pool[source]), source != 0)
    cuda.copy_commit()
    cuda.copy_wait(0)


def piece_word(worker: Worker, pieces: tuple[Piece, ...], row: Expr, element: Expr) -> Expr | None:
    """The word of a list that `piece_at` needs for an element of an operand; None if it needs none.

    A thread that looks it up before other work does not wait for it.
    """
    gathered = [
        (begin, piece.address)
        for begin, piece in zip(_begins(pieces), pieces, strict=True)
        if isinstance(piece.address, GatherAddress)
    ]
    if not gathered:
        return None
    lists = [(begin, let("list", worker.access.list_at(address.list))) for begin, address in gathered]
    return worker.words[_chosen(lists, element) + row]


def piece_at(
    worker: Worker,
    pieces: tuple[Piece, ...],
    row: Expr,
    element: Expr,
    valid: Expr,
    word: Expr | None = None,
) -> Expr:
    """Position of an element of an operand of aligned pieces; 0 where there is none or it is not valid.

    word: what `piece_word` found, if it was asked before.
    """
    begins = _begins(pieces)
    if word is None:
        word = piece_word(worker, pieces, row, element)
    if all(isinstance(piece.address, GatherAddress) for piece in pieces):
        shifts = [
            (begin, piece.address.offset - begin)  # type: ignore[union-attr]
            for begin, piece in zip(begins, pieces, strict=True)
        ]
        at = let("piece", wide(word) * 4 + _chosen(shifts, element))
    else:
        positions = []
        for begin, piece in zip(begins, pieces, strict=True):
            if isinstance(piece.address, GatherAddress):
                found = wide(word) * 4 + piece.address.offset
            else:
                found = worker.access.position(piece.address, row)
            positions.append((begin, let("piece", found - begin)))
        at = _chosen(positions, element)
    return T.Select(valid, at + element, T.int64(0))


def _begins(pieces: tuple[Piece, ...]) -> list[int]:
    """The first element of every piece."""
    return [sum(piece.width for piece in pieces[:index]) for index in range(len(pieces))]


def _chosen(values: list[tuple[int, Any]], element: Expr) -> Any:
    """The value of the last one that begins before or at an element."""
    found = values[0][1]
    for begin, value in values[1:]:
        found = T.Select(element >= begin, value, found)
    return found


def _stage_pieces(
    worker: Worker, pieces: tuple[Piece, ...], first: Expr, count: Expr, rows: Expr, at: int
) -> None:
    """One element at a time, for operands that are sums or not aligned."""
    stride = padded_columns(sum(piece.width for piece in pieces))
    begin = 0
    for piece in pieces:
        with stride_loop("item", worker.thread, rows * piece.width, THREADS) as item:
            vertex = fixed("vertex", item // piece.width)
            element = fixed("element", item - vertex * piece.width)
            to = fixed("to", at + vertex * stride + begin + element)
            with T.If(vertex < count):
                with T.Then():
                    put(worker.staging, to, worker.access.reader(piece.address, first + vertex)(element))
                with T.Else():
                    put(worker.staging, to, T.float32(0.0))
        begin += piece.width
    rest = stride - begin
    if rest:
        with stride_loop("item", worker.thread, rows * rest, THREADS) as item:
            put(worker.staging, at + item // rest * stride + begin + item % rest, T.float32(0.0))


def all_aligned(worker: Worker, pieces: tuple[Piece, ...]) -> bool:
    """Whether every piece starts and ends at a whole address in every row."""
    return all(piece.width % 4 == 0 and is_aligned(worker, piece.address) for piece in pieces)


def is_aligned(worker: Worker, address: Address) -> bool:
    """Whether every row of an address lies in one piece that starts at a whole address."""
    return worker.access.is_plain(address) and address.offset % 4 == 0  # type: ignore[union-attr]


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

    if placement.residency == SHARED:
        last = placement.gates * share(placement.units, worker.workers) - 1

        def on_chip(row: Any, chunk: Any) -> list[Expr]:
            index = T.min(worker.warp * rows + row, last)
            at = placement.slot + index * shared_stride(placement.columns) + column_of(chunk)
            value = let("weight", worker.shared_weights[quad_at(at)])
            return [lane4(value, i) for i in range(4)]

        return on_chip

    base = let("weights", at)

    def streamed(row: Any, chunk: Any) -> list[Expr]:
        source, valid = source_row(worker, placement, worker.warp * rows + row)
        at = T.Select(valid != 0, base + source * columns + column_of(chunk), T.int64(0))
        at = fixed("from", at, "int64")
        value = let("weight", worker.pool[quad_at(at)])
        return [lane4(value, i) for i in range(4)]

    return streamed


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
    weight_at = _weight_at(worker, placement, weights_at)
    step = min(tile, COLUMN_VERTICES)
    blocks = stride_loop("column", worker.thread, placement.columns, THREADS)
    with stride_loop("first", 0, count, step) as first, blocks as column:
        sums = named("sums", T.alloc_local((step,), "float32"))
        for v in range(step):
            put(sums, v, T.float32(0.0))
        with loop("row", total_rows, unroll=ROWS_TOGETHER) as row:
            weight = let("weight", weight_at(row, column))
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


def _weight_at(worker: Worker, placement: Placement, weights_at: Expr) -> Callable[[Expr, Expr], Expr]:
    """One weight of a local row, from shared memory or the L2 cache."""
    columns = padded(placement.columns)
    if placement.residency == SHARED:
        stride = shared_stride(placement.columns)
        return lambda row, column: worker.shared_weights[placement.slot + row * stride + column]
    base = let("weights", weights_at)

    def streamed(row: Expr, column: Expr) -> Expr:
        source, valid = source_row(worker, placement, row)
        at = T.Select(valid != 0, base + source * columns + column, T.int64(0))
        return worker.pool[fixed("from", at, "int64")]

    return streamed


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
