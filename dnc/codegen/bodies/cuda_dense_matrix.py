"""Tiles of the gradient of a matrix on CUDA: sums of outer products of deltas and operands.

In: a tile and its shape. Out: statements that sum it and write it, or add it to what is there. A thread
sums 4 x 4 elements of the smaller shapes, up to 8 x 16 of the larger ones, in the order of the rows; or,
where it is allowed, warps multiply on tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_dense_cores import CoreSums
from dnc.codegen.bodies.cuda_dense_steps import Begun, Tile, TileWork, each_step, tile_of
from dnc.codegen.bodies.cuda_dense_write import Band, write_bands
from dnc.codegen.bodies.cuda_stores import copied_quad
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
    when,
    whole_quad,
)
from dnc.ir import cutting
from dnc.ir.machine import THREADS

PARTS = 4  # of a step's rows: copies are started in front of each


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
        with when(self.work.column == 0):
            at = let("delta_at", stage + thread // side.elements * side.stride + thread % side.elements)
            for row in range(0, self.tile.step, apart):
                put(self.sum, 0, self.sum[0] + self.work.worker.staging[at + row * side.stride])

    def write(self) -> None:
        """Adds up what the threads of an element have, in order."""
        work, worker, height = self.work, self.work.worker, self.tile.rows.elements
        with when(work.column == 0):
            put(worker.staging, worker.thread, self.sum[0])
            worker.synchronize()
            row = let("row_beside", work.row + worker.thread)
            with when(both(worker.thread < height, row < work.gradient.rows)):
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
        down = Strip(stage + own_row, high.stride, high.threads * 4, high.quads)
        right = Strip(
            stage + step * high.stride + own_column, across.stride, across.threads * 4, across.quads
        )

        def copy(pair: Expr) -> None:
            apart = step // 2 // PARTS
            with when(pair % apart == 0):
                copies.part(pair // apart, PARTS)()

        add_outer_products(worker, sums, down, right, step // 2, copy)

    def write(self) -> None:
        """A row of blocks at a time."""
        high, across = self.tile.rows, self.tile.columns

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
    """A thread's elements of rows in shared memory: `quads` times four, `apart` words from one to the next.

    at: the first word, a multiple of 4. stride: words from row to row.
    """

    at: Expr
    stride: int
    apart: int
    quads: int


def add_outer_products(
    worker: Worker,
    sums: Any,
    down: Strip,
    right: Strip,
    pairs: Expr,
    meanwhile: Callable[[Expr], None] | None = None,
) -> None:
    """Adds the outer products of so many pairs of rows to the sums of a thread, row by row of these.

    The next row's elements are read while one is multiplied, which takes registers. meanwhile: is done in
    every pair.
    """
    memory, strips = worker.staging, (down, right)
    # Counted in 16 bytes, so that all loads of a row are one address and a constant.
    places = [fixed("strip_at", strip.at // 4) for strip in strips]
    held = [local("held", "float32", T.float32(0.0), 8 * strip.quads) for strip in strips]

    def read(row: Expr, half: int) -> None:
        for strip, at, into in zip(strips, places, held, strict=True):
            for quad in range(strip.quads):
                found = memory[whole_quad(at + row * (strip.stride // 4) + quad * (strip.apart // 4))]
                T.buffer_store(into, found, [quad_at((half * strip.quads + quad) * 4)])

    read(0, 0)
    with loop("pair", pairs, unroll=1) as pair:
        read(2 * pair + 1, 1)
        if meanwhile is not None:
            meanwhile(pair)
        _multiply(sums, held, 0, (down.quads, right.quads))
        with when(pair < pairs - 1):  # what is behind the last row may just be written
            read(2 * pair + 2, 0)
        _multiply(sums, held, 1, (down.quads, right.quads))


def _multiply(sums: Any, held: Sequence[Any], half: int, quads: tuple[int, int]) -> None:
    """Adds the outer product of the elements that are held of a row, in this half of the places."""
    down, right = (4 * count for count in quads)
    for p in range(down):
        for q in back_and_forth(right, p):
            x, y = held[0][half * down + p], held[1][half * right + q]
            put(sums, p * right + q, cuda.fma(x, y, sums[p * right + q]))


def write_sum(worker: Worker, at: Expr, value: Expr, accumulate: Expr) -> None:
    """Writes a sum, or adds it to what is there."""
    old = local("old", "float32", T.float32(0.0))
    with when(accumulate != 0):
        put(old, 0, worker.pool[at])
    put(worker.pool, at, old[0] + value)
