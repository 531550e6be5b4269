"""Element-wise operations on every child of a list, in a vertex cell.

In: the cell and an operation. Out: a list. One of vectors is worked out where it is read, element by element,
and so is what all children see; one of scalars once, and lies in memory, as those of attention do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen.cells.attention import keep_list
from dnc.codegen.cells.values import Lowerings
from dnc.codegen.emit import Expr, let
from dnc.ir.cell import Op
from dnc.ir.ops.each import LIFTED, REPEAT

if TYPE_CHECKING:
    from dnc.codegen.cells.vertex_cell import VertexCell


def _each(cell: VertexCell, op: Op) -> Any:
    scalar, attributes = LIFTED[op.opcode].scalar, dict(op.attributes)
    assert scalar is not None
    zero = T.int32(0)
    count, _ = cell.lists[op.operands[0]](zero)

    def term(i: Expr, child: Expr) -> Expr:
        lists = (cell.lists[value](i if value.tensor.shape else zero) for value in op.operands)
        return scalar(cell.math, *(read(child) for _, read in lists), **attributes)

    if not op.result.tensor.shape:
        return keep_list(cell, op, count, lambda child: term(zero, child))
    # Made once for an element of a child, however often it is read there: nested operations would grow
    # exponentially. What is known is in scope as long as the loops over both variables are.
    known = dict[tuple[int, int], tuple[Expr, Expr, Expr]]()

    def once(i: Expr, child: Expr) -> Expr:
        key = id(i), id(child)
        if key not in known:
            known[key] = i, child, let("each", term(i, child))
        return known[key][2]

    return lambda i: (count, lambda child: once(i, child))


def _repeat(cell: VertexCell, op: Op) -> Any:
    value, children = op.operands
    count, _ = cell.lists[children](T.int32(0))
    return lambda i: (count, lambda child: cell.read(value, i))


EACH: Lowerings = {**dict.fromkeys(LIFTED, _each), REPEAT: _repeat}
