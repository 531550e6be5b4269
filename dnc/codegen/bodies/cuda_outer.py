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
from dnc.codegen.bodies.cuda_outer_rows import OuterKind, Position, Stages, Walk, tiles_of
from dnc.codegen.bodies.cuda_outer_sums import SPARE, SPARE_ON_CORES, TileSums, scratch_words
from dnc.codegen.bodies.cuda_places import Copies, Places, copy_quad, lines
from dnc.codegen.bodies.cuda_tensor import uses_cores
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, any_of, both, divided, either, fixed, let, local, put, stride_loop, when
from dnc.ir import cutting, isa

HEIGHT, WIDTH = cutting.OUTER_TILE.rows, cutting.OUTER_TILE.columns
DELTA_LINES = lines(HEIGHT)  # rows of deltas that are copied at a time
# Rows of the space staged at a time, and stages: the first that fits.
LAYOUTS = ((64, 3), (32, 3), (16, 3), (16, 2))


def outer(worker: Worker, fields: Mapping[str, Expr]) -> None:
    """Tiles of one gradient over all its rows. fields: by their names in `isa.OUTER_FIELDS`."""
    number, apart = worker.number, worker.access.header(isa.SHARERS)
    if worker.sharing is not None:  # the workers from the first one on, if that is not 0
        first = let("first_sharer", worker.sharing[0])
        number, apart = number - first, let("apart", T.Select(first > 0, worker.grid - first, apart))
    sharers = let("sharers", apart)
    turn = let("turn", number + sharers - fields["first_worker"])
    begin = let("begin", turn - divided(turn, sharers) * sharers)
    tiles = let("tiles", tiles_of(worker.plan, fields["gradient"]))
    with when(both(number < sharers, begin < tiles)):  # who has none goes on at once
        _tiles(worker, fields, begin, apart, tiles)


def _tiles(worker: Worker, fields: Mapping[str, Expr], begin: Expr, apart: Expr, tiles: Expr) -> None:
    """Those of a worker, from the first one on; `apart` from each other.

    Steps of rows follow each other, those of a tile and of the next one: copies are two steps ahead of
    the sums, and places are looked up two before.
    """
    kind = OuterKind(worker, fields["gradient"], fields["index"])
    stages = _stages(worker, kind)
    ahead = last = stages.count - 1
    places = Places(worker, kind.sources, stages.step, stages.count, stages.count * stages.words)
    walk = Walk(worker, kind, stages, fields, begin, apart, tiles)
    copied, looked_up = _Copied(walk, places), local("looked_up", "int32", walk.start)
    summed = Position(walk)
    sums = TileSums(worker, kind, stages, fields["accumulate"], stages.all_words(kind.sides))

    def look_up(stage: Expr) -> None:
        places.look_up(looked_up[0], walk.end, stage)
        put(looked_up, 0, looked_up[0] + stages.step)
        with when(looked_up[0] >= walk.end):
            put(looked_up, 0, walk.start)

    with stride_loop("early", 0, ahead, 1) as number:  # code that runs once is slower to come than to run
        look_up(number)
    cuda.copy_commit()
    cuda.copy_wait(0)
    stage = local("stage", "int32", 1)  # of the rows at hand; those of the steps ahead follow
    with stride_loop("round", -ahead, walk.steps, 1) as now:
        cuda.copy_wait(ahead - 1)
        worker.synchronize()  # rows and places are there, and the stage before them has been read
        before = let("before", T.Select(stage[0] == 0, last, stage[0] - 1))
        copies = copied.begin(before)
        look_up(let("before_that", T.Select(before == 0, last, before - 1)))

        def step(copies: Copies = copies) -> None:
            with when(summed.ended):
                summed.next_tile()
                sums.clear()
            sums.add(summed, stage[0] * stages.words, copies)
            summed.advance()
            with when(summed.ended):
                _write(worker, kind, sums, summed, fields)

        either(now >= 0, step, partial(_copy_all, kind, copies))  # the first rounds only copy
        cuda.copy_commit()
        put(stage, 0, T.Select(stage[0] == last, 0, stage[0] + 1))
    cuda.copy_wait(0)
    worker.synchronize()


def _write(worker: Worker, kind: OuterKind, sums: TileSums, at: Position, fields: Mapping[str, Expr]) -> None:
    """Writes a tile whose rows are all added up."""
    with when(both(at.item == 0, fields["accumulate"] == 0)):
        kind.clear_padding(kind.base, kind.base_beside)
    square = sums.write(at)
    with when(fields["first_norm"] != isa.NO_NORM):
        total = worker.block_sum(square, sums.scratch)
        with when(worker.thread == 0):
            put(worker.pool, worker.access.base(isa.NORMS) + fields["first_norm"] + at.item, total)


def _stages(worker: Worker, kind: OuterKind) -> Stages:
    """The first layout that fits, with a word a row for where it lies on every side, and scratch behind."""
    spare = SPARE_ON_CORES if uses_cores(worker.plan) else SPARE
    found = [Stages(step, count, HEIGHT + spare[0], WIDTH + spare[1]) for step, count in LAYOUTS]
    scratch = scratch_words(kind)
    fits = (each for each in found if each.all_words(kind.sides) + scratch <= worker.staging_words)
    return next(fits, found[-1])


class _Copied:
    """Copies of the rows of steps, and where in a walk they are."""

    def __init__(self, walk: Walk, places: Places) -> None:
        self.walk, self.places, self.at = walk, places, Position(walk)
        thread, quads = walk.worker.thread, HEIGHT // 4
        self.delta_line, self.delta_own = fixed("line", thread // quads), fixed("own", thread % quads * 4)
        self.side, self.shift = local("side", "int32", 1), local("shift", "int32", 0)
        self.delta_shift = local("delta_shift", "int32", 0)

    def _next_tile(self) -> None:
        """On which piece of the operand the columns of this thread are there, and how far into it."""
        self.at.next_tile()
        _, own = self.walk.kind.share(self.walk.worker.thread)
        row, column = self.at.row + self.delta_own, fixed("own_column", self.at.column + own)
        self.walk.kind.find(row, column, self.delta_shift, self.side, self.shift)

    def begin(self, stage: Expr) -> Copies:
        """Starts to copy the rows of the next step: here the deltas.

        Behind the last row zeros: in a tile that sums read as far as rows there are, those of a line of
        copies, else all of the step.
        """
        walk, stages, at = self.walk, self.walk.stages, self.at
        kind, here = walk.kind, walk.worker.here()
        with when(at.ended):
            self._next_tile()
        deltas = let("deltas", stage * stages.words)
        left = fixed("left", T.Select(at.item < walk.tiles, at.rows, 0))
        narrow = kind.is_narrow
        all_deltas = let("all_deltas", any_of(narrow, at.column == 0) if kind.has_beside else narrow)
        for begin in range(0, stages.step, DELTA_LINES):
            line = let("delta_row", self.delta_line + begin)
            with when(both(any_of(left > begin, all_deltas), line < stages.step)):
                there = both(at.row + self.delta_own < kind.rows, line < left)
                to = deltas + line * stages.deltas + self.delta_own
                copy_quad(walk.worker, self.places.at(0, stage) + line, self.delta_shift[0], there, to)
        own_line, own = kind.share(here.thread)
        operands = deltas + stages.step * stages.deltas
        columns = kind.stride
        found = Copies(
            walk.worker,
            fixed("own_place", self.places.at(self.side[0], stage) + own_line),
            self.shift[0],
            fixed("own_left", T.Select(at.column + own < columns, left, 0) - own_line),
            fixed("own_to", operands + own_line * stages.operands + own),
            stages.step,
            stages.operands,
            T.Select(kind.is_narrow, stages.step, left),
        )
        at.advance()
        return found


def _copy_all(kind: OuterKind, copies: Copies) -> None:
    wide_tile = partial(copies.all, WIDTH)
    if kind.has_strips:
        either(kind.is_strip != 0, partial(copies.all, cutting.OUTER_STRIP.columns), wide_tile)
    else:
        wide_tile()
