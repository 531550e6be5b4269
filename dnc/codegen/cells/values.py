"""What the files of this folder share: readers of elements, types of values, the form of a lowering."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dnc.codegen.emit import Expr
from dnc.ir.cell import Op, Value
from dnc.ir.types import ListType, TensorType

if TYPE_CHECKING:
    from dnc.codegen.cells.vertex_cell import VertexCell

Element = Callable[[Expr], Expr]
# Answers with a scalar on every lane, a reader of elements, or a reader of a list.
Lowerings = dict[str, Callable[["VertexCell", Op], Any]]


def tensor(value: Value) -> TensorType:
    """The type of a value, of each child's for a list."""
    return value.type.element if isinstance(value.type, ListType) else value.type
