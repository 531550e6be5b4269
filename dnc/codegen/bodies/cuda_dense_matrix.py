"""Tiles of the gradient of a matrix on CUDA: sums of outer products of deltas and operands.

In: a tile and its shape. Out: statements that sum it and write it, or add it to what is there. A thread
sums 4 x 4 elements of the smaller shapes, up to 8 x 16 of the larger ones, in the order of the rows; or,
where it is allowed, warps multiply on tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_dense_steps import STAGES, Steps, Tile, TileWork, tile_of
from dnc.codegen.bodies.cuda_tensor import ACROSS, DEPTH, HIGH, pair_at, uses_cores, warp_sums
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (
    Expr,
    both,
    fixed,
    lane4,
    let,
    local,
    loop,
    put,
    quad_at,
    stride_loop,
    when,
    whole_quad,
    wide,
)
from dnc.ir import isa
from dnc.ir.machine import WARPS
from dnc.ir.plan import padded

AHEAD = 4  # blocks of 4 x 4 sums of a thread, at most, that leave registers for the next row's elements


class Sums(Protocol):
    """The sums of a tile, spread over the threads of a worker. tile: how its rows are staged."""

    tile: Tile

    def add(self, stage: Expr) -> None:
        """Adds the outer products of a step's rows, which are staged from word `stage` on."""

    def write(self) -> None:
        """Writes the sums, or adds them to what is there."""


def matrix_tile(work: TileWork, shape: isa.GradientTile) -> None:
    """The sum of outer products over the rows: the next ones are loaded during the sums."""
    worker = work.worker
    kind = TensorSums if uses_cores(worker.plan) else ThreadSums
    sums: Sums = kind(work, shape)
    tile = sums.tile
    step = tile.step
    worker.stage(STAGES * tile.stage)
    steps = Steps(work, tile)
    steps.look_up(work.start)
    with stride_loop("from", work.start - step, work.end, step) as now:  # a first round that only copies
        number = let("number", (now - work.start + step) // step)
        cuda.copy_wait(0)
        worker.synchronize()  # the rows are there, and the stage of the rows before them has been read
        steps.copy(now + step, number % STAGES * tile.stage)
        steps.look_up(now + 2 * step)
        stage = fixed("stage", (number + 1) % STAGES * tile.stage)
        with when(now >= work.start):
            sums.add(stage)
    cuda.copy_wait(0)
    worker.synchronize()
    sums.write()


class ThreadSums:
    """Sums in float32: a thread has 4 x 4 blocks, spread over the tile."""

    def __init__(self, work: TileWork, shape: isa.GradientTile) -> None:
        worker, self.work = work.worker, work
        self.tile = tile_of(shape, worker.staging_words, spare=4)
        high, across = self.tile.rows, self.tile.columns
        count = 16 * high.quads * across.quads
        self.sums = local("sums", "float32", T.float32(0.0), count)
        # A warp has 4 x 8 threads of the tile, so that a read of its operands touches few words.
        along = across.threads // 8
        self.i = fixed("i", (worker.warp // along * 4 + worker.lane // 8) * 4)
        self.j = fixed("j", (worker.warp % along * 8 + worker.lane % 8) * 4)

    def add(self, stage: Expr) -> None:
        """Row by row."""
        worker, sums, step = self.work.worker, self.sums, self.tile.step
        high, across = self.tile.rows, self.tile.columns
        down = Strip(stage + self.i, high.stride, high.threads * 4, high.quads)
        right = Strip(stage + step * high.stride + self.j, across.stride, across.threads * 4, across.quads)
        if high.quads * across.quads <= AHEAD:
            add_outer_products(worker, sums, down, right, step // 2)
        else:
            _add_row_by_row(worker, sums, down, right, step)

    def write(self) -> None:
        """Block by block."""
        work, high, across = self.work, self.tile.rows, self.tile.columns
        for p in range(high.quads):
            for q in range(across.quads):
                row, column = work.row + self.i + 4 * high.threads * p, work.column + self.j
                place = (row, column + 4 * across.threads * q)
                _write_quads(work, place, self.sums, (p, q, across.quads))


class TensorSums:
    """Sums on tensor cores: a warp has a part of the tile."""

    def __init__(self, work: TileWork, shape: isa.GradientTile) -> None:
        worker, self.work = work.worker, work
        # With 8 words to spare the lanes of a warp read from different banks.
        self.tile = tile_of(shape, worker.staging_words, spare=8)
        high = 2 if shape.rows >= 2 * HIGH else 1
        along = WARPS // high
        own, across = shape.rows // high, shape.columns // along
        self.row = fixed("warp_row", worker.warp // along * own)
        self.column = fixed("warp_column", worker.warp % along * across)
        self.sums = warp_sums(worker, own // HIGH, across // ACROSS)

    def add(self, stage: Expr) -> None:
        """All rows."""
        memory, tile = self.work.worker.staging, self.tile
        deltas = let("deltas", stage + self.row)
        operands = let("operands", stage + tile.step * tile.rows.stride + self.column)
        self.sums.add(
            "k",
            tile.step // DEPTH,
            lambda block: block * DEPTH,
            lambda row, depth: memory[deltas + depth * tile.rows.stride + row],
            lambda depth, column: memory[operands + depth * tile.columns.stride + column],
        )

    def write(self) -> None:
        """Two sums side by side at a time; what they are added to is read before anything is written."""
        work, stride = self.work, padded(self.work.gradient.columns)
        pairs = [
            (fixed("row", work.row + self.row + row), fixed("column", work.column + self.column + column), at)
            for row, column, at in self.sums.pairs()
        ]

        def each(body: Callable[[Expr, int], None]) -> None:
            for row, column, index in pairs:
                with when(both(row < work.gradient.rows, column < stride)):
                    body(work.base + wide(row) * stride + column, index)

        def add(at: Expr, index: int) -> None:
            old = let("old", work.worker.pool[pair_at(at)])
            for i in range(2):
                put(self.sums.sums, index + i, lane4(old, i) + self.sums.sums[index + i])

        with when(work.accumulate != 0):
            each(add)
        each(lambda at, index: T.buffer_store(work.worker.pool, self.sums.pair(index), [pair_at(at)]))


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


def _add_row_by_row(worker: Worker, sums: Any, down: Strip, right: Strip, rows: int) -> None:
    """The same for so many rows, with as few registers as possible."""
    strips = (down, right)
    held = [local("held", "float32", T.float32(0.0), 4 * strip.quads) for strip in strips]
    with loop("row", rows, unroll=2) as row:
        for strip, into in zip(strips, held, strict=True):
            at = strip.at + row * strip.stride
            for quad in range(strip.quads):
                found = worker.staging[quad_at(at + quad * strip.apart)]
                T.buffer_store(into, found, [quad_at(4 * quad)])
        _multiply(sums, held, 0, (down.quads, right.quads))


def _multiply(sums: Any, held: Sequence[Any], half: int, quads: tuple[int, int]) -> None:
    """Adds the outer product of the elements that are held of a row, in this half of the places."""
    down, right = (4 * count for count in quads)
    for p in range(down):
        for q in range(right):
            x, y = held[0][half * down + p], held[1][half * right + q]
            put(sums, p * right + q, cuda.fma(x, y, sums[p * right + q]))


def _write_quads(work: TileWork, place: tuple[Expr, Expr], sums: Any, block: tuple[int, int, int]) -> None:
    """4 x 4 elements at a place; what they are added to is read before anything is written.

    block: which ones of the thread's sums, and how many quads a row of these has.
    """
    worker, rows, columns, base = work.worker, work.gradient.rows, work.gradient.columns, work.base
    row, column = place
    down, right, quads = block
    first = [((down * 4 + p) * quads + right) * 4 for p in range(4)]
    if columns % 4:
        for p in range(4):
            for q in range(4):
                # Behind the columns the sums are zero: see `_clear_padding`.
                with when(both(row + p < rows, column + q < padded(columns))):
                    at = let("at", base + wide(row + p) * padded(columns) + (column + q))
                    write_sum(worker, at, sums[first[p] + q], work.accumulate)
        return
    with when(column < columns):
        places = []
        for p in range(4):
            there = T.Select(row + p < rows, base + wide(row + p) * columns + column, T.int64(0))
            places.append(fixed("at", there, "int64"))
        with when(work.accumulate != 0):
            old = [let("old", worker.pool[quad_at(at)]) for at in places]
            for p in range(4):
                for q in range(4):
                    put(sums, first[p] + q, lane4(old[p], q) + sums[first[p] + q])
        for p in range(4):
            with when(row + p < rows):
                T.buffer_store(worker.pool, sums[quad_at(first[p])], [quad_at(places[p])])


def write_sum(worker: Worker, at: Expr, value: Expr, accumulate: Expr) -> None:
    """Writes a sum, or adds it to what is there."""
    old = local("old", "float32", T.float32(0.0))
    with when(accumulate != 0):
        put(old, 0, worker.pool[at])
    put(worker.pool, at, old[0] + value)
