"""Tiled transposed products of UNIT segments on CUDA: partial sums over the worker's rows for many vertices.

In: a tile of vertices whose deltas are staged. Out: the partial sums in the pool. Rows of the weights come
in steps (`cuda_wide_steps.py`), a block of columns after another. A warp has up to 32 vertices, 64 columns
of a block; its sums lie with its threads, or are made on tensor cores.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Protocol

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_staging import UnitTile, rows_of
from dnc.codegen.bodies.cuda_stores import store_columns
from dnc.codegen.bodies.cuda_tensor import ACROSS, DEPTH, HIGH, pair_at, warp_sums
from dnc.codegen.bodies.cuda_wide_steps import TurnedSteps, in_steps, turned_steps, turned_words
from dnc.codegen.emit import Expr, both, by_size, fixed, lane4, let, local, loop, put, quad_at, smaller, when
from dnc.codegen.quads import QUAD
from dnc.ir.machine import WARPS
from dnc.ir.plan import TransposedProduct

HALF = 16  # vertices of a warp, or twice as many
COLUMNS = 32  # of a warp, or twice as many
MOST_TIMES = 2
COLUMN_LANES = 8  # threads of a warp along the columns, where these have the sums
Place = tuple[Expr, Expr]  # the first vertex of a warp, and its first column in a block


@attrs.frozen
class Shape:
    """`halves` x 16 vertices and `times` x 32 columns a warp, `along` warps along the vertices."""

    halves: int
    along: int
    times: int

    @property
    def vertices(self) -> int:
        """Vertices of all warps."""
        return self.halves * HALF * self.along

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return WARPS // self.along * self.times * COLUMNS


def shapes(tile: int, columns: int) -> list[Shape]:
    """For few vertices up to a tile."""

    def shape(halves: int, along: int) -> Shape:
        times = MOST_TIMES
        while times > 1 and WARPS // along * (times // 2) * COLUMNS >= columns:
            times //= 2
        return Shape(halves, along, times)

    found, along = [shape(1, 1)], 1
    while found[-1].vertices < tile:
        found.append(shape(2, along))
        along *= 2
    return found


def step_words(tile: int, columns: int) -> int:
    """Words of a step, at most."""
    return max(turned_words(shape.columns) for shape in shapes(tile, columns))


def transposed(tile: UnitTile, product: TransposedProduct, tensor: bool) -> None:
    """Partial sums for all vertices of the tile. Starts with a barrier, ends without."""
    found = shapes(tile.staging.tile, product.columns)
    by_size(tile.count, [(shape.vertices, partial(_blocks, tile, product, tensor, shape)) for shape in found])


class Sums(Protocol):
    """The sums of a warp for a block of columns."""

    def clear(self) -> None:
        """Makes them zero."""

    def add(self, steps: TurnedSteps, block: Expr, first: Expr, stage: Expr) -> None:
        """Adds the products of a step's rows, from `first` on."""

    def store(self, column: Expr) -> None:
        """Writes them to the pool; the block starts at `column`."""


def _blocks(tile: UnitTile, product: TransposedProduct, tensor: bool, shape: Shape) -> None:
    """One block of columns after another."""
    worker = tile.worker
    rows = rows_of(product.delta, tile.segment, tile.units)
    steps = turned_steps(tile, product, rows, shape.columns)
    others = WARPS // shape.along
    vertex = fixed("warp_vertex", worker.warp // others * (shape.halves * HALF))
    column = fixed("warp_column", worker.warp % others * (shape.times * COLUMNS))
    sums: Sums = (TensorSums if tensor else ThreadSums)(tile, product, shape, (vertex, column))
    blocks = -(-product.columns // shape.columns)

    def work(number: Expr, stage: Expr) -> None:
        block = fixed("block", number // steps.each)
        step = let("step", number - block * steps.each)
        with when(step == 0):
            sums.clear()
        sums.add(steps, block, let("first_row", step * steps.high), stage)
        with when(step == steps.each - 1):
            sums.store(block * shape.columns)

    stages = tile.staging.buffers if steps.streamed else 2
    in_steps(worker.synchronize, blocks * steps.each, stages, steps.words, steps.copy, work)


def _rows(steps: TurnedSteps, first: Expr, of: int) -> Expr:
    """Rows of a step in units of `of`; the last step may have fewer."""
    if steps.rows % steps.high == 0:
        return steps.high // of
    return let("rows", smaller(steps.rows - first, steps.high) // of)


class ThreadSums:
    """A thread has 4 vertices, twice 16 apart, and 4 columns, once or twice 32 apart."""

    def __init__(self, tile: UnitTile, product: TransposedProduct, shape: Shape, warp: Place) -> None:
        self.tile, self.product, self.shape = tile, product, shape
        self.count, lane = shape.halves * QUAD * shape.times * QUAD, tile.worker.lane
        self.sums = local("sums", "float32", T.float32(0.0), self.count)
        self.down = fixed("down", warp[0] + lane // COLUMN_LANES * QUAD)
        self.across = fixed("across", warp[1] + lane % COLUMN_LANES * QUAD)

    def clear(self) -> None:
        """All sums are zero."""
        for i in range(self.count):
            put(self.sums, i, T.float32(0.0))

    def add(self, steps: TurnedSteps, block: Expr, first: Expr, stage: Expr) -> None:
        """Row by row."""
        staging = self.tile.worker.staging
        deltas = self.tile.staging.deltas[self.product.delta]
        weights = steps.weights(block, first, stage, QUAD)
        at = let("deltas", deltas.place(first, self.down))
        with loop("row", _rows(steps, first, 1), unroll=2) as row:
            pairs = [weights(row, self.across + h * COLUMNS) for h in range(self.shape.times)]
            weight = [let("weight", memory[quad_at(place)]) for memory, place in pairs]
            for g in range(self.shape.halves):
                delta = let("delta", staging[quad_at(at + row * deltas.row + g * HALF)])
                for v in range(QUAD):
                    for h in range(self.shape.times):
                        for c in range(QUAD):
                            to = ((g * QUAD + v) * self.shape.times + h) * QUAD + c
                            put(self.sums, to, cuda.fma(lane4(weight[h], c), lane4(delta, v), self.sums[to]))

    def store(self, column: Expr) -> None:
        """Four columns at a time."""
        tile = self.tile
        for g in range(self.shape.halves):
            for v in range(QUAD):
                now = let("now", self.down + g * HALF + v)
                with when(now < tile.count):
                    for h in range(self.shape.times):
                        own = let("own", column + self.across + h * COLUMNS)
                        values = self.sums[quad_at(((g * QUAD + v) * self.shape.times + h) * QUAD)]
                        whole = self.product.columns % self.shape.columns == 0
                        with nullcontext() if whole else when(own < self.product.columns):
                            store_columns(tile.worker, self.product, tile.first + now, own, values)


class TensorSums:
    """Blocks of 16 vertices and 8 columns, on tensor cores."""

    def __init__(self, tile: UnitTile, product: TransposedProduct, shape: Shape, warp: Place) -> None:
        self.tile, self.product, self.shape = tile, product, shape
        self.vertex, self.column = warp
        self.warp = warp_sums(tile.worker, shape.halves * HALF // HIGH, shape.times * COLUMNS // ACROSS)

    def clear(self) -> None:
        """All sums are zero."""
        for i in range(self.warp.high * self.warp.across * 4):
            put(self.warp.sums, i, T.float32(0.0))

    def add(self, steps: TurnedSteps, block: Expr, first: Expr, stage: Expr) -> None:
        """All rows."""
        staging = self.tile.worker.staging
        deltas = self.tile.staging.deltas[self.product.delta]
        weights = steps.weights(block, first, stage, 1)

        def weight(row: Expr, own: Expr) -> Expr:
            memory, place = weights(row, self.column + own)
            return memory[place]

        self.warp.add(
            "rows",
            _rows(steps, first, DEPTH),
            lambda block: let("row", block * DEPTH),
            lambda own, row: staging[deltas.place(first + row, self.vertex + own)],
            weight,
        )

    def store(self, column: Expr) -> None:
        """Two columns at a time."""
        tile, product = self.tile, self.product
        for vertex, across, index in self.warp.pairs():
            now, own = let("now", self.vertex + vertex), let("own", column + self.column + across)
            there = now < tile.count
            if product.columns % self.shape.columns:
                there = both(there, own < product.columns)
            with when(there):
                store_columns(tile.worker, product, tile.first + now, own, self.warp.pair(index), pair_at)
