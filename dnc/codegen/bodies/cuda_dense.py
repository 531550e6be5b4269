"""Weight gradients on CUDA: sums of outer products over the rows of a space, for the whole grid.

In: a gradient of a plan and the fields of its instruction. Out: the instruction's body. Every tile
of every chunk of rows is a piece of work for one worker, summed in the order of the rows without
atomics, so the bits do not depend on timing. Rows come into shared memory by asynchronous copies,
one step ahead of the sums, and every thread sums 4 x 4 or 8 x 8 elements.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_operands import all_aligned, is_aligned, piece_at, piece_word
from dnc.codegen.bodies.cuda_worker import THREADS, Worker
from dnc.codegen.emit import (
    Expr,
    any_of,
    both,
    either,
    fixed,
    lane4,
    let,
    local,
    loop,
    named,
    put,
    quad_at,
    smaller,
    stride_loop,
    when,
    wide,
)
from dnc.ir import isa
from dnc.ir.plan import Address, DenseGradient, padded

STEPS = (32, 16)  # rows staged at a time: the first that fits
STAGES = 2
VECTOR_LOADS = 8  # rows of a vector's gradient that a thread has under way


@attrs.frozen
class Side:
    """One side of a tile: how its elements are shared out in shared memory and over the threads.

    elements: of the tile. threads: that stand side by side along it; each has `quads` times 4
    elements, 4 * threads apart.
    """

    elements: int
    threads: int

    @property
    def quads(self) -> int:
        """Groups of 4 elements of a thread."""
        return self.elements // (4 * self.threads)

    @property
    def stride(self) -> int:
        """Words of a staged row."""
        return self.elements + 4

    @property
    def lines(self) -> int:
        """Rows that all threads together copy at a time, 16 bytes each."""
        return THREADS // (self.elements // 4)

    def parts(self, step: int) -> int:
        """Copies that a thread makes in a step of so many rows."""
        return -(-step // self.lines)


@attrs.frozen
class Tile:
    """A tile: rows are elements of the delta, columns of the operand; `step` of them are staged at a time."""

    rows: Side
    columns: Side
    step: int

    @property
    def stage(self) -> int:
        """Words of a step in shared memory: deltas, operands behind them."""
        return self.step * (self.rows.stride + self.columns.stride)


def tile_of(shape: isa.GradientTile, staging_words: int) -> Tile:
    """The tile of a shape, on all threads of a worker."""
    high = min(16, shape.rows // 4)
    tiles = [Tile(Side(shape.rows, high), Side(shape.columns, THREADS // high), step) for step in STEPS]
    return next((tile for tile in tiles if STAGES * tile.stage <= staging_words), tiles[-1])


def dense_gradient(
    worker: Worker,
    gradient: DenseGradient,
    first_row: Expr,
    rows: Expr,
    first: Expr,
    accumulate: Expr,
    chunks: Expr,
    index: Expr,
    tile: Expr,
) -> None:
    """Tiles of every chunk of rows; without an operand the deltas are summed, 64 elements at a time."""
    bodies = [
        partial(_tiles, worker, gradient, shape, first_row, rows, first, accumulate, chunks, index)
        for shape in isa.gradient_tiles(gradient)
    ]
    if len(bodies) == 1:
        bodies[0]()
    else:
        either(tile == 0, *bodies)


def _tiles(
    worker: Worker,
    gradient: DenseGradient,
    shape: isa.GradientTile,
    first_row: Expr,
    rows: Expr,
    first: Expr,
    accumulate: Expr,
    chunks: Expr,
    index: Expr,
) -> None:
    """The worker's share of the tiles of one shape."""
    columns = sum(piece.width for piece in gradient.pieces)
    across = -(-max(columns, 1) // shape.columns)
    tiles = isa.tile_count(gradient, shape)
    size = let("size", isa.chunk_rows(rows, chunks))
    begin = let("begin", (worker.number + worker.grid - first) % worker.grid)
    with stride_loop("item", begin, chunks * tiles, worker.grid) as item:
        chunk = fixed("chunk", item // tiles)
        tile = fixed("tile", item - chunk * tiles)
        base = fixed(
            "gradient", worker.access.arena(chunk) + _offset(worker, gradient.parameter, index), "int64"
        )
        start = fixed("start", first_row + chunk * size)
        end = fixed("end", smaller(first_row + rows, start + size))
        row = fixed("row", tile // across * shape.rows)
        with when(both(tile == 0, accumulate == 0)):
            _clear_padding(worker, gradient, base)
        if gradient.pieces:
            column = fixed("column", tile % across * shape.columns)
            _matrix_tile(worker, gradient, shape, start, end, row, column, columns, base, accumulate)
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
    shape: isa.GradientTile,
    start: Expr,
    end: Expr,
    row: Expr,
    column: Expr,
    columns: int,
    base: Expr,
    accumulate: Expr,
) -> None:
    """The sum of outer products over rows start .. end: the next rows are loaded during the sums."""
    tile = tile_of(shape, worker.staging_words)
    step = tile.step
    worker.stage(STAGES * tile.stage)
    high, across = tile.rows, tile.columns
    count = 16 * high.quads * across.quads
    sums = named("sums", T.alloc_local((count,), "float32"))
    for index in range(count):
        put(sums, index, T.float32(0.0))
    # A warp has 4 x 8 threads of the tile, so that a read of its operands touches few words.
    along = across.threads // 8
    i = fixed("i", (worker.warp // along * 4 + worker.lane // 8) * 4)
    j = fixed("j", (worker.warp % along * 8 + worker.lane % 8) * 4)
    steps = _Steps(worker, gradient, tile, end, row, column)
    steps.look_up(start)
    with stride_loop("from", start - step, end, step) as now:  # a first round that only copies
        number = let("number", (now - start + step) // step)
        cuda.copy_wait(0)
        worker.synchronize()  # the rows are there, and the stage of the rows before them has been read
        steps.copy(now + step, number % STAGES * tile.stage)
        steps.look_up(now + 2 * step)
        stage = fixed("stage", (number + 1) % STAGES * tile.stage)
        with when(now >= start), loop("k", step, unroll=2 if count > 16 else 4) as k:
            a = _operands(worker, stage + k * high.stride + i, high)
            b = _operands(worker, stage + step * high.stride + k * across.stride + j, across)
            for p, x in enumerate(a):
                for q, y in enumerate(b):
                    at = p * len(b) + q
                    put(sums, at, cuda.fma(x, y, sums[at]))
    cuda.copy_wait(0)
    worker.synchronize()
    for p in range(high.quads):
        for q in range(across.quads):
            place = (row + i + 4 * high.threads * p, column + j + 4 * across.threads * q)
            _write_quads(worker, gradient.rows, columns, place, sums, (p, q, across.quads), base, accumulate)


def _operands(worker: Worker, at: Expr, side: Side) -> list[Expr]:
    """A thread's elements of a staged row."""
    quads = [let("quad", worker.staging[quad_at(at + 4 * side.threads * part)]) for part in range(side.quads)]
    return [lane4(quad, i) for quad in quads for i in range(4)]


def _write_quads(
    worker: Worker,
    rows: int,
    columns: int,
    place: tuple[Expr, Expr],
    sums: Any,
    block: tuple[int, int, int],
    base: Expr,
    accumulate: Expr,
) -> None:
    """4 x 4 elements at a place; what they are added to is read before anything is written.

    block: which ones of the thread's sums, and how many quads a row of these has.
    """
    row, column = place
    down, right, quads = block
    first = [((down * 4 + p) * quads + right) * 4 for p in range(4)]
    if columns % 4:
        for p in range(4):
            for q in range(4):
                # Behind the columns the sums are zero: see `_clear_padding`.
                with when(both(row + p < rows, column + q < padded(columns))):
                    at = let("at", base + wide(row + p) * padded(columns) + (column + q))
                    _write(worker, at, sums[first[p] + q], accumulate)
        return
    with when(column < columns):
        places = []
        for p in range(4):
            there = T.Select(row + p < rows, base + wide(row + p) * columns + column, T.int64(0))
            places.append(fixed("at", there, "int64"))
        with when(accumulate != 0):
            old = [let("old", worker.pool[quad_at(at)]) for at in places]
            for p in range(4):
                for q in range(4):
                    put(sums, first[p] + q, lane4(old[p], q) + sums[first[p] + q])
        for p in range(4):
            with when(row + p < rows):
                T.buffer_store(worker.pool, sums[quad_at(first[p])], [quad_at(places[p])])


class _Steps:
    """Brings the rows of a tile into shared memory, a step at a time.

    A stage holds the step's deltas, then its operands. Places are looked up one step ahead of the
    copies (what a look-up brings is not used before), copies run one step ahead of the sums.
    """

    def __init__(
        self, worker: Worker, gradient: DenseGradient, tile: Tile, end: Expr, row: Expr, column: Expr
    ) -> None:
        self.worker, self.gradient, self.tile, self.end = worker, gradient, tile, end
        self.delta_line, self.delta_own = self._share(tile.rows)
        self.line, self.own = self._share(tile.columns)
        self.row = fixed("delta_row", row + self.delta_own)
        self.column = fixed("column_own", column + self.own)
        pieces = gradient.pieces
        # Behind the last delta of a row stands something, and its sums are of rows that nobody writes.
        self.aligned = is_aligned(worker, gradient.delta) and all_aligned(worker, pieces)
        self.columns = sum(piece.width for piece in pieces)
        self.places = local("place", "int32", 0, tile.columns.parts(tile.step))

    def _share(self, side: Side) -> tuple[Expr, Expr]:
        """The row of a step, and the element in it, that a thread copies first."""
        quads = side.elements // 4
        return fixed("line", self.worker.thread // quads), fixed("own", self.worker.thread % quads * 4)

    def look_up(self, first: Expr) -> None:
        """Asks where the operands of the rows from `first` on lie."""
        if not self.aligned:
            return
        for part in range(self.tile.columns.parts(self.tile.step)):
            vertex = let("vertex", first + self.line + part * self.tile.columns.lines)
            word = piece_word(self.worker, self.gradient.pieces, self._near(vertex), self.column)
            if word is not None:
                put(self.places, part, word)

    def _near(self, vertex: Expr) -> Expr:
        return let("near", T.Select(vertex < self.end, vertex, 0))

    def copy(self, first: Expr, stage: Expr) -> None:
        """Starts the copies of the rows from `first` on, zeros where there are none."""
        worker, gradient = self.worker, self.gradient
        for _, line, vertex, to in self._lines(self.tile.rows, self.delta_line, first, stage):
            with when(line < self.tile.step):
                at = fixed("to", to + self.delta_own)
                valid = both(vertex < self.end, self.row < gradient.rows)
                if self.aligned:
                    delta = worker.access.position(gradient.delta, vertex) + self.row
                    self._start(at, fixed("delta_at", T.Select(valid, delta, T.int64(0)), "int64"))
                else:
                    self._copy_delta(vertex, at)
        operands = stage + self.tile.step * self.tile.rows.stride
        for part, line, vertex, to in self._lines(self.tile.columns, self.line, first, operands):
            with when(line < self.tile.step):
                at = fixed("to", to + self.own)
                if self.aligned:
                    valid = both(vertex < self.end, self.column < self.columns)
                    pieces, word = self.gradient.pieces, self.places[part]
                    source = piece_at(worker, pieces, self._near(vertex), self.column, valid, word)
                    self._start(at, fixed("operand_at", source, "int64"))
                else:
                    self._copy_operand(vertex, at)
        cuda.copy_commit()

    def _lines(self, side: Side, line: Expr, first: Expr, at: Expr) -> Any:
        """(part, line of the step, row, first word of the line) of every copy of a thread."""
        for part in range(side.parts(self.tile.step)):
            now = fixed("now", line + part * side.lines)
            yield part, now, fixed("vertex", first + now), fixed("row_at", at + now * side.stride)

    def _start(self, to: Expr, source: Expr) -> None:
        worker = self.worker
        target = T.address_of(worker.staging[to])
        cuda.copy4_async(target, T.address_of(worker.pool[source]), source != 0)

    def _copy_delta(self, vertex: Expr, to: Expr) -> None:
        """Element by element, where they are sums or not aligned."""
        worker, gradient = self.worker, self.gradient
        found = local("delta", "float32", T.float32(0.0), 4)
        with when(vertex < self.end):
            _four(worker, gradient.delta, gradient.rows, vertex, self.row, found)
        T.buffer_store(worker.staging, found[quad_at(0)], [quad_at(to)])

    def _copy_operand(self, vertex: Expr, to: Expr) -> None:
        worker, begin = self.worker, 0
        found = local("operand", "float32", T.float32(0.0), 4)
        with when(vertex < self.end):
            for piece in self.gradient.pieces:
                element = self.column - begin
                _four(worker, piece.address, piece.width, vertex, element, found, begin % 4 == 0)
                begin += piece.width
        T.buffer_store(worker.staging, found[quad_at(0)], [quad_at(to)])


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
            T.buffer_store(into, worker.pool[quad_at(at)], [quad_at(0)])
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
    block = isa.GRADIENT_BLOCK.rows
    parts = THREADS // block
    own, line = let("own", worker.thread % block), let("line", worker.thread // block)
    total = local("sum", "float32", T.float32(0.0))
    rows = stride_loop("vertex", start + line, end, parts * VECTOR_LOADS)
    with when(row + own < gradient.rows), rows as vertex:
        terms = []
        for ahead in range(VECTOR_LOADS):  # loads under way together
            later = let("later", vertex + ahead * parts)
            term = local("term", "float32", T.float32(0.0))
            with when(later < end):
                put(term, 0, worker.access.reader(gradient.delta, later)(row + own))
            terms.append(term)
        for term in terms:
            put(total, 0, total[0] + term[0])
    put(worker.staging, worker.stage(THREADS) + worker.thread, total[0])
    worker.synchronize()
    with when(both(worker.thread < block, row + own < gradient.rows)):
        for part in range(1, parts):
            put(total, 0, total[0] + worker.staging[part * block + own])
        position = worker.access.flat_position(gradient.parameter, row + own)
        _write(worker, let("at", base + wide(position)), total[0], accumulate)
    worker.synchronize()


def _write(worker: Worker, at: Expr, value: Expr, accumulate: Expr) -> None:
    old = local("old", "float32", T.float32(0.0))
    with when(accumulate != 0):
        put(old, 0, worker.pool[at])
    put(worker.pool, at, old[0] + value)
