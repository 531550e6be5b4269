"""Rows of weight gradients on CUDA, for one body that makes all of them: where they lie.

In: the number of a gradient, when the kernel runs. Out: what `outer` instructions need to know of it, and the
steps in which they go through its rows, tile after tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_kinds import Kind
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, any_of, divided, fixed, let, local, put, when
from dnc.ir import cutting, isa
from dnc.ir.plan import DenseGradient, Plan, padded


@attrs.frozen
class Stages:
    """How rows are staged: `step` at a time, deltas and operands of so many words a row; `count` steps."""

    step: int
    count: int
    deltas: int
    operands: int

    @property
    def words(self) -> int:
        """Words of a stage: deltas, operands behind them."""
        return self.step * (self.deltas + self.operands)

    def all_words(self, sides: int) -> int:
        """Words of all stages, and of where their rows lie on so many sides."""
        return self.count * (self.words + self.step * sides)


class OuterKind(Kind):
    """The gradient at hand, and how its tiles lie.

    is_strip: whether they are `OUTER_STRIP`; width: columns of a tile.
    """

    def __init__(self, worker: Worker, number: Expr, index: Expr) -> None:
        found = dict(_gradients(worker.plan))
        tiles = [cutting.outer_tile(gradient) for gradient in found.values()]
        strip, tile = cutting.OUTER_STRIP, cutting.OUTER_TILE
        facts = {"is_strip": lambda gradient: T.int32(cutting.outer_tile(gradient) == strip)}
        super().__init__(worker, found, number, index, facts)
        self.is_strip, self.has_strips = self.facts["is_strip"], strip in tiles
        self.width: Expr = tile.columns
        self._shift: Expr = self._shift_of(tile)
        if self.has_strips:
            self.width = fixed("width", T.Select(self.is_strip != 0, strip.columns, tile.columns))
            shifts = self._shift_of(strip), self._shift_of(tile)
            self._shift = fixed("line_shift", T.Select(self.is_strip != 0, *shifts))
        vectors = [number for number, gradient in found.items() if not gradient.pieces]
        self.has_vectors = bool(vectors)
        matrices = [gradient for gradient in found.values() if gradient.pieces]
        self.has_padding = any(gradient.columns != padded(gradient.columns) for gradient in matrices)
        self.is_vector = reduce(any_of, [number == each for each in vectors], number < 0)
        # Sums of what is no tile of a matrix go through all rows of a step.
        self.is_narrow = self.is_vector if not self.has_strips else any_of(self.is_vector, self.is_strip != 0)

    @staticmethod
    def shape_of(gradient: DenseGradient) -> tuple[int, int]:
        """Rows and columns of the matrix as which it is made; a vector is a row."""
        return (gradient.rows, gradient.columns) if gradient.pieces else (1, gradient.rows)

    @staticmethod
    def _shift_of(tile: cutting.GradientTile) -> int:
        """How often a row of a tile is halved until it is 16 bytes."""
        return (tile.columns // 4).bit_length() - 1

    @property
    def across(self) -> Expr:
        """Tiles side by side."""
        return T.shift_right(self.columns + (self.width - 1), self._shift + 2)

    def share(self, thread: Expr) -> tuple[Expr, Expr]:
        """The row of a step, and the element in it, of the first 16 bytes of operands that a thread has."""
        line = let("line", T.shift_right(thread, self._shift))
        return line, let("own", (thread - T.shift_left(line, self._shift)) * 4)

    @property
    def base(self) -> Expr:
        """Its position."""
        return self.worker.access.base(isa.GRADIENTS) + self.offset

    @property
    def base_beside(self) -> Expr:
        """The position of the vector beside it."""
        return self.worker.access.base(isa.GRADIENTS) + self.beside


class Walk:
    """The steps of a worker's tiles, which are `apart` from each other: of each `stages.step` rows after
    another."""

    def __init__(
        self,
        worker: Worker,
        kind: OuterKind,
        stages: Stages,
        fields: Mapping[str, Expr],
        begin: Expr,
        apart: Expr,
        tiles: Expr,
    ) -> None:
        self.worker, self.kind, self.stages, self.tiles = worker, kind, stages, tiles
        self.apart = apart
        self.first = fixed("first_tile", begin - self.apart)
        self.start, self.end = fields["row"], fixed("end", fields["row"] + fields["rows"])
        own = divided(tiles - begin + self.apart - 1, self.apart)
        steps = divided(fields["rows"] + (stages.step - 1), stages.step)
        self.steps = fixed("steps", own * T.max(steps, 1))
        # From a tile to the next one of the worker, so that no tile needs a division.
        height, across = cutting.OUTER_TILE.rows, let("across", kind.across)
        self.line = fixed("line_of_tiles", across * kind.width)
        down, first_down = (let("down", divided(number, across)) for number in (self.apart, begin))
        self.down = fixed("rows_apart", down * height)
        self.over = fixed("columns_apart", (self.apart - down * across) * kind.width)
        self.row = fixed("row_before", first_down * height - self.down)
        self.column = fixed("column_before", (begin - first_down * across) * kind.width - self.over)


class Position:
    """A step of a walk: its tile, whose first element is (row, column), and the first of its rows."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self._item, self._now = local("item", "int32", walk.first), local("from", "int32", walk.end)
        self._row, self._column = local("row", "int32", walk.row), local("column", "int32", walk.column)

    @property
    def item(self) -> Expr:
        """The number of the tile."""
        return self._item[0]

    @property
    def row(self) -> Expr:
        """Of its first element."""
        return self._row[0]

    @property
    def column(self) -> Expr:
        """Of its first element."""
        return self._column[0]

    @property
    def rows(self) -> Expr:
        """Rows that there still are of the tile."""
        return self.walk.end - self._now[0]

    @property
    def ended(self) -> Expr:
        """Whether there are none; so it begins."""
        return self._now[0] >= self.walk.end

    def next_tile(self) -> None:
        """To the first step of the next tile."""
        walk = self.walk
        put(self._item, 0, self._item[0] + walk.apart)
        put(self._now, 0, walk.start)
        put(self._row, 0, self._row[0] + walk.down)
        put(self._column, 0, self._column[0] + walk.over)
        with when(self._column[0] >= walk.line):
            put(self._row, 0, self._row[0] + cutting.OUTER_TILE.rows)
            put(self._column, 0, self._column[0] - walk.line)

    def advance(self) -> None:
        """By a step."""
        put(self._now, 0, self._now[0] + self.walk.stages.step)


def tiles_of(plan: Plan, number: Expr) -> Expr:
    """How many tiles the gradient of a number has."""
    (_, first), *others = _gradients(plan)
    found = T.int32(cutting.outer_tiles(first))
    for other, gradient in others:
        found = T.Select(number == other, cutting.outer_tiles(gradient), found)
    return found


def _gradients(plan: Plan) -> list[tuple[int, DenseGradient]]:
    """Those that have instructions, with their numbers."""
    beside = cutting.along_with_others(plan)
    return [(n, g) for n, g in enumerate(plan.dense_gradients) if g.name not in beside]
