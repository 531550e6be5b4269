"""Copies for tiled products on CUDA: operands and weights come into shared memory a step at a time.

In: a tile of vertices, a product, how many steps are under way. Out: statements that start the copies of
later steps while the sums of one are made. A step is some columns of all operands and of the worker's
rows of the weights; in a transposed product some rows of the weights. Weights that are in shared memory are
read where they are. Guaranteed: columns that do not exist are zero; rows that do not exist, anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_operands import piece_at, piece_begins, piece_word
from dnc.codegen.bodies.cuda_staging import UnitTile, operand_columns
from dnc.codegen.bodies.cuda_weights import weight_place
from dnc.codegen.bodies.cuda_worker import row_of_units, source_row
from dnc.codegen.emit import (
    Expr,
    both,
    by_size,
    either,
    fixed,
    let,
    local,
    put,
    smaller,
    stride_loop,
    when,
    wide,
)
from dnc.ir.machine import THREADS
from dnc.ir.plan import (
    STREAMED,
    Placement,
    Product,
    TransposedProduct,
    padded,
    shared_stride,
    unit_share,
)

STEP = 32  # columns of a step, at least
SPARE = 4  # words behind a staged row: the same column of eight of them is in all banks, as four of them in
# the same columns of a transposed product are
STRIDE = STEP + SPARE
QUADS = STEP // 4
MOST_STEP = 4 * THREADS  # all threads copy a row at a time
TENSOR_WORDS = 4096  # of a step of a transposed product on tensor cores: so many columns, the fewer rows
TURNED_WORDS = 8192  # or on threads: four copies of 16 bytes

Element = Callable[[Expr, Expr], tuple[Any, Expr]]  # (row, column) -> the memory and the word in it


def step_words(vertices: int, rows: int, step: int = STEP) -> int:
    """Words of a step of so many columns: operands, weights behind them; rows: those that are copied."""
    return (vertices + rows) * (step + SPARE)


def step_count(columns: int, step: int = STEP) -> int:
    """Steps of so many columns."""
    return -(-padded(columns) // step)


def columns_of_step(tile: UnitTile, product: Product, vertices: int, rows: int) -> int:
    """Columns of a step of so many vertices: the fewer these are, the more columns there is room for, and the
    less often all warps wait for each other."""
    streamed, staging = tile.placement(product).residency == STREAMED, tile.staging
    copied, columns, step = rows if streamed else 0, operand_columns(product), STEP

    def fits(step: int) -> bool:
        return step <= MOST_STEP and staging.buffers * step_words(vertices, copied, step) <= staging.front

    while step < columns and fits(2 * step):
        step *= 2
    return step


def turned_words(columns: int, words: int) -> int:
    """Words of a step of a transposed product, of so many weights."""
    return words // columns * (columns + SPARE)


class Layout(Protocol):
    """How a tile of vertices is shared out over threads."""

    @property
    def size(self) -> int:
        """Vertices of a thread."""

    @property
    def along(self) -> int:
        """Warps side by side along the vertices."""

    @property
    def wide(self) -> int:
        """All vertices."""

    @property
    def cost(self) -> float:
        """About the time that it takes."""


AnyLayout = TypeVar("AnyLayout", bound=Layout)


def worth_having(found: Iterable[AnyLayout], tile: int) -> list[AnyLayout]:
    """Layouts for few vertices up to a tile: those that are not slower than one for more."""
    best: list[AnyLayout] = []
    for one in sorted(found, key=lambda one: (-one.wide, one.cost)):
        if not best or one.cost < best[-1].cost:
            best = [one] if one.wide >= tile else [*best, one]
    return best[::-1]


def choose(layouts: Sequence[Layout], count: Expr) -> Any:
    """Size and `along` of the first layout that takes so many vertices; layouts ascend."""
    chosen = local("layout", "int32", 0, 2)
    for number, one in enumerate(layouts):
        with when(count > (layouts[number - 1].wide if number else 0)):
            put(chosen, 0, one.size)
            put(chosen, 1, one.along)
    return chosen


def each_size(size: Expr, layouts: Iterable[Layout], body: Callable[[int], None]) -> None:
    """The body for the number of vertices of a thread."""
    by_size(size, [(one, partial(body, one)) for one in sorted({layout.size for layout in layouts})])


def in_steps(
    synchronize: Callable[[], None],
    count: Expr,
    stages: int,
    words: int,
    copy: Callable[[Expr, Expr], None],
    work: Callable[[Expr, Expr, Expr], None],
    early: int = 0,
    started: bool = False,
) -> None:
    """work(step, first word of its stage, that of the next one) for every step; copy(step, first word of its
    stage) runs `stages` - 1 steps ahead.

    Starts with a block barrier, and ends without one. early: so many later steps are there as well when one
    is worked on; then there are that many more stages. started: the first copies are under way.
    """
    ahead = stages - 1
    if not started:
        synchronize()
        start_steps(count, stages, words, copy)
    stage = local("stage", "int32", 0)
    with stride_loop("round", 0, count, 1) as now:
        cuda.copy_wait(stages - 2 - early)
        synchronize()  # the step is there, and the stage of the one before it has been read
        later = fixed("later", now + ahead)
        with when(later < count):
            copy(later, let("into", T.Select(stage[0] == 0, ahead * words, stage[0] - words)))
        cuda.copy_commit()
        following = fixed("next_stage", T.Select(stage[0] == ahead * words, 0, stage[0] + words))
        work(now, fixed("stage_now", stage[0]), following)
        put(stage, 0, following)


def start_steps(count: Expr, stages: int, words: int, copy: Callable[[Expr, Expr], None]) -> None:
    """Starts the copies of the first steps, for `in_steps`: nobody may read the stages any more."""
    with stride_loop("round", 0, stages - 1, 1) as now:
        with when(now < count):
            copy(now, let("into", now * words))
        cuda.copy_commit()


class ProductSteps:
    """The steps of a product: columns of the operands of a tile, and of rows row .. + rows of the weights.

    step: columns of one. lines: rows of a step that all threads together copy at a time.
    """

    def __init__(
        self, tile: UnitTile, product: Product, vertices: int, row: Expr, rows: int, step: int = STEP
    ) -> None:
        self.tile, self.pieces, self.vertices = tile, product.pieces, vertices
        self.placement = tile.placement(product)
        self.step, self.stride, self.lines = step, step + SPARE, THREADS // (step // 4)
        self.count = step_count(self.placement.columns, step)
        worker = self.worker = tile.worker
        self.line = fixed("line", worker.thread // (step // 4))
        self.own = fixed("own", worker.thread % (step // 4) * 4)
        self.weights_at = let("weights_at", tile.weights_at(product))
        self.row, self.rows = row, rows
        self.copied = rows if self.placement.residency == STREAMED else 0
        self.words = step_words(vertices, self.copied, step)
        self.near: Expr | None = None
        units = tile.units
        if self.copied and (self.placement.gates == 1 or (units % self.lines == 0 and isinstance(row, int))):
            # The rows that a thread copies are always as far apart. Those behind the last unit are others.
            own_row = tile.first_unit + row + self.line
            self.near = fixed("near", self.weights_at + own_row * padded(self.placement.columns), "int64")
        self.places = local("place", "int32", 0, -(-vertices // self.lines))
        self._look_up(0)

    def _look_up(self, step: Expr) -> None:
        """Asks where the operands of a step lie: known before the copies need it."""
        column = let("column", step * self.step + self.own)
        for part, _, near in self._vertices():
            word = piece_word(self.worker, self.pieces, near, column)
            if word is not None:
                put(self.places, part, word)

    def _vertices(self) -> list[tuple[int, Expr, Expr]]:
        found = []
        for part in range(-(-self.vertices // self.lines)):
            vertex = let("vertex", self.line + part * self.lines)
            near = let("near", self.tile.first + smaller(vertex, self.tile.count - 1))
            found.append((part, vertex, near))
        return found

    def copy(self, step: Expr, stage: Expr) -> None:
        """Starts the copies of a step."""
        worker = self.worker
        column = fixed("column", step * self.step + self.own)
        there = None if self.whole_steps else column < padded(self.placement.columns)
        nearest, *others = self._vertices()

        def operand(part: int, vertex: Expr, near: Expr) -> None:
            with when(vertex < self.tile.count):
                source = piece_at(worker, self.pieces, near, column, there, self.places[part])
                self._start(stage + vertex * self.stride + self.own, source, there is None)

        operand(*nearest)
        if others:
            with when(self.tile.count > self.lines):
                for other in others:
                    operand(*other)
        for first in range(0, self.copied, self.lines):
            line = let("line", self.line + first)
            to = stage + (self.vertices + line) * self.stride + self.own
            with when(line < self.copied) if first + self.lines > self.copied else nullcontext():
                at = self._weight_at(first, column)
                self._start(to, at, self.whole_steps and self.near is not None)
        begins = piece_begins(self.pieces)[1:]
        # Where a step has columns of one piece of the operand, rows stay where they are until the next piece.
        if all(begin % self.step == 0 for begin in begins):
            for begin in begins:
                with when(step + 1 == begin // self.step):
                    self._look_up(step + 1)
        else:
            self._look_up(step + 1)

    def _weight_at(self, first: int, column: Expr) -> Expr:
        """Where the thread's column of row line + first is; 0 where there is none."""
        placement, width = self.placement, padded(self.placement.columns)
        if self.near is not None:  # so many rows on
            units = self.tile.units
            gate = first // units if placement.gates > 1 else 0
            skipped = gate * (placement.units - units) + first
            at = self.near + skipped * width + column
            return at if self.whole_steps else T.Select(column < width, at, T.int64(0))
        tile, row = self.tile, let("row", self.row + self.line + first)
        source, valid = row_of_units(placement, tile.first_unit, tile.units, row)
        there = both(column < width, valid != 0)
        return T.Select(there, self.weights_at + source * width + column, T.int64(0))

    def _start(self, to: Expr, source: Expr, always: bool) -> None:
        self.worker.start_copy(to, fixed("from", source, "int64"), always)

    def weights(self, step: Expr, stage: Expr) -> Element:
        """Where weights of a step are: of a row of these rows, in a column of the step."""
        if self.copied:
            return lambda row, column: (
                self.worker.staging,
                stage + (self.vertices + row) * self.stride + column,
            )
        memory, place = weight_place(self.worker, self.placement, self.weights_at)
        return lambda row, column: (memory, place(self.row + row, step * self.step + column))

    def quads(self, step: Expr, stage: Expr) -> tuple[Any, Expr, int]:
        """The memory of a step's weights, the quad there that the first row starts with, and quads from a row
        to the next one."""
        if self.copied:
            quads = self.stride // 4
            return self.worker.staging, T.shift_right(stage, 2) + self.vertices * quads, quads
        stride = shared_stride(self.placement.columns) // 4
        at = self.placement.slot // 4 + self.row * stride + step * (self.step // 4)
        return self.worker.shared_weights, at, stride

    @property
    def whole_steps(self) -> bool:
        """Whether every step has all its columns in memory."""
        return padded(self.placement.columns) % self.step == 0

    def whole(self) -> bool:
        """Whether every step has all its columns, or they are zeros."""
        return bool(self.copied) or self.placement.columns % self.step == 0


Sources = Callable[[Expr], tuple[Expr, Expr | None]]


@attrs.frozen(eq=False)
class TurnedSteps:
    """The steps of a transposed product: `high` rows of the weights, in blocks of `columns`.

    Both may be known only at run time: they are one of `shapes`. weights: how many of them a step has.
    """

    tile: UnitTile
    placement: Placement
    weights_at: Expr
    columns: Expr
    high: Expr
    weights: int
    shapes: frozenset[tuple[int, int]]

    @property
    def streamed(self) -> bool:
        """Whether the weights are copied."""
        return self.placement.residency == STREAMED

    @property
    def stride(self) -> Expr:
        """Words from a row of a step to the next one."""
        return self.columns + SPARE

    @property
    def units(self) -> int:
        """Units of a worker, at most."""
        return unit_share(self.placement.units, self.tile.worker.workers)

    def copy(self, block: Expr, first: Expr, stage: Expr) -> None:
        """Starts the copies of the step that begins in row `first` of a block."""
        if not self.streamed:
            return
        # A step of as many rows as divide the units has those of one gate, which all exist.
        alike = self.units * self.tile.worker.workers == self.placement.units
        heights = {high for _, high in self.shapes}
        one_gate = {high for high in heights if alike and self.units % high == 0}
        of_one_gate = partial(self._copy, block, first, stage, True)
        of_any_gate = partial(self._copy, block, first, stage, False)
        if one_gate == heights:
            of_one_gate()
        elif one_gate and max(one_gate) < min(heights - one_gate):
            either(self.high <= max(one_gate), of_one_gate, of_any_gate)
        else:
            of_any_gate()

    def _copy(self, block: Expr, first: Expr, stage: Expr, one_gate: bool) -> None:
        worker, width = self.tile.worker, padded(self.placement.columns)
        quads = self.columns // 4 if isinstance(self.columns, int) else T.shift_right(self.columns, 2)
        line_of_thread = fixed("line_of_thread", worker.thread // quads)
        apart = THREADS // quads if isinstance(quads, int) else fixed("lines_apart", THREADS // quads)
        own = let("own", (worker.thread - line_of_thread * quads) * 4)
        column = fixed("column", block * self.columns + own)
        to = fixed("to", stage + line_of_thread * self.stride + own)
        inside = None
        if any(self.placement.columns % columns for columns, _ in self.shapes):
            inside = let("inside", column < width)
        if one_gate:
            start, _ = source_row(worker, self.placement, first)
            near = fixed("near", self.weights_at + wide(start + line_of_thread) * width + column, "int64")
        else:
            source_of = self._sources(first)
        for part in range(self.weights // 4 // THREADS):
            there = None
            if one_gate:
                at = near + part * apart * width
            else:
                source, there = source_of(fixed("line", line_of_thread + part * apart))
                at = self.weights_at + source * width + column
            exists = [each for each in (inside, there) if each is not None]
            if exists:
                at = T.Select(both(*exists) if exists[1:] else exists[0], at, T.int64(0))
            copied = to + part * apart * self.stride
            worker.start_copy(copied, fixed("from", at, "int64"), not exists)

    def _sources(self, first: Expr) -> Sources:
        """Where a line of a step is in the parameter, and whether it exists: None for always. first: the row
        in which the step begins."""
        worker, placement, units = self.tile.worker, self.placement, self.units
        if units * worker.workers != placement.units:
            if placement.gates == 1:
                # Rows behind the worker's are not multiplied: any that exist do.
                own_first = fixed("own_first", worker.rank * units + first)
                return lambda line: (smaller(own_first + line, placement.units - 1), None)

            def of_padded_units(line: Expr) -> tuple[Expr, Expr]:
                source, valid = source_row(worker, placement, let("row", first + line))
                return source, valid != 0

            return of_padded_units
        bits, skipped = units.bit_length() - 1, placement.units - units
        rank_first = let("rank_first", worker.rank * units)

        def of_any_gate(line: Expr) -> tuple[Expr, Expr]:
            row = fixed("row", first + line)
            gate = T.shift_right(row, bits) if units == 1 << bits else row // units
            return rank_first + (row + gate * skipped), row < placement.gates * units

        return of_any_gate

    def quads(self, block: Expr, first: Expr, stage: Expr, column: Expr) -> tuple[Any, Expr, Expr]:
        """The memory of a step's weights, the quad there of its first row and a column of the block, and
        quads from a row to the next one."""
        if self.streamed:
            return self.tile.worker.staging, T.shift_right(stage + column, 2), T.shift_right(self.stride, 2)
        width, stride = padded(self.placement.columns), shared_stride(self.placement.columns) // 4
        at = smaller(block * self.columns + column, width - 4)  # where the matrix has ended any columns do
        at = self.placement.slot // 4 + first * stride + T.shift_right(at, 2)
        return self.tile.worker.shared_weights, at, stride


def turned_steps(
    tile: UnitTile,
    product: TransposedProduct,
    columns: Expr,
    high: Expr,
    weights: int,
    shapes: Iterable[tuple[int, int]],
) -> TurnedSteps:
    """The steps of a transposed product, `columns` of the result at a time. shapes: all columns and rows of a
    step that there may be."""
    placement = tile.placement(product)
    weights_at = let("weights_at", tile.weights_at(product))
    return TurnedSteps(tile, placement, weights_at, columns, high, weights, frozenset(shapes))
