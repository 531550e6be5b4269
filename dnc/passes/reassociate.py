"""Reassociate: gradients of tables add up the deltas of a token first, and multiply what comes out.

In: a plan whose segments multiply the deltas of every vertex by a matrix, for the gradient of a table alone:
the input products of embeddings. Out: the plan without these products; the table's gradient has them as
`TableProduct`s. Guaranteed: the same sums, in another order.

A product is linear, so W^T d1 + W^T d2 = W^T (d1 + d2): a word that occurs often is multiplied once, no
worker writes partial sums of it, and what was a segment's work for a replica is shared out over the whole
grid. The gradient of W itself is (d1 + d2) x^T then, and runs over words too. In 128 sentences of the
Stanford Sentiment Treebank 45 % of the leaves are the first of their word.
"""

from __future__ import annotations

import attrs

from dnc.ir.machine import machine
from dnc.ir.plan import (
    Buffer,
    BufferAddress,
    DenseGradient,
    GatherAddress,
    OperandList,
    Piece,
    Plan,
    Segment,
    SlotSource,
    TableGradient,
    TableList,
    TableProduct,
    TransposedProduct,
    padded,
)
from dnc.ir.program import DENSE


@attrs.frozen
class Reassociate:
    """Done for machines that share out weight gradients over all their workers."""

    name: str = attrs.field(default="reassociate", init=False)
    optional: bool = attrs.field(default=True, init=False)

    def __call__(self, plan: Plan) -> Plan:
        """The plan with the products behind the sums."""
        if machine(plan.target).splits_gradients:
            for table in plan.table_gradients:
                for source in table.partial:
                    plan = _with_product(plan, table.parameter, source)
        return plan


def _with_product(plan: Plan, parameter: str, source: SlotSource) -> Plan:
    """The plan in which the slots of one source are a `TableProduct`, if it can be one."""
    found = _product_of(plan, source)
    (table,) = (table for table in plan.table_gradients if table.parameter == parameter)
    if found is None:
        return plan
    segment, turned = found
    deltas = _deltas(plan, segment, turned)
    if deltas is None or turned.columns != table.width:
        return plan
    name = f"{parameter}.{turned.parameter}#{len(table.products)}"
    product = TableProduct(
        turned.parameter,
        deltas.width,
        attrs.evolve(source, buffer=deltas.name),
        f"deltas {name}",
        f"table {name}:deltas",
        f"table {name}:terms",
    )
    made = attrs.evolve(
        table,
        partial=tuple(each for each in table.partial if each != source),
        products=(*table.products, product),
    )
    kept = (buffer for buffer in plan.buffers if buffer.name != source.buffer)
    plan = attrs.evolve(
        plan,
        segments=tuple(s for each in plan.segments for s in _less(each, segment, turned)),
        buffers=(*kept, attrs.evolve(deltas, name=product.sums)),
        table_gradients=tuple(made if each == table else each for each in plan.table_gradients),
    )
    return _over_tokens(plan, made, product)


def _product_of(plan: Plan, source: SlotSource) -> tuple[Segment, TransposedProduct] | None:
    """The product that makes the slots of a source and nothing else, with a matrix that is no stack."""
    if source.is_list:
        return None
    for segment in plan.segments:
        for turned in segment.transposed:
            if [store[0] for store in turned.stores] == [source.buffer]:
                (whole,) = turned.stores
                right = whole == (source.buffer, 0, 0, turned.columns) and turned.select is None
                right = right and plan.program.parameter(turned.parameter).kind == DENSE
                return (segment, turned) if right and segment.space == source.space else None
    return None


def _deltas(plan: Plan, segment: Segment, turned: TransposedProduct) -> Buffer | None:
    """The buffer that holds nothing but the product's deltas, a record a row, in whole addresses."""
    homes = [BufferAddress(s.buffer, s.offset) for s in segment.stores if s.value == turned.delta]
    homes += [
        load.address
        for load in segment.loads
        if load.value == turned.delta and isinstance(load.address, BufferAddress)
    ]
    rows = plan.program.parameter(turned.parameter).type.shape[0]
    for home in homes:
        buffer = plan.buffer(home.buffer)
        alone = not buffer.partial and buffer.children is None and buffer.space == segment.space
        if alone and home.offset == 0 and buffer.width == padded(rows) == rows:
            return buffer
    return None


def _less(segment: Segment, changed: Segment, turned: TransposedProduct) -> list[Segment]:
    """The segment; the changed one without a product, and nothing where it has no other purpose."""
    if segment != changed:
        return [segment]
    transposed = tuple(each for each in segment.transposed if each != turned)
    values = [*(store.value for store in segment.stores), *(each.delta for each in transposed)]
    if not values:
        return []
    cell = attrs.evolve(segment.cell, results=tuple(dict.fromkeys(values)))
    return [attrs.evolve(segment, transposed=transposed, cell=cell)]


def _over_tokens(plan: Plan, table: TableGradient, product: TableProduct) -> Plan:
    """The plan whose gradient of the product's matrix, and of vectors that sum the same deltas, may run over
    touched rows of the table.

    Vectors only where the word is the vertex's own, which is always there: they add up deltas of vertices
    that read no row, too.
    """
    source = product.source
    read = (source.space, table.parameter, source.field, source.path)
    rows_read = [
        item
        for item in plan.lists
        if isinstance(item, TableList) and (item.space, item.parameter, item.field, item.path) == read
    ]
    operands = [(Piece(GatherAddress(item.name), table.width),) for item in rows_read]

    def same_deltas(gradient: DenseGradient) -> bool:
        own = gradient.space, gradient.delta, gradient.field
        return own == (source.space, BufferAddress(source.buffer), "") and gradient.rows == product.rows

    def is_matrix(gradient: DenseGradient) -> bool:
        """Whether it is the matrix's, and its operand the table's rows alone."""
        own = gradient.parameter == product.parameter and gradient.pieces in operands
        return own and same_deltas(gradient)

    if not any(map(is_matrix, plan.dense_gradients)):
        return plan
    listed = OperandList(f"{product.sums}:operand", source.space, rows_read[0].name, table.parameter)
    pieces = (Piece(GatherAddress(listed.name), table.width),)

    def moved(gradient: DenseGradient) -> DenseGradient:
        is_vector = not gradient.pieces and not source.path and same_deltas(gradient)
        if not (is_vector or is_matrix(gradient)):
            return gradient
        own = pieces if gradient.pieces else ()
        return attrs.evolve(gradient, delta=BufferAddress(product.sums), pieces=own, table=table.parameter)

    return attrs.evolve(
        plan,
        lists=(*plan.lists, listed),
        dense_gradients=tuple(moved(each) for each in plan.dense_gradients),
    )
