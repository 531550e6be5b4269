"""Attention in a vertex cell: lists of scalars, one per child, lie in memory; one lane writes them.

In: the cell and an operation. Out: a list (count, child -> scalar), or a reader of elements.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen.cells.values import Element, Lowerings
from dnc.codegen.emit import Expr, let, local, loop, put
from dnc.ir.cell import Op, Value

if TYPE_CHECKING:
    from dnc.codegen.cells.vertex_cell import VertexCell


def _scalars_of(cell: VertexCell, value: Value) -> tuple[Expr, Element]:
    """Count and reader of a list of scalars."""
    return cell.lists[value](T.int32(0))


def keep_list(cell: VertexCell, op: Op, count: Expr, term: Element) -> Callable[[Expr], Any]:
    """Evaluates a scalar per child once. `term` may use all lanes."""
    place = next(item for item in cell.segment.scratch if item.value == op.result)
    at = cell.access.entry_place(place.buffer, place.children, cell.row)
    with loop("child", count) as child:
        found = let("found", term(child))
        cell.target.once(partial(put, cell.access.pool, at(child), found))
    cell.target.synchronize()
    return lambda i: (count, lambda child: cell.access.pool[at(child)])


def _list_dot(cell: VertexCell, op: Op) -> Any:
    query, children = op.operands
    count, _ = cell.lists[children](T.int32(0))

    def product(child: Expr) -> Expr:
        return cell.target.sum(
            query.tensor.size, lambda k: cell.vectors[query](k) * cell.lists[children](k)[1](child)
        )

    return keep_list(cell, op, count, product)


def _list_softmax(cell: VertexCell, op: Op) -> Any:
    count, read = _scalars_of(cell, op.operands[0])
    top = _over_children(count, -3.4e38, lambda child, so_far: T.max(so_far, read(child)))
    total = _over_children(count, 0.0, lambda child, so_far: so_far + cell.math.exp(read(child) - top))
    return keep_list(cell, op, count, lambda child: cell.math.exp(read(child) - top) / total)


def _list_softmax_grad(cell: VertexCell, op: Op) -> Any:
    (count, grad), (_, weight) = (_scalars_of(cell, value) for value in op.operands)
    mean = _over_children(count, 0.0, lambda child, so_far: so_far + grad(child) * weight(child))
    return keep_list(cell, op, count, lambda child: weight(child) * (grad(child) - mean))


def _list_weighted(cell: VertexCell, op: Op) -> Element:
    (count, weight), children = _scalars_of(cell, op.operands[0]), op.operands[1]

    def element(i: Expr) -> Expr:
        read = cell.lists[children](i)[1]
        return _over_children(count, 0.0, lambda child, so_far: so_far + weight(child) * read(child))

    return cell.keep(op.result, element)


def _list_scaled(cell: VertexCell, op: Op) -> Any:
    (count, weight), vector = _scalars_of(cell, op.operands[0]), cell.vectors[op.operands[1]]

    def scaled(i: Expr) -> tuple[Expr, Element]:
        factor = vector(i)
        return count, lambda child: weight(child) * factor

    return scaled


def _over_children(count: Expr, start: float, step: Callable[[Expr, Expr], Expr]) -> Expr:
    """A fold over the children, the same on every lane."""
    found = local("folded", "float32", T.float32(start))
    with loop("child", count) as child:
        put(found, 0, step(child, found[0]))
    return let("fold", found[0])


ATTENTION: Lowerings = {
    "list_dot": _list_dot,
    "list_softmax": _list_softmax,
    "list_softmax_grad": _list_softmax_grad,
    "list_weighted": _list_weighted,
    "list_scaled": _list_scaled,
}
