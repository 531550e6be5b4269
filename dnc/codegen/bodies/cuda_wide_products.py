"""Tiled products of UNIT segments on CUDA: all rows of a worker times many vertices, in registers.

In: a tile of vertices whose products are staged in steps (`cuda_wide_steps.py`). Out: the sums in staging.
Warps share out rows and vertices, and the columns of a step where vertices are few; then what they
summed is added up in the order of the columns. A warp's sums lie with its threads, or are
made on tensor cores.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_staging import Plane, UnitTile, rows_of
from dnc.codegen.bodies.cuda_tensor import DEPTH, HIGH, WarpSums, pair_at, warp_sums
from dnc.codegen.bodies.cuda_wide_steps import QUADS, STEP, STRIDE, ProductSteps, in_steps
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
    stride_loop,
    when,
)
from dnc.ir.machine import LANES, WARPS
from dnc.ir.plan import Product

MOST_ROWS = 256  # of a worker that are summed together
VERTICES = 8  # of a warp, side by side; it has one, two, four or eight times as many
TIMES = (1, 2, 4, 8)
ROW_LANES = 4  # threads of a warp along the rows, where these have the sums
ROWS, MOST_THREAD_ROWS, MOST_SUMS = 4, 10, 64  # rows of a thread: at least, at most; sums at most
MOST_HIGH, MOST_BLOCKS = 5, 20  # of 16 rows of a warp on tensor cores; blocks of 16 x 8 at most


@attrs.frozen
class Shape:
    """How a product is shared out: `rows` over `warps` warps, `own` of them each in units of `unit` rows.

    times: vertices of a warp, at most, in units of VERTICES.
    """

    rows: int
    warps: int
    own: int
    unit: int
    times: int

    @property
    def others(self) -> int:
        """Warps that have the same rows."""
        return WARPS // self.warps

    def variants(self, tile: int) -> list[tuple[int, int]]:
        """(times, warps along the vertices) for few vertices up to a tile."""
        found = [(times, 1) for times in TIMES if times <= self.times]
        along = 2
        while along <= self.others:
            found.append((self.times, along))
            along *= 2
        enough = [variant for variant in found if variant[0] * variant[1] * VERTICES >= tile]
        return [variant for variant in found if variant[0] * variant[1] * VERTICES < tile] + enough[:1]

    @property
    def most(self) -> int:
        """Vertices that all warps can take together."""
        return self.times * self.others * VERTICES

    def scratch(self, tile: int) -> int:
        """Words that the sums of several parts take."""
        words = 0
        for times, along in self.variants(tile):
            parts = self.others // along
            words = max(words, (parts - 1) * self.sums(times) * LANES * self.warps)
        return words

    def sums(self, times: int) -> int:
        """Sums of a thread."""
        return self.own * self.unit * VERTICES * times // LANES


def shape_of(rows: int, tensor: bool) -> Shape:
    """How so many rows of a worker are shared out."""
    blocks = -(-rows // MOST_ROWS)
    rows = -(-rows // (4 * blocks)) * 4
    unit, least, most = (HIGH, 1, MOST_HIGH) if tensor else (ROW_LANES, ROWS, MOST_THREAD_ROWS)
    options = []
    for warps in (8, 4, 2, 1):
        own = -(-rows // (unit * warps))
        if own <= most and (own >= least or warps == 1):
            options.append((warps * own, -own if tensor else -warps, warps, own))
    _, _, warps, own = min(options)
    limit = MOST_BLOCKS if tensor else MOST_SUMS
    times = max(times for times in TIMES if own * times <= limit)
    return Shape(rows, warps, own, unit, times)


def forward(tile: UnitTile, product: Product, tensor: bool) -> None:
    """Sums of all rows of the worker and all vertices of the tile. Starts with a barrier, ends without."""
    rows = rows_of(product.result, tile.segment, tile.units)
    shape = shape_of(rows, tensor)

    def block(row: Expr) -> None:
        *fewer, most = shape.variants(tile.staging.tile)
        body = partial(_sum, tile, product, shape, tensor, row, *most)
        for times, along in reversed(fewer):
            enough = tile.count <= times * along * VERTICES
            body = partial(
                either, enough, partial(_sum, tile, product, shape, tensor, row, times, along), body
            )
        body()

    if shape.rows >= rows:
        block(0)
    else:
        with stride_loop("rows_from", 0, rows, shape.rows) as row:
            block(row)


class Sums(Protocol):
    """The sums of a warp: of some rows of the worker and some vertices of a tile."""

    sums: Any

    def add(self, steps: ProductSteps, step: Expr, stage: Expr, part: tuple[Expr, int]) -> None:
        """Adds a part (number, of how many) of the columns of a step."""

    def write(self, plane: Plane, rows: int) -> None:
        """Writes them to a plane."""


def _sum(
    tile: UnitTile, product: Product, shape: Shape, tensor: bool, row: Expr, times: int, along: int
) -> None:
    """The sums of `shape.rows` rows from `row` on: `times` x 8 vertices a warp, `along` warps along them."""
    worker, staging = tile.worker, tile.staging
    parts = shape.others // along
    steps = ProductSteps(tile, product, times * along * VERTICES, row, shape.rows)
    down = fixed("warp_row", worker.warp // shape.others)
    across = fixed("warp_vertex", worker.warp % along * (times * VERTICES))
    part = fixed("part", worker.warp % shape.others // along)
    kind = TensorSums if tensor else ThreadSums
    sums: Sums = kind(worker, shape, times, down, across, row)

    def work(step: Expr, stage: Expr) -> None:
        sums.add(steps, step, stage, (part, parts))

    in_steps(worker.synchronize, steps.count, staging.buffers, steps.words, steps.copy, work)
    if parts > 1:
        count = shape.sums(times)
        place = let("place", down * LANES + worker.lane)
        size = shape.warps * LANES
        worker.synchronize()
        with when(part > 0):
            for i in range(count):
                put(worker.staging, ((part - 1) * count + i) * size + place, sums.sums[i])
        worker.synchronize()
        with when(part == 0):
            for other in range(parts - 1):
                for i in range(count):
                    more = worker.staging[(other * count + i) * size + place]
                    put(sums.sums, i, sums.sums[i] + more)
    rows = rows_of(product.result, tile.segment, tile.units)
    if parts > 1:
        with when(part == 0):
            sums.write(staging.sums[product.result], rows)
    else:
        sums.write(staging.sums[product.result], rows)


class ThreadSums:
    """A thread has some rows, 4 apart, and vertices, 8 apart."""

    def __init__(self, worker: Worker, shape: Shape, times: int, down: Expr, across: Expr, row: Expr) -> None:
        self.worker, self.shape, self.times, self.row = worker, shape, times, row
        self.sums = local("sums", "float32", T.float32(0.0), shape.own * times)
        self.first = fixed("first", down * (shape.own * ROW_LANES) + worker.lane // VERTICES)
        self.vertex = fixed("vertex", across + worker.lane % VERTICES)
        whole = shape.own * ROW_LANES * shape.warps == shape.rows
        rows = [self.first + j * ROW_LANES for j in range(shape.own)]
        self.rows = rows if whole else [fixed("own", smaller(own, shape.rows - 1)) for own in rows]

    def add(self, steps: ProductSteps, step: Expr, stage: Expr, part: tuple[Expr, int]) -> None:
        """Four columns at a time."""
        staging, (number, parts) = self.worker.staging, part
        own = QUADS // parts
        weights = steps.weights(step, stage)
        begin = let("begin", number * own)
        count: Expr = own
        if not steps.whole():
            count = let("count", smaller(-(-steps.placement.columns // 4) - step * QUADS - begin, own))
        with loop("quad", count, unroll=2 if own > 1 else False) as quad:
            column = let("column", (begin + quad) * 4)
            at = stage + self.vertex * STRIDE + column
            x = [let("x", staging[quad_at(at + i * (VERTICES * STRIDE))]) for i in range(self.times)]
            for j, row in enumerate(self.rows):
                memory, place = weights(row, column)
                weight = let("weight", memory[quad_at(place)])
                for i in range(self.times):
                    to = j * self.times + i
                    for k in range(4):
                        put(self.sums, to, cuda.fma(lane4(weight, k), lane4(x[i], k), self.sums[to]))

    def write(self, plane: Plane, rows: int) -> None:
        """One by one."""
        to = let("to", plane.place(self.row + self.first, self.vertex))
        for j in range(self.shape.own):
            with _inside(self.row + self.first + j * ROW_LANES, rows, self.shape, self.first + j * ROW_LANES):
                for i in range(self.times):
                    at = to + j * ROW_LANES * plane.row + i * VERTICES * plane.vertex
                    put(self.worker.staging, at, self.sums[j * self.times + i])


class TensorSums:
    """Blocks of 16 rows and 8 vertices, on tensor cores."""

    def __init__(self, worker: Worker, shape: Shape, times: int, down: Expr, across: Expr, row: Expr) -> None:
        self.worker, self.shape, self.row = worker, shape, row
        self.warp: WarpSums = warp_sums(worker, shape.own, times)
        self.sums = self.warp.sums
        self.first = fixed("first", down * (shape.own * HIGH))
        self.vertex = across
        self.whole = shape.own * HIGH * shape.warps == shape.rows

    def add(self, steps: ProductSteps, step: Expr, stage: Expr, part: tuple[Expr, int]) -> None:
        """Eight columns at a time."""
        staging, (number, parts) = self.worker.staging, part
        own = -(-(STEP // DEPTH) // parts)
        weights = steps.weights(step, stage)
        begin = let("begin", number * own)
        last = STEP // DEPTH
        if not steps.whole():
            last = let("last", smaller(steps.placement.columns // DEPTH - step * last, last))
        count = own if last == parts * own else let("count", smaller(last - begin, own))

        def weight(row: Expr, column: Expr) -> Expr:
            row = self.first + row
            memory, place = weights(row if self.whole else smaller(row, self.shape.rows - 1), column)
            return memory[place]

        with loop("depth", count, unroll=1) as depth:
            self.warp.add(
                let("column", (begin + depth) * DEPTH),
                weight,
                lambda column, own: staging[stage + (self.vertex + own) * STRIDE + column],
            )

    def write(self, plane: Plane, rows: int) -> None:
        """Two vertices side by side at a time."""
        for own, across, index in self.warp.pairs():
            with _inside(self.row + self.first + own, rows, self.shape, self.first + own):
                at = pair_at(plane.place(self.row + self.first + own, self.vertex + across))
                T.buffer_store(self.worker.staging, self.warp.pair(index), [at])


def _inside(row: Expr, rows: int, shape: Shape, own: Expr) -> Any:
    """Where a row of the worker, and of the block that is summed, exists."""
    if shape.rows >= rows:
        return when(row < rows)
    return when(both(row < rows, own < shape.rows))
