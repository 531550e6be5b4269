"""Element-wise operations on every child of a list, in a vertex cell.

In: the cell and an operation. Out: a list. One of vectors is worked out where it is read, element by element;
one of scalars once, and lies in memory, as those of attention do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen.cells.attention import keep_list
from dnc.codegen.cells.values import Element, Lowerings
from dnc.codegen.emit import Expr
from dnc.ir.cell import Op, Value
from dnc.ir.ops.each import LIFTED, REPEAT

if TYPE_CHECKING:
    from dnc.codegen.cells.vertex_cell import VertexCell


def _each(cell: VertexCell, op: Op) -> Any:
    scalar, attributes = LIFTED[op.opcode].scalar, dict(op.attributes)
    assert scalar is not None

    def term(i: Expr, child: Expr) -> Expr:
        return scalar(cell.math, *(_read(cell, value, i)[1](child) for value in op.operands), **attributes)

    return _listed(cell, op, op.operands[0], term)


def _repeat(cell: VertexCell, op: Op) -> Any:
    value, children = op.operands
    return _listed(cell, op, children, lambda i, child: cell.read(value, i))


def _read(cell: VertexCell, value: Value, i: Expr) -> tuple[Expr, Element]:
    """Count and reader of element i of the children; of scalars there is one."""
    return cell.lists[value](i if value.tensor.shape else T.int32(0))


def _listed(cell: VertexCell, op: Op, children: Value, term: Any) -> Any:
    """The list of term(i, child)."""
    zero = T.int32(0)
    count, _ = cell.lists[children](zero)
    if not op.result.tensor.shape:
        return keep_list(cell, op, count, lambda child: term(zero, child))
    return lambda i: (count, lambda child: term(i, child))


EACH: Lowerings = {**dict.fromkeys(LIFTED, _each), REPEAT: _repeat}
