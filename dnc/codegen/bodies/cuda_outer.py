"""Weight gradients of few rows on CUDA: one body for all gradients of a plan.

In: the fields of an `outer` instruction. Out: its body. A worker takes tiles of `isa.OUTER_TILE`, sums all
rows of each, always in the same order, and leaves the sum of its squares for the norm. Gradients differ only
in where their rows lie, which is looked up first: the rest is the same code for all of them. A vector whose
deltas are those of a matrix is made beside it; any other is one row, the sum of its deltas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_dense import clear_padding, offset_of
from dnc.codegen.bodies.cuda_dense_matrix import Strip, add_outer_products
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (
    Expr,
    any_of,
    both,
    dispatch,
    either,
    fixed,
    lane4,
    let,
    local,
    loop,
    put,
    quad_at,
    stride_loop,
    when,
    wide,
)
from dnc.ir import isa
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import Address, BufferAddress, DenseGradient, GatherAddress, padded

HEIGHT, WIDTH = isa.OUTER_TILE.rows, isa.OUTER_TILE.columns
LAYOUTS = (32, 3), (16, 3), (16, 2)  # rows of the space staged at a time, and stages: the first that fits
SPARE = 4  # words behind a staged row, so that lanes read from different banks
DELTAS, OPERANDS = HEIGHT + SPARE, WIDTH + SPARE
LINE = DELTAS + OPERANDS  # words of a staged row
HIGH, ACROSS = 8, 8  # sums of a thread: rows side by side, columns in two quads
LINES = 4 * THREADS // WIDTH  # rows of the operand that all threads copy at a time
TOGETHER = HEIGHT // HIGH  # warps that have all rows of a tile


def outer(worker: Worker, fields: Mapping[str, Expr]) -> None:
    """Tiles of one gradient over all its rows. fields: by their names in `isa.OUTER_FIELDS`."""
    kind = _Kind(worker, fields["gradient"], fields["index"])
    begin = let("begin", (worker.number + worker.grid - fields["first_worker"]) % worker.grid)
    across = fixed("across", (kind.columns + WIDTH - 1) // WIDTH)
    tiles = fixed("tiles", (kind.rows + HEIGHT - 1) // HEIGHT * across)
    with stride_loop("item", begin, tiles, worker.grid) as item:
        row = fixed("row", item // across * HEIGHT)
        column = fixed("column", (item - item // across * across) * WIDTH)
        with when(both(item == 0, fields["accumulate"] == 0)):
            kind.clear_padding()
        tile = _Tile(worker, kind, row, column, fields)
        tile.sum_rows()
        square = tile.write()
        with when(fields["first_norm"] != isa.NO_NORM):
            total = worker.block_sum(square)
            with when(worker.thread == 0):
                put(worker.pool, worker.access.base(isa.NORMS) + fields["first_norm"] + item, total)


class _Kind:
    """The gradient at hand, as far as it is known when the kernel runs.

    rows, columns: of the matrix as which it is made, a row where it is a vector. base: its position; beside:
    that of the vector that is made along, 0 where there is none. source, stride: of the deltas and of every
    piece of the operand: a row lies at source + row * stride in units of 16 bytes; where the stride is 0,
    `source` is a list of such places in the schedule.
    """

    def __init__(self, worker: Worker, number: Expr, index: Expr) -> None:
        self.worker, self.number, self.pairs = worker, number, isa.outer_beside(worker.plan)
        rows, columns = local("rows", "int32", 0), local("columns", "int32", 0)
        base, beside = (local(name, "int64", T.int64(0)) for name in ("base", "beside"))
        gradients = let("gradients", worker.access.base(isa.GRADIENTS))
        self.sides = 1 + max(len(_operands(gradient)) for gradient in worker.plan.dense_gradients)
        self.source, self.stride = (
            local(name, "int32", 0, self.sides) for name in ("source", "source_stride")
        )

        def choose(gradient: DenseGradient) -> None:
            put(rows, 0, gradient.rows if gradient.pieces else 1)
            put(columns, 0, gradient.columns if gradient.pieces else gradient.rows)
            put(base, 0, gradients + offset_of(worker, gradient.parameter, index))
            if gradient.name in self.pairs:
                other = self.pairs[gradient.name].parameter
                put(beside, 0, gradients + offset_of(worker, other, index))

            for side, address in enumerate([gradient.delta, *_operands(gradient)]):
                self._choose_source(side, address)

        self.each(choose)
        self.rows, self.columns = rows[0], columns[0]
        vectors = [number for number, gradient in self._gradients() if not gradient.pieces]
        self.has_vectors = bool(vectors)
        self.is_vector = reduce(any_of, [number == each for each in vectors], number < 0)
        self.base, self.beside = base[0], beside[0]

    def each(self, body: Callable[[DenseGradient], None]) -> None:
        """The body for the gradient at hand."""
        dispatch(self.number, {number: partial(body, gradient) for number, gradient in self._gradients()})

    def _choose_source(self, side: int, address: Address) -> None:
        access = self.worker.access
        if isinstance(address, GatherAddress):
            put(self.source, side, access.list_at(address.list))
            return
        assert isinstance(address, BufferAddress)
        put(self.source, side, access.base_word(address.buffer))
        put(self.stride, side, self.worker.plan.buffer(address.buffer).width // 4)

    def _gradients(self) -> list[tuple[int, DenseGradient]]:
        """Those that have instructions, with their numbers."""
        beside = {gradient.name for gradient in self.pairs.values()}
        return [(n, g) for n, g in enumerate(self.worker.plan.dense_gradients) if g.name not in beside]

    def clear_padding(self) -> None:
        """Zeros behind its elements, and behind those of the vector beside it."""

        def clear(gradient: DenseGradient) -> None:
            clear_padding(self.worker, gradient, self.base)
            if gradient.name in self.pairs:
                clear_padding(self.worker, self.pairs[gradient.name], self.beside)

        self.each(clear)


@attrs.frozen(eq=False)
class _Copies:
    """A thread's copies of the operand's rows of a step, every LINES-th of them.

    place: where its first row's place is; shift: from there to its element; left: rows that there are from
    its first one on; to: where its first row is copied to.
    """

    worker: Worker
    place: Expr
    shift: Expr
    left: Expr
    to: Expr
    count: int

    def start(self, number: Expr) -> None:
        """Starts one."""
        line = number * LINES
        to = self.to + line * OPERANDS
        _copy_quad(self.worker, self.place + line, self.shift, self.left > line, to)

    def all(self) -> None:
        """Starts all of them."""
        with loop("copy", self.count, unroll=1) as number:
            self.start(number)


def _copy_quad(worker: Worker, place: Expr, shift: Expr, there: Expr, to: Expr) -> None:
    word = let("word", T.reinterpret("int32", worker.staging[place]))
    source = T.address_of(worker.pool[wide(word) * 4 + shift])
    cuda.copy4_async(T.address_of(worker.staging[to]), source, there)


class _Tile:
    """A tile of a gradient. Rows are copied two steps ahead of the sums, places looked up two steps before.

    A warp sums HIGH rows of the tile. With more rows there are two groups of warps, for every second row of
    the space each; with no more than HIGH every warp is a group. At the end their sums are added in order.
    """

    def __init__(
        self, worker: Worker, kind: _Kind, row: Expr, column: Expr, fields: Mapping[str, Expr]
    ) -> None:
        self.worker, self.kind, self.row, self.column = worker, kind, row, column
        self.start, self.end = fields["row"], fixed("end", fields["row"] + fields["rows"])
        self.accumulate = fields["accumulate"]
        sides = kind.sides
        line = LINE + sides
        fits = (layout for layout in LAYOUTS if math.prod(layout) * line <= worker.staging_words)
        self.step, self.stages = next(fits, LAYOUTS[-1])
        self.stage, self.ahead = self.step * LINE, self.stages - 1
        self.places = worker.stage(self.stages * self.step * line) + self.stages * self.stage
        # Which elements a thread copies: of the deltas 16 bytes of a row, of operands those of every fourth.
        self.delta_line, self.delta_own = _share(worker, HEIGHT)
        self.line, self.own = _share(worker, WIDTH)
        self.side, self.shift = local("side", "int32", 1), local("shift", "int64", wide(column + self.own))
        self.delta_shift = local("delta_shift", "int64", wide(row + self.delta_own))
        kind.each(self._find_sides)
        # Which elements it sums, and which group's they are.
        self.few = fixed("few", T.cast(kind.rows - row <= HIGH, "int32"))
        self.group = fixed("group", T.Select(self.few != 0, worker.warp, worker.warp // TOGETHER))
        self.i = fixed("i", T.Select(self.few != 0, 0, worker.warp % TOGETHER * HIGH))
        self.j = fixed("j", worker.lane * 4)
        self.sums = local("sums", "float32", T.float32(0.0), HIGH * ACROSS)
        # A lane has an element of the vector beside the gradient, and every eighth row of the space.
        self.has_beside = fixed("has_beside", T.cast(both(kind.beside != 0, column == 0), "int32"))
        self.own_beside = local("own_beside", "float32", T.float32(0.0))

    def _find_sides(self, gradient: DenseGradient) -> None:
        """On which piece of the operand the columns of this thread are, and how far into it."""
        column, begin = self.column + self.own, 0
        put(self.delta_shift, 0, self.delta_shift[0] + gradient.delta.offset)
        if not gradient.pieces:
            put(self.shift, 0, wide(column + gradient.delta.offset))
            return
        for number, piece in enumerate(gradient.pieces, 1):
            with when(column >= begin):
                put(self.side, 0, number)
                put(self.shift, 0, wide(column + (_offset(piece.address) - begin)))
            begin += piece.width

    # ---- rows -----------------------------------------------------------------------------------

    def sum_rows(self) -> None:
        """All rows; the first rounds only copy."""
        ahead, last = self.ahead * self.step, self.stages - 1
        self._look_up(self.start, 0, ahead)
        cuda.copy_commit()
        cuda.copy_wait(0)
        stage = local("stage", "int32", 1)  # of the rows at hand; those of the steps ahead follow
        with stride_loop("from", self.start - ahead, self.end, self.step) as now:
            cuda.copy_wait(self.ahead - 1)
            self.worker.synchronize()  # rows and places are there, and the stage before them has been read
            before = let("before", T.Select(stage[0] == 0, last, stage[0] - 1))
            before_that = let("before_that", T.Select(before == 0, last, before - 1))
            copies = self._begin_copies(now + ahead, before)
            self._look_up(now + 2 * ahead, before_that, self.step)
            either(now >= self.start, partial(self._add, stage[0] * self.stage, copies), copies.all)
            cuda.copy_commit()
            put(stage, 0, T.Select(stage[0] == last, 0, stage[0] + 1))
        cuda.copy_wait(0)
        self.worker.synchronize()

    def _place(self, side: Expr, stage: Expr) -> Expr:
        """Where the places of a step's rows lie in staging, in units of 16 bytes, a word a row."""
        return self.places + side * (self.stages * self.step) + stage * self.step

    def _look_up(self, first: Expr, stage: Expr, rows: int) -> None:
        """Asks where the rows from `first` on lie, a thread a row."""
        vertex = let("vertex", first + self.worker.thread)
        with when(self.worker.thread < rows):
            at = fixed("place", self._place(0, stage) + self.worker.thread)
            for side in range(self.kind.sides):
                to, source = at + side * (self.stages * self.step), self.kind.source[side]
                stride = self.kind.stride[side]
                # Of a row that does not exist nothing is copied, from a place that does.
                here = both(stride == 0, vertex < self.end)
                either(
                    here,
                    partial(self._look_up_list, source + vertex, to),
                    partial(
                        put,
                        self.worker.staging,
                        to,
                        T.reinterpret("float32", T.Select(vertex < self.end, source + vertex * stride, 0)),
                    ),
                )

    def _look_up_list(self, word: Expr, to: Expr) -> None:
        cuda.copy1_async(T.address_of(self.worker.staging[to]), T.address_of(self.worker.words[word]))

    def _begin_copies(self, first: Expr, stage: Expr) -> _Copies:
        """Starts to copy the rows from `first` on, zeros where there are none: here the deltas."""
        deltas, left = let("deltas", stage * self.stage), let("left", self.end - first)
        with when(self.delta_line < self.step):
            there = both(self.row + self.delta_own < self.kind.rows, self.delta_line < left)
            to = deltas + self.delta_line * DELTAS + self.delta_own
            place = self._place(0, stage) + self.delta_line
            _copy_quad(self.worker, place, self.delta_shift[0], there, to)
        columns = padded(self.kind.columns)
        return _Copies(
            self.worker,
            fixed("own_place", self._place(self.side[0], stage) + self.line),
            self.shift[0],
            fixed("own_left", T.Select(self.column + self.own < columns, left, 0) - self.line),
            fixed("own_to", deltas + self.step * DELTAS + self.line * OPERANDS + self.own),
            self.step // LINES,
        )

    # ---- sums -----------------------------------------------------------------------------------

    def _add(self, stage: Expr, copies: _Copies) -> None:
        """Adds the rows that are staged from word `stage` on, and makes copies meanwhile."""

        def products() -> None:
            groups = (WARPS, WARPS // TOGETHER)
            either(
                self.row + self.i < self.kind.rows,
                lambda: either(
                    self.few != 0, *(partial(self._products, stage, copies, count) for count in groups)
                ),
                copies.all,
            )

        if self.kind.has_vectors:
            either(self.kind.is_vector, partial(self._column, stage, copies), products)
        else:
            products()
        if self.kind.pairs:
            with when(self.has_beside != 0):
                at = let("delta_at", stage + self.worker.warp * DELTAS + self.worker.lane)
                for row in range(0, self.step, WARPS):
                    put(self.own_beside, 0, self.own_beside[0] + self.worker.staging[at + row * DELTAS])

    def _products(self, stage: Expr, copies: _Copies, groups: int) -> None:
        """Outer products of the group's rows, with copies between them, which would wait for each other."""
        first = self.group * DELTAS + self.i
        down = Strip(stage + first, groups * DELTAS, 4, HIGH // 4)
        first = self.step * DELTAS + self.group * OPERANDS + self.j
        right = Strip(stage + first, groups * OPERANDS, WIDTH // 2, ACROSS // 4)
        rows = self.step // groups
        each = copies.count // (rows // 2)

        def copy(pair: Expr) -> None:
            for number in range(each):
                copies.start(pair * each + number)

        add_outer_products(self.worker, self.sums, down, right, rows, copy)

    def _column(self, stage: Expr, copies: _Copies) -> None:
        """Of a vector a thread sums one element."""
        copies.all()
        at = let("at", stage + self.step * DELTAS + self.worker.thread)
        with loop("k", self.step, unroll=8) as k:
            put(self.sums, 0, self.sums[0] + self.worker.staging[at + k * OPERANDS])

    # ---- results --------------------------------------------------------------------------------

    def write(self) -> Expr:
        """Writes the sums, or adds them to what is there; the squares of what this thread has written."""
        square = local("square", "float32", T.float32(0.0))
        matrix = partial(self._write_matrix, square)
        if self.kind.has_vectors:
            either(self.kind.is_vector, partial(self._write_column, square), matrix)
        else:
            matrix()
        if self.kind.pairs:
            with when(self.has_beside != 0):
                self._write_beside(square)
        return square[0]

    def _write_beside(self, square: Any) -> None:
        """The elements of the vector, each a sum of what the warps have in order."""
        worker, memory = self.worker, self.worker.staging
        put(memory, worker.thread, self.own_beside[0])
        worker.synchronize()
        row = let("row_beside", self.row + worker.lane)
        with when(both(worker.warp == 0, row < self.kind.rows)):
            total, at = (
                local("total", "float32", T.float32(0.0)),
                fixed("at", self.kind.beside + row, "int64"),
            )
            for warp in range(WARPS):
                put(total, 0, total[0] + memory[warp * LANES + worker.lane])
            with when(self.accumulate != 0):
                put(total, 0, worker.pool[at] + total[0])
            put(worker.pool, at, total[0])
            put(square, 0, square[0] + total[0] * total[0])
        worker.synchronize()

    def _write_column(self, square: Any) -> None:
        column = let("column_own", self.column + self.worker.thread)
        with when(column < self.kind.columns):
            at = fixed("at", self.kind.base + column, "int64")
            with when(self.accumulate != 0):
                put(self.sums, 0, self.worker.pool[at] + self.sums[0])
            put(self.worker.pool, at, self.sums[0])
            put(square, 0, self.sums[0] * self.sums[0])

    def _write_matrix(self, square: Any) -> None:
        self._join()
        stride = fixed("stride", padded(self.kind.columns))
        with when(self.group == 0):
            for p in range(HIGH):
                for part in range(ACROSS // 4):
                    self._write_quad(p, part, stride, square)

    def _join(self) -> None:
        """Adds up the sums of the groups, by halves."""
        memory, warp = self.worker.staging, self.worker.warp
        last = let("last", T.Select(self.few != 0, 1, TOGETHER))
        own = fixed("own_sums", (self.worker.thread % (THREADS // 2)) * 4)
        half = local("half", "int32", WARPS // 2)
        with T.While(half[0] >= last):
            with when(both(warp >= half[0], warp < 2 * half[0])):
                at = fixed("at", own - T.Select(half[0] < WARPS // 2, half[0] * (4 * LANES), 0))
                for first in range(0, HIGH * ACROSS, 4):
                    place = quad_at(at + first * (THREADS // 2))
                    T.buffer_store(memory, self.sums[quad_at(first)], [place])
            self.worker.synchronize()
            with when(warp < half[0]):
                for first in range(0, HIGH * ACROSS, 4):
                    other = let("other", memory[quad_at(own + first * (THREADS // 2))])
                    for i in range(4):
                        put(self.sums, first + i, self.sums[first + i] + lane4(other, i))
            self.worker.synchronize()
            put(half, 0, half[0] // 2)

    def _write_quad(self, p: int, part: int, stride: Expr, square: Any) -> None:
        row, first = let("row_own", self.row + self.i + p), p * ACROSS + 4 * part
        column = let("column_own", self.column + self.j + part * (WIDTH // 2))
        with when(both(row < self.kind.rows, column < stride)):
            at = fixed("at", self.kind.base + wide(row) * stride + column, "int64")
            with when(self.accumulate != 0):
                old = let("old", self.worker.pool[quad_at(at)])
                for i in range(4):
                    put(self.sums, first + i, lane4(old, i) + self.sums[first + i])
            for i in range(4):  # what stands behind an operand's last column is anything
                value = T.Select(column + i < self.kind.columns, self.sums[first + i], T.float32(0.0))
                put(self.sums, first + i, value)
                put(square, 0, square[0] + self.sums[first + i] * self.sums[first + i])
            T.buffer_store(self.worker.pool, self.sums[quad_at(first)], [quad_at(at)])


def _share(worker: Worker, elements: int) -> tuple[Expr, Expr]:
    """The row of a step, and the element in it, that a thread copies first."""
    quads = elements // 4
    return fixed("line", worker.thread // quads), fixed("own", worker.thread % quads * 4)


def _operands(gradient: DenseGradient) -> list[Address]:
    """Where its operand lies, piece by piece; the deltas of a vector are one."""
    return [piece.address for piece in gradient.pieces] or [gradient.delta]


def _offset(address: Address) -> int:
    assert isinstance(address, BufferAddress | GatherAddress)
    return address.offset
