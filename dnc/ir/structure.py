"""Declarations of the input structures: what a vertex holds and which vertices it refers to.

A `Struct` has one or more arms (as `Leaf | Node`); every vertex of a structure is an instance of
one arm. Fields hold data (token, class, vector) or refer to other vertices (child, optional
child, list of children). Paths name vertices seen from a vertex.
"""

from __future__ import annotations

import attrs

from dnc.diagnostics import Span

TOKEN, CLASS, VECTOR = "token", "class", "vector"
SELECTOR = "index"  # a number below a known size, always there: selects from a stack of parameters
OUTSIDE = "outside"  # a vector that is handed in for every batch, not read from the data
CHILD, OPTIONAL, LIST = "child", "optional", "list"
DATA_KINDS = (TOKEN, CLASS, SELECTOR, VECTOR)
NUMBERED_KINDS = (TOKEN, CLASS, SELECTOR)
VERTEX_KINDS = (CHILD, OPTIONAL, LIST)

# Steps that exist without a declaration: neighbours in the list that holds a vertex, the vertex
# that refers to it, and the ends of a list.
PREVIOUS, NEXT, PARENT, FIRST, LAST = "prev", "next", "parent", "first", "last"
LINKS = (PREVIOUS, NEXT, PARENT, FIRST, LAST)
# Keys of data files: a vertex's arm, so that no field is called so; a flat sample's root, so no struct is.
ARM, ROOT = "arm", "root"

Path = tuple[str, ...]
"""Steps from a vertex: () is the vertex itself, ("left",), ("words", "last"), ("prev",)."""

UNLESS = "unless "


def unless(path: Path) -> str:
    """The step that stays at a vertex from which `path` leads nowhere, and is absent elsewhere."""
    return UNLESS + " ".join(path)


def unless_path(step: str) -> Path | None:
    """The path of a step made by `unless`; None for any other step."""
    return tuple(step.removeprefix(UNLESS).split()) if step.startswith(UNLESS) else None


@attrs.frozen
class Dimension:
    """A named size. `size` is None while it is open (known when data is seen)."""

    name: str
    size: int | None


@attrs.frozen
class Field:
    """A field of an arm.

    token, class, index: `dimension` bounds the value. vector, outside: `width` floats (0 width = scalar
    written as a plain number, stored as one float). child, optional, list: `target` is the struct's name.
    may_miss: whether a vertex may lack its token or class, which is -1 then.
    """

    name: str
    kind: str
    dimension: Dimension | None = None
    width: int = 0
    target: str | None = None
    may_miss: bool = False
    span: Span | None = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen
class Arm:
    """One alternative of a struct."""

    name: str
    fields: tuple[Field, ...]

    def field(self, name: str) -> Field | None:
        """The field called `name`, or None."""
        return next((field for field in self.fields if field.name == name), None)


@attrs.frozen
class Struct:
    """A declared structure type."""

    name: str
    arms: tuple[Arm, ...]
    span: Span | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def fields(self) -> dict[str, Field]:
        """All fields by name (fields of one name are of one kind in every arm)."""
        return {field.name: field for arm in self.arms for field in arm.fields}

    def field(self, name: str) -> Field:
        """The field called `name` in any arm; KeyError if there is none."""
        return self.fields[name]

    def arm(self, name: str) -> Arm:
        """The arm called `name`; KeyError if there is none."""
        return {arm.name: arm for arm in self.arms}[name]
