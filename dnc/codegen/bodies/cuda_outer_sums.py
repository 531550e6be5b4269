"""Sums of outer products on CUDA, for tiles of weight gradients whose rows are few.

In: rows that are staged. Out: statements that add them up and write the tile. In float32 a thread sums 8 x 8
elements, and two groups of four warps take every other row each; on tensor cores a warp has a part of the
tile. A strip of no more than 8 rows is summed by 16 groups of half a warp. At the end the groups' sums are
added in order. Where rows are few a tile is soon over, and what is done once for it counts: no divisions, and
addresses that differ by constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_dense_matrix import Strip, add_outer_products
from dnc.codegen.bodies.cuda_outer_rows import OuterKind, Position, Stages
from dnc.codegen.bodies.cuda_places import Copies
from dnc.codegen.bodies.cuda_stores import copied_quad
from dnc.codegen.bodies.cuda_tensor import (
    ACROSS,
    DEPTH,
    HIGH,
    QuadSums,
    cores_of,
    lane_place,
    uses_cores,
)
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (
    Expr,
    both,
    divided,
    either,
    fixed,
    lane4,
    let,
    local,
    loop,
    put,
    quad_at,
    smaller,
    when,
    whole_quad,
    wide,
)
from dnc.ir import cutting
from dnc.ir.machine import LANES, THREADS, WARPS

HEIGHT, WIDTH = cutting.OUTER_TILE.rows, cutting.OUTER_TILE.columns
STRIP_WIDTH = cutting.OUTER_STRIP.columns
ROWS, COLUMNS = 8, 8  # of a thread: columns in quads, half a tile apart
SIDE = WIDTH // COLUMNS  # threads side by side along the columns
WARP_ROWS = LANES // SIDE * ROWS
GROUPS, GROUP_WARPS = 2, WARPS // 2
STRIP_ROWS, STRIP_SIDE = cutting.OUTER_STRIP.rows, STRIP_WIDTH // 4
STRIP_GROUPS = THREADS // STRIP_SIDE
OWN = 32  # rows and columns of a warp on tensor cores
SUMS, FEWER_SUMS = ROWS * COLUMNS, 32  # of a thread; of anything else than a tile on threads
GROUPS_AT = -(-(WARPS + THREADS) // 4) * 4  # where sums of groups lie in scratch

# Words behind staged rows of deltas and of operands, so that lanes read from different banks.
SPARE, SPARE_ON_CORES = (4, 4), (8, 4)


def scratch_words(kind: OuterKind) -> int:
    """Words of scratch: of a vector beside a tile, and for the sum of squares; of groups."""
    grouped = kind.has_strips or not uses_cores(kind.worker.plan)
    return GROUPS_AT + (FEWER_SUMS * THREADS if grouped else 0)


class TileSums:
    """The sums of a tile, spread over the threads of a worker, and of the vector beside it.

    scratch: the first word of it. square: of what this thread has written.
    """

    def __init__(
        self, worker: Worker, kind: OuterKind, stages: Stages, accumulate: Expr, scratch: int
    ) -> None:
        self.worker, self.kind, self.stages, self.accumulate = worker, kind, stages, accumulate
        self.scratch = worker.stage(scratch_words(kind), scratch)
        self.on_cores = uses_cores(worker.plan)
        self.count = FEWER_SUMS if self.on_cores else SUMS
        self.sums = local("sums", "float32", T.float32(0.0), self.count)
        self.square = local("square", "float32", T.float32(0.0))
        # A thread has an element of the vector beside the gradient, and every fourth row of the space.
        self.own_beside = local("own_beside", "float32", T.float32(0.0))

    def clear(self) -> None:
        """All sums are zero."""
        for i in range(self.count):
            put(self.sums, i, T.float32(0.0))
        put(self.square, 0, T.float32(0.0))
        put(self.own_beside, 0, T.float32(0.0))

    # ---- rows -----------------------------------------------------------------------------------

    def add(self, at: Position, stage: Expr, copies: Copies) -> None:
        """Adds the rows that are staged from word `stage` on, and makes copies meanwhile.

        Behind the last row zeros are staged: see `cuda_outer._Copied.begin`.
        """
        here = self.worker.here()  # what follows from the thread takes no registers between steps
        operands = stage + self.stages.step * self.stages.deltas
        sums = self._on_cores if self.on_cores else self._on_threads
        self._by_kind(
            partial(self._add_column, here, operands, copies),
            partial(self._add_strip, here, stage, operands, copies),
            partial(sums, here, at, stage, operands, copies),
        )
        if self.kind.has_beside:
            with when(self.kind.with_beside(at.column == 0)):
                line, own = here.thread // HEIGHT, here.thread % HEIGHT
                first = let("delta_at", stage + line * self.stages.deltas + own)
                for row in range(0, self.stages.step, THREADS // HEIGHT):
                    found = self.worker.staging[first + row * self.stages.deltas]
                    put(self.own_beside, 0, self.own_beside[0] + found)

    def _by_kind(
        self, vector: Callable[[], None], strip: Callable[[], None], tile: Callable[[], None]
    ) -> None:
        """What is done for a vector, a strip, any other tile."""
        kind = self.kind

        def matrix() -> None:
            if kind.has_strips:
                either(kind.is_strip != 0, strip, tile)
            else:
                tile()

        if kind.has_vectors:
            either(kind.is_vector, vector, matrix)
        else:
            matrix()

    def _on_threads(self, here: Worker, at: Position, stage: Expr, operands: Expr, copies: Copies) -> None:
        """Outer products of the group's rows, with copies between them, which would wait for each other.

        The first half of a thread's sums is that which its group will write.
        """
        stages, count = self.stages, copies.count(WIDTH)
        own_row = let("own_row", here.warp % GROUP_WARPS * WARP_ROWS)
        group = let("group", here.warp // GROUP_WARPS)
        first = stage + group * (stages.deltas + ROWS // GROUPS) + own_row + here.lane // SIDE * ROWS
        down = Strip(first, GROUPS * stages.deltas, fixed("turned", 1 - 2 * group), ROWS // 4)
        first = operands + group * stages.operands + here.lane % SIDE * 4
        right = Strip(first, GROUPS * stages.operands, SIDE, COLUMNS // 4)
        most = stages.step // (2 * GROUPS)
        pairs = let("pairs", smaller(divided(at.rows + (2 * GROUPS - 1), 2 * GROUPS), most))

        def copy(pair: Expr) -> None:
            with when(pair < count):
                copies.start(pair, WIDTH)

        def add() -> None:
            add_outer_products(self.worker, self.sums, down, right, pairs, copy)
            with loop("copy", count - pairs, unroll=1) as number:  # of a step that has more rows
                copies.start(pairs + number, WIDTH)

        either(at.row + own_row < self.kind.rows, add, partial(copies.all, WIDTH))

    def _on_cores(self, here: Worker, at: Position, stage: Expr, operands: Expr, copies: Copies) -> None:
        """Products of all rows; a warp has its part of the tile."""
        copies.all(WIDTH)
        memory, stages, sums = self.worker.staging, self.stages, self._quad_sums(here)
        down, across = _own_part(here)
        deltas = fixed("deltas", T.shift_right(stage + down, 2) + sums.group)
        columns = fixed("columns", T.shift_right(operands + across + sums.column, 2))
        blocks = let("blocks", smaller(divided(at.rows + (DEPTH - 1), DEPTH), stages.step // DEPTH))
        sums.add(
            "k",
            blocks,
            lambda depth: memory[whole_quad(deltas + depth * (stages.deltas // 4))],
            lambda depth, _: memory[whole_quad(columns + depth * (stages.operands // 4))],
            together=2,
        )

    def _quad_sums(self, here: Worker) -> QuadSums:
        return QuadSums(OWN // HIGH, OWN // ACROSS, self.sums, *lane_place(here), cores_of(self.worker.plan))

    def _add_strip(self, here: Worker, stage: Expr, operands: Expr, copies: Copies) -> None:
        """Of a strip a thread sums 8 x 4 elements, every 16th row."""
        copies.all(STRIP_WIDTH)
        memory, stages = self.worker.staging, self.stages
        for first in range(0, stages.step, STRIP_GROUPS):
            line = let("line", here.thread // STRIP_SIDE + first)
            own = here.thread % STRIP_SIDE * 4
            y = let("operand", memory[quad_at(operands + line * stages.operands + own)])
            for part in range(STRIP_ROWS // 4):
                x = let("delta", memory[quad_at(stage + line * stages.deltas + 4 * part)])
                for p in range(4):
                    for q in range(4):
                        at = (part * 4 + p) * 4 + q
                        put(self.sums, at, cuda.fma(lane4(x, p), lane4(y, q), self.sums[at]))

    def _add_column(self, here: Worker, operands: Expr, copies: Copies) -> None:
        """Of a vector a thread sums one element."""
        copies.all(WIDTH)
        at = let("at", operands + here.thread % WIDTH)
        with loop("k", self.stages.step, unroll=8) as k:
            put(self.sums, 0, self.sums[0] + self.worker.staging[at + k * self.stages.operands])

    # ---- results --------------------------------------------------------------------------------

    def write(self, at: Position) -> Expr:
        """Writes the sums, or adds them to what is there; the squares of what this thread has written.

        Scratch was read before the last block barrier.
        """
        bodies = (
            self._write_column,
            self._write_strip,
            self._write_from_cores if self.on_cores else self._write_tile,
        )
        self._by_kind(*(partial(body, at) for body in bodies))
        if self.kind.has_beside:
            with when(self.kind.with_beside(at.column == 0)):
                self._write_beside(at)
        return self.square[0]

    def _write_tile(self, at: Position) -> None:
        """Each group has half of the rows of every thread, and adds what the other one has of them."""
        worker, own, half = self.worker, self.worker.thread % (THREADS // GROUPS), SUMS // GROUPS
        staged = self.scratch + GROUPS_AT + worker.thread * 4
        for quad in range(half // 4):
            found = copied_quad(self.sums, half + 4 * quad)
            T.buffer_store(worker.staging, found, [quad_at(staged + quad * (4 * THREADS))])
        worker.synchronize()
        own_row = own // LANES * WARP_ROWS + own % LANES // SIDE * ROWS
        turned = worker.warp // GROUP_WARPS * (ROWS // GROUPS)
        down, column = at.row + own_row + turned, at.column + own % SIDE * 4
        others = self.scratch + GROUPS_AT + T.bitwise_xor(worker.thread, THREADS // GROUPS) * 4
        for quad in range(half // 4):
            other = let("other", worker.staging[quad_at(others + quad * (4 * THREADS))])
            for i in range(4):
                put(self.sums, 4 * quad + i, self.sums[4 * quad + i] + lane4(other, i))
        quads = [(row, part * 4 * SIDE) for row in range(ROWS // GROUPS) for part in range(COLUMNS // 4)]
        self._write_quads(down, column, quads, self.sums)

    def _write_strip(self, at: Position) -> None:
        """What the groups have, added up in order."""
        worker, thread, scratch = self.worker, self.worker.thread, self.scratch + GROUPS_AT
        for quad in range(STRIP_ROWS):
            to = scratch + (quad * THREADS + thread) * 4
            T.buffer_store(worker.staging, self.sums[quad_at(4 * quad)], [quad_at(to)])
        worker.synchronize()
        with when(thread < STRIP_ROWS * STRIP_SIDE):
            item = thread // STRIP_SIDE * THREADS + thread % STRIP_SIDE
            total = local("total", "float32", T.float32(0.0), 4)
            first = let("first", scratch + item * 4)
            for group in range(STRIP_GROUPS):
                other = let("other", worker.staging[quad_at(first + group * STRIP_SIDE * 4)])
                for i in range(4):
                    put(total, i, total[i] + lane4(other, i))
            row, column = at.row + thread // STRIP_SIDE, at.column + thread % STRIP_SIDE * 4
            self._write_quads(row, column, [(0, 0)], total)

    def _write_quads(self, row: Expr, column: Expr, quads: Sequence[tuple[int, int]], sums: Any) -> None:
        """Writes what is in `sums`, four elements after four; `quads`: how many rows and columns each is away
        from (row, column)."""
        kind, pool = self.kind, self.worker.pool
        row, column = fixed("row_own", row), fixed("column_own", column)
        stride = fixed("quads", kind.stride // 4)
        first = fixed("first", T.shift_right(kind.base + column, 2) + wide(row) * stride, "int64")
        for number, (down, right) in enumerate(quads):
            with when(both(row + down < kind.rows, column + right < stride * 4)):
                at = whole_quad(first + wide(down * stride) + right // 4)
                with when(self.accumulate != 0):
                    old = let("old", pool[at])
                    for i in range(4):
                        put(sums, 4 * number + i, lane4(old, i) + sums[4 * number + i])
                for i in range(4):
                    self._keep(sums, 4 * number + i, column + right + i)
                T.buffer_store(pool, sums[quad_at(4 * number)], [at])

    def _keep(self, sums: Any, index: int, column: Expr) -> None:
        """A sum is what it is in front of the last column, else zero: what stands behind is anything."""
        if self.kind.has_padding:
            put(sums, index, T.Select(column < self.kind.columns, sums[index], T.float32(0.0)))
        put(self.square, 0, self.square[0] + sums[index] * sums[index])

    def _write_from_cores(self, at: Position) -> None:
        sums, (down, across) = self._quad_sums(self.worker), _own_part(self.worker)
        found = list(sums.quads())
        ordered = local("ordered", "float32", T.float32(0.0), 4 * len(found))
        for to, index in enumerate(index for _, _, indices in found for index in indices):
            put(ordered, to, self.sums[index])
        row, column = at.row + down + sums.rows * sums.group, at.column + across + 4 * sums.own
        self._write_quads(row, column, [(down, right) for down, right, _ in found], ordered)

    def _write_column(self, at: Position) -> None:
        column = let("column_own", at.column + self.worker.thread)
        with when(both(self.worker.thread < WIDTH, column < self.kind.columns)):
            to = fixed("to", self.kind.base + column, "int64")
            with when(self.accumulate != 0):
                put(self.sums, 0, self.worker.pool[to] + self.sums[0])
            put(self.worker.pool, to, self.sums[0])
            put(self.square, 0, self.sums[0] * self.sums[0])

    def _write_beside(self, at: Position) -> None:
        """The elements of the vector, each a sum of what several threads have, in order."""
        worker, memory, scratch = self.worker, self.worker.staging, self.scratch + WARPS
        put(memory, scratch + worker.thread, self.own_beside[0])
        worker.synchronize()
        row = let("row_beside", at.row + worker.thread)
        with when(both(worker.thread < HEIGHT, row < self.kind.rows)):
            total = local("total", "float32", T.float32(0.0))
            to = fixed("to", self.kind.base_beside + row, "int64")
            for first in range(0, THREADS, HEIGHT):
                put(total, 0, total[0] + memory[scratch + first + worker.thread])
            with when(self.accumulate != 0):
                put(total, 0, worker.pool[to] + total[0])
            put(worker.pool, to, total[0])
            put(self.square, 0, self.square[0] + total[0] * total[0])


def _own_part(worker: Worker) -> tuple[Expr, Expr]:
    """The first row and column that the warp has on tensor cores."""
    along = WIDTH // OWN
    return let("warp_row", worker.warp // along * OWN), let("warp_column", worker.warp % along * OWN)
