"""Tiled products of UNIT segments on CUDA: all rows of a worker times many vertices, in registers.

In: a tile of vertices whose operands and weights come in steps (`cuda_wide_steps.py`). Out: the sums in
staging. Where vertices are few, the columns of a step are shared out as well: every part leaves its sums
in scratch, and they are added up in the order of the columns. Sums lie with the threads, or are made on
tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_staging import Plane, Staging, UnitTile, rows_of
from dnc.codegen.bodies.cuda_tensor import DEPTH, HIGH, pair_at, warp_sums
from dnc.codegen.bodies.cuda_wide_steps import QUADS, STEP, STRIDE, Element, ProductSteps, in_steps
from dnc.codegen.emit import (
    Expr,
    both,
    by_size,
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
    whole_quad,
)
from dnc.ir.machine import THREADS, WARPS
from dnc.ir.plan import Product

MOST_ROWS = 256  # of a worker that are summed together
VERTICES = 8  # of a thread, or of a block on tensor cores
MOST_PARTS = QUADS // 2  # of a step's columns
ROWS = 10  # of a thread, at most
SPARE = 4  # words behind the sums of a row in scratch: neighbouring rows are in different banks
TIMES_ALONG = (1, 2, 4, 8, 16)  # threads side by side along the vertices
TIMES = (1, 2, 4, 8)  # blocks of 8 vertices of a warp on tensor cores
MOST_HIGH, MOST_BLOCKS = 5, 20  # blocks of 16 rows of such a warp; blocks of 16 x 8 at most


def block_rows(rows: int) -> int:
    """Rows that are summed together: all that a worker has, if these are not too many."""
    return -(-rows // (4 * -(-rows // MOST_ROWS))) * 4


def forward(tile: UnitTile, product: Product, tensor: bool) -> None:
    """Sums of all rows of the worker and all vertices of the tile. Starts with a barrier, ends without."""
    rows = rows_of(product.result, tile.segment, tile.units)
    together = block_rows(rows)
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
    return VERTICES * (THREADS // thread_shape(rows).lanes)


def _fitting(parts: int, staging: Staging, sums: int) -> int:
    """So many parts, a power of two, or as many as their scratch takes: `sums` words each."""
    while parts > 1 and parts * sums > staging.front:
        parts //= 2
    return parts


def _inside(row: Expr, rows: int, own: Expr) -> Expr:
    """Whether a row is one of the worker's, and of those that are summed together."""
    together = block_rows(rows)
    return row < rows if together >= rows else both(row < rows, own < together)


# ---- on threads --------------------------------------------------------------------------------------


@attrs.frozen
class ThreadShape:
    """A thread has `own` rows, `lanes` apart."""

    lanes: int
    own: int


def thread_shape(rows: int) -> ThreadShape:
    """How the rows of a worker are shared out over threads."""
    together, lanes = block_rows(rows), 1
    while together > lanes * ROWS:
        lanes *= 2
    return ThreadShape(lanes, -(-together // lanes))


def _on_threads(tile: UnitTile, product: Product, row: Expr) -> None:
    """A thread has up to 10 rows and 8 vertices, so that it reads little for a sum.

    The fewer vertices there are the fewer threads stand side by side along them, and the more parts the
    columns of a step have: the code is the same.
    """
    worker, staging = tile.worker, tile.staging
    together = block_rows(rows_of(product.result, tile.segment, tile.units))
    steps = ProductSteps(tile, product, staging.tile, row, together)
    sums = _ThreadSums(tile, product, row)

    def work(step: Expr, stage: Expr) -> None:
        sums.add(steps, step, stage)

    in_steps(worker.synchronize, steps.count, staging.buffers, steps.words, steps.copy, work)
    if all(parts == 1 for _, parts in sums.layouts):
        sums.to_plane()
    else:
        either(sums.parts == 1, sums.to_plane, sums.to_scratch)


class _ThreadSums:
    """The sums of a thread, and where it stands: `along` threads along the vertices, `parts` of a step."""

    def __init__(self, tile: UnitTile, product: Product, row: Expr) -> None:
        self.tile, self.row = tile, row
        worker, staging = tile.worker, tile.staging
        self.plane, self.rows = (
            staging.sums[product.result],
            rows_of(product.result, tile.segment, tile.units),
        )
        self.shape, self.together = thread_shape(self.rows), block_rows(self.rows)
        lanes, own = self.shape.lanes, self.shape.own
        self.layouts = []
        for along in TIMES_ALONG[: (staging.tile // VERTICES).bit_length()]:
            parts = min(MOST_PARTS, THREADS // (lanes * along))
            words = self.together * (along * VERTICES + SPARE)
            self.layouts.append((along, _fitting(parts, staging, words)))
        chosen = local("layout", "int32", 0, 3)
        for number, (along, parts) in enumerate(self.layouts):
            with when(tile.count > (along * VERTICES // 2 if number else 0)):
                for i, value in enumerate((along, parts, _exponent(along * VERTICES))):
                    put(chosen, i, value)
        self.along, self.parts = fixed("along", chosen[0]), fixed("parts", chosen[1])
        self.exponent = chosen[2]
        self.vertex = fixed("own_vertex", worker.thread % self.along)
        self.down = fixed("own_row", worker.thread // self.along % lanes)
        self.part = fixed("part", worker.thread // (self.along * lanes))
        self.quads = fixed("own_quads", QUADS // self.parts)
        near = fixed("near_row", smaller(self.down, self.together - 1 - (own - 1) * lanes))
        self.own_rows = [(self.down if j < own - 1 else near) + j * lanes for j in range(own)]
        self.operands = [
            fixed("operand", (self.vertex + self.along * i) * (STRIDE // 4)) for i in range(VERTICES)
        ]
        self.sums = local("sums", "float32", T.float32(0.0), own * VERTICES)
        self.held = [local("x", "float32", T.float32(0.0), 4 * VERTICES) for _ in range(2)]

    def add(self, steps: ProductSteps, step: Expr, stage: Expr) -> None:
        """Adds the thread's part of a step; the operands of the next columns are read meanwhile."""
        weights = steps.weights(step, stage)
        begin = let("begin", self.part * self.quads)
        at = let("at", stage // 4)
        if steps.whole():
            with when(self.part < self.parts):
                self._load(0, at, begin)
                with stride_loop("quad", begin, begin + self.quads, 2) as quad:
                    self._load(1, at, quad + 1)
                    self._multiply(0, weights, quad)
                    self._load(0, at, quad + 2)  # behind the last one nobody uses it
                    self._multiply(1, weights, quad + 1)
        else:
            last = smaller(-(-steps.placement.columns // 4) - step * QUADS, begin + self.quads)
            with when(self.part < self.parts), stride_loop("quad", begin, let("last", last), 1) as quad:
                self._load(0, at, quad)
                self._multiply(0, weights, quad)

    def _load(self, into: int, at: Expr, column: Expr) -> None:
        for i, operand in enumerate(self.operands):
            found = self.tile.worker.staging[whole_quad(at + column + operand)]
            T.buffer_store(self.held[into], found, [whole_quad(i)])

    def _multiply(self, x: int, weights: Element, column: Expr) -> None:
        for j, own in enumerate(self.own_rows):
            memory, place = weights(own, column * 4)
            weight = let("weight", memory[whole_quad(place // 4)])
            for i in range(VERTICES):
                to = j * VERTICES + i
                for k in range(4):
                    put(self.sums, to, cuda.fma(lane4(weight, k), self.held[x][4 * i + k], self.sums[to]))

    def to_plane(self) -> None:
        """Writes the sums, of which there is one part."""
        self._each(lambda own, now: self.plane.place(self.row + own, now))

    def to_scratch(self) -> None:
        """Leaves the part's sums in scratch, and adds up those of all parts."""
        worker = self.tile.worker
        wide = let("wide", self.along * VERTICES + SPARE)
        first = let("first_sum", self.part * (self.together * wide))
        worker.synchronize()
        with when(self.part < self.parts):
            self._each(lambda own, now: first + own * wide + now)
        worker.synchronize()
        add_parts(self.tile, self.plane, self.row, self.rows, self.exponent, self.parts)

    def _each(self, place: Callable[[Expr, Expr], Expr]) -> None:
        """Writes every sum to its place: of a row, and of a vertex of the tile."""
        for j in range(self.shape.own):
            own = self.down + j * self.shape.lanes
            with when(_inside(self.row + own, self.rows, own)):
                for i in range(VERTICES):
                    now = let("vertex", self.vertex + self.along * i)
                    put(self.tile.worker.staging, place(own, now), self.sums[j * VERTICES + i])


def _exponent(vertices: int) -> int:
    """Of a power of two."""
    return vertices.bit_length() - 1


def add_parts(tile: UnitTile, plane: Plane, row: Expr, rows: int, exponent: Expr, parts: Expr) -> None:
    """Adds up the sums in scratch into a plane, four vertices a thread at a time.

    exponent: a row there has 2 ** exponent vertices, and SPARE words behind.
    """
    worker, together = tile.worker, block_rows(rows)
    quads = fixed("quads", T.shift_left(T.int32(1), exponent - 2))
    wide = fixed("wide_quads", quads + SPARE // 4)
    size = fixed("part_quads", together * wide)
    with stride_loop("sum", worker.thread, together * quads, THREADS) as item:
        own = fixed("own", T.shift_right(item, exponent - 2))
        vertex = fixed("vertex", (item - own * quads) * 4)
        with when(vertex < tile.count), when(_inside(row + own, rows, own)):
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
        own = -(-block_rows(rows) // (HIGH * warps))
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
    together, wide = block_rows(rows), times * along * VERTICES
    parts = _fitting(shape.others // along, staging, together * (wide + SPARE))
    idle = parts * along < shape.others
    steps = ProductSteps(tile, product, wide, row, together)
    first = fixed("warp_row", worker.warp // shape.others * (shape.own * HIGH))
    vertex = fixed("warp_vertex", worker.warp % along * (times * VERTICES))
    part = fixed("part", worker.warp % shape.others // along)
    sums = warp_sums(worker, shape.own, times)

    def work(step: Expr, stage: Expr) -> None:
        own = -(-(STEP // DEPTH) // parts)
        weights = steps.weights(step, stage)
        begin = let("begin", part * own)
        last: Expr = STEP // DEPTH
        if not steps.whole():
            last = let("last", smaller(steps.placement.columns // DEPTH - step * last, last))
        count = own if steps.whole() and own * parts == last else let("count", smaller(last - begin, own))

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
                lambda column, own: worker.staging[stage + (vertex + own) * STRIDE + column],
            )

    in_steps(worker.synchronize, steps.count, staging.buffers, steps.words, steps.copy, work)
    plane = staging.sums[product.result]
    if parts > 1:
        worker.synchronize()
        begin = let("first_sum", part * (together * (wide + SPARE)))
    for down, across, index in sums.pairs():
        own = let("own", first + down)
        inside = _inside(row + own, rows, own)
        with when(both(inside, part < parts) if idle else inside):
            if parts > 1:
                at = begin + own * (wide + SPARE) + vertex + across
            else:
                at = plane.place(row + own, vertex + across)
            T.buffer_store(worker.staging, sums.pair(index), [pair_at(at)])
    if parts > 1:
        worker.synchronize()
        add_parts(tile, plane, row, rows, _exponent(wide), parts)
