"""Tiled products of UNIT segments on CUDA: all rows of a worker times many vertices, in registers.

In: a tile of vertices whose operands and weights come in steps (`cuda_wide_steps.py`). Out: the sums in
staging. Where vertices are few, the columns of a step are shared out as well: every part leaves its sums
in scratch, and they are added up in the order of the columns. Sums lie with the threads, or are made on
tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_staging import Plane, Staging, UnitTile, rows_of
from dnc.codegen.bodies.cuda_stores import keep_in_banks
from dnc.codegen.bodies.cuda_tensor import DEPTH, HIGH, pair_at, warp_sums
from dnc.codegen.bodies.cuda_wide_steps import (
    QUADS,
    STRIDE,
    ProductSteps,
    choose,
    columns_of_step,
    each_size,
    in_steps,
    worth_having,
)
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (
    Expr,
    back_and_forth,
    both,
    by_size,
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
    whole_quad,
)
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import Product, padded

MOST_ROWS = 160  # of a worker that are summed together by threads
MOST_TENSOR_ROWS = 256  # or on tensor cores
ROWS = 13  # of a thread, at most
SIZES = (4, 6, 8, 10)  # vertices of a thread
MOST_SUMS = 80  # of a thread
ALONG = (1, 2, 4, 8)  # warps side by side along the vertices
VERTICES = 8  # of a block on tensor cores
SPARE = 4  # words behind the sums of a row in scratch: neighbouring rows are in different banks
TIMES = (1, 2, 4, 8)  # blocks of 8 vertices of a warp on tensor cores
MOST_HIGH, MOST_BLOCKS = 5, 20  # blocks of 16 rows of such a warp; blocks of 16 x 8 at most


def block_rows(rows: int, tensor: bool) -> int:
    """Rows that are summed together: all that a worker has, if these are not too many."""
    most = MOST_TENSOR_ROWS if tensor else MOST_ROWS
    return -(-rows // (4 * -(-rows // most))) * 4


def forward(tile: UnitTile, product: Product, tensor: bool) -> None:
    """Sums of all rows of the worker and all vertices of the tile. Starts with a barrier, ends without."""
    rows = rows_of(product.result, tile.segment, tile.units)
    together = block_rows(rows, tensor)
    body = partial(_on_tensor_cores if tensor else _on_threads, tile, product)
    if together >= rows:
        body(0)
    else:
        with stride_loop("rows_from", 0, rows, together) as row:
            body(row)


def most_vertices(rows: int, tensor: bool) -> int:
    """Vertices of a tile, at most, for a worker with so many rows."""
    if tensor:
        return tensor_shape(rows).most
    shape = thread_shape(rows)
    return WARPS * shape.across * max(shape.sizes)


def _fitting(parts: int, staging: Staging, sums: int) -> int:
    """So many parts, a power of two, or as many as their scratch takes: `sums` words each."""
    while parts > 1 and parts * sums > staging.front:
        parts //= 2
    return parts


def _inside(row: Expr, rows: int, own: Expr, together: int) -> Expr:
    """Whether a row is one of the worker's, and of those that are summed together."""
    return row < rows if together >= rows else both(row < rows, own < together)


# ---- on threads --------------------------------------------------------------------------------------


@attrs.frozen
class ThreadShape:
    """A thread has `own` rows, `lanes` apart: so many lanes of a warp have different ones."""

    lanes: int
    own: int

    @property
    def across(self) -> int:
        """Lanes along the vertices."""
        return LANES // self.lanes

    @property
    def sizes(self) -> list[int]:
        """Vertices of a thread, for which there is code."""
        return [size for size in SIZES if size * self.own <= MOST_SUMS]


def thread_shape(rows: int) -> ThreadShape:
    """How the rows of a worker are shared out over the lanes of a warp."""
    together, lanes = block_rows(rows, False), 4
    while together > lanes * ROWS:
        lanes *= 2
    return ThreadShape(lanes, -(-together // lanes))


@attrs.frozen
class Layout:
    """`size` vertices a thread, `along` warps side by side along the vertices; the others have `parts` of a
    step's columns. wide: all vertices."""

    size: int
    along: int
    wide: int

    @property
    def parts(self) -> int:
        """Parts of a step."""
        return WARPS // self.along

    @property
    def quads(self) -> int:
        """Quads of vertices in scratch."""
        return -(-self.wide // 4)

    @property
    def cost(self) -> float:
        """About the time that it takes: fewer vertices of a thread read more, parts wait more often."""
        return self.wide * (0.83 + 1.7 / self.size + 0.05 * self.parts)


def layouts(rows: int, tile: int, scratch: int | None = None) -> list[Layout]:
    """For few vertices up to a tile: those that are not slower than one for more. scratch: words of it."""
    shape, together = thread_shape(rows), block_rows(rows, False)
    found = [Layout(size, along, shape.across * along * size) for size in shape.sizes for along in ALONG]
    if scratch is not None:
        found = [one for one in found if scratch_words(rows, one) <= scratch]
    # Operands behind the last one are read: there are weights.
    return worth_having((one for one in found if one.wide < tile + together), tile)


def scratch_words(rows: int, layout: Layout) -> int:
    """Words that the sums of all parts of a step take."""
    if layout.parts == 1:
        return 0
    return layout.parts * block_rows(rows, False) * 4 * int(_row_quads(layout.quads))


def _row_quads(quads: Expr) -> Expr:
    """Quads of a row in scratch: an odd number, so that neighbouring rows are in different banks."""
    return quads | 1 if isinstance(quads, int) else T.bitwise_or(quads, 1)


def _on_threads(tile: UnitTile, product: Product, row: Expr) -> None:
    """A thread has up to MOST_SUMS sums, so that it reads little for one.

    The fewer vertices there are the fewer warps stand side by side along them, and the more parts the
    columns of a step have: the code is the same but for the number of vertices of a thread.
    """
    rows = rows_of(product.result, tile.segment, tile.units)
    found = layouts(rows, tile.staging.tile, tile.staging.front)
    chosen = choose(found, tile.count)
    along = fixed("along", chosen[1])

    def body(size: int) -> None:
        steps = ProductSteps(tile, product, tile.staging.tile, row, block_rows(rows, False))
        sums = _ThreadSums(tile, product, row, steps, size, along)
        stages = tile.staging.buffers
        in_steps(tile.worker.synchronize, steps.count, stages, steps.words, steps.copy, sums.add, early=1)
        sums.keep_in_banks()
        sums.write(in_parts=any(one.parts > 1 for one in found if one.size == size))

    each_size(chosen[0], found, body)


@attrs.frozen
class _Place:
    """Quads in shared memory that a thread reads: its first operand, the weights of its first row. last: how
    much further on those of its last row are, if it is another thread's."""

    operands: Expr
    weights: Expr
    last: Expr = 0

    def moved(self, quads: Expr) -> _Place:
        """So many quads of columns further."""
        return attrs.evolve(self, operands=self.operands + quads, weights=self.weights + quads)


class _ThreadSums:
    """The sums of a thread, and where it stands: `along` warps along the vertices, `parts` of a step.

    Operands and weights of the next columns are read while those of some are multiplied, across steps.
    """

    def __init__(
        self, tile: UnitTile, product: Product, row: Expr, steps: ProductSteps, size: int, along: Expr
    ) -> None:
        self.tile, self.row, self.steps, self.size = tile, row, steps, size
        self.rows = rows_of(product.result, tile.segment, tile.units)
        self.plane = tile.staging.sums[product.result]
        self.shape, self.together = thread_shape(self.rows), block_rows(self.rows, False)
        self.along, self.parts = along, let("parts", WARPS // along)
        self.quads = fixed("own_quads", QUADS // self.parts)
        vertex, down, part = self._stand(tile.worker)
        own, (_, _, stride) = self.shape.own, steps.quads(0, 0)
        self.begin = part * self.quads
        self.operand = fixed("operand", vertex * (STRIDE // 4) + self.begin)
        self.first = fixed("first_weight", down * stride + self.begin)
        self.last = self.first
        if own * self.shape.lanes > self.together:
            near = smaller(down, self.together - 1 - (own - 1) * self.shape.lanes)
            self.last = fixed("last_weight", near * stride + self.begin)
        self.sums = local("sums", "float32", T.float32(0.0), own * size)
        self.x = local("x", "float32", T.float32(0.0), 4 * size)
        self.weight = local("weight", "float32", T.float32(0.0), 4)
        self.next = local("next_weight", "float32", T.float32(0.0), 4)

    def _stand(self, worker: Worker) -> tuple[Expr, Expr, Expr]:
        """A thread's first vertex and row, and its part."""
        part = fixed("part", worker.warp // self.along)
        group = (worker.warp - part * self.along) * (self.size * self.shape.across)
        return (
            fixed("own_vertex", group + worker.lane % self.shape.across),
            fixed("own_row", worker.lane // self.shape.across),
            part,
        )

    def add(self, step: Expr, stage: Expr, following_stage: Expr) -> None:
        """Adds the thread's part of a step; behind the last one its first columns are read again."""
        steps = self.steps
        ends = step == steps.count - 1
        after = let("after", T.Select(ends, step, step + 1))
        later = fixed("later_stage", T.Select(ends, stage, following_stage))
        memory, at, stride = steps.quads(step, stage)
        _, at_later, _ = steps.quads(after, later)
        here = _Place(
            fixed("operands_at", T.shift_right(stage, 2) + self.operand),
            fixed("weights_at", at + self.first),
            0 if self.last is self.first else self.last - self.first,
        )
        next_step = _Place(
            fixed("operands_later", T.shift_right(later, 2) + self.operand),
            fixed("weights_later", at_later + self.first),
        )
        with when(step == 0):
            T.buffer_store(self.next, memory[whole_quad(here.weights)], [whole_quad(0)])
            for i in range(self.size):
                self._read_operand(i, here.operands)
        count = self.quads
        if not steps.whole():
            last = -(-steps.placement.columns // 4) - step * QUADS - self.begin
            count = let("count", smaller(last, count))

        with stride_loop("quad", 0, count, 1) as quad:
            last = let("last", quad + 1 == self.quads)
            following = _Place(
                fixed("operands_next", T.Select(last, next_step.operands, here.operands + quad + 1)),
                fixed("weights_next", T.Select(last, next_step.weights, here.weights + quad + 1)),
            )
            self._multiply(memory, stride, here.moved(quad), following)

    def _read_operand(self, number: int, at: Expr) -> None:
        found = self.tile.worker.staging[whole_quad(at + number * (self.shape.across * STRIDE // 4))]
        T.buffer_store(self.x, found, [whole_quad(number)])

    def _multiply(self, memory: Any, stride: int, here: _Place, following: _Place) -> None:
        """Four columns, backwards for every second row; reads those that follow.

        The columns are in even and odd registers in turn, so a sum has to go from bank to bank. It does, if
        it begins in the right one.
        """
        own, size = self.shape.own, self.size
        for j in range(own):
            T.buffer_store(self.weight, self.next[whole_quad(0)], [whole_quad(0)])
            at = following.weights
            if j + 1 < own:
                at = here.weights + (j + 1) * self.shape.lanes * stride
                if j + 2 == own:
                    at = at + here.last
            T.buffer_store(self.next, memory[whole_quad(at)], [whole_quad(0)])
            for k in back_and_forth(4, j):
                for i in range(size):
                    to = j * size + i
                    put(self.sums, to, cuda.fma(self.x[4 * i + k], self.weight[k], self.sums[to]))
        for i in range(size):
            self._read_operand(i, following.operands)

    def keep_in_banks(self) -> None:
        """Sums of even rows meet the first column first, which is in an even register; sums of odd rows the
        last one, see `_multiply`."""
        keep_in_banks(self.sums, self.shape.own * self.size, self.size, self.tile.count)

    def write(self, in_parts: bool) -> None:
        """Writes the sums; where there are several parts, to scratch, and adds them up. in_parts: whether
        there may be."""
        worker = self.tile.worker.here()
        stand, plane = self._stand(worker), self.plane
        if not in_parts:
            self._each(stand, lambda own, now: plane.place(self.row + own, now))
            return
        assert plane.vertex == 1
        several = self.parts > 1
        quads = fixed("scratch_quads", T.shift_right(self.along * (self.shape.across * self.size) + 3, 2))
        wide = let("wide_sums", _row_quads(quads) * 4)
        scratch = stand[2] * (self.together * wide)
        begin = fixed("sums_begin", T.Select(several, scratch, plane.place(self.row, 0)))
        apart = fixed("sums_apart", T.Select(several, wide, plane.row))
        with when(several):
            worker.synchronize()
        self._each(stand, lambda own, now: begin + own * apart + now)
        with when(several):
            worker.synchronize()
            tile = attrs.evolve(self.tile, worker=worker)
            add_parts(tile, plane, self.row, self.rows, self.together, quads, self.parts)

    def _each(self, stand: tuple[Expr, Expr, Expr], place: Callable[[Expr, Expr], Expr]) -> None:
        """Writes every sum to its place: of a row, and of a vertex of the tile."""
        vertex, down, _ = stand
        staging = self.tile.staging
        beyond = layouts(self.rows, staging.tile, staging.front)[-1].wide > staging.tile
        for j in range(self.shape.own):
            own = down + j * self.shape.lanes
            with when(_inside(self.row + own, self.rows, own, self.together)):
                for i in range(self.size):
                    now = let("vertex", vertex + self.shape.across * i)
                    with when(now < self.tile.count) if beyond else nullcontext():
                        put(self.tile.worker.staging, place(own, now), self.sums[j * self.size + i])


def add_parts(
    tile: UnitTile, plane: Plane, row: Expr, rows: int, together: int, quads: Expr, parts: Expr
) -> None:
    """Adds up the sums in scratch into a plane, four vertices a thread at a time.

    quads: those of a row there; together: its rows.
    """
    worker = tile.worker
    wide = fixed("wide_quads", _row_quads(quads))
    size = fixed("part_quads", together * wide)
    with stride_loop("sum", worker.thread, together * quads, THREADS) as item:
        own = fixed("own", item // quads)
        vertex = fixed("vertex", (item - own * quads) * 4)
        with when(vertex < tile.count), when(_inside(row + own, rows, own, together)):
            first = fixed("first", own * wide + (item - own * quads))
            total = local("total", "float32x4", worker.staging[whole_quad(first)])
            with loop("other", parts - 1, unroll=3) as other:
                put(total, 0, total[0] + worker.staging[whole_quad(first + (other + 1) * size)])
            if plane.vertex == 1 and (plane.at | plane.row) % 4 == 0:
                T.buffer_store(worker.staging, total[0], [quad_at(plane.place(row + own, vertex))])
            else:
                for i in range(4):
                    with when(vertex + i < tile.count):
                        put(worker.staging, plane.place(row + own, vertex + i), lane4(total[0], i))


# ---- on tensor cores ---------------------------------------------------------------------------------


@attrs.frozen
class TensorShape:
    """`warps` warps have `own` blocks of 16 rows each; a warp has up to `times` blocks of 8 vertices."""

    warps: int
    own: int
    times: int

    @property
    def others(self) -> int:
        """Warps that have the same rows."""
        return WARPS // self.warps

    @property
    def padded(self) -> int:
        """Rows of all warps."""
        return self.warps * self.own * HIGH

    @property
    def most(self) -> int:
        """Vertices that all warps can take together."""
        return self.times * self.others * VERTICES

    def variants(self, tile: int) -> list[tuple[int, int]]:
        """(blocks of vertices of a warp, warps along the vertices) for few vertices up to a tile."""
        found = [(times, 1) for times in TIMES if times <= self.times]
        along = 2
        while along <= self.others:
            found.append((self.times, along))
            along *= 2
        enough = [variant for variant in found if variant[0] * variant[1] * VERTICES >= tile]
        return [variant for variant in found if variant[0] * variant[1] * VERTICES < tile] + enough[:1]


def tensor_shape(rows: int) -> TensorShape:
    """How the rows of a worker are shared out over warps."""
    options = []
    for warps in (8, 4, 2, 1):
        own = -(-block_rows(rows, True) // (HIGH * warps))
        if own <= MOST_HIGH:
            options.append((warps * own, -own, warps, own))
    _, _, warps, own = min(options)
    return TensorShape(warps, own, max(times for times in TIMES if own * times <= MOST_BLOCKS))


def _on_tensor_cores(tile: UnitTile, product: Product, row: Expr) -> None:
    """By how many vertices there are."""
    shape = tensor_shape(rows_of(product.result, tile.segment, tile.units))
    bodies = [
        (times * along * VERTICES, partial(_tensor_sums, tile, product, row, shape, times, along))
        for times, along in shape.variants(tile.staging.tile)
    ]
    by_size(tile.count, bodies)


def _tensor_sums(
    tile: UnitTile, product: Product, row: Expr, shape: TensorShape, times: int, along: int
) -> None:
    """`times` x 8 vertices a warp, `along` warps along them."""
    worker, staging = tile.worker, tile.staging
    rows = rows_of(product.result, tile.segment, tile.units)
    together, wide = block_rows(rows, True), times * along * VERTICES
    parts = _fitting(shape.others // along, staging, together * (wide + SPARE))
    idle = parts * along < shape.others
    step = columns_of_step(tile, product, wide, together)
    steps = ProductSteps(tile, product, wide, row, together, step)
    first = fixed("warp_row", worker.warp // shape.others * (shape.own * HIGH))
    vertex = fixed("warp_vertex", worker.warp % along * (times * VERTICES))
    part = fixed("part", worker.warp % shape.others // along)
    sums = warp_sums(worker, shape.own, times)

    def work(now: Expr, stage: Expr, _: Expr) -> None:
        blocks = min(step, padded(steps.placement.columns)) // DEPTH
        own = -(-blocks // parts)
        weights = steps.weights(now, stage)
        begin = let("begin", part * own)
        last: Expr = blocks
        if not steps.whole() and steps.count > 1:
            last = let("last", smaller(steps.placement.columns // DEPTH - now * last, last))
        count = own if own * parts == last else let("count", smaller(last - begin, own))

        def weight(own: Expr, column: Expr) -> Expr:
            near = first + own
            if shape.padded > together:
                near = smaller(near, together - 1)
            memory, place = weights(near, column)
            return memory[place]

        with when(part < parts):
            sums.add(
                "depth",
                count,
                lambda block: let("column", (begin + block) * DEPTH),
                weight,
                lambda column, own: worker.staging[stage + (vertex + own) * steps.stride + column],
            )

    in_steps(worker.synchronize, steps.count, staging.buffers, steps.words, steps.copy, work)
    plane = staging.sums[product.result]
    if parts > 1:
        worker.synchronize()
        begin = let("first_sum", part * (together * (wide + SPARE)))
    for down, across, index in sums.pairs():
        own = let("own", first + down)
        inside = _inside(row + own, rows, own, together)
        with when(both(inside, part < parts) if idle else inside):
            if parts > 1:
                at = begin + own * (wide + SPARE) + vertex + across
            else:
                at = plane.place(row + own, vertex + across)
            T.buffer_store(worker.staging, sums.pair(index), [pair_at(at)])
    if parts > 1:
        worker.synchronize()
        add_parts(tile, plane, row, rows, together, wide // 4, parts)
