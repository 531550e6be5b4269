"""What the files of this folder share: readers of elements, types of values, the form of a lowering."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen.emit import Expr, lanes
from dnc.ir.cell import Op
from dnc.ir.plan import IndexAddress, Load

if TYPE_CHECKING:
    from dnc.codegen.cells.vertex_cell import VertexCell

Element = Callable[[Expr], Expr]
# Reads, or takes, the four elements from a multiple of 4 on.
Four = Callable[[Expr], list[Expr]]
StoreFour = Callable[[Expr, list[Expr]], None]


@attrs.frozen(eq=False)
class Vector:
    """A reader of elements that lie side by side: `four` reads four of them with one access."""

    one: Element
    four: Four | None = None

    def __call__(self, i: Expr) -> Expr:
        """Element i."""
        return self.one(i)


@attrs.frozen(eq=False)
class Matrix(Vector):
    """The same of a matrix, row by row. row: the reader of a row, given its number."""

    row: Callable[[Expr], Vector] = attrs.field(kw_only=True)


def four_of(read: Element) -> Four | None:
    """How to read four elements with one access, where that can be done."""
    return read.four if isinstance(read, Vector) else None


def mapped(read: Element, function: Callable[[Expr, Expr], Expr]) -> Vector:
    """A reader of function(i, element i): four at a time where `read` can."""
    four = four_of(read)

    def four_mapped(first: Expr) -> list[Expr]:
        assert four is not None
        return [function(first + i, value) for i, value in enumerate(four(first))]

    return Vector(lambda i: function(i, read(i)), four_mapped if four is not None else None)


def as_declared(load: Load, found: Expr) -> Expr:
    """What a load has read, in the type of its value: stores keep integers as floats, lists do not."""
    is_kept = load.value.tensor.dtype == "i32" and not isinstance(load.address, IndexAddress)
    return T.cast(found, "int32") if is_kept else found


def as_number(i: Expr) -> Expr:
    """The number of an element, or of several: an int32, as classes are."""
    if isinstance(i, int):
        return i
    return T.cast(i, "int32" if lanes(i) == 1 else f"int32x{lanes(i)}")


# Answers with a scalar on every lane, a reader of elements, or a reader of a list.
Lowerings = dict[str, Callable[["VertexCell", Op], Any]]
