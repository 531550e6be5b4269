"""Weight gradients of few rows on CUDA: one body for all gradients of a plan.

In: the fields of an `outer` instruction. Out: its body. A worker takes tiles (`cutting.outer_tile`), sums all
rows of each, always in the same order, and leaves the sum of its squares for the norm. Gradients differ only
in where their rows lie, which is looked up first: the rest is the same code for all of them. A vector whose
deltas are those of a matrix is made beside it; any other is one row, the sum of its deltas.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_outer_rows import Kind, Stages, tiles_of
from dnc.codegen.bodies.cuda_outer_sums import SPARE, SPARE_ON_CORES, TileSums
from dnc.codegen.bodies.cuda_places import Copies, Places, copy_quad, find_piece, lines
from dnc.codegen.bodies.cuda_tensor import uses_cores
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, both, either, fixed, let, local, put, stride_loop, when
from dnc.ir import cutting, isa
from dnc.ir.plan import DenseGradient, padded

HEIGHT, WIDTH = cutting.OUTER_TILE.rows, cutting.OUTER_TILE.columns
# Rows of the space staged at a time, and stages: the first that fits.
LAYOUTS = ((64, 3), (32, 3), (16, 3), (16, 2))


def outer(worker: Worker, fields: Mapping[str, Expr]) -> None:
    """Tiles of one gradient over all its rows. fields: by their names in `isa.OUTER_FIELDS`."""
    begin = let("begin", (worker.number + worker.grid - fields["first_worker"]) % worker.grid)
    tiles = let("tiles", tiles_of(worker.plan, fields["gradient"]))
    with when(begin < tiles):  # who has none goes on at once
        _tiles(worker, fields, begin, tiles)


def _tiles(worker: Worker, fields: Mapping[str, Expr], begin: Expr, tiles: Expr) -> None:
    """Those of a worker, from the first one on."""
    kind = Kind(worker, fields["gradient"], fields["index"])
    stages = _stages(worker, kind.sides)
    sources = [(kind.source[side], kind.stride[side]) for side in range(kind.sides)]
    places = Places(worker, sources, stages.step, stages.count, stages.count * stages.words)
    across = let("across", (kind.columns + kind.width - 1) // kind.width)
    with stride_loop("item", begin, tiles, worker.grid) as item:
        row = fixed("row", item // across * HEIGHT)
        column = fixed("column", (item - item // across * across) * kind.width)
        with when(both(item == 0, fields["accumulate"] == 0)):
            kind.clear_padding()
        tile = _Tile(worker, kind, stages, places, (row, column), fields)
        tile.sum_rows()
        square = tile.sums.write()
        with when(fields["first_norm"] != isa.NO_NORM):
            total = worker.block_sum(square)
            with when(worker.thread == 0):
                put(worker.pool, worker.access.base(isa.NORMS) + fields["first_norm"] + item, total)


def _stages(worker: Worker, sides: int) -> Stages:
    """The first layout that fits, with a word a row for where it lies on every side."""
    spare = SPARE_ON_CORES if uses_cores(worker.plan) else SPARE
    found = [Stages(step, count, HEIGHT + spare, WIDTH + spare) for step, count in LAYOUTS]
    fits = (each for each in found if each.count * (each.words + each.step * sides) <= worker.staging_words)
    return next(fits, found[-1])


class _Tile:
    """A tile of a gradient. Rows are copied two steps ahead of the sums, places looked up two before."""

    def __init__(
        self,
        worker: Worker,
        kind: Kind,
        stages: Stages,
        places: Places,
        place: tuple[Expr, Expr],
        fields: Mapping[str, Expr],
    ) -> None:
        self.worker, self.kind, self.places = worker, kind, places
        self.row, self.column = place
        self.start, self.end = fields["row"], fixed("end", fields["row"] + fields["rows"])
        self.stages = stages
        self.ahead = stages.count - 1
        line, delta_own = _share(worker, HEIGHT)
        self.delta_line, self.delta_own = fixed("line", line), fixed("own", delta_own)
        _, own = _share(worker, kind.width)
        self.side, self.shift = local("side", "int32", 1), local("shift", "int32", self.column + own)
        self.delta_shift = local("delta_shift", "int32", self.row + delta_own)
        kind.each(partial(self._find_sides, own))
        self.sums = TileSums(worker, kind, place, stages, fields["accumulate"])

    def _find_sides(self, own: Expr, gradient: DenseGradient) -> None:
        """On which piece of the operand the columns of this thread are, and how far into it."""
        column = self.column + own
        put(self.delta_shift, 0, self.delta_shift[0] + gradient.delta.offset)
        if not gradient.pieces:
            put(self.shift, 0, column + gradient.delta.offset)
            return
        find_piece(gradient, column, self.side, self.shift)

    def sum_rows(self) -> None:
        """All rows; the first rounds only copy."""
        stages = self.stages
        ahead, last = self.ahead * stages.step, stages.count - 1
        for number in range(self.ahead):
            self.places.look_up(self.start + number * stages.step, self.end, number)
        cuda.copy_commit()
        cuda.copy_wait(0)
        stage = local("stage", "int32", 1)  # of the rows at hand; those of the steps ahead follow
        with stride_loop("from", self.start - ahead, self.end, stages.step) as now:
            cuda.copy_wait(self.ahead - 1)
            self.worker.synchronize()  # rows and places are there, and the stage before them has been read
            before = let("before", T.Select(stage[0] == 0, last, stage[0] - 1))
            before_that = let("before_that", T.Select(before == 0, last, before - 1))
            copies = self._begin_copies(now + ahead, before)
            self.places.look_up(now + 2 * ahead, self.end, before_that)
            add = partial(self.sums.add, stage[0] * stages.words, self.end - now, copies)
            either(now >= self.start, add, partial(self._copy_all, copies))
            cuda.copy_commit()
            put(stage, 0, T.Select(stage[0] == last, 0, stage[0] + 1))
        cuda.copy_wait(0)
        self.worker.synchronize()

    def _copy_all(self, copies: Copies) -> None:
        wide_tile = partial(copies.all, WIDTH)
        if self.kind.has_strips:
            either(self.kind.is_strip != 0, partial(copies.all, cutting.OUTER_STRIP.columns), wide_tile)
        else:
            wide_tile()

    def _begin_copies(self, first: Expr, stage: Expr) -> Copies:
        """Starts to copy the rows from `first` on, zeros where there are none: here the deltas."""
        stages, here = self.stages, self.worker.here()
        deltas, left = let("deltas", stage * stages.words), let("left", self.end - first)
        delta_line, delta_own = self.delta_line, self.delta_own
        for begin in range(0, stages.step, lines(HEIGHT)):
            line = let("delta_row", delta_line + begin)
            with when(line < stages.step):
                there = both(self.row + delta_own < self.kind.rows, line < left)
                to = deltas + line * stages.deltas + delta_own
                copy_quad(self.worker, self.places.at(0, stage) + line, self.delta_shift[0], there, to)
        columns = padded(self.kind.columns)
        own_line, own = _share(here, self.kind.width)
        operands = deltas + stages.step * stages.deltas
        return Copies(
            self.worker,
            fixed("own_place", self.places.at(self.side[0], stage) + own_line),
            self.shift[0],
            fixed("own_left", T.Select(self.column + own < columns, left, 0) - own_line),
            fixed("own_to", operands + own_line * stages.operands + own),
            stages.step,
            stages.operands,
        )


def _share(worker: Worker, elements: Expr) -> tuple[Expr, Expr]:
    """The row of a step, and the element in it, that a thread copies first, 16 bytes of each."""
    quads = let("quads", elements // 4)
    return let("line", worker.thread // quads), let("own", worker.thread % quads * 4)
