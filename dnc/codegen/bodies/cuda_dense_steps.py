"""Rows of a weight gradient on CUDA: copies of deltas and operands into shared memory, a step at a time.

In: a tile of a gradient and the rows to sum. Out: statements that start the copies of a step, some steps
ahead of the sums. Guaranteed: rows that do not exist are zero in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_kinds import Kind
from dnc.codegen.bodies.cuda_operands import all_aligned
from dnc.codegen.bodies.cuda_places import Copies, Places, words_of
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, both, either, fixed, let, local, loop, put, quad_at, stride_loop, when
from dnc.ir import cutting
from dnc.ir.machine import THREADS
from dnc.ir.plan import Address, DenseGradient

# Rows staged at a time, and stages: the first that fits.
LAYOUTS = ((32, 4), (32, 3), (32, 2), (16, 3), (16, 2))


@attrs.frozen(eq=False)
class TileWork:
    """A piece of work for one worker: a tile of a gradient, over some rows of a space.

    start, end: the rows that are summed. row, column: the tile's first element. base: the position of
    the gradient in the pool. accumulate: whether the sums are added to what is there. beside: the position
    of a vector that adds up the same deltas and is made along; None if there is none.
    """

    kind: Kind
    start: Expr
    end: Expr
    row: Expr
    column: Expr
    base: Expr
    accumulate: Expr
    beside: Expr | None = None

    @property
    def worker(self) -> Worker:
        """Whose work it is."""
        return self.kind.worker


@attrs.frozen
class Side:
    """One side of a tile: how its elements are shared out in shared memory and over the threads.

    elements: of the tile. threads: that stand side by side along it; each has `quads` times 4
    elements, 4 * threads apart. spare: words between two staged rows.
    """

    elements: int
    threads: int
    spare: int

    @property
    def quads(self) -> int:
        """Groups of 4 elements of a thread."""
        return self.elements // (4 * self.threads)

    @property
    def stride(self) -> int:
        """Words of a staged row."""
        return self.elements + self.spare

    @property
    def lines(self) -> int:
        """Rows that all threads together copy at a time, 16 bytes each."""
        return THREADS // (self.elements // 4)

    def parts(self, step: int) -> int:
        """Copies that a thread makes in a step of so many rows."""
        return -(-step // self.lines)


@attrs.frozen
class Tile:
    """A tile: rows are elements of the delta, columns of the operand; `step` of them are staged at a time, in
    `stages` places in turn."""

    rows: Side
    columns: Side
    step: int
    stages: int

    @property
    def stage(self) -> int:
        """Words of a step in shared memory: deltas, operands behind them."""
        return self.step * (self.rows.stride + self.columns.stride)


def tile_of(work: TileWork, shape: cutting.GradientTile, spare: int) -> Tile:
    """The tile of a shape, on all threads of a worker."""
    high = min(16, shape.rows // 4)
    sides = Side(shape.rows, high, spare), Side(shape.columns, THREADS // high, spare)
    tiles = [Tile(*sides, *layout) for layout in LAYOUTS]
    return next((tile for tile in tiles if _words(work, tile) <= work.worker.staging_words), tiles[-1])


def _words(work: TileWork, tile: Tile) -> int:
    return tile.stages * tile.stage + words_of(tile.step, tile.stages, work.kind.sides)


class Begun(Protocol):
    """The copies of a step, in parts."""

    def part(self, number: Expr, count: int) -> Callable[[], None]:
        """What starts a part of so many; for that it reads something now, which takes a while to come."""

    def all(self) -> None:
        """Starts all."""


class Steps(Protocol):
    """Brings the rows of a tile into shared memory, a step at a time: in each stage deltas, then operands."""

    def look_up(self, first: Expr, stage: Expr) -> None:
        """Asks where the rows from `first` on lie, those that will be in a stage."""

    def begin(self, first: Expr, stage: Expr) -> Begun:
        """The copies of the rows from `first` on, which were looked up, into a stage."""


def is_copied(worker: Worker, gradient: DenseGradient) -> bool:
    """Whether the rows of a matrix's gradient can be copied, 16 bytes at a time."""
    whole = gradient.columns % 4 == 0 and all_aligned(worker, gradient.pieces)
    return whole and cutting.is_copied(worker.plan, gradient)


def steps_of(work: TileWork, tile: Tile) -> Steps:
    """The way that the rows of gradients can be brought."""
    copied = all(is_copied(work.worker, gradient) for gradient in work.kind.gradients.values())
    return CopiedSteps(work, tile) if copied else LoadedSteps(work, tile)


def each_step(work: TileWork, tile: Tile, add: Callable[[Expr, Begun], None]) -> None:
    """`add` for every step that is there, from its first word on, with the copies to start meanwhile."""
    worker, step, last = work.worker, tile.step, tile.stages - 1
    worker.stage(_words(work, tile))
    steps, ahead = steps_of(work, tile), (tile.stages - 1) * tile.step
    with loop("early", last) as number:  # code that runs once is slower to come than to run
        steps.look_up(work.start + number * step, number)
    cuda.copy_commit()
    cuda.copy_wait(0)
    worker.synchronize()
    stage = local("stage", "int32", 1 % tile.stages)  # of the rows at hand; those of the steps ahead follow
    with stride_loop("from", work.start - ahead, work.end, step) as now:  # the first rounds only copy
        cuda.copy_wait(last - 1)
        worker.synchronize()  # the rows are there, and the stage of the rows before them has been read
        before = let("before", T.Select(stage[0] == 0, last, stage[0] - 1))
        before_that = let("before_that", T.Select(before == 0, last, before - 1))
        begun = steps.begin(now + ahead, before)
        steps.look_up(now + 2 * ahead, before_that)
        sums = partial(add, stage[0] * tile.stage, begun)
        either(now >= work.start, sums, begun.all)
        cuda.copy_commit()
        put(stage, 0, T.Select(stage[0] == last, 0, stage[0] + 1))
    cuda.copy_wait(0)
    worker.synchronize()


class CopiedSteps:
    """Rows in whole addresses. Their places are looked up as many steps ahead of the copies as these are of
    the sums."""

    def __init__(self, work: TileWork, tile: Tile) -> None:
        worker, kind = work.worker, work.kind
        self.work, self.tile = work, tile
        self.places = Places(worker, kind.sources, tile.step, tile.stages, tile.stages * tile.stage)
        _, own = _share(worker, tile.rows)
        row, nothing = fixed("delta_row", work.row + own), work.start
        # Up to which row the elements of this thread are there.
        self.delta_end = fixed("delta_end", T.Select(row < kind.rows, work.end, nothing))
        _, own = _share(worker, tile.columns)
        column = fixed("column", work.column + own)
        self.operand_end = fixed("operand_end", T.Select(column < kind.columns, work.end, nothing))
        self.delta_shift, self.shift = local("delta_shift", "int32", 0), local("shift", "int32", 0)
        self.side = local("side", "int32", 1)
        kind.find(row, column, self.delta_shift, self.side, self.shift)

    def look_up(self, first: Expr, stage: Expr) -> None:
        """Asks where the rows from `first` on lie."""
        self.places.look_up(first, self.work.end, stage)

    def begin(self, first: Expr, stage: Expr) -> Begun:
        """The copies of the rows from `first` on."""
        work, tile, places, here = self.work, self.tile, self.places, self.work.worker.here()
        deltas = let("deltas", stage * tile.stage)
        operands = deltas + tile.step * tile.rows.stride
        # Worked out here, the thread's share takes no registers between steps.
        delta_line, delta_own = _share(here, tile.rows)
        line, own = _share(here, tile.columns)
        of_deltas = Copies(
            work.worker,
            fixed("delta_place", places.at(0, stage) + delta_line),
            self.delta_shift[0],
            fixed("delta_left", self.delta_end - first - delta_line),
            fixed("delta_to", deltas + delta_line * tile.rows.stride + delta_own),
            tile.step,
            tile.rows.stride,
        )
        of_operands = Copies(
            work.worker,
            fixed("own_place", places.at(self.side[0], stage) + line),
            self.shift[0],
            fixed("own_left", self.operand_end - first - line),
            fixed("own_to", operands + line * tile.columns.stride + own),
            tile.step,
            tile.columns.stride,
        )
        return CopiedRows(tile, (of_deltas, of_operands), (delta_line, line))


@attrs.frozen(eq=False)
class CopiedRows:
    """The copies of a step: those of deltas, those of operands; and the thread's first row of each."""

    tile: Tile
    copies: tuple[Copies, Copies]
    first: tuple[Expr, Expr]

    def part(self, number: Expr, count: int) -> Callable[[], None]:
        """A share of both; all in the first one where they cannot be shared out."""
        starts, whole = list[Callable[[], None]](), list[int]()
        for which, (side, copies) in enumerate(zip(self._sides, self.copies, strict=True)):
            parts = side.parts(self.tile.step)
            if parts % count or side.lines > self.tile.step:
                whole.append(which)
                continue
            each = parts // count
            starts += [copies.look_up(number * each + i, side.elements) for i in range(each)]

        def start() -> None:
            for begin in starts:
                begin()
            if whole:
                with when(T.int32(0) == number):
                    self._start(whole)

        return start

    def all(self) -> None:
        """Both."""
        self._start([0, 1])

    @property
    def _sides(self) -> tuple[Side, Side]:
        return self.tile.rows, self.tile.columns

    def _start(self, which: list[int]) -> None:
        for at in which:
            side, copies = self._sides[at], self.copies[at]
            if side.lines > self.tile.step:
                with when(self.first[at] < self.tile.step):
                    copies.start(0, side.elements)
            else:
                copies.all(side.elements)


class LoadedSteps:
    """Rows element by element, where they are sums or not aligned."""

    def __init__(self, work: TileWork, tile: Tile) -> None:
        assert work.kind.alone is not None
        self.work, self.tile, self.gradient = work, tile, work.kind.alone
        self.delta_line, self.delta_own = _share(work.worker, tile.rows)
        self.line, self.own = _share(work.worker, tile.columns)
        self.row = fixed("delta_row", work.row + self.delta_own)
        self.column = fixed("column_own", work.column + self.own)

    def look_up(self, first: Expr, stage: Expr) -> None:
        """Nothing."""

    def begin(self, first: Expr, stage: Expr) -> Begun:
        """The loads of the rows from `first` on."""
        return LoadedRows(self, first, stage)

    def load(self, first: Expr, stage: Expr) -> None:
        """Loads the rows from `first` on."""
        at = let("deltas", stage * self.tile.stage)
        self._side(self.tile.rows, self.delta_line, self.delta_own, first, at, self._delta)
        operands = at + self.tile.step * self.tile.rows.stride
        self._side(self.tile.columns, self.line, self.own, first, operands, self._operand)

    def _side(
        self, side: Side, line: Expr, own: Expr, first: Expr, at: Expr, load: Callable[[Expr, Any], None]
    ) -> None:
        for part in range(side.parts(self.tile.step)):
            now = fixed("now", line + part * side.lines)
            vertex = fixed("vertex", first + now)
            with when(now < self.tile.step):
                found = local("found", "float32", T.float32(0.0), 4)
                with when(vertex < self.work.end):
                    load(vertex, found)
                to = fixed("to", at + now * side.stride + own)
                T.buffer_store(self.work.worker.staging, found[quad_at(0)], [quad_at(to)])

    def _delta(self, vertex: Expr, into: Any) -> None:
        gradient = self.gradient
        _four(self.work.worker, gradient.delta, gradient.rows, vertex, self.row, into)

    def _operand(self, vertex: Expr, into: Any) -> None:
        begin = 0
        for piece in self.gradient.pieces:
            element = self.column - begin
            _four(self.work.worker, piece.address, piece.width, vertex, element, into, begin % 4 == 0)
            begin += piece.width


@attrs.frozen(eq=False)
class LoadedRows:
    """The loads of a step, which are never shared out."""

    steps: LoadedSteps
    row: Expr
    stage: Expr

    def part(self, number: Expr, count: int) -> Callable[[], None]:
        """All, with the first part."""

        def start() -> None:
            with when(T.int32(0) == number):
                self.all()

        return start

    def all(self) -> None:
        """All."""
        self.steps.load(self.row, self.stage)


def _share(worker: Worker, side: Side) -> tuple[Expr, Expr]:
    """The row of a step, and the element in it, that a thread brings first."""
    quads = side.elements // 4
    return fixed("line", worker.thread // quads), fixed("own", worker.thread % quads * 4)


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
