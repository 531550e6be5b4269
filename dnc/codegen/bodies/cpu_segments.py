"""UNIT segments on the CPU: a tile of vertices at a time, each worker with its own units.

In: a segment and the fields of its instruction. Out: the body of the instruction, which sums the products
into scratch memory, runs the cell over (vertex, sixteen units), and leaves the deltas in scratch memory
for the transposed products. What is repeated is made before, for all units, and left there as well. Every
worker has its own scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cpu_products import FORWARD, TRANSPOSED
from dnc.codegen.bodies.cpu_vertices import LoopTarget
from dnc.codegen.bodies.cpu_worker import Worker, elements, ramp
from dnc.codegen.cells import UnitCell, VertexCell, scratch_floats
from dnc.codegen.emit import Expr, either, let, local, loop, put, shift, smaller, stride_loop, when, wide
from dnc.ir.cell import Value
from dnc.ir.plan import VERTEX, Piece, Product, RepeatedAddress, Segment, TransposedProduct
from dnc.ir.repeated import repeated_parts
from dnc.ir.weight_format import BLOCK, LANES, whole_lanes

# Operations whose lanes would have to branch apart.
SCALAR_ONLY = frozenset({"list_max", "list_max_grad"})


@attrs.frozen
class UnitScratch:
    """Parts of the scratch memory, a tile of rows each: sums and deltas, behind operands that are staged from
    `staged` on; in front of these repeated values that stay."""

    sums: dict[Value, int]
    deltas: dict[Value, int]
    left: dict[Value, int]
    staged: int
    floats: int


def weight_step(worker: Worker, parameter: str) -> int:
    """Floats from a column of a weight to the next."""
    return worker.plan.weight_format.strides(worker.plan.program.parameter(parameter).type.shape)[1]


def padded_rows(value: Value) -> int:
    """Rows of a product's result, rounded up to vectors."""
    return whole_lanes(value.tensor.size)


def unit_scratch(worker: Worker, segment: Segment, left: Sequence[Value] = ()) -> UnitScratch:
    """Lays out the scratch memory of a UNIT segment; left: values that stay there, in front of all else."""
    first, of_left = 0, dict[Value, int]()
    for value in left:
        of_left[value] = first
        first += padded_rows(value) * worker.tile
    staged = [sum(_staged_floats(worker, piece) for piece in each.pieces) for each in segment.products]
    at = first + max(staged, default=0)
    sums, deltas = {}, {}
    for product in segment.products:
        sums[product.result] = at
        at += padded_rows(product.result) * worker.tile
    for transposed in segment.transposed:
        if transposed.delta not in deltas:
            deltas[transposed.delta] = at
            at += padded_rows(transposed.delta) * worker.tile
    return UnitScratch(sums, deltas, of_left, first, at)


def _staged_floats(worker: Worker, piece: Piece) -> int:
    """Room for a tile of a piece's rows, if a product cannot read them where they lie."""
    return 0 if worker.access.is_plain(piece.address) else whole_lanes(piece.width) * worker.tile


@attrs.frozen(eq=False)
class UnitTile:
    """The vertices that a UNIT segment works on together, rows first .. first + count of its space, and
    the worker's units begin .. end. back: passes over weights begin at their ends."""

    worker: Worker
    segment: Segment
    scratch: UnitScratch
    first: Expr
    count: Expr
    begin: Expr
    end: Expr
    back: Expr


def unit_segment(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The body of a UNIT segment's instruction."""
    whole, rest = repeated_parts(segment)
    scratch, of_whole = (unit_scratch(worker, part, whole.cell.results) for part in (rest, whole))
    if whole.mapping == VERTEX:
        of_whole = attrs.evolve(of_whole, floats=of_whole.floats + scratch_floats(whole) + LANES)
    values = {each.result for each in segment.products} | {each.delta for each in segment.transposed}
    blocks = [-(-value.tensor.size // BLOCK) for value in values]
    worker.functions.need(
        max(scratch.floats, of_whole.floats), worker.functions.blocks_at + max(blocks, default=0)
    )
    share = let("share", tirx.truncdiv(segment.units + worker.workers - 1, worker.workers))
    begin = let("begin", smaller(worker.rank * share, segment.units))
    end = let("end", smaller(begin + share, segment.units))
    with stride_loop("tile", 0, rows, worker.tile) as done:
        first, count = let("first", row + done), let("count", smaller(rows - done, worker.tile))
        tile = UnitTile(worker, rest, scratch, first, count, begin, end, _turn(worker))
        if segment.repeated:
            tile = _repeat(tile, attrs.evolve(of_whole, deltas=scratch.left), whole)
        for product in rest.products:
            _forward(tile, product)
        _clear_deltas(tile)
        with loop("v", count) as v:
            _cells(tile, v)
        for transposed in segment.transposed:
            _transposed(tile, transposed)


def _repeat(tile: UnitTile, scratch: UnitScratch, whole: Segment) -> UnitTile:
    """Makes what is repeated, for all units; the tile that reads it."""
    worker, left = tile.worker, scratch.left
    begin, end = (tirx.const(number, "int32") for number in (0, whole.units))
    made = attrs.evolve(tile, segment=whole, scratch=scratch, begin=begin, end=end)
    for product in whole.products:
        _forward(made, product)
    with loop("v", tile.count) as v:
        if whole.mapping == VERTEX:
            _scalars(made, v)
        else:
            _cells(made, v)

    def repeated(address: RepeatedAddress, row: Expr) -> Callable[[Expr], Expr]:
        stride = padded_rows(address.value)
        at = let("repeated", wide(row - tile.first) * stride + (left[address.value] + address.offset))
        return lambda i: worker.scratch[shift(at, i)]

    access = attrs.evolve(worker.access, repeated=repeated)
    return attrs.evolve(tile, worker=attrs.evolve(worker, access=access))


def _scalars(tile: UnitTile, v: Expr) -> None:
    """What every worker makes of a vertex's whole vectors; the first one stores it."""
    worker, left = tile.worker, tile.scratch.left
    target = LoopTarget(worker, tile.scratch.staged)
    cell = VertexCell(worker.access, worker.math, target, tile.segment, let("row", tile.first + v))
    cell.compute()
    for value, first in left.items():
        put(worker.scratch, wide(v) * padded_rows(value) + first, cell.scalars[value])
    with when(worker.rank == 0):
        cell.store()


def _turn(worker: Worker) -> Expr:
    """Whether this pass goes backwards: every other one, so that it begins with what is in the cache.

    The direction has no influence on results; other bodies may overwrite the word that keeps it.
    """
    at = worker.functions.direction_at
    back = let("back", tirx.bitwise_and(T.cast(worker.places[at], "int32"), tirx.const(1, "int32")))
    put(worker.places, at, wide(1 - back))
    return back


def _list_blocks(tile: UnitTile, value: Value) -> Expr:
    """Lists the blocks that hold rows of the worker's units, each once; how many."""
    worker, units = tile.worker, tile.segment.units
    gates = value.tensor.size // units
    found, following = local("found", "int32", 0), local("following", "int32", 0)
    with when(tile.begin < tile.end), loop("gate", gates) as gate:
        low = let("low", tirx.truncdiv(gate * units + tile.begin, BLOCK))
        high = let("high", tirx.truncdiv(gate * units + tile.end + (BLOCK - 1), BLOCK))
        with T.serial(T.max(low, following[0]), high) as block:
            put(worker.places, worker.functions.blocks_at + found[0], wide(block))
            put(found, 0, found[0] + 1)
        put(following, 0, high)
    return let("blocks", found[0])


def place_rows(
    worker: Worker, piece: Piece, first: Expr, count: Expr, gathered: int = 0, staging: int = 0
) -> str:
    """Fills `places` from `gathered` on with the positions of a piece's rows; the memory in which they lie.

    staging: where rows that have to be copied go in scratch memory.
    """
    access = worker.access
    if access.is_plain(piece.address):
        with loop("v", count) as v:
            put(worker.places, gathered + v, access.position(piece.address, first + v))
        return "pool"
    width = whole_lanes(piece.width)
    with loop("v", count) as v:
        at = let("staged", wide(v) * width + staging)
        put(worker.places, gathered + v, at)
        read = access.reader(piece.address, let("row", first + v))
        elements(piece.width, lambda i: put(worker.scratch, shift(at, i), read(i)))
    return "scratch"


def _forward(tile: UnitTile, product: Product) -> None:
    worker, rows = tile.worker, padded_rows(product.result)
    numbers = [tirx.const(n, "int32") for n in (rows, weight_step(worker, product.parameter))]
    blocks = _list_blocks(tile, product.result)
    weight = worker.access.weights(product.parameter, product.select, tile.first)
    sources, staging = [], tile.scratch.staged
    for number, piece in enumerate(product.pieces):
        source = place_rows(worker, piece, tile.first, tile.count, number * worker.tile, staging)
        staging += _staged_floats(worker, piece)
        sources.append(source)
    with loop("listed", blocks) as listed:
        turned = T.Select(tile.back != 0, blocks - 1 - listed, listed)
        block = let("block", T.cast(worker.places[worker.functions.blocks_at + turned], "int32"))
        column = 0
        for number, (source, piece) in enumerate(zip(sources, product.pieces, strict=True)):
            worker.call(
                f"{FORWARD}_{source}",
                weight,
                *numbers,
                block,
                *(tirx.const(n, "int32") for n in (number * worker.tile, column, piece.width)),
                tile.count,
                tirx.const(tile.scratch.sums[product.result], "int64"),
                tirx.const(rows, "int32"),
                tirx.const(int(column == 0), "int32"),
            )
            column += piece.width


def _clear_deltas(tile: UnitTile) -> None:
    """Zeros in the deltas, where other workers' units or padding would be read."""
    for value, at in tile.scratch.deltas.items():
        stride, own = padded_rows(value), tile.end - tile.begin
        partly = T.Select(own < tile.segment.units, 1, int(stride != value.tensor.size))
        partly = let("partly", partly)
        with when(partly != 0), loop("vector", tile.count * (stride // LANES)) as vector:
            put(tile.worker.scratch, ramp(wide(vector) * LANES + at), T.float32(0.0))


def _cells(tile: UnitTile, v: Expr) -> None:
    """The cells of a vertex: sixteen units at a time, or one after the other."""
    worker, segment, scratch = tile.worker, tile.segment, tile.scratch
    row = let("row", tile.first + v)

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
        elements(tile.end, cell, tile.begin)
    else:
        with T.serial(tile.begin, tile.end) as unit:
            cell(unit)


def _transposed(tile: UnitTile, product: TransposedProduct) -> None:
    worker, rows = tile.worker, padded_rows(product.delta)
    numbers = [tirx.const(n, "int32") for n in (rows, weight_step(worker, product.parameter))]
    blocks = _list_blocks(tile, product.delta)
    weight = worker.access.weights(product.parameter, product.select, tile.first)

    def multiply(stores: Sequence[tuple[str, int, int, int]]) -> None:
        for buffer, offset, low, high in stores:
            with loop("v", tile.count) as v:
                put(worker.places, v, worker.access.record(buffer, tile.first + v) + offset)
            worker.call(
                TRANSPOSED,
                weight,
                *numbers,
                blocks,
                *(tirx.const(n, "int32") for n in (low, high - low)),
                tile.count,
                tirx.const(tile.scratch.deltas[product.delta], "int64"),
                tirx.const(rows, "int32"),
                tile.back,
            )

    either(tile.back != 0, lambda: multiply(product.stores[::-1]), lambda: multiply(product.stores))
