"""Parts of vectors and matrices in a vertex cell: rows, slices, what is put together or padded.

In: the cell and an operation. Out: a reader of elements. Guaranteed: indices are kept inside before
anything is read with them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen.cells.values import Element, Lowerings
from dnc.codegen.emit import Expr, both, let, put, smaller
from dnc.ir.cell import Op

if TYPE_CHECKING:
    from dnc.codegen.cells.vertex_cell import VertexCell


def _row(cell: VertexCell, op: Op) -> Element | Expr:
    value, chosen = op.operands[0], cell.scalars[op.operands[1]]
    near = let("row", T.max(smaller(chosen, value.tensor.shape[0] - 1), 0))
    if op.result.tensor.shape:
        return lambda i: T.Select(chosen >= 0, cell.at(value, near, i), T.float32(0.0))
    return let("element", T.Select(chosen >= 0, cell.read(value, near), T.float32(0.0)))


def _one_hot(cell: VertexCell, op: Op) -> Element:
    chosen = cell.scalars[op.operands[0]]
    return lambda i: T.Select(chosen == T.cast(i, "int32"), T.float32(1.0), T.float32(0.0))


def _concat(cell: VertexCell, op: Op) -> Element:
    buffer, first = cell.target.scratch(op.result.tensor.size)
    at = 0
    for operand in op.operands:
        size, read, start = operand.tensor.size, cell.vectors[operand], first + at
        cell.target.each(size, partial(_copy_element, buffer, start, read))
        at += size
    return lambda i: buffer[first + i]


def _copy_element(buffer: Any, start: Expr, read: Element, i: Expr) -> None:
    put(buffer, start + i, read(i))


def _slice(cell: VertexCell, op: Op) -> Element:
    read, begin = cell.vectors[op.operands[0]], _first(op)
    return lambda i: read(i + begin)


def _first(op: Op) -> int:
    """The first element of a slice, or the place of the operand in a pad; matrices lie row by row."""
    return int(op.attribute("begin")) * math.prod(op.result.tensor.shape[1:])  # type: ignore[arg-type]


def _pad(cell: VertexCell, op: Op) -> Element:
    read, begin = cell.vectors[op.operands[0]], _first(op)
    size = op.operands[0].tensor.size

    def element(i: Expr) -> Expr:
        inside = both(i >= begin, i < begin + size)
        near = T.max(smaller(i - begin, size - 1), 0)
        return T.Select(inside, read(near), T.float32(0.0))

    return cell.keep(op.result, element)


PARTS: Lowerings = {
    "row": _row,
    "one_hot": _one_hot,
    "concat": _concat,
    "slice": _slice,
    "pad": _pad,
}
