"""Tiles of the gradient of a matrix on CUDA: sums of outer products of deltas and operands.

In: a tile and its shape. Out: statements that sum it and write it, or add it to what is there. A thread
sums 4 x 4 elements of the smaller shapes, up to 8 x 16 of the larger ones, in the order of the rows; or,
where it is allowed, warps multiply on tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_dense_cores import CoreSums
from dnc.codegen.bodies.cuda_dense_steps import Begun, Tile, TileWork, each_step, tile_of
from dnc.codegen.bodies.cuda_dense_write import Band, write_bands
from dnc.codegen.bodies.cuda_stores import copied_quad, keep_in_banks
from dnc.codegen.bodies.cuda_tensor import uses_cores
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (
    Expr,
    back_and_forth,
    both,
    fixed,
    let,
    local,
    loop,
    put,
    quad_at,
    room,
    when,
    whole_quad,
)
from dnc.ir import cutting
from dnc.ir.machine import THREADS

PARTS = 4  # of a step's rows: copies are started in front of each
MANY_SUMS = 64  # of a thread: more leave no registers for two places of operands


class Sums(Protocol):
    """The sums of a tile, spread over the threads of a worker. tile: how its rows are staged."""

    tile: Tile

    def add(self, stage: Expr, copies: Begun) -> None:
        """Adds the outer products of a step's rows, which are staged from word `stage` on, and starts copies
        between them."""

    def write(self) -> None:
        """Writes the sums, or adds them to what is there."""


def matrix_tile(work: TileWork, shape: cutting.GradientTile) -> None:
    """The sum of outer products over the rows, and what is made beside it."""
    kind = CoreSums if uses_cores(work.worker.plan) else ThreadSums
    sums: Sums = kind(work, shape)
    beside = None if work.beside is None else Beside(work, sums.tile)

    def add(stage: Expr, copies: Begun) -> None:
        sums.add(stage, copies)
        if beside is not None:
            beside.add(stage)

    each_step(work, sums.tile, add)
    sums.write()
    if beside is not None:
        beside.write()


class Beside:
    """The sum of a tile's deltas: a vector made along, in the tiles of the first columns. A thread has an
    element, and some of the rows of every step."""

    def __init__(self, work: TileWork, tile: Tile) -> None:
        self.work, self.tile = work, tile
        self.sum = local("own_beside", "float32", T.float32(0.0))

    def add(self, stage: Expr) -> None:
        """Adds the deltas of a step."""
        side, thread = self.tile.rows, self.work.worker.here().thread
        apart = THREADS // side.elements
        with when(self.work.kind.with_beside(self.work.column == 0)):
            at = let("delta_at", stage + thread // side.elements * side.stride + thread % side.elements)
            for row in range(0, self.tile.step, apart):
                put(self.sum, 0, self.sum[0] + self.work.worker.staging[at + row * side.stride])

    def write(self) -> None:
        """Adds up what the threads of an element have, in order."""
        work, worker, height = self.work, self.work.worker, self.tile.rows.elements
        with when(work.kind.with_beside(work.column == 0)):
            put(worker.staging, worker.thread, self.sum[0])
            worker.synchronize()
            row = let("row_beside", work.row + worker.thread)
            with when(both(worker.thread < height, row < work.kind.rows)):
                total = local("total", "float32", T.float32(0.0))
                for first in range(0, THREADS, height):
                    put(total, 0, total[0] + worker.staging[first + worker.thread])
                write_sum(worker, let("at", work.beside + row), total[0], work.accumulate)
            worker.synchronize()


class ThreadSums:
    """Sums in float32: a thread has 4 x 4 blocks, spread over the tile."""

    def __init__(self, work: TileWork, shape: cutting.GradientTile) -> None:
        self.work = work
        self.tile = tile_of(work, shape, spare=4)
        high, across = self.tile.rows, self.tile.columns
        count = 16 * high.quads * across.quads
        self.sums = local("sums", "float32", T.float32(0.0), count)

    def _own(self) -> tuple[Expr, Expr]:
        """The thread's first row and column, worked out here: addresses that follow from them are many, and
        the compiler would keep them all.

        A warp has 4 x 8 threads of the tile, so that a read of its operands touches few words.
        """
        here, along = self.work.worker.here(), self.tile.columns.threads // 8
        row = fixed("own_row", (here.warp // along * 4 + here.lane // 8) * 4)
        return row, fixed("own_column", (here.warp % along * 8 + here.lane % 8) * 4)

    def add(self, stage: Expr, copies: Begun) -> None:
        """Row by row."""
        worker, sums, step = self.work.worker, self.sums, self.tile.step
        high, across = self.tile.rows, self.tile.columns
        own_row, own_column = self._own()
        down = Strip(stage + own_row, high.stride, high.threads, high.quads)
        first = stage + step * high.stride + own_column
        right = Strip(first, across.stride, across.threads, across.quads)

        def copy(part: Expr) -> None:
            copies.part(part, PARTS)()

        add_outer_products(worker, sums, down, right, step // 2, copy, PARTS)

    def write(self) -> None:
        """A row of blocks at a time."""
        high, across = self.tile.rows, self.tile.columns
        # The deltas of every second row are in an even register.
        count, wide = 16 * high.quads * across.quads, 4 * across.quads
        keep_in_banks(self.sums, count, wide, self.work.worker.here().thread)

        def stage(block: int, stride: int) -> None:
            own_row, own_column = self._own()
            at = fixed("stage_at", own_row * stride + own_column)
            for p in range(4):
                for q in range(across.quads):
                    found = copied_quad(self.sums, ((block * 4 + p) * across.quads + q) * 4)
                    to = at + p * stride + q * (4 * across.threads)
                    T.buffer_store(self.work.worker.staging, found, [quad_at(to)])

        rows = 4 * high.threads

        def row(block: int, line: Expr) -> Expr:
            return line + block * rows

        bands = [Band(rows, partial(stage, block), partial(row, block)) for block in range(high.quads)]
        write_bands(self.work, across.elements, across.spare, bands)


@attrs.frozen(eq=False)
class Strip:
    """A thread's elements of rows in shared memory: `quads` of 16 bytes, `apart` times that from each other.

    at: the first word, a multiple of 4. stride: words from row to row.
    """

    at: Expr
    stride: int
    apart: Expr
    quads: int


def add_outer_products(
    worker: Worker,
    sums: Any,
    down: Strip,
    right: Strip,
    pairs: Expr,
    meanwhile: Callable[[Expr], None],
    parts: int = 0,
) -> None:
    """Adds the outer products of so many pairs of rows to the sums of a thread, row by row of these.

    meanwhile: is done in every pair; or in front of each of so many `parts`, which have as many pairs.
    """
    rows = OuterRows(worker, sums, down, right)
    if not parts:
        with loop("pair", pairs, unroll=1) as pair:
            rows.add_pair(pair == pairs - 1, partial(meanwhile, pair))
        return
    together = pairs // parts
    with loop("part", parts, unroll=1) as part:
        meanwhile(part)
        with loop("pair", together, unroll=1) as pair:
            rows.add_pair(part * together + pair == pairs - 1)


class OuterRows:
    """Rows one after another: a thread's elements of one are in registers while those of the next are read.

    Of a large tile those of `right` have one place: four are used up before the next four are, and read anew.
    With a second place the compiler had no choice left of the banks that registers are in.
    """

    def __init__(self, worker: Worker, sums: Any, down: Strip, right: Strip) -> None:
        self.memory, self.sums, self.down, self.right = worker.staging, sums, down, right
        # Where the row at hand is, counted in 16 bytes: loads are of an address and a constant.
        self.at = [local("strip_at", "int32", strip.at // 4) for strip in (down, right)]
        self.places = 2 if 16 * down.quads * right.quads <= MANY_SUMS else 1  # of `right`
        self.x = room("x", 2 * 4 * down.quads)
        self.y = room("y", self.places * 4 * right.quads)
        self._read_down(0, 0)
        for quad in range(right.quads):
            self._read_right(0, quad, 0)

    def add_pair(self, last: Expr, meanwhile: Callable[[], None] | None = None) -> None:
        """Adds two rows, and reads the one behind them; behind the last one, the same again.

        meanwhile: is done while what is read comes.
        """
        self._read_ahead(0, 1)
        if meanwhile is not None:
            meanwhile()
        self._multiply(0, 1)
        for at, strip in zip(self.at, (self.down, self.right), strict=True):
            put(at, 0, at[0] + T.Select(last, strip.stride // 4, 2 * (strip.stride // 4)))
        self._read_ahead(1, 0)
        self._multiply(1, 0)

    def _read_ahead(self, half: int, following: int) -> None:
        """Reads what has two places of the row so far behind `at`; the row at hand is in this half."""
        self._read_down(following, 1 - half)
        if self.places > 1:
            for quad in range(self.right.quads):
                self._read_right(following, quad, 1 - half)

    def _multiply(self, half: int, following: int) -> None:
        """Adds the row of this half; reads the rest of the row so far behind `at`."""
        high, across, place = 4 * self.down.quads, 4 * self.right.quads, half % self.places
        for quad in range(self.right.quads):
            for q in range(4 * quad, 4 * quad + 4):
                for p in back_and_forth(high, q):
                    x, y = self.x[half * high + p], self.y[place * across + q]
                    put(self.sums, p * across + q, cuda.fma(x, y, self.sums[p * across + q]))
            if self.places == 1:
                self._read_right(following, quad, 0)

    def _read_down(self, row: int, half: int) -> None:
        for quad in range(self.down.quads):
            self._read(0, self.down, row, quad, self.x, half * self.down.quads + quad)

    def _read_right(self, row: int, quad: int, place: int) -> None:
        self._read(1, self.right, row, quad, self.y, place * self.right.quads + quad)

    def _read(self, side: int, strip: Strip, row: int, quad: int, into: Any, place: int) -> None:
        ahead = row * (strip.stride // 4) + quad * strip.apart
        T.buffer_store(into, self.memory[whole_quad(self.at[side][0] + ahead)], [whole_quad(place)])


def write_sum(worker: Worker, at: Expr, value: Expr, accumulate: Expr) -> None:
    """Writes a sum, or adds it to what is there."""
    old = local("old", "float32", T.float32(0.0))
    with when(accumulate != 0):
        put(old, 0, worker.pool[at])
    put(worker.pool, at, old[0] + value)
