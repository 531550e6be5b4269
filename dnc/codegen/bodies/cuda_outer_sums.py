"""Sums of outer products on CUDA, for tiles of weight gradients whose rows are few.

In: rows that are staged. Out: statements that add them up and write the tile. In float32 a thread sums 8 x 16
elements, and four groups of two warps take every fourth row each; on tensor cores a warp has a part of the
tile. A strip of no more than 8 rows is summed by 16 groups of half a warp. At the end the groups' sums are
added in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_dense_matrix import Strip, add_outer_products
from dnc.codegen.bodies.cuda_outer_rows import Kind, Stages
from dnc.codegen.bodies.cuda_places import Copies
from dnc.codegen.bodies.cuda_tensor import ACROSS, DEPTH, HIGH, WarpSums, cores_of, pair_at, uses_cores
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (
    Expr,
    both,
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
    wide,
)
from dnc.ir import cutting
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import padded

HEIGHT, WIDTH = cutting.OUTER_TILE.rows, cutting.OUTER_TILE.columns
STRIP_WIDTH = cutting.OUTER_STRIP.columns
ROWS, COLUMNS = 8, 16  # of a thread: columns in quads, a quarter of a tile apart
SIDE, STRIP_SIDE = WIDTH // COLUMNS, STRIP_WIDTH // 4  # threads side by side along the columns
WARP_ROWS = LANES // SIDE * ROWS
GROUPS = THREADS * ROWS * COLUMNS // (HEIGHT * WIDTH)
STRIP_GROUPS = THREADS // STRIP_SIDE
OWN = 32  # rows and columns of a warp on tensor cores
PASS = 8  # quads of each thread's sums that groups add up at a time, where staging is small
SUMS = ROWS * COLUMNS

# Words behind a staged row, so that lanes read from different banks.
SPARE, SPARE_ON_CORES = 4, 8


class TileSums:
    """The sums of a tile, spread over the threads of a worker, and of the vector beside it.

    row, column: its first element. square: of what this thread has written.
    """

    def __init__(
        self, worker: Worker, kind: Kind, place: tuple[Expr, Expr], stages: Stages, accumulate: Expr
    ) -> None:
        self.worker, self.kind, self.stages, self.accumulate = worker, kind, stages, accumulate
        self.row, self.column = place
        self.on_cores = uses_cores(worker.plan)
        self.sums = local("sums", "float32", T.float32(0.0), ROWS * 4 if self.on_cores else SUMS)
        self.square = local("square", "float32", T.float32(0.0))
        # A thread has an element of the vector beside the gradient, and every fourth row of the space.
        self.own_beside = local("own_beside", "float32", T.float32(0.0))

    # ---- rows -----------------------------------------------------------------------------------

    def add(self, stage: Expr, rows: Expr, copies: Copies) -> None:
        """Adds the rows that are staged from word `stage` on, and makes copies meanwhile.

        rows: that there still are, which may be more; behind them zeros are staged.
        """
        here = self.worker.here()  # what follows from the thread takes no registers between steps
        operands = stage + self.stages.step * self.stages.deltas
        sums = self._on_cores if self.on_cores else self._on_threads
        self._by_kind(
            partial(self._add_column, here, operands, copies),
            partial(self._add_strip, here, stage, operands, copies),
            partial(sums, here, stage, operands, rows, copies),
        )
        if self.kind.pairs:
            with when(both(self.kind.has_beside, self.column == 0)):
                line, own = here.thread // HEIGHT, here.thread % HEIGHT
                at = let("delta_at", stage + line * self.stages.deltas + own)
                for row in range(0, self.stages.step, THREADS // HEIGHT):
                    found = self.worker.staging[at + row * self.stages.deltas]
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

    def _on_threads(self, here: Worker, stage: Expr, operands: Expr, rows: Expr, copies: Copies) -> None:
        """Outer products of the group's rows, with copies between them, which would wait for each other."""
        stages, most = self.stages, self.stages.step // GROUPS
        own_row = let("own_row", here.warp % (WARPS // GROUPS) * WARP_ROWS)
        group = let("group", here.warp // (WARPS // GROUPS))
        first = stage + group * stages.deltas + own_row + here.lane // SIDE * ROWS
        down = Strip(first, GROUPS * stages.deltas, 4, ROWS // 4)
        first = operands + group * stages.operands + here.lane % SIDE * 4
        right = Strip(first, GROUPS * stages.operands, 4 * SIDE, COLUMNS // 4)
        each = copies.count(WIDTH) // (most // 2)
        pairs = let("pairs", smaller((rows + 2 * GROUPS - 1) // (2 * GROUPS), most // 2))

        def copy(pair: Expr) -> None:
            for number in range(each):
                copies.start(pair * each + number, WIDTH)

        either(
            self.row + own_row < self.kind.rows,
            partial(add_outer_products, self.worker, self.sums, down, right, pairs, copy),
            partial(copies.all, WIDTH),
        )

    def _on_cores(self, here: Worker, stage: Expr, operands: Expr, rows: Expr, copies: Copies) -> None:
        """Products of all rows; a warp has its part of the tile."""
        copies.all(WIDTH)
        memory, stages = self.worker.staging, self.stages
        down, across = _own_part(here)
        deltas, columns = let("deltas", stage + down), let("columns", operands + across)
        blocks = let("blocks", smaller((rows + DEPTH - 1) // DEPTH, stages.step // DEPTH))
        self._warp_sums(here).add(
            "k",
            blocks,
            lambda block: block * DEPTH,
            lambda row, depth: memory[deltas + depth * stages.deltas + row],
            lambda depth, column: memory[columns + depth * stages.operands + column],
        )

    def _warp_sums(self, here: Worker) -> WarpSums:
        group, own = fixed("group", here.lane // 4), fixed("own", here.lane % 4)
        return WarpSums(OWN // HIGH, OWN // ACROSS, self.sums, group, own, cores_of(self.worker.plan))

    def _add_strip(self, here: Worker, stage: Expr, operands: Expr, copies: Copies) -> None:
        """Of a strip a thread sums 8 x 4 elements, every 16th row."""
        copies.all(STRIP_WIDTH)
        memory, stages = self.worker.staging, self.stages
        for first in range(0, stages.step, STRIP_GROUPS):
            line = let("line", here.thread // STRIP_SIDE + first)
            own = here.thread % STRIP_SIDE * 4
            y = let("operand", memory[quad_at(operands + line * stages.operands + own)])
            for part in range(ROWS // 4):
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

    def write(self) -> Expr:
        """Writes the sums, or adds them to what is there; the squares of what this thread has written."""
        tile = self._write_from_cores if self.on_cores else self._write_tile
        self._by_kind(self._write_column, self._write_strip, tile)
        if self.kind.pairs:
            with when(both(self.kind.has_beside, self.column == 0)):
                self._write_beside()
        return self.square[0]

    def _write_tile(self) -> None:
        """What the groups have of two rows of each thread at a time, added up by all threads."""
        thread, own = self.worker.thread, THREADS // GROUPS
        part = let("part", thread % own)
        first_row = part // LANES * WARP_ROWS + part % LANES // SIDE * ROWS
        down = fixed("down", self.row + first_row)
        column = fixed("column_own", self.column + thread % SIDE * 4 + thread // own * (4 * SIDE))
        together = self._quads_together()
        for first in range(0, SUMS // 4, together):
            self._stage(first, together)
            # A loop: code that every tile runs once is slower to come than to run.
            with loop("k", together // GROUPS) as k:
                item = let("item", thread + k * THREADS)
                total = self._total(item // own * THREADS + item % own, GROUPS, own)
                self._write_quad(down + (first // GROUPS + k), column, total)
            self.worker.synchronize()

    def _quads_together(self) -> int:
        """Quads of each thread's sums that groups add up at a time: all of them where staging has room."""
        return SUMS // 4 if self.worker.staging_words >= SUMS * THREADS else PASS

    def _write_strip(self) -> None:
        thread = self.worker.thread
        self._stage(0, ROWS)
        with when(thread < ROWS * STRIP_SIDE):
            item = thread // STRIP_SIDE * THREADS + thread % STRIP_SIDE
            total = self._total(item, STRIP_GROUPS, STRIP_SIDE)
            row = let("down", self.row + thread // STRIP_SIDE)
            column = let("column_own", self.column + thread % STRIP_SIDE * 4)
            self._write_quad(row, column, total)
        self.worker.synchronize()

    def _stage(self, first: int, count: int) -> None:
        """Leaves quads of this thread's sums, from the first one on, where others find them."""
        for quad in range(count):
            at = (quad * THREADS + self.worker.thread) * 4
            T.buffer_store(self.worker.staging, self.sums[quad_at(4 * (first + quad))], [quad_at(at)])
        self.worker.synchronize()

    def _total(self, item: Expr, groups: int, apart: int) -> Any:
        """What the groups have of a quad, added up in order."""
        total = local("total", "float32", T.float32(0.0), 4)
        at = let("item_at", item)
        for group in range(groups):
            other = let("other", self.worker.staging[quad_at((at + group * apart) * 4)])
            for i in range(4):
                put(total, i, total[i] + lane4(other, i))
        return total

    def _write_quad(self, row: Expr, column: Expr, total: Any) -> None:
        stride = let("stride", padded(self.kind.columns))
        with when(both(row < self.kind.rows, column < stride)):
            at = fixed("at", self.kind.base + wide(row) * stride + column, "int64")
            with when(self.accumulate != 0):
                old = let("old", self.worker.pool[quad_at(at)])
                for i in range(4):
                    put(total, i, lane4(old, i) + total[i])
            for i in range(4):
                self._keep(total, i, column + i)
            T.buffer_store(self.worker.pool, total[quad_at(0)], [quad_at(at)])

    def _keep(self, sums: Any, index: int, column: Expr) -> None:
        """A sum is what it is in front of the last column, else zero: what stands behind is anything."""
        put(sums, index, T.Select(column < self.kind.columns, sums[index], T.float32(0.0)))
        put(self.square, 0, self.square[0] + sums[index] * sums[index])

    def _write_from_cores(self) -> None:
        sums, stride = self._warp_sums(self.worker), fixed("stride", padded(self.kind.columns))
        first_row, first_column = _own_part(self.worker)
        for down, across, index in sums.pairs():
            row = fixed("row", self.row + first_row + down)
            column = fixed("column", self.column + first_column + across)
            with when(both(row < self.kind.rows, column < stride)):
                at = fixed("at", self.kind.base + wide(row) * stride + column, "int64")
                with when(self.accumulate != 0):
                    old = let("old", self.worker.pool[pair_at(at)])
                    for i in range(2):
                        put(self.sums, index + i, lane4(old, i) + self.sums[index + i])
                for i in range(2):
                    self._keep(self.sums, index + i, column + i)
                T.buffer_store(self.worker.pool, sums.pair(index), [pair_at(at)])

    def _write_column(self) -> None:
        column = let("column_own", self.column + self.worker.thread)
        with when(both(self.worker.thread < WIDTH, column < self.kind.columns)):
            at = fixed("at", self.kind.base + column, "int64")
            with when(self.accumulate != 0):
                put(self.sums, 0, self.worker.pool[at] + self.sums[0])
            put(self.worker.pool, at, self.sums[0])
            put(self.square, 0, self.sums[0] * self.sums[0])

    def _write_beside(self) -> None:
        """The elements of the vector, each a sum of what several threads have, in order."""
        worker, memory = self.worker, self.worker.staging
        put(memory, worker.thread, self.own_beside[0])
        worker.synchronize()
        row = let("row_beside", self.row + worker.thread)
        with when(both(worker.thread < HEIGHT, row < self.kind.rows)):
            total = local("total", "float32", T.float32(0.0))
            at = fixed("at", self.kind.base_beside + row, "int64")
            for first in range(0, THREADS, HEIGHT):
                put(total, 0, total[0] + memory[first + worker.thread])
            with when(self.accumulate != 0):
                put(total, 0, worker.pool[at] + total[0])
            put(worker.pool, at, total[0])
            put(self.square, 0, self.square[0] + total[0] * total[0])
        worker.synchronize()


def _own_part(worker: Worker) -> tuple[Expr, Expr]:
    """The first row and column that the warp has on tensor cores."""
    along = WIDTH // OWN
    return let("warp_row", worker.warp // along * OWN), let("warp_column", worker.warp % along * OWN)
