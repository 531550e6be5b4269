"""Tiled transposed products of UNIT segments on CUDA: partial sums over the worker's rows for many vertices.

In: a tile of vertices whose deltas are staged. Out: the partial sums in the pool. Rows of the weights come
in steps (`cuda_wide_steps.py`), a block of columns after another. Sums lie with the threads, where a warp has
128 columns and twice as many vertices as a thread; or they are made on tensor cores, up to 32 vertices and 64
columns a warp.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_staging import UnitTile, rows_of
from dnc.codegen.bodies.cuda_stores import copied_quad, keep_in_banks, quad_of, store_columns
from dnc.codegen.bodies.cuda_tensor import ACROSS, DEPTH, HIGH, quad_sums
from dnc.codegen.bodies.cuda_wide_steps import (
    TENSOR_WORDS,
    TURNED_WORDS,
    TurnedSteps,
    choose,
    each_size,
    in_steps,
    start_steps,
    turned_steps,
    turned_words,
    worth_having,
)
from dnc.codegen.emit import (
    Expr,
    back_and_forth,
    both,
    by_size,
    fixed,
    let,
    local,
    put,
    several,
    smaller,
    stride_loop,
    when,
    whole_quad,
)
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import STREAMED, TransposedProduct

Place = tuple[Expr, Expr]  # the first vertex of a warp, and its first column in a block


def step_words(tile: int, columns: int, tensor: bool, weights: int = TURNED_WORDS) -> int:
    """Words of a step, at most. weights: of one on threads."""
    if tensor:
        return max(turned_words(shape.columns, TENSOR_WORDS) for shape in shapes(tile, columns))
    return max(turned_words(one.columns, weights) for one in layouts(tile, columns))


def takes_half(tile: int, columns: int) -> bool:
    """Whether steps of half as many weights have whole rounds of rows, however many vertices there are."""
    return all(one.along > 1 for one in layouts(tile, columns))


def transposed(tile: UnitTile, product: TransposedProduct) -> None:
    """Partial sums for all vertices of the tile, on tensor cores. Starts with a barrier, ends without."""
    found = shapes(tile.staging.tile, product.columns)
    bodies = [(shape.vertices, partial(_on_tensor_cores, tile, product, shape)) for shape in found]
    by_size(tile.count, bodies)


# ---- on threads --------------------------------------------------------------------------------------

LANES_DOWN = 2  # of a warp, along the vertices
LANES_ACROSS = LANES // LANES_DOWN  # along the columns, four of which lie side by side with a thread
TIMES = 2  # quads of columns of a thread
WARP_COLUMNS = LANES_ACROSS * TIMES * 4
SIZES = (3, 4, 6, 8)  # vertices of a thread
ALONG = (1, 2, 4, 8)  # warps side by side along the vertices


@attrs.frozen
class Layout:
    """`size` vertices a thread, `along` warps along the vertices, the others along the columns."""

    size: int
    along: int

    @property
    def wide(self) -> int:
        """All vertices."""
        return LANES_DOWN * self.size * self.along

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return WARPS // self.along * WARP_COLUMNS

    @property
    def cost(self) -> float:
        """About the time that it takes: few vertices of a thread read more, wide blocks have short steps."""
        return self.wide * (0.75 + 2.0 / self.size + 0.5 / self.along)


def all_layouts(columns: int) -> list[Layout]:
    """Those in which at least half of the warps have something to do, if there are any."""
    found = [Layout(size, along) for size in SIZES for along in ALONG]
    return [one for one in found if one.along == ALONG[-1] or one.columns < 2 * columns]


def layouts(tile: int, columns: int) -> list[Layout]:
    """For few vertices up to a tile: those that are not slower than one for more."""
    return worth_having(all_layouts(columns), tile)


def rounds_of(rows: int, streamed: bool) -> int:
    """Quads of rows that a round of the sums has: two. Deltas that are missing to whole rounds are zeros
    (`clear_behind`), and steps have any weights for them; behind those in shared memory there may be none."""
    return 2 if streamed or rows % 8 == 0 else 1


def clear_behind(tile: UnitTile) -> None:
    """Zeros for the rows that deltas on threads are short of whole rounds. Before a barrier."""
    for turned in tile.segment.transposed:
        rows, plane = rows_of(turned.delta, tile.segment, tile.units), tile.staging.deltas[turned.delta]
        if rows % 8:
            with stride_loop("vertex", tile.worker.thread, plane.words // plane.vertex, THREADS) as vertex:
                for row in range(rows, rows + 4):
                    put(tile.worker.staging, plane.place(row, vertex), T.float32(0.0))


class OnThreads:
    """One block of columns after another; the code is the same but for the number of vertices of a thread."""

    def __init__(self, tile: UnitTile, product: TransposedProduct) -> None:
        self.tile, self.product = tile, product
        self.rows = rows_of(product.delta, tile.segment, tile.units)
        self.layouts = layouts(tile.staging.tile, product.columns)
        chosen = choose(self.layouts, tile.count)
        self.size, self.along = fixed("size", chosen[0]), fixed("along", chosen[1])
        self.columns = fixed("block_columns", WARPS * WARP_COLUMNS // self.along)
        weights = tile.staging.weights
        rows_of_column = weights // (WARPS * WARP_COLUMNS)
        self.high = fixed("step_rows", rows_of_column * self.along)
        shapes = ((one.columns, rows_of_column * one.along) for one in self.layouts)
        self.steps = turned_steps(tile, product, self.columns, self.high, weights, shapes)
        each = fixed("steps_of_block", (self.rows + self.high - 1) // self.high)
        blocks = (product.columns + self.columns - 1) // self.columns
        self.each, self.count = each, fixed("steps", blocks * each)
        self.stages, self.words = 3, 0
        if self.steps.streamed:
            self.stages = tile.staging.buffers
            self.words = step_words(tile.staging.tile, product.columns, False, weights)

    def start(self) -> None:
        """Starts the copies of the first steps: nobody may use that memory any more."""
        start_steps(self.count, self.stages, self.words, partial(self._copy, _At(self, 0)))

    def run(self, started: bool) -> None:
        """Starts with a barrier, ends without."""
        copied, worked = _At(self, self.stages - 1 if started else 0), _At(self, 0)
        copy = partial(self._copy, copied)

        def body(size: int) -> None:
            sums = _ThreadSums(self.tile, self.product, self.rows, size, self.along)
            work, synchronize = partial(self._work, worked, sums), self.tile.worker.synchronize
            in_steps(synchronize, self.count, self.stages, self.words, copy, work, 1, started)

        each_size(self.size, self.layouts, body)

    def _copy(self, at: _At, number: Expr, stage: Expr) -> None:
        self.steps.copy(at.block[0], fixed("first_row", at.row[0]), stage)
        at.advance()

    def _work(self, at: _At, sums: _ThreadSums, number: Expr, stage: Expr, later: Expr) -> None:
        block, row = fixed("block", at.block[0]), fixed("row", at.row[0])
        at.advance()  # behind the last step nobody uses what is read
        place = _place(sums, self.steps, block, row, stage)
        following = _place(sums, self.steps, at.block[0], at.row[0], later)
        sums.add(self.steps, place, following, row, number == 0)
        with when(at.row[0] == 0):
            sums.keep_in_banks()
            sums.store(block * self.columns)
            sums.clear()  # here, and not before a block: the compiler would select in every step


class _At:
    """The block and the first row of a step, step after step from a number on: divided once."""

    def __init__(self, product: OnThreads, number: int) -> None:
        self.product = product
        block = fixed("first_block", number // product.each) if number else 0
        self.block = local("block_at", "int32", block)
        self.row = local("row_at", "int32", (number - block * product.each) * product.high if number else 0)

    def advance(self) -> None:
        """To the next step."""
        put(self.row, 0, self.row[0] + self.product.high)
        with when(self.row[0] >= self.product.rows):
            put(self.row, 0, 0)
            put(self.block, 0, self.block[0] + 1)


@attrs.frozen
class _Place:
    """Quads in shared memory that a thread reads: its first deltas, its first weights in `memory`; those of
    the next row are `stride` behind."""

    deltas: Expr
    memory: Any
    weights: Expr
    stride: Expr


def _place(sums: _ThreadSums, steps: TurnedSteps, block: Expr, first: Expr, stage: Expr) -> _Place:
    """Where a thread reads from row `first` of a block on."""
    row = fixed("first_row", first)
    memory, at, stride = steps.quads(block, row, stage, sums.across)
    deltas = fixed("deltas", T.shift_right(sums.deltas.place(row, sums.down), 2))
    return _Place(deltas, memory, fixed("weights_at", at), fixed("stride", stride))


class _ThreadSums:
    """The sums of a thread: `size` vertices, two apart, and eight columns, twice four side by side."""

    def __init__(self, tile: UnitTile, product: TransposedProduct, rows: int, size: int, along: Expr) -> None:
        self.tile, self.product, self.rows, self.size = tile, product, rows, size
        worker, self.deltas = tile.worker, tile.staging.deltas[product.delta]
        group = fixed("warp_columns", worker.warp // along)
        self.down = fixed(
            "own_vertex",
            (worker.warp - group * along) * (size * LANES_DOWN) + worker.lane // LANES_ACROSS,
        )
        self.across = fixed("own_column", group * WARP_COLUMNS + worker.lane % LANES_ACROSS * 4)
        self.sums = local("sums", "float32", T.float32(0.0), size * TIMES * 4)
        self.x = local("x", "float32", T.float32(0.0), 4 * size)
        self.w = local("w", "float32", T.float32(0.0), 4 * TIMES * 4)

    def clear(self) -> None:
        """All sums are zero."""
        for i in range(self.size * TIMES * 4):
            put(self.sums, i, T.float32(0.0))

    def add(self, steps: TurnedSteps, here: _Place, following: _Place, first: Expr, is_first: Expr) -> None:
        """Adds the products of a step, and reads what the next one needs first.

        Several quads of rows stand in the code of a round: the compiler puts what is read for a later round
        at the end of one, so that the next one waits for it.
        """
        together = rounds_of(self.rows, steps.streamed)
        high = smaller(-(-self.rows // (4 * together)) * (4 * together) - first, steps.high)
        count = fixed("rounds", T.shift_right(high, 1 + together))

        row = local("weights_now", "int32", here.weights)
        with when(is_first):
            self._read_operands(here.deltas)
            for k in range(4):
                self._read_weights(here, row[0], k)
        with stride_loop("round", 0, count, 1) as now:
            last = let("last", now + 1 == count)
            for part in range(1, together + 1):
                below, deltas = row[0] + here.stride * 4, here.deltas + now * together + part
                if part == together:
                    below = T.Select(last, following.weights, below)
                    deltas = T.Select(last, following.deltas, deltas)
                put(row, 0, below)
                for k in range(4):
                    self._multiply(k)
                    self._read_weights(here, row[0], k)
                self._read_operands(fixed("deltas_next", deltas))

    def _read_operands(self, at: Expr) -> None:
        staging = self.tile.worker.staging
        for i in range(self.size):
            found = staging[whole_quad(at + i * (LANES_DOWN * self.deltas.vertex // 4))]
            T.buffer_store(self.x, found, [whole_quad(i)])

    def _read_weights(self, place: _Place, at: Expr, k: int) -> None:
        """The quads of columns of a row."""
        for half in range(TIMES):
            found = place.memory[whole_quad(at + k * place.stride + half * LANES_ACROSS)]
            T.buffer_store(self.w, found, [whole_quad(k * TIMES + half)])

    def _multiply(self, k: int) -> None:
        """A row. A delta is read once for its columns; the weights of a sum are all in one bank of registers,
        so that it can be in the other one."""
        for i in back_and_forth(self.size, k):
            for column in back_and_forth(TIMES * 4, i):
                to = i * TIMES * 4 + column
                weight = self.w[k * TIMES * 4 + column]
                put(self.sums, to, cuda.fma(self.x[4 * i + k], weight, self.sums[to]))

    def keep_in_banks(self) -> None:
        """The weights of every second column are in an even register."""
        keep_in_banks(self.sums, self.size * TIMES * 4, 1, self.tile.count)

    def store(self, column: Expr) -> None:
        """Four columns at a time."""
        tile = self.tile
        for i in range(self.size):
            now = let("now", self.down + i * LANES_DOWN)
            with when(now < tile.count):
                for half in range(TIMES):
                    own = let("own", column + self.across + half * (LANES_ACROSS * 4))
                    values = copied_quad(self.sums, (i * TIMES + half) * 4)
                    whole = self.product.columns % (WARPS * WARP_COLUMNS) == 0
                    with nullcontext() if whole else when(own < self.product.columns):
                        store_columns(tile.worker, self.product, tile.first + now, own, values)


# ---- on tensor cores ---------------------------------------------------------------------------------

HALF = 16  # vertices of a warp, or twice as many
COLUMNS = 32  # of a warp, or twice as many
MOST_TIMES = 2


@attrs.frozen
class Shape:
    """`halves` x 16 vertices and `times` x 32 columns a warp, `along` warps along the vertices."""

    halves: int
    along: int
    times: int

    @property
    def vertices(self) -> int:
        """Vertices of all warps."""
        return self.halves * HALF * self.along

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return WARPS // self.along * self.times * COLUMNS


def shapes(tile: int, columns: int) -> list[Shape]:
    """For few vertices up to a tile."""

    def shape(halves: int, along: int) -> Shape:
        times = MOST_TIMES
        while times > 1 and WARPS // along * (times // 2) * COLUMNS >= columns:
            times //= 2
        return Shape(halves, along, times)

    found, along = [shape(1, 1)], 1
    while found[-1].vertices < tile:
        found.append(shape(2, along))
        along *= 2
    return found


def _on_tensor_cores(tile: UnitTile, product: TransposedProduct, shape: Shape) -> None:
    """One block of columns after another."""
    worker = tile.worker
    rows = rows_of(product.delta, tile.segment, tile.units)
    streamed = tile.placement(product).residency == STREAMED
    high = TENSOR_WORDS // shape.columns if streamed else rows  # nothing comes: all at once
    steps = turned_steps(tile, product, shape.columns, high, TENSOR_WORDS, [(shape.columns, high)])
    each = -(-rows // high)
    others = WARPS // shape.along
    vertex = fixed("warp_vertex", worker.warp // others * (shape.halves * HALF))
    column = fixed("warp_column", worker.warp % others * (shape.times * COLUMNS))
    sums = TensorSums(tile, product, shape, (vertex, column))
    blocks = -(-product.columns // shape.columns)

    def copy(number: Expr, stage: Expr) -> None:
        block = fixed("block", number // each)
        steps.copy(block, fixed("first_row", (number - block * each) * high), stage)

    def work(number: Expr, stage: Expr, _: Expr) -> None:
        block = fixed("block", number // each)
        step = let("step", number - block * each)
        first = let("first_row", step * high)
        whole = rows % high == 0
        depth = high // DEPTH if whole else let("rows", smaller(rows - first, high) // DEPTH)
        sums.add(partial(steps.quads, block, first, stage), first, depth)
        with when(step == each - 1):
            sums.store(block * shape.columns)
            sums.clear()

    stages = tile.staging.buffers if streamed else 2
    words = turned_words(shape.columns, TENSOR_WORDS) if streamed else 0
    in_steps(worker.synchronize, blocks * each, stages, words, copy, work)


class TensorSums:
    """Blocks of 16 vertices and 8 columns, on tensor cores."""

    def __init__(self, tile: UnitTile, product: TransposedProduct, shape: Shape, warp: Place) -> None:
        self.tile, self.product, self.shape = tile, product, shape
        self.vertex, self.column = warp
        self.warp = quad_sums(tile.worker, shape.halves * HALF // HIGH, shape.times * COLUMNS // ACROSS)

    def clear(self) -> None:
        """All sums are zero."""
        for i in range(self.warp.high * self.warp.across * 4):
            put(self.warp.sums, i, T.float32(0.0))

    def add(self, weights: Callable[[Expr], tuple[Any, Expr, Expr]], first: Expr, depth: Expr) -> None:
        """Adds the products of `depth` x 8 rows of a step; the first is row `first` of the worker.

        weights: see `TurnedSteps.quads`; of a column of the block.
        """
        staging, warp = self.tile.worker.staging, self.warp
        deltas, rows = self.tile.staging.deltas[self.product.delta], self.warp.rows
        begin = fixed("deltas_at", deltas.place(first, self.vertex) // rows + warp.group)
        found = [weights(self.column + part * COLUMNS + warp.column) for part in range(self.shape.times)]
        places = [fixed("weights_at", at) for _, at, _ in found]
        memory, _, stride = found[0]
        warp.add(
            "rows",
            depth,
            lambda row: staging[several(begin + row * (deltas.row // rows), rows)],
            lambda row, part: memory[whole_quad(places[part] + row * stride)],
        )

    def store(self, column: Expr) -> None:
        """Four columns at a time."""
        tile, product, warp = self.tile, self.product, self.warp
        vertex = fixed("own_vertex", self.vertex + warp.rows * warp.group)
        first = fixed("own_column", column + self.column + 4 * warp.own)
        for down, across, indices in warp.quads():
            now, own = let("now", vertex + down), let("own", first + across)
            there = now < tile.count
            if product.columns % self.shape.columns:
                there = both(there, own < product.columns)
            with when(there):
                store_columns(tile.worker, product, tile.first + now, own, quad_of(warp.sums, indices))
