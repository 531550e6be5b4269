"""Weight gradients, norm, update and reduction on CUDA: work that the whole grid shares.

In: the gradients of a plan and the fields of their instructions. Out: instruction bodies. Tiles,
tokens and chunks are dealt out to workers; each is summed by one worker in the order of the rows,
without atomics, so the bits do not depend on timing.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_worker import LANES, THREADS, WARPS, Worker
from dnc.codegen.emit import (  # fmt: skip
    Expr,
    both,
    fixed,
    lane4,
    let,
    local,
    loop,
    named,
    put,
    smaller,
    stride_loop,
    when,
    wide,
)
from dnc.ir import isa
from dnc.ir.plan import Address, DenseGradient, SlotsAddress, TableGradient, padded

TILE = 64
QUADS = TILE // 4
STEP = 32  # rows staged at a time
STRIDE = TILE + 4


def dense_gradient(
    worker: Worker, gradient: DenseGradient, rows: Expr, first: Expr, accumulate: Expr
) -> None:
    """Tiles of 64 x 64 elements, 4 x 4 a thread; or 64 rows of a vector parameter."""
    columns = sum(piece.width for piece in gradient.pieces)
    base = let(
        "gradient",
        worker.access.base(isa.GRADIENTS)
        + worker.access.base(gradient.parameter)
        - worker.access.base(isa.PARAMETERS),
    )
    across = max(1, -(-columns // TILE))
    tiles = -(-gradient.rows // TILE) * across
    begin = let("begin", (worker.number + worker.grid - first) % worker.grid)
    with stride_loop("tile", begin, tiles, worker.grid) as tile:
        row = let("row", tile // across * TILE)
        if gradient.pieces:
            column = let("column", tile % across * TILE)
            _matrix_tile(worker, gradient, rows, row, column, columns, base, accumulate)
        else:
            _vector_tile(worker, gradient, rows, row, base, accumulate)


def _matrix_tile(
    worker: Worker,
    gradient: DenseGradient,
    rows: Expr,
    row: Expr,
    column: Expr,
    columns: int,
    base: Expr,
    accumulate: Expr,
) -> None:
    worker.stage(2 * STEP * STRIDE)
    deltas, operands = 0, STEP * STRIDE
    sums = local("sums", "float32", T.float32(0.0), 16)
    own, line = let("own", worker.thread % QUADS * 4), let("line", worker.thread // QUADS)
    i, j = let("i", worker.thread // 16 * 4), let("j", worker.thread % 16 * 4)
    with stride_loop("from", 0, rows, STEP) as start:
        for part in range(STEP * QUADS // THREADS):
            index = let("index", line + part * (THREADS // QUADS))
            vertex = fixed("vertex", start + index)
            delta = local("delta", "float32", T.float32(0.0), 4)
            operand = local("operand", "float32", T.float32(0.0), 4)
            with when(vertex < rows):
                _four(worker, gradient.delta, gradient.rows, vertex, row + own, delta)
                begin = 0
                for piece in gradient.pieces:
                    whole = begin % 4 == 0
                    _four(worker, piece.address, piece.width, vertex, column + own - begin, operand, whole)
                    begin += piece.width
            T.buffer_store(
                worker.staging, delta[T.ramp(0, 1, 4)], [T.ramp(deltas + index * STRIDE + own, 1, 4)]
            )
            T.buffer_store(
                worker.staging, operand[T.ramp(0, 1, 4)], [T.ramp(operands + index * STRIDE + own, 1, 4)]
            )
        worker.synchronize()
        with loop("k", STEP, unroll=8) as k:
            a = let("a", worker.staging[T.ramp(deltas + k * STRIDE + i, 1, 4)])
            b = let("b", worker.staging[T.ramp(operands + k * STRIDE + j, 1, 4)])
            for p in range(4):
                for q in range(4):
                    put(sums, p * 4 + q, cuda.fma(lane4(a, p), lane4(b, q), sums[p * 4 + q]))
        worker.synchronize()
    for p in range(4):
        for q in range(4):
            with when(both(row + i + p < gradient.rows, column + j + q < columns)):
                at = let("at", base + wide(row + i + p) * padded(columns) + (column + j + q))
                _write(worker, at, sums[p * 4 + q], accumulate)


def _four(
    worker: Worker, address: Address, width: int, vertex: Expr, element: Expr, into: Any, whole: bool = True
) -> None:
    """Elements element .. + 3 of a row, those in [0, width); one load where they are aligned.

    whole: `element` is a multiple of 4.
    """
    element = fixed("element", element)
    plain = whole and width % 4 == 0 and worker.access.is_plain(address)
    if plain and address.offset % 4 == 0:  # type: ignore[union-attr]
        with when(both(element >= 0, element < width)):
            at = fixed("at", worker.access.position(address, vertex) + element, "int64")
            T.buffer_store(into, worker.pool[T.ramp(at, 1, 4)], [T.ramp(0, 1, 4)])
        return
    with when(both(element > -4, element < width)):
        read = worker.access.reader(address, vertex)
        for i in range(4):
            with when(both(element + i >= 0, element + i < width)):
                put(into, i, read(element + i))


def _vector_tile(
    worker: Worker, gradient: DenseGradient, rows: Expr, row: Expr, base: Expr, accumulate: Expr
) -> None:
    """Thread (r, q) sums the rows q, q + 4, ... of element r; then the four sums in order."""
    parts = THREADS // TILE
    own, line = let("own", worker.thread % TILE), let("line", worker.thread // TILE)
    total = local("sum", "float32", T.float32(0.0))
    with when(row + own < gradient.rows), stride_loop("vertex", line, rows, parts) as vertex:
        put(total, 0, total[0] + worker.access.reader(gradient.delta, vertex)(row + own))
    put(worker.staging, worker.stage(THREADS) + worker.thread, total[0])
    worker.synchronize()
    with when(both(worker.thread < TILE, row + own < gradient.rows)):
        for part in range(1, parts):
            put(total, 0, total[0] + worker.staging[part * TILE + own])
        position = worker.access.flat_position(gradient.parameter, row + own)
        _write(worker, let("at", base + wide(position)), total[0], accumulate)
    worker.synchronize()


def _write(worker: Worker, at: Expr, value: Expr, accumulate: Expr) -> None:
    old = local("old", "float32", T.float32(0.0))
    with when(accumulate != 0):
        put(old, 0, worker.pool[at])
    put(worker.pool, at, old[0] + value)


def table_gradient(worker: Worker, table: TableGradient, tokens: Expr, norm: Expr, accumulate: Expr) -> None:
    """A warp per touched token: the sum of its slots, and the square of its norm."""
    names = isa.table_lists(table.parameter)
    width = padded(table.width)
    base = let("compact", worker.access.base(isa.table_base(table.parameter)))
    norms = let("norms", worker.access.base(isa.NORMS) + norm)
    slots = SlotsAddress(names[1], names[2], width)
    first = let("token_first", worker.number * WARPS + worker.warp)
    with stride_loop("token", first, tokens, worker.grid * WARPS) as token:
        read = worker.access.reader(slots, token)
        square = local("square", "float32", T.float32(0.0))
        with loop("part", -(-table.width // LANES)) as part:
            index = let("element", part * LANES + worker.lane)
            with when(index < table.width):
                at = let("at", base + wide(token) * width + index)
                value = local("value", "float32", read(index))
                with when(accumulate != 0):
                    put(value, 0, value[0] + worker.pool[at])
                put(worker.pool, at, value[0])
                put(square, 0, square[0] + value[0] * value[0])
        for mask in (16, 8, 4, 2, 1):
            put(square, 0, square[0] + cuda.shuffle_xor(square[0], mask))
        with when(worker.lane == 0):
            put(worker.pool, norms + token, square[0])


def norm(worker: Worker, count: Expr) -> None:
    """The sum of squares of every chunk of the dense gradients."""
    gradients = let("gradients", worker.access.base(isa.GRADIENTS))
    norms = let("norms", worker.access.base(isa.NORMS))
    size = isa.NORM_CHUNK
    worker.stage(WARPS)
    with stride_loop("chunk", worker.number, (count + size - 1) // size, worker.grid) as chunk:
        length = let("length", smaller(count - chunk * size, size))

        def square(quad: Expr, chunk: Expr = chunk) -> Expr:
            at = fixed("at", gradients + wide(chunk) * size + quad * 4, "int64")
            value = let("value", worker.pool[T.ramp(at, 1, 4)])
            products = [lane4(value, i) * lane4(value, i) for i in range(4)]
            return (products[0] + products[1]) + (products[2] + products[3])

        total = worker.strided_sum(length // 4, square)
        with when(worker.thread == 0):
            put(worker.pool, norms + chunk, total)


def reduce(worker: Worker, base: Expr, rows: Expr, stride: Expr, result: Expr) -> None:
    """Worker 0 sums a column of records into a word of the results."""
    with when(worker.number == 0):
        at = let("column", wide(base) * 4)
        total = worker.strided_sum(rows, lambda i: worker.pool[at + wide(i) * stride])
        with when(worker.thread == 0):
            put(worker.pool, worker.access.base(isa.RESULTS) + result, total)


def _scale(worker: Worker, norms: Expr) -> tuple[Expr, Expr]:
    """The norm of the whole gradient, and the factor that clips it."""
    at = let("norms", worker.access.base(isa.NORMS))
    total = let("norm", T.sqrt(worker.strided_sum(norms, lambda i: worker.pool[at + i])))
    clip = let("clip", worker.access.header_float("clip_norm"))
    return total, let("scale", T.Select(total > clip, clip / total, T.float32(1.0)))


def _finite(value: Expr) -> Expr:
    return both(value == value, value <= T.float32(3.4028234663852886e38))


def update(worker: Worker, optimizer: str, count: Expr, norms: Expr) -> None:
    """All dense parameters; nothing is changed where the norm is not finite."""
    total, scale = _scale(worker, norms)
    results = worker.access.base(isa.RESULTS)
    with when(both(worker.number == 0, worker.thread == 0)):
        put(worker.pool, results + isa.RESULT_NORM, total)
        done = T.Select(_finite(total), T.float32(1.0), T.float32(0.0))
        put(worker.pool, results + isa.RESULT_UPDATED, done)
    parameters = let("parameters", worker.access.base(isa.PARAMETERS))
    gradients = let("gradients", worker.access.base(isa.GRADIENTS))
    state = let("state", worker.access.base(isa.OPTIMIZER))
    first = let("update_first", (worker.number * THREADS + worker.thread) * 4)
    with when(_finite(total)), stride_loop("element", first, count, worker.grid * (THREADS * 4)) as i:
        _apply_four(worker, optimizer, parameters + i, gradients + i, state + i, scale)


def _apply_four(
    worker: Worker, optimizer: str, at: Expr, gradient_at: Expr, state_at: Expr, scale: Expr
) -> None:
    """Four neighbouring elements: the arenas are multiples of 16 words."""
    at, gradient_at = fixed("at", at, "int64"), fixed("gradient_at", gradient_at, "int64")
    old = let("old", worker.pool[T.ramp(at, 1, 4)])
    gradient = let("gradient", worker.pool[T.ramp(gradient_at, 1, 4)])
    new = named("new", T.alloc_local((4,), "float32"))
    totals = named("totals", T.alloc_local((4,), "float32"))
    state_at = fixed("state_at", state_at, "int64")
    sums = let("sums", worker.pool[T.ramp(state_at, 1, 4)]) if optimizer == isa.ADAGRAD else None
    for i in range(4):
        scaled = let("g", lane4(gradient, i) * scale)
        if optimizer == isa.ADAGRAD:
            put(totals, i, lane4(sums, i) + scaled * scaled)
        put(new, i, _stepped(worker, optimizer, lane4(old, i), scaled, totals[i]))
    if optimizer == isa.ADAGRAD:
        T.buffer_store(worker.pool, totals[T.ramp(0, 1, 4)], [T.ramp(state_at, 1, 4)])
    T.buffer_store(worker.pool, new[T.ramp(0, 1, 4)], [T.ramp(at, 1, 4)])


def _stepped(worker: Worker, optimizer: str, old: Expr, gradient: Expr, total: Expr) -> Expr:
    """The new value of a parameter; `total` is AdaGrad's sum of squares with this step's."""
    rate = worker.access.header_float("learning_rate")
    if optimizer == isa.ADAGRAD:
        return old - rate * gradient / (T.sqrt(total) + worker.access.header_float("epsilon"))
    return old - rate * gradient


def update_table(worker: Worker, optimizer: str, table: TableGradient, tokens: Expr, norms: Expr) -> None:
    """The touched rows of a table."""
    total, scale = _scale(worker, norms)
    rows = let("rows", worker.access.list_at(isa.table_lists(table.parameter)[0]))
    base = let("compact", worker.access.base(isa.table_base(table.parameter)))
    shift = let("shift", worker.access.base(isa.OPTIMIZER) - worker.access.base(isa.PARAMETERS))
    first = let("token_first", worker.number * WARPS + worker.warp)
    with when(_finite(total)), stride_loop("token", first, tokens, worker.grid * WARPS) as token:
        at = let("table_row", worker.access.entry(rows + token))
        with loop("part", -(-table.width // LANES)) as part:
            index = let("element", part * LANES + worker.lane)
            with when(index < table.width):
                found = worker.pool[base + wide(token) * padded(table.width) + index]
                _apply(worker, optimizer, at + index, at + shift + index, let("g", found * scale))


def _apply(worker: Worker, optimizer: str, at: Expr, state: Expr, gradient: Expr) -> None:
    old, total = let("old", worker.pool[at]), None
    if optimizer == isa.ADAGRAD:
        total = let("total", worker.pool[state] + gradient * gradient)
        put(worker.pool, state, total)
    put(worker.pool, at, _stepped(worker, optimizer, old, gradient, total))
