"""Matrices of a vertex cell: the transpose, and reductions of every row.

In: the cell and an operation. Out: a reader of the result's elements. Of few rows all lanes take one after
the other; of many every lane takes some, from the first element to the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tvm.tirx.script.builder import ir as T

from dnc.codegen.cells.values import Element, Lowerings
from dnc.codegen.emit import Expr, let, local, loop, put
from dnc.ir.cell import Op

if TYPE_CHECKING:
    from dnc.codegen.cells.vertex_cell import VertexCell

FEW_ROWS = 8  # as many as all lanes together take one by one


def _transpose(cell: VertexCell, op: Op) -> Element:
    matrix, columns = op.operands[0], op.result.tensor.shape[1]
    return lambda i: cell.at(matrix, i % columns, i // columns)


def _rows(
    cell: VertexCell,
    op: Op,
    together: Callable[[int, Element], Expr],
    alone: Callable[[int, Element], Expr],
) -> Element:
    """A number for every row, which all lanes make `together`, or each of them `alone`."""
    rows, columns = op.operands[0].tensor.shape
    buffer, first = cell.target.scratch(rows)

    def write(row: Expr, found: Expr) -> None:
        put(buffer, first + row, found)

    if rows <= FEW_ROWS:
        with loop("r", rows) as r:
            found = together(columns, cell.row_of(op.operands[0], r))
            cell.target.once(lambda: write(r, found))
        cell.target.synchronize()
    else:
        cell.target.each(rows, lambda r: write(r, alone(columns, cell.row_of(op.operands[0], r))))
    return lambda i: buffer[first + i]


def _largest(extent: int, term: Element) -> tuple[Expr, Expr]:
    """The largest of some terms, and the index of the first one that is."""
    top, at = local("top", "float32", term(0)), local("at", "int32", 0)
    with loop("k", extent - 1) as k:
        value = let("value", term(k + 1))
        put(at, 0, T.Select(value > top[0], T.cast(k, "int32") + 1, at[0]))
        put(top, 0, T.Select(value > top[0], value, top[0]))
    return let("largest", top[0]), let("column", at[0])


def _row_max(cell: VertexCell, op: Op) -> Element:
    return _rows(cell, op, cell.target.max, lambda extent, term: _largest(extent, term)[0])


def _row_argmax(cell: VertexCell, op: Op) -> Element:
    def together(extent: int, term: Element) -> Expr:
        return T.cast(cell.target.argmax(extent, term), "float32")

    return _rows(cell, op, together, lambda extent, term: T.cast(_largest(extent, term)[1], "float32"))


def _row_logsumexp(cell: VertexCell, op: Op) -> Element:
    def together(extent: int, term: Element) -> Expr:
        top, total = cell.target.normalizer(extent, term, cell.math.exp)
        return let("logsumexp", top + cell.math.log(total))

    def alone(extent: int, term: Element) -> Expr:
        top, _ = _largest(extent, term)
        total = local("total", "float32", T.float32(0.0))
        with loop("k", extent) as k:
            put(total, 0, total[0] + cell.math.exp(term(k) - top))
        return let("logsumexp", top + cell.math.log(total[0]))

    return _rows(cell, op, together, alone)


def _row_spread(cell: VertexCell, op: Op) -> Element:
    values, places = (cell.vectors[operand] for operand in op.operands)
    columns = op.result.tensor.shape[1]

    def element(i: Expr) -> Expr:
        row, here = i // columns, T.cast(T.cast(i % columns, "int32"), "float32")
        return T.Select(places(row) == here, values(row), T.float32(0.0))

    return element


MATRICES: Lowerings = {
    "transpose": _transpose,
    "row_max": _row_max,
    "row_logsumexp": _row_logsumexp,
    "row_argmax": _row_argmax,
    "row_spread": _row_spread,
}
