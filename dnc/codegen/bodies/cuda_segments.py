"""Segments on CUDA: a tile of vertices at a time (UNIT), or a warp per vertex (VERTEX).

In: a segment and the fields of its instruction. Out: the body of the instruction. A UNIT segment
stages the operands of its products, sums its rows into staging, runs the cell with a thread per
(vertex, unit), and leaves the deltas in staging for the transposed products.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_operands import padded_columns, stage_operand
from dnc.codegen.bodies.cuda_products import (
    FEW,
    NARROW,
    WIDE,
    forward,
    pitch,
    scratch_words,
    transposed,
)
from dnc.codegen.bodies.cuda_wide import (
    Staging,
    give_vectors,
    inside_or_zeros,
    quad_cells,
    wide_segment,
    wide_staging,
)
from dnc.codegen.bodies.cuda_worker import LANES, THREADS, WARPS, PlanTooLarge, Worker, share
from dnc.codegen.cells import ANY_SIZE, Element, UnitCell, VertexCell, scratch_floats, tensor
from dnc.codegen.emit import (
    Expr,
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
from dnc.codegen.quads import fits_quads
from dnc.ir.cell import Value
from dnc.ir.plan import GatherAddress, Product, Segment

LOWEST = -3.4028234663852886e38  # of float32


@attrs.frozen
class UnitStaging:
    """First words of the parts of the staging area: operands (also scratch), sums, deltas.

    buffers: of the scratch of transposed products.
    """

    tile: int
    buffers: int
    operand: int
    sums: dict[Value, int]
    deltas: dict[Value, int]
    words: int


def unit_staging(worker: Worker, segment: Segment, tile: int, buffers: int) -> UnitStaging:
    """Lays out the staging area of a UNIT segment for tiles of `tile` vertices."""
    operand = 0
    for product in segment.products:
        columns = sum(piece.width for piece in product.pieces)
        operand = max(operand, tile * padded_columns(columns))
    for turned in segment.transposed:
        operand = max(operand, scratch_words(turned.columns, tile, buffers))
    at, sums, deltas = operand, {}, {}
    units = share(segment.units, worker.workers)
    for product in segment.products:
        sums[product.result] = at
        at += tensor(product.result).size // segment.units * units * pitch(tile)
    for turned in segment.transposed:
        if turned.delta not in deltas:
            deltas[turned.delta] = at
            at += tensor(turned.delta).size // segment.units * units * pitch(tile)
    return UnitStaging(tile, buffers, operand, sums, deltas, at)


def choose_staging(worker: Worker, segment: Segment) -> UnitStaging:
    """Tiles as large as the staging area takes, up to the plan's tile."""
    assert worker.plan.tiling is not None
    tile = worker.plan.tiling.tile
    while True:
        for buffers in (2, 1) if segment.transposed else (1,):
            found = unit_staging(worker, segment, tile, buffers)
            if found.words <= worker.staging_words or (tile == buffers == 1):
                worker.stage(found.words)
                return found
        tile //= 2


def unit_segment(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The body of a UNIT segment's instruction."""
    wide = None if worker.crowded else wide_staging(worker, segment)
    if wide is None:
        narrow_segment(worker, segment, row, rows)
    elif worker.few:
        either(
            rows <= FEW,
            lambda: narrow_segment(worker, segment, row, rows),
            lambda: wide_segment(worker, segment, wide, row, rows),
        )
    else:
        wide_segment(worker, segment, wide, row, rows)


def narrow_segment(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The same with all lanes of a warp on one row of the weights, which may be in registers."""
    staging = choose_staging(worker, segment)
    tile = staging.tile
    units = share(segment.units, worker.workers)
    with stride_loop("tile", 0, rows, tile) as begin:
        first = let("first", row + begin)
        count = let("count", smaller(rows - begin, tile))
        early = _Early(worker, segment, staging, first, count, units)
        _products(worker, segment, staging, first, count)
        single = partial(_cells, worker, segment, staging, first, count, units, early)
        if fits_quads(segment, units) and tile % 4 == 0 and tile * units > THREADS:
            parts = dict.fromkeys(staging.sums, 1)
            layout = Staging(tile, staging.sums, parts, staging.deltas, staging.words)
            quads = partial(quad_cells, worker, segment, layout, first, count, units)
            either(count * units <= THREADS, single, quads)
        else:
            single()
        worker.synchronize()
        for product in segment.transposed:
            placement = worker.placement(product.parameter, segment.units)
            deltas = staging.deltas[product.delta]
            at = worker.access.weights(product.parameter, product.select, first)
            transposed(worker, product, placement, at, deltas, tile, first, count, staging.buffers)


def _products(worker: Worker, segment: Segment, staging: UnitStaging, first: Expr, count: Expr) -> None:
    """Every product of the segment; those of one operand share its staging."""
    group = WIDE if staging.tile >= WIDE else 1
    staged: tuple[Any, ...] | None = None
    for product in segment.products:
        if product.pieces != staged:
            if staged is not None:
                worker.synchronize()
            stage_operand(worker, product.pieces, first, count, group, 0)
            worker.synchronize()
            staged = product.pieces
        _forward(worker, segment, product, staging, first, count, group)
    if segment.products:
        worker.synchronize()


def _forward(
    worker: Worker,
    segment: Segment,
    product: Product,
    staging: UnitStaging,
    first: Expr,
    count: Expr,
    group: int,
) -> None:
    placement = worker.placement(product.parameter, segment.units)
    stride, sums = padded_columns(placement.columns), staging.sums[product.result]

    weights_at = worker.access.weights(product.parameter, product.select, first)

    def by(vertices: int) -> Callable[[], None]:
        def body() -> None:
            with stride_loop("vertex", 0, count, vertices) as vertex:
                forward(worker, placement, weights_at, vertices, vertex * stride, sums, staging.tile, vertex)

        return body

    if group > 1:
        either(count <= NARROW, by(1), by(group))
    else:
        by(1)()


class _Early:
    """What the cells of one or two vertices load through lists: under way during the products.

    All loads would take more registers than there are. A thread without a cell loads what one with it
    does, and throws it away.
    """

    def __init__(
        self, worker: Worker, segment: Segment, staging: UnitStaging, first: Expr, count: Expr, units: int
    ) -> None:
        self.held: dict[Value, Any] = {}
        gathered = [load for load in segment.loads if isinstance(load.address, GatherAddress)]
        if not segment.products or NARROW * units > THREADS:
            return
        for load in gathered:
            gates = max(1, tensor(load.value).size // segment.units)
            self.held[load.value] = local("early", "float32", T.float32(0.0), gates)
        self.few = count <= NARROW
        with when(self.few):
            item = let("item", smaller(worker.thread, count * units - 1))
            own = let("own", item % units)
            cell = _unit_cell(worker, segment, staging, first, let("vertex", item // units), own, units)
            if units * worker.workers > segment.units:
                cell = attrs.evolve(cell, unit=let("near", smaller(cell.unit, segment.units - 1)), values={})
            self._load(cell)

    def _load(self, cell: UnitCell) -> None:
        for load in cell.segment.loads:
            if load.value in self.held:
                for gate, found in enumerate(cell.load(load)):
                    put(self.held[load.value], gate, found)

    def give(self, cell: UnitCell) -> None:
        """Loads what is not there yet, and hands it to the cell."""
        if self.held:
            with when(tirx.Not(self.few)):
                self._load(cell)
            for value, held in self.held.items():
                cell.values[value] = [held[gate] for gate in range(cell.gates(value))]


def _cells(
    worker: Worker,
    segment: Segment,
    staging: UnitStaging,
    first: Expr,
    count: Expr,
    units: int,
    early: _Early,
) -> None:
    """Cells with a thread per vertex and unit."""
    with stride_loop("cell", worker.thread, count * units, THREADS) as item:
        vertex = fixed("vertex", item // units)
        own = fixed("own", item - vertex * units)
        cell = _unit_cell(worker, segment, staging, first, vertex, own, units)
        _finish(worker, segment, staging, cell, vertex, own, units, early)


def _unit_cell(
    worker: Worker,
    segment: Segment,
    staging: UnitStaging,
    first: Expr,
    vertex: Expr,
    own: Expr,
    units: int,
) -> UnitCell:
    """The cell of a vertex of the tile and one of the worker's own units."""

    def product(result: Value, gate: int) -> Expr:
        at = staging.sums[result] + (gate * units + own) * pitch(staging.tile) + vertex
        return let("pre", worker.staging[at])

    unit = fixed("unit", worker.rank * units + own)
    cell = UnitCell(worker.access, worker.math, segment, fixed("row", first + vertex), unit, product)
    give_vectors(worker, cell, own)
    return cell


def _finish(
    worker: Worker,
    segment: Segment,
    staging: UnitStaging,
    cell: UnitCell,
    vertex: Expr,
    own: Expr,
    units: int,
    early: _Early,
) -> None:
    """Computes and stores a cell, and stages its deltas."""
    row_words = pitch(staging.tile)

    def body() -> None:
        early.give(cell)
        cell.run()
        cell.store()
        for value, at in staging.deltas.items():
            for gate, delta in enumerate(cell.values[value]):
                put(worker.staging, at + (gate * units + own) * row_words + vertex, delta)

    inside_or_zeros(worker, segment, units, cell.unit, body, staging.deltas, own, 1, row_words, vertex)


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
