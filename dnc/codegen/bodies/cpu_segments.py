"""Segments on the CPU: tiles of vertices (UNIT), or a vertex at a time (VERTEX).

In: a segment and the fields of its instruction. Out: the body of the instruction. A UNIT segment
sums its products into scratch memory, runs the cell over (vertex, sixteen units), and leaves the
deltas in scratch memory for the transposed products. Every worker has its own scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cpu_products import BLOCKS, FORWARD, TRANSPOSED
from dnc.codegen.bodies.cpu_worker import TILE, Worker, elements, ramp
from dnc.codegen.cells import Element, UnitCell, VertexCell, scratch_floats, tensor
from dnc.codegen.emit import Expr, let, local, loop, put, shift, smaller, stride_loop, when, wide
from dnc.ir.cell import Value
from dnc.ir.plan import Piece, Product, Segment, TransposedProduct, padded
from dnc.ir.weight_format import LANES, PANEL, PackedLayout

# Operations whose lanes would have to branch apart.
SCALAR_ONLY = frozenset({"list_max", "list_max_grad"})


@attrs.frozen
class UnitScratch:
    """Parts of the scratch memory: staged operands, sums and deltas, TILE rows each."""

    operand: int
    sums: dict[Value, int]
    deltas: dict[Value, int]
    floats: int


def layout_of(worker: Worker, parameter: str) -> PackedLayout:
    """The panels of a weight."""
    shape = worker.plan.program.parameter(parameter).type.shape
    return worker.plan.weight_format.layout(shape)


def padded_rows(value: Value) -> int:
    """Rows of a product's result, rounded up to vectors."""
    return -(-tensor(value).size // LANES) * LANES


def unit_scratch(worker: Worker, segment: Segment) -> UnitScratch:
    """Lays out the scratch memory of a UNIT segment."""
    pieces = [piece for product in segment.products for piece in product.pieces]
    staged = [padded(piece.width) for piece in pieces if not worker.access.is_plain(piece.address)]
    at = -(-max(staged, default=0) // LANES) * LANES * TILE
    sums, deltas = {}, {}
    for product in segment.products:
        sums[product.result] = at
        at += padded_rows(product.result) * TILE
    for transposed in segment.transposed:
        if transposed.delta not in deltas:
            deltas[transposed.delta] = at
            at += padded_rows(transposed.delta) * TILE
    return UnitScratch(0, sums, deltas, at)


def unit_segment(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The body of a UNIT segment's instruction."""
    scratch = unit_scratch(worker, segment)
    used = [p.parameter for p in segment.products] + [p.parameter for p in segment.transposed]
    most = [layout_of(worker, parameter).num_blocks for parameter in used]
    worker.functions.need(scratch.floats, BLOCKS + max(most, default=0))
    share = let("share", tirx.truncdiv(segment.units + worker.workers - 1, worker.workers))
    begin = let("begin", smaller(worker.rank * share, segment.units))
    end = let("end", smaller(begin + share, segment.units))
    with stride_loop("tile", 0, rows, TILE) as done:
        first, count = let("first", row + done), let("count", smaller(rows - done, TILE))
        for product in segment.products:
            _forward(worker, segment, scratch, product, first, count, begin, end)
        _clear_deltas(worker, segment, scratch, count, begin, end)
        with loop("v", count) as v:
            _cells(worker, segment, scratch, v, let("row", first + v), begin, end)
        for transposed in segment.transposed:
            _transposed(worker, segment, scratch, transposed, first, count, begin, end)


def _list_blocks(worker: Worker, segment: Segment, value: Value, begin: Expr, end: Expr) -> Expr:
    """Lists the blocks that hold rows of the worker's units, each once; how many."""
    gates = tensor(value).size // segment.units
    found, following = local("found", "int32", 0), local("following", "int32", 0)
    with when(begin < end), loop("gate", gates) as gate:
        low = let("low", tirx.truncdiv(gate * segment.units + begin, PANEL))
        high = let("high", tirx.truncdiv(gate * segment.units + end + (PANEL - 1), PANEL))
        with T.serial(T.max(low, following[0]), high) as block:
            put(worker.places, BLOCKS + found[0], wide(block))
            put(found, 0, found[0] + 1)
        put(following, 0, high)
    return let("blocks", found[0])


def place_rows(worker: Worker, piece: Piece, first: Expr, count: Expr) -> str:
    """Fills `places` with the positions of a piece's rows; the memory in which they lie."""
    access = worker.access
    if access.is_plain(piece.address):
        with loop("v", count) as v:
            put(worker.places, v, access.position(piece.address, first + v))
        return "pool"
    width = -(-piece.width // LANES) * LANES
    with loop("v", count) as v:
        at = let("staged", wide(v) * width)
        put(worker.places, v, at)
        read = access.reader(piece.address, let("row", first + v))
        elements(piece.width, lambda i: put(worker.scratch, shift(at, i), read(i)))
    return "scratch"


def _forward(
    worker: Worker,
    segment: Segment,
    scratch: UnitScratch,
    product: Product,
    first: Expr,
    count: Expr,
    begin: Expr,
    end: Expr,
) -> None:
    layout = layout_of(worker, product.parameter)
    blocks = _list_blocks(worker, segment, product.result, begin, end)
    weight = worker.access.weights(product.parameter, product.select, first)
    column = 0
    for piece in product.pieces:
        memory = place_rows(worker, piece, first, count)
        worker.call(
            f"{FORWARD}_{memory}",
            weight,
            *(tirx.const(n, "int32") for n in (layout.padded_rows, layout.columns)),
            blocks,
            *(tirx.const(n, "int32") for n in (column, piece.width)),
            count,
            tirx.const(scratch.sums[product.result], "int64"),
            tirx.const(layout.padded_rows, "int32"),
            tirx.const(int(column == 0), "int32"),
        )
        column += piece.width


def _clear_deltas(
    worker: Worker, segment: Segment, scratch: UnitScratch, count: Expr, begin: Expr, end: Expr
) -> None:
    """Zeros in the deltas, where other workers' units or padding would be read."""
    for value, at in scratch.deltas.items():
        stride = padded_rows(value)
        partly = let("partly", T.Select(end - begin < segment.units, 1, int(stride != tensor(value).size)))
        with when(partly != 0), loop("vector", count * (stride // LANES)) as vector:
            put(worker.scratch, ramp(wide(vector) * LANES + at), T.float32(0.0))


def _cells(
    worker: Worker, segment: Segment, scratch: UnitScratch, v: Expr, row: Expr, begin: Expr, end: Expr
) -> None:
    def cell(unit: Expr) -> None:
        def product(result: Value, gate: int) -> Expr:
            at = wide(v) * padded_rows(result) + (scratch.sums[result] + gate * segment.units)
            return let("pre", worker.scratch[shift(at, unit)])

        evaluated = UnitCell(worker.access, worker.math, segment, row, unit, product)
        evaluated.run()
        evaluated.store()
        for value, at in scratch.deltas.items():
            for gate, delta in enumerate(evaluated.values[value]):
                place = wide(v) * padded_rows(value) + (at + gate * segment.units)
                put(worker.scratch, shift(place, unit), delta)

    if segment.units >= LANES and not any(op.opcode in SCALAR_ONLY for op in segment.cell.ops):
        elements(end, cell, begin)
    else:
        with T.serial(begin, end) as unit:
            cell(unit)


def _transposed(
    worker: Worker,
    segment: Segment,
    scratch: UnitScratch,
    product: TransposedProduct,
    first: Expr,
    count: Expr,
    begin: Expr,
    end: Expr,
) -> None:
    layout = layout_of(worker, product.parameter)
    blocks = _list_blocks(worker, segment, product.delta, begin, end)
    weight = worker.access.weights(product.parameter, product.select, first)
    for buffer, offset, low, high in product.stores:
        with loop("v", count) as v:
            put(worker.places, v, worker.access.record(buffer, first + v) + offset)
        worker.call(
            TRANSPOSED,
            weight,
            *(tirx.const(n, "int32") for n in (layout.padded_rows, layout.columns)),
            blocks,
            *(tirx.const(n, "int32") for n in (low, high - low)),
            count,
            tirx.const(scratch.deltas[product.delta], "int64"),
            tirx.const(padded_rows(product.delta), "int32"),
        )


# ---- vertices ------------------------------------------------------------------------------------


@attrs.define(eq=False)
class LoopTarget:
    """One lane: plain loops; scratch lies in the worker's own memory."""

    worker: Worker
    used: int = 0

    def each(self, extent: int, body: Callable[[Expr], None]) -> None:
        """One element after the other."""
        with loop("element", extent, unroll=None) as index:
            body(index)

    def _reduce(self, extent: int, term: Element, start: float, join: Callable[[Expr, Expr], Expr]) -> Expr:
        found = local("reduced", "float32", T.float32(start))
        with loop("element", extent, unroll=None) as index:
            put(found, 0, join(found[0], term(index)))
        return let("all", found[0])

    def sum(self, extent: int, term: Element) -> Expr:
        """The terms in order."""
        return self._reduce(extent, term, 0.0, lambda a, b: a + b)

    def sums(self, count: int, extent: int, term: Callable[[int, Expr], Expr]) -> list[Expr]:
        """Sum by sum."""
        return [self.sum(extent, partial(term, number)) for number in range(count)]

    def max(self, extent: int, term: Element) -> Expr:
        """The largest term."""
        return self._reduce(extent, term, -3.4e38, lambda a, b: T.max(a, b))

    def argmax(self, extent: int, term: Element) -> Expr:
        """The first index of the largest term."""
        best, at = local("best", "float32", term(0)), local("at", "int32", 0)
        with T.serial(1, extent) as index:
            value = let("value", term(index))
            with when(value > best[0]):
                put(best, 0, value)
                put(at, 0, index)
        return let("argmax", at[0])

    def once(self, body: Callable[[], None]) -> None:
        """There is one lane."""
        body()

    def scratch(self, size: int) -> tuple[Any, Expr]:
        """The next `size` floats."""
        first = self.used
        self.used += size
        return self.worker.scratch, first

    def synchronize(self) -> None:
        """Nothing to wait for."""


def vertex_segment(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The body of a VERTEX segment's instruction: workers take even shares of the rows."""
    worker.functions.need(scratch_floats(segment) + LANES)
    share = let("share", tirx.truncdiv(rows + worker.workers - 1, worker.workers))
    begin = let("begin", smaller(worker.rank * share, rows))
    with T.serial(begin, smaller(begin + share, rows)) as index:
        VertexCell(worker.access, worker.math, LoopTarget(worker), segment, let("vertex", row + index)).run()
