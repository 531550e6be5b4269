"""Rows of a weight gradient on CUDA: copies of deltas and operands into shared memory, a step at a time.

In: a tile of a gradient and the rows to sum. Out: statements that start the copies of a step, one step
ahead of the sums. Guaranteed: what does not exist is zero in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_operands import all_aligned, piece_at, piece_word
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, both, fixed, let, local, put, quad_at, when
from dnc.ir import isa
from dnc.ir.machine import THREADS
from dnc.ir.plan import Address, DenseGradient

STEPS = (32, 16)  # rows staged at a time: the first that fits
STAGES = 2


@attrs.frozen(eq=False)
class TileWork:
    """A piece of work for one worker: a tile of a gradient, over some rows of a space.

    start, end: the rows that are summed. row, column: the tile's first element. base: the position of
    the gradient in the pool. accumulate: whether the sums are added to what is there.
    """

    worker: Worker
    gradient: DenseGradient
    start: Expr
    end: Expr
    row: Expr
    column: Expr
    base: Expr
    accumulate: Expr


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
    """A tile: rows are elements of the delta, columns of the operand; `step` of them are staged at a time."""

    rows: Side
    columns: Side
    step: int

    @property
    def stage(self) -> int:
        """Words of a step in shared memory: deltas, operands behind them."""
        return self.step * (self.rows.stride + self.columns.stride)


def tile_of(shape: isa.GradientTile, staging_words: int, spare: int) -> Tile:
    """The tile of a shape, on all threads of a worker."""
    high = min(16, shape.rows // 4)
    sides = Side(shape.rows, high, spare), Side(shape.columns, THREADS // high, spare)
    tiles = [Tile(*sides, step) for step in STEPS]
    return next((tile for tile in tiles if STAGES * tile.stage <= staging_words), tiles[-1])


class Steps:
    """Brings the rows of a tile into shared memory, a step at a time.

    A stage holds the step's deltas, then its operands. Places are looked up one step ahead of the
    copies (what a look-up brings is not used before), copies run one step ahead of the sums.
    """

    def __init__(self, work: TileWork, tile: Tile) -> None:
        self.worker, self.gradient, self.tile, self.end = work.worker, work.gradient, tile, work.end
        self.delta_line, self.delta_own = self._share(tile.rows)
        self.line, self.own = self._share(tile.columns)
        self.row = fixed("delta_row", work.row + self.delta_own)
        self.column = fixed("column_own", work.column + self.own)
        # Behind the last delta of a row stands something, and its sums are of rows that nobody writes.
        self.aligned = self.worker.access.is_aligned(self.gradient.delta)
        self.aligned = self.aligned and all_aligned(self.worker, self.gradient.pieces)
        self.columns = work.gradient.columns
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
                    worker.start_copy(at, fixed("delta_at", T.Select(valid, delta, T.int64(0)), "int64"))
                else:
                    self._copy_delta(vertex, at)
        operands = stage + self.tile.step * self.tile.rows.stride
        for part, line, vertex, to in self._lines(self.tile.columns, self.line, first, operands):
            with when(line < self.tile.step):
                at = fixed("to", to + self.own)
                if self.aligned:
                    valid = both(vertex < self.end, self.column < self.columns)
                    word = self.places[part]
                    source = piece_at(worker, gradient.pieces, self._near(vertex), self.column, valid, word)
                    worker.start_copy(at, fixed("operand_at", source, "int64"))
                else:
                    self._copy_operand(vertex, at)
        cuda.copy_commit()

    def _lines(self, side: Side, line: Expr, first: Expr, at: Expr) -> Iterator[tuple[int, Expr, Expr, Expr]]:
        """(part, line of the step, row, first word of the line) of every copy of a thread."""
        for part in range(side.parts(self.tile.step)):
            now = fixed("now", line + part * side.lines)
            yield part, now, fixed("vertex", first + now), fixed("row_at", at + now * side.stride)

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
