"""Products of a vertex cell: with a matrix, transposed or not, and of two vectors.

In: the cell and an operation. Out: a reader of the result's elements. Sums run in the order of the
inner dimension, or as the target's lanes add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tvm.tirx.script.builder import ir as T

from dnc.codegen.cells.values import Element, Lowerings, Vector
from dnc.codegen.emit import Expr, let, local, loop, put
from dnc.ir.cell import Op

if TYPE_CHECKING:
    from dnc.codegen.cells.vertex_cell import VertexCell


SUMS_TOGETHER = 8  # rows of a small product that are summed in one pass over the vector


def _matmul(cell: VertexCell, op: Op) -> Element:
    a, b = op.operands
    (rows, inner), result = a.tensor.shape, op.result
    buffer, first = cell.target.scratch(result.tensor.size)
    if len(b.tensor.shape) == 1 and rows <= SUMS_TOGETHER:
        vectors = [cell.row_of(a, r) for r in range(rows)]
        totals = cell.target.products(inner, vectors, cell.vectors[b])
        for r, total in enumerate(totals):
            cell.target.once(partial(put, buffer, first + r, total))
        cell.target.synchronize()
    elif len(b.tensor.shape) == 1:
        with loop("r", rows) as r:
            total = cell.target.sum(inner, lambda k: cell.at(a, r, k) * cell.vectors[b](k))
            cell.target.once(lambda: put(buffer, first + r, total))
        cell.target.synchronize()
    else:
        columns = b.tensor.shape[1]
        cell.target.each(
            rows * columns,
            lambda i: put(
                buffer,
                first + i,
                _serial(inner, lambda k: cell.at(a, i // columns, k) * cell.at(b, k, i % columns)),
            ),
        )
    return lambda i: buffer[first + i]


def _matmul_t(cell: VertexCell, op: Op) -> Element:
    a, b = op.operands
    rows, _ = a.tensor.shape
    if len(b.tensor.shape) == 1:
        vector = cell.vectors[b]
        if rows <= SUMS_TOGETHER:
            return cell.keep(op.result, _sum_of_rows([cell.row_of(a, r) for r in range(rows)], vector))
        return cell.keep(op.result, lambda i: _serial(rows, lambda r: cell.at(a, r, i) * vector(r)))
    columns = b.tensor.shape[1]
    return cell.keep(
        op.result,
        lambda i: _serial(rows, lambda r: cell.at(a, r, i // columns) * cell.at(b, r, i % columns)),
    )


def _sum_of_rows(rows: Sequence[Vector], vector: Element) -> Vector:
    """The sum of rows, each times an element of a vector; loads are independent."""

    def one(i: Expr) -> Expr:
        return _chain([row(i) * vector(r) for r, row in enumerate(rows)])

    def four(first: Expr) -> list[Expr]:
        found = [(each(first), let("factor", vector(r))) for r, each in enumerate(fours) if each is not None]
        return [_chain([values[i] * factor for values, factor in found]) for i in range(4)]

    fours = [row.four for row in rows]
    return Vector(one, None if None in fours else four)


def _matmul_nt(cell: VertexCell, op: Op) -> Element:
    a, b = op.operands
    inner, columns = a.tensor.shape[1], b.tensor.shape[0]
    return cell.keep(
        op.result,
        lambda i: _serial(inner, lambda k: cell.at(a, i // columns, k) * cell.at(b, i % columns, k)),
    )


def _serial(extent: int, term: Element) -> Expr:
    total = local("total", "float32", T.float32(0.0))
    with loop("k", extent) as k:
        put(total, 0, total[0] + term(k))
    return let("summed", total[0])


def _chain(terms: list[Expr]) -> Expr:
    """The sum of terms, first to last."""
    bound = [let("term", term) for term in terms]
    total = bound[0]
    for term in bound[1:]:
        total = total + term
    return total


def _outer(cell: VertexCell, op: Op) -> Element:
    a, b = (cell.vectors[value] for value in op.operands)
    columns = op.operands[1].tensor.size
    return cell.keep(op.result, lambda i: a(i // columns) * b(i % columns))


PRODUCTS: Lowerings = {
    "matmul": _matmul,
    "matmul_t": _matmul_t,
    "matmul_nt": _matmul_nt,
    "outer": _outer,
}
