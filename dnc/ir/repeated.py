"""Segments with values that every worker makes in whole: their two parts.

In: a segment. Out: what is repeated, and the rest, which reads it; each a segment of its own, for emitters
and the reference VM to treat like any other. Guaranteed: the repeated part leaves nothing in memory but
scalars that others read later.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dnc.ir.cell import Cell, Op, Value
from dnc.ir.plan import VERTEX, Load, Product, RepeatedAddress, Segment


def repeated_parts(segment: Segment) -> tuple[Segment, Segment]:
    """What every worker makes in whole, with the values that the rest reads as its results; and the rest,
    in which these are loads and pieces of operands.

    Scalars that vectors are reduced to are made vertex by vertex, and stored by one worker. What they are
    made of by units the rest works out once more, for the worker's own.
    """
    repeated = set(segment.repeated)
    if not repeated:
        return _part(_bare(segment), [], (), (), ()), segment
    if all(not value.tensor.shape for value in repeated):
        return _scalars(segment, repeated)
    first_ops = [op for op in segment.cell.ops if op.result in repeated]
    rest_ops = [op for op in segment.cell.ops if op.result not in repeated]
    first_products = tuple(product for product in segment.products if product.result in repeated)
    rest_products = tuple(product for product in segment.products if product.result not in repeated)
    read = {value for op in rest_ops for value in op.operands} | set(segment.cell.results)
    pieces = (piece.address for product in rest_products for piece in product.pieces)
    operands = {address.value for address in pieces if isinstance(address, RepeatedAddress)}
    loads = tuple(Load(value, RepeatedAddress(value)) for value in segment.repeated if value in read)
    left = tuple(value for value in segment.repeated if value in read | operands)
    return (
        _part(_bare(segment), first_ops, first_products, (), left),
        _part(segment, rest_ops, rest_products, loads, segment.cell.results),
    )


def _scalars(segment: Segment, scalars: set[Value]) -> tuple[Segment, Segment]:
    """The same of a segment with scalars that every worker makes: all that these take, and all else."""
    stores = tuple(store for store in segment.stores if store.value in scalars)
    others = tuple(store for store in segment.stores if store.value not in scalars)
    results = tuple(value for value in segment.cell.results if value not in scalars)
    first_ops = _behind(segment.cell.ops, scalars, set())
    rest_ops = _behind(segment.cell.ops, set(results), scalars)
    read = {value for op in rest_ops for value in op.operands}
    left = tuple(value for value in segment.repeated if value in read)
    loads = tuple(Load(value, RepeatedAddress(value)) for value in left)
    first = attrs.evolve(_bare(segment), mapping=VERTEX, units=0, stores=stores)
    stored = tuple(store.value for store in stores if store.value not in left)
    return (
        _part(first, first_ops, (), (), (*left, *stored)),
        _part(attrs.evolve(segment, stores=others), rest_ops, segment.products, loads, results),
    )


def _behind(ops: Sequence[Op], wanted: set[Value], made: set[Value]) -> list[Op]:
    """The operations that make what is wanted, but for what is made elsewhere."""
    found, wanted = list[Op](), wanted - made
    for op in reversed(ops):
        if op.result in wanted:
            found.append(op)
            wanted |= set(op.operands) - made
    return found[::-1]


def _bare(segment: Segment) -> Segment:
    """A segment that leaves nothing in memory."""
    return attrs.evolve(segment, stores=(), transposed=())


def staged_operand(segment: Segment, load: Load) -> int | None:
    """The first element of a load in the operand of the last product, if it is a piece of that."""
    begin = 0
    for piece in segment.products[-1].pieces if segment.products else ():
        if piece.address == load.address and piece.width == getattr(load.value.type, "size", 0):
            return begin
        begin += piece.width
    return None


def _part(
    segment: Segment,
    ops: list[Op],
    products: tuple[Product, ...],
    loads: tuple[Load, ...],
    results: tuple[Value, ...],
) -> Segment:
    """A segment with some of its operations, and what they need."""
    used = {value for op in ops for value in op.operands}
    constants = [op for op in segment.cell.ops if not op.operands and op.result in used and op not in ops]
    loads = (*(load for load in segment.loads if load.value in used | set(results)), *loads)
    inputs = (*(load.value for load in loads), *(product.result for product in products))
    cell = Cell(inputs, (*constants, *ops), results)
    return attrs.evolve(segment, loads=loads, products=products, cell=cell, repeated=())
