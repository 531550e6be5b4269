"""Weight gradients on CUDA: work that the whole grid shares.

In: the gradients of a plan and the fields of their instructions. Out: instruction bodies. Tiles and
tokens are dealt out to workers; each is summed by one worker in the order of the rows, without atomics,
so the bits do not depend on timing.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.access import SlotsReader
from dnc.codegen.bodies.cuda_products import all_aligned, is_aligned, piece_at
from dnc.codegen.bodies.cuda_worker import LANES, THREADS, WARPS, Worker
from dnc.codegen.emit import (  # fmt: skip
    Expr,
    any_of,
    both,
    fixed,
    floats,
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
LINES = THREADS // QUADS
PARTS = STEP // LINES  # rows of a step that a thread copies 16 bytes of, on either side
STAGES = 2
FEW_SLOTS = 8  # of a token of a table
STAGE = 2 * STEP * STRIDE


def dense_gradient(
    worker: Worker,
    gradient: DenseGradient,
    first_row: Expr,
    rows: Expr,
    first: Expr,
    accumulate: Expr,
    chunks: Expr,
    index: Expr,
) -> None:
    """Tiles of 64 x 64 elements of every chunk of rows, 4 x 4 a thread; or 64 rows of a vector."""
    columns = sum(piece.width for piece in gradient.pieces)
    across = max(1, -(-columns // TILE))
    tiles = -(-gradient.rows // TILE) * across
    size = let("size", isa.chunk_rows(rows, chunks))
    begin = let("begin", (worker.number + worker.grid - first) % worker.grid)
    with stride_loop("item", begin, chunks * tiles, worker.grid) as item:
        chunk = fixed("chunk", item // tiles)
        tile = fixed("tile", item - chunk * tiles)
        base = let("gradient", worker.access.arena(chunk) + _offset(worker, gradient.parameter, index))
        start = let("start", first_row + chunk * size)
        end = let("end", smaller(first_row + rows, start + size))
        row = let("row", tile // across * TILE)
        with when(both(tile == 0, accumulate == 0)):
            _clear_padding(worker, gradient, base)
        if gradient.pieces:
            column = let("column", tile % across * TILE)
            _matrix_tile(worker, gradient, start, end, row, column, columns, base, accumulate)
        else:
            _vector_tile(worker, gradient, start, end, row, base, accumulate)


def _clear_padding(worker: Worker, gradient: DenseGradient, base: Expr) -> None:
    """Zeros behind a gradient's elements: arenas are added up whole, and those of chunks are not cleared."""
    shape = worker.plan.program.parameter(gradient.parameter).type.shape
    end, stride = isa.slice_floats(worker.plan, gradient.parameter), padded(shape[-1])
    behind = shape[0] if len(shape) == 1 else shape[0] * stride
    # Products write the padding of their rows themselves.
    first = 0 if len(shape) > 1 and shape[1] % 4 and not gradient.pieces else behind
    if first == end:
        return
    with stride_loop("place", worker.thread + first, end, THREADS) as place:
        if first == behind:
            put(worker.pool, base + wide(place), T.float32(0.0))
        else:
            with when(any_of(place >= behind, place % stride >= shape[1])):
                put(worker.pool, base + wide(place), T.float32(0.0))


def _offset(worker: Worker, parameter: str, index: Expr) -> Expr:
    """A parameter's place in every arena; `index`: which one of a stack."""
    return worker.access.slice(parameter, index) - worker.access.base(isa.PARAMETERS)


def _matrix_tile(
    worker: Worker,
    gradient: DenseGradient,
    start: Expr,
    end: Expr,
    row: Expr,
    column: Expr,
    columns: int,
    base: Expr,
    accumulate: Expr,
) -> None:
    """The sum of outer products over rows start .. end: the next rows are loaded during the sums."""
    worker.stage(STAGES * STAGE)
    sums = local("sums", "float32", T.float32(0.0), 16)
    i, j = let("i", worker.thread // 16 * 4), let("j", worker.thread % 16 * 4)
    steps = _Steps(worker, gradient, end, row, column)
    steps.look_up(start)
    steps.copy(start, T.int32(0))
    steps.look_up(start + STEP)
    with stride_loop("from", start, end, STEP) as now:
        stage = let("stage", (now - start) // STEP % STAGES * STAGE)
        steps.copy(now + STEP, (now - start + STEP) // STEP % STAGES * STAGE)
        steps.look_up(now + 2 * STEP)
        cuda.copy_wait(1)
        worker.synchronize()
        with loop("k", STEP, unroll=4) as k:
            a = let("a", worker.staging[T.ramp(stage + k * STRIDE + i, 1, 4)])
            b = let("b", worker.staging[T.ramp(stage + (STEP + k) * STRIDE + j, 1, 4)])
            for p in range(4):
                for q in range(4):
                    put(sums, p * 4 + q, cuda.fma(lane4(a, p), lane4(b, q), sums[p * 4 + q]))
        worker.synchronize()
    cuda.copy_wait(0)
    _write_tile(worker, gradient.rows, columns, row + i, column + j, sums, base, accumulate)


def _write_tile(
    worker: Worker, rows: int, columns: int, row: Expr, column: Expr, sums: Any, base: Expr, accumulate: Expr
) -> None:
    """A thread's 4 x 4 elements; what they are added to is read before anything is written."""
    if columns % 4:
        for p in range(4):
            for q in range(4):
                # Behind the columns the sums are zero: see `_clear_padding`.
                with when(both(row + p < rows, column + q < padded(columns))):
                    at = let("at", base + wide(row + p) * padded(columns) + (column + q))
                    _write(worker, at, sums[p * 4 + q], accumulate)
        return
    with when(column < columns):
        places = []
        for p in range(4):
            there = T.Select(row + p < rows, base + wide(row + p) * columns + column, T.int64(0))
            places.append(fixed("at", there, "int64"))
        with when(accumulate != 0):
            old = [let("old", worker.pool[T.ramp(at, 1, 4)]) for at in places]
            for p in range(4):
                for q in range(4):
                    put(sums, p * 4 + q, lane4(old[p], q) + sums[p * 4 + q])
        for p in range(4):
            with when(row + p < rows):
                T.buffer_store(worker.pool, sums[T.ramp(p * 4, 1, 4)], [T.ramp(places[p], 1, 4)])


class _Steps:
    """Brings the rows of a tile into shared memory, STEP at a time.

    A stage holds STEP rows of deltas, then STEP rows of operands, 64 elements of each. Places are
    looked up one step ahead of the copies, copies run one step ahead of the sums.
    """

    def __init__(self, worker: Worker, gradient: DenseGradient, end: Expr, row: Expr, column: Expr) -> None:
        self.worker, self.gradient, self.end = worker, gradient, end
        own = let("own", worker.thread % QUADS * 4)
        self.line = let("line", worker.thread // QUADS)
        self.row, self.column = let("delta_row", row + own), let("operand_column", column + own)
        self.to = let("to", self.line * STRIDE + own)
        pieces = gradient.pieces
        whole = gradient.rows % 4 == 0 and is_aligned(worker, gradient.delta)
        self.aligned = whole and all_aligned(worker, pieces)
        self.columns = sum(piece.width for piece in pieces)
        self.operands = local("operand_at", "int64", T.int64(0), PARTS)

    def look_up(self, first: Expr) -> None:
        """Finds the operands of the rows from `first` on."""
        if not self.aligned:
            return
        for part in range(PARTS):
            vertex = fixed("vertex", first + self.line + part * LINES)
            valid = both(vertex < self.end, self.column < self.columns)
            near = let("near", T.Select(vertex < self.end, vertex, 0))
            put(
                self.operands,
                part,
                piece_at(self.worker, self.gradient.pieces, near, self.column, valid),
            )

    def copy(self, first: Expr, stage: Expr) -> None:
        """Starts the copies of the rows from `first` on, zeros where there are none."""
        worker, gradient = self.worker, self.gradient
        for part in range(PARTS):
            vertex = fixed("vertex", first + self.line + part * LINES)
            to = fixed("to", stage + self.to + part * LINES * STRIDE)
            if not self.aligned:
                self._copy_slowly(vertex, to)
                continue
            delta = worker.access.position(gradient.delta, vertex) + self.row
            valid = both(vertex < self.end, self.row < gradient.rows)
            source = fixed("delta_at", T.Select(valid, delta, T.int64(0)), "int64")
            self._start(to, source)
            self._start(to + STEP * STRIDE, self.operands[part])
        cuda.copy_commit()

    def _start(self, to: Expr, source: Expr) -> None:
        worker = self.worker
        target = T.address_of(worker.staging[to])
        cuda.copy4_async(target, T.address_of(worker.pool[source]), source != 0)

    def _copy_slowly(self, vertex: Expr, to: Expr) -> None:
        """Element by element, where they are sums or not aligned."""
        worker, gradient = self.worker, self.gradient
        delta = local("delta", "float32", T.float32(0.0), 4)
        operand = local("operand", "float32", T.float32(0.0), 4)
        with when(vertex < self.end):
            _four(worker, gradient.delta, gradient.rows, vertex, self.row, delta)
            begin = 0
            for piece in gradient.pieces:
                _four(
                    worker, piece.address, piece.width, vertex, self.column - begin, operand, begin % 4 == 0
                )
                begin += piece.width
        for place, value in ((to, delta), (to + STEP * STRIDE, operand)):
            T.buffer_store(worker.staging, value[T.ramp(0, 1, 4)], [T.ramp(place, 1, 4)])


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
    worker: Worker,
    gradient: DenseGradient,
    start: Expr,
    end: Expr,
    row: Expr,
    base: Expr,
    accumulate: Expr,
) -> None:
    """Thread (r, q) sums the rows q, q + 4, ... of element r; then the four sums in order."""
    parts = THREADS // TILE
    own, line = let("own", worker.thread % TILE), let("line", worker.thread // TILE)
    total = local("sum", "float32", T.float32(0.0))
    with when(row + own < gradient.rows), stride_loop("vertex", start + line, end, parts * 4) as vertex:
        terms = []
        for ahead in range(4):  # loads under way together
            later = let("later", vertex + ahead * parts)
            term = local("term", "float32", T.float32(0.0))
            with when(later < end):
                put(term, 0, worker.access.reader(gradient.delta, later)(row + own))
            terms.append(term)
        for term in terms:
            put(total, 0, total[0] + term[0])
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
    """The sum of every touched token's slots, and the square of its norm.

    A warp takes a token with few slots; the words that occur in every sentence take a whole worker.
    """
    names = isa.table_lists(table.parameter)
    width = padded(table.width)
    base = let("compact", worker.access.base(isa.table_base(table.parameter)))
    norms = let("norms", worker.access.base(isa.NORMS) + norm)
    address = SlotsAddress(names[1], names[2], width)
    several = WARPS * width + WARPS <= worker.staging_words
    first = let("token_first", worker.number * WARPS + worker.warp)
    with stride_loop("token", first, tokens, worker.grid * WARPS) as token:
        slots = worker.access.slots(address, token)
        with when(slots.count() <= FEW_SLOTS) if several else nullcontext():
            square = local("square", "float32", T.float32(0.0))
            with stride_loop("quad", worker.lane * 4, width, LANES * 4) as quad:
                at = base + wide(token) * width + quad
                _keep_quad(worker, at, slots.sum(T.ramp(quad, 1, 4)), accumulate, square, table.width - quad)
            for mask in (16, 8, 4, 2, 1):
                put(square, 0, square[0] + cuda.shuffle_xor(square[0], mask))
            with when(worker.lane == 0):
                put(worker.pool, norms + token, square[0])
    if several:
        with stride_loop("many", worker.number, tokens, worker.grid) as token:
            slots = worker.access.slots(address, token)
            with when(slots.count() > FEW_SLOTS):
                compact = base + wide(token) * width
                _sum_together(worker, slots, table.width, compact, norms + token, accumulate)


def _sum_together(
    worker: Worker, slots: SlotsReader, width: int, base: Expr, norm: Expr, accumulate: Expr
) -> None:
    """A token of the whole worker: every warp sums every eighth slot, then the warps' sums in order."""
    elements, width = width, padded(width)
    part = worker.stage(WARPS * width, WARPS)
    with stride_loop("quad", worker.lane * 4, width, LANES * 4) as quad:
        to = fixed("to", part + worker.warp * width + quad)
        found = slots.every(worker.warp, WARPS, T.ramp(quad, 1, 4))
        T.buffer_store(worker.staging, found, [T.ramp(to, 1, 4)])
    worker.synchronize()
    square = local("square", "float32", T.float32(0.0))
    with stride_loop("quad", worker.thread * 4, width, THREADS * 4) as quad:
        total = local("total", *floats(0.0, T.ramp(quad, 1, 4)))
        for warp in range(WARPS):
            source = fixed("source", part + warp * width + quad)
            put(total, 0, total[0] + worker.staging[T.ramp(source, 1, 4)])
        _keep_quad(worker, base + quad, total[0], accumulate, square, elements - quad)
    whole = worker.block_sum(square[0])
    with when(worker.thread == 0):
        put(worker.pool, norm, whole)


def _keep_quad(worker: Worker, at: Expr, found: Expr, accumulate: Expr, square: Any, left: Expr) -> None:
    """Writes four elements of a token's gradient, and adds up their squares.

    left: elements from here to the end of the row. What stands behind is padding, which nobody wrote.
    """
    at = fixed("at", at, "int64")
    value = named("value", T.alloc_local((4,), "float32"))
    T.buffer_store(value, found, [T.ramp(0, 1, 4)])
    with when(accumulate != 0):
        old = let("old", worker.pool[T.ramp(at, 1, 4)])
        for i in range(4):
            put(value, i, value[i] + lane4(old, i))
    T.buffer_store(worker.pool, value[T.ramp(0, 1, 4)], [T.ramp(at, 1, 4)])
    for i in range(4):
        put(square, 0, square[0] + T.Select(left > i, value[i] * value[i], T.float32(0.0)))
