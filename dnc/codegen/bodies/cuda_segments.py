"""Segments on CUDA: a tile of vertices at a time (UNIT), or a warp per vertex (VERTEX).

In: a segment and the fields of its instruction. Out: the body of the instruction. A UNIT segment
stages the operands of its products, sums its rows into staging, runs the cell with a thread per
(vertex, unit), and leaves the deltas in staging for the transposed products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_products import (
    COLUMN_GROUP,
    NARROW,
    WIDE,
    forward,
    padded_columns,
    stage_operand,
    transposed,
    transposed_step,
)
from dnc.codegen.bodies.cuda_worker import CHUNK, LANES, THREADS, WARPS, PlanTooLarge, Worker, share
from dnc.codegen.cells import ANY_SIZE, Element, UnitCell, VertexCell, scratch_floats, tensor
from dnc.codegen.emit import (
    Expr,
    any_of,
    both,
    either,
    fixed,
    let,
    local,
    loop,
    put,
    smaller,
    stride_loop,
    when,
)
from dnc.ir.cell import Value
from dnc.ir.plan import Product, Segment, TransposedProduct

LOWEST = -3.4028234663852886e38  # of float32


@attrs.frozen
class UnitStaging:
    """First words of the parts of the staging area: operands (also scratch), sums, deltas."""

    operand: int
    sums: dict[Value, int]
    deltas: dict[Value, int]
    words: int


def unit_staging(worker: Worker, segment: Segment, tile: int) -> UnitStaging:
    """Lays out the staging area of a UNIT segment for tiles of `tile` vertices."""
    operand = 0
    for product in segment.products:
        columns = sum(piece.width for piece in product.pieces)
        operand = max(operand, tile * padded_columns(columns))
    for turned in segment.transposed:
        group = min(COLUMN_GROUP * CHUNK, padded_columns(turned.columns))
        operand = max(operand, WARPS * transposed_step(turned.columns, tile) * group)
    at, sums, deltas = operand, {}, {}
    units = share(segment.units, worker.workers)
    for product in segment.products:
        sums[product.result] = at
        at += tensor(product.result).size // segment.units * units * tile
    for turned in segment.transposed:
        if turned.delta not in deltas:
            deltas[turned.delta] = at
            at += tensor(turned.delta).size // segment.units * units * tile
    return UnitStaging(operand, sums, deltas, at)


def choose_tile(worker: Worker, segment: Segment) -> int:
    """Vertices of a tile: as many as the staging area takes, up to the plan's tile."""
    assert worker.plan.tiling is not None
    tile = worker.plan.tiling.tile
    while tile > 1 and unit_staging(worker, segment, tile).words > worker.staging_words:
        tile //= 2
    worker.stage(unit_staging(worker, segment, tile).words)
    return tile


def unit_segment(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The body of a UNIT segment's instruction."""
    tile = choose_tile(worker, segment)
    staging = unit_staging(worker, segment, tile)
    units = share(segment.units, worker.workers)
    with stride_loop("tile", 0, rows, tile) as begin:
        first = let("first", row + begin)
        count = let("count", smaller(rows - begin, tile))
        _products(worker, segment, staging, first, count, tile)
        with stride_loop("cell", worker.thread, count * units, THREADS) as cell:
            vertex = fixed("vertex", cell // units)
            own = fixed("own", cell - vertex * units)
            unit = fixed("unit", worker.rank * units + own)
            _cell(worker, segment, staging, first, vertex, own, unit, units, tile)
        if segment.transposed:
            _clear_deltas(worker, segment, staging, count, units, tile)
        worker.synchronize()
        for product in segment.transposed:
            _transposed(worker, segment, product, staging, first, count, tile)


def _products(
    worker: Worker, segment: Segment, staging: UnitStaging, first: Expr, count: Expr, tile: int
) -> None:
    """Every product of the segment; products of one operand share its staging."""
    staged: tuple[Any, ...] | None = None
    for product in segment.products:
        if product.pieces != staged:
            if staged is not None:
                worker.synchronize()
            stage_operand(worker, product.pieces, first, count, tile, 0)
            worker.synchronize()
            staged = product.pieces
        _forward(worker, segment, product, staging.sums[product.result], first, count, tile)
    if segment.products:
        worker.synchronize()


def _forward(
    worker: Worker, segment: Segment, product: Product, sums: int, first: Expr, count: Expr, tile: int
) -> None:
    placement = worker.placement(product.parameter, segment.units)
    stride = padded_columns(placement.columns)
    at = worker.access.weights(product.parameter, product.select, first)

    def by(vertices: int) -> Callable[[], None]:
        def body() -> None:
            with stride_loop("vertex", 0, count, vertices) as vertex:
                forward(worker, placement, at, vertices, vertex * stride, sums, tile, vertex)

        return body

    if tile >= WIDE:
        either(count <= NARROW, by(1), by(WIDE))
    else:
        by(1)()


def _cell(
    worker: Worker,
    segment: Segment,
    staging: UnitStaging,
    first: Expr,
    vertex: Expr,
    own: Expr,
    unit: Expr,
    units: int,
    tile: int,
) -> None:
    def product(result: Value, gate: int) -> Expr:
        at = staging.sums[result] + (gate * units + own) * tile + vertex
        return let("pre", worker.staging[at])

    def body() -> None:
        cell = UnitCell(worker.access, worker.math, segment, fixed("row", first + vertex), unit, product)
        cell.run()
        cell.store()
        for value, at in staging.deltas.items():
            for gate, delta in enumerate(cell.values[value]):
                put(worker.staging, at + (gate * units + own) * tile + vertex, delta)

    with when(unit < segment.units):
        body()


def _clear_deltas(
    worker: Worker, segment: Segment, staging: UnitStaging, count: Expr, units: int, tile: int
) -> None:
    """Zeros where a unit or a vertex of the tile does not exist."""
    for value, at in staging.deltas.items():
        words = tensor(value).size // segment.units * units * tile
        with stride_loop("delta", worker.thread, words, THREADS) as item:
            unit = worker.rank * units + item // tile % units
            with when(any_of(item % tile >= count, unit >= segment.units)):
                put(worker.staging, at + item, T.float32(0.0))


def _transposed(
    worker: Worker,
    segment: Segment,
    product: TransposedProduct,
    staging: UnitStaging,
    first: Expr,
    count: Expr,
    tile: int,
) -> None:
    placement = worker.placement(product.parameter, segment.units)

    def store(vertex: Expr, column: Expr, value: Expr) -> None:
        for buffer, offset, low, high in product.stores:
            with when(both(column >= low, column < high)):
                at = worker.access.record(buffer, first + vertex) + (offset - low)
                put(worker.pool, at + column, value)

    weights_at = worker.access.weights(product.parameter, product.select, first)
    transposed(worker, placement, weights_at, staging.deltas[product.delta], tile, count, 0, store)


# ---- vertices: a warp each -------------------------------------------------------------------------


@attrs.define(eq=False)
class WarpTarget:
    """The lanes of a warp share the loops of one row; scratch lies in the staging area."""

    worker: Worker
    base: Any
    used: int = 0

    def each(self, extent: int, body: Callable[[Expr], None]) -> None:
        """Lane l runs l, l + 32, ..."""
        if extent <= LANES:
            with when(self.worker.lane < extent):
                body(self.worker.lane)
        else:
            with loop("part", -(-extent // LANES)) as part:
                index = let("element", part * LANES + self.worker.lane)
                if extent % LANES:
                    with when(index < extent):
                        body(index)
                else:
                    body(index)
        self.synchronize()

    def _reduce(self, extent: int, term: Element, start: float, join: Callable[[Expr, Expr], Expr]) -> Expr:
        total = local("reduced", "float32", T.float32(start))
        with loop("part", -(-extent // LANES)) as part:
            index = let("element", part * LANES + self.worker.lane)
            with when(index < extent):
                put(total, 0, join(total[0], term(index)))
        for mask in (16, 8, 4, 2, 1):
            put(total, 0, join(total[0], cuda.shuffle_xor(total[0], mask)))
        return let("all", total[0])

    def sum(self, extent: int, term: Element) -> Expr:
        """Lanes take every 32nd term, then add in a fixed order."""
        return self._reduce(extent, term, 0.0, lambda a, b: a + b)

    def sums(self, count: int, extent: int, term: Callable[[int, Expr], Expr]) -> list[Expr]:
        """All sums in one pass, so that their loads are under way together."""
        total = local("sums", "float32", T.float32(0.0), count)
        with loop("part", -(-extent // LANES), unroll=2) as part:
            index = let("element", part * LANES + self.worker.lane)
            with when(index < extent):
                for number, value in enumerate([let("term", term(n, index)) for n in range(count)]):
                    put(total, number, total[number] + value)
        for mask in (16, 8, 4, 2, 1):
            for number in range(count):
                put(total, number, total[number] + cuda.shuffle_xor(total[number], mask))
        return [let("all", total[number]) for number in range(count)]

    def max(self, extent: int, term: Element) -> Expr:
        """The largest term."""
        return self._reduce(extent, term, LOWEST, lambda a, b: T.max(a, b))

    def argmax(self, extent: int, term: Element) -> Expr:
        """The first index of the largest term."""
        top = self.max(extent, term)
        best = local("best", "int32", extent)
        with loop("part", -(-extent // LANES)) as part:
            index = let("element", part * LANES + self.worker.lane)
            with when(index < extent), when(both(term(index) == top, index < best[0])):
                put(best, 0, index)
        for mask in (16, 8, 4, 2, 1):
            put(best, 0, T.min(best[0], cuda.shuffle_xor(best[0], mask)))
        return let("argmax", best[0])

    def once(self, body: Callable[[], None]) -> None:
        """Lane 0."""
        with when(self.worker.lane == 0):
            body()

    def scratch(self, size: int) -> tuple[Any, Expr]:
        """The next `size` words of the warp's part."""
        first = self.base + self.used
        self.used += size
        return self.worker.staging, first

    def synchronize(self) -> None:
        """Warp barrier: orders shared memory within the warp."""
        T.evaluate(T.cuda.warp_sync())


WIDEST_KEPT = 512  # elements of a value that is kept, where the whole row does not fit


def vertex_segment(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The body of a VERTEX segment's instruction: warps of all workers take rows in turn."""
    widest = ANY_SIZE
    floats = max(scratch_floats(segment), 1)
    if floats > worker.staging_words:  # the logits of a large vocabulary
        widest = WIDEST_KEPT
        floats = max(scratch_floats(segment, widest), 1)
    warps = min(WARPS, worker.staging_words // floats)
    if warps == 0:
        raise PlanTooLarge(f"{segment.name}: {floats * 4} bytes of scratch for one vertex")
    worker.stage(warps * floats)
    turn = let("turn", worker.rank * warps + worker.warp)
    with when(worker.warp < warps), stride_loop("row", turn, rows, worker.workers * warps) as index:
        target = WarpTarget(worker, let("scratch", worker.warp * floats))
        vertex = let("vertex", row + index)
        VertexCell(worker.access, worker.math, target, segment, vertex, widest).run()
        target.synchronize()
