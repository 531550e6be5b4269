"""The typed tree: a checked program, in which every name is resolved and every value has a type.

In: nothing; these are the classes that `typecheck` produces and `build` consumes. Guaranteed:
vertices occur only as paths seen from the row of a stage, and cells are not inlined yet.
"""

from __future__ import annotations

import attrs

from dnc.diagnostics import Span
from dnc.ir.cell import Attribute
from dnc.ir.program import Component, Initializer
from dnc.ir.structure import SELECTOR, Dimension, Path, Struct
from dnc.ir.types import INDEX, SCALAR, TensorType

# ---- types -------------------------------------------------------------------------------------


@attrs.frozen
class Index:
    """A token, a class or an index. `dimension` bounds it."""

    kind: str
    dimension: Dimension

    def __str__(self) -> str:
        return f"{'an' if self.kind == SELECTOR else 'a'} {self.kind}<{self.dimension.name}>"


@attrs.frozen
class State:
    """A declared state."""

    name: str
    components: tuple[Component, ...]

    def component(self, name: str) -> Component | None:
        """The component called `name`, or None."""
        return next((component for component in self.components if component.name == name), None)

    def __str__(self) -> str:
        return f"the state {self.name}"


@attrs.frozen
class Vertex:
    """A vertex of `struct` that is one of `arms`."""

    struct: str
    arms: tuple[str, ...]

    def __str__(self) -> str:
        return f"a vertex of {self.struct}"


@attrs.frozen
class VertexList:
    """The list of children in a field."""

    struct: str

    def __str__(self) -> str:
        return f"a list of {self.struct}"


Type = TensorType | Index | State | Vertex | VertexList


def describe(type: Type) -> str:
    """A type in the words of the language."""
    return shape_text(type.shape) if isinstance(type, TensorType) else str(type)


def shape_text(shape: tuple[int, ...]) -> str:
    """`[3, 4]`, or "a scalar"."""
    return f"[{', '.join(str(size) for size in shape)}]" if shape else "a scalar"


def ir_type(type: Type) -> TensorType | None:
    """The type in cell IR; None for what is no value there."""
    if isinstance(type, TensorType):
        return type
    return INDEX if isinstance(type, Index) else None


# ---- expressions -------------------------------------------------------------------------------


@attrs.frozen
class Constant:
    """A number."""

    value: float
    span: Span = attrs.field(eq=False, repr=False)
    type: Type = SCALAR


@attrs.frozen
class Local:
    """An argument of a cell or an assigned name."""

    name: str
    type: Type
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class ParameterUse:
    """A dense parameter; of a stack the one that `field`, an index of the vertex, selects."""

    name: str
    type: Type
    span: Span = attrs.field(eq=False, repr=False)
    field: str = ""


@attrs.frozen
class TableRow:
    """The row of a table chosen by a token of the vertex at `path`."""

    parameter: str
    field: str
    path: Path
    type: Type
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class FieldUse:
    """A data field of the vertex at `path`."""

    field: str
    path: Path
    type: Type
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Noise:
    """The key of the random numbers of the vertex at hand. draws: as `NoiseInput` has it."""

    draws: bool
    span: Span = attrs.field(eq=False, repr=False)
    type: Type = Index("key", Dimension("key", None))


@attrs.frozen
class VertexUse:
    """A vertex, or a list of vertices, at `path`; only an argument of functions."""

    path: Path
    type: Type
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class FunctionCall:
    """What `function` returns at `path`; with `is_list`, at every child in the list at `path`.

    `instead` is called where nothing is at `path`; without it the value is zeros there.
    """

    function: str
    path: Path
    type: Type
    span: Span = attrs.field(eq=False, repr=False)
    is_list: bool = False
    instead: FunctionCall | None = None


@attrs.frozen
class CellCall:
    """A cell applied to arguments."""

    cell: str
    arguments: tuple[Expression, ...]
    type: Type
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class ComponentUse:
    """A component of a state."""

    base: Expression
    name: str
    type: Type
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Apply:
    """An operation of the op table."""

    opcode: str
    operands: tuple[Expression, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    type: Type
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Follow:
    """The running parameter `statistic`, which a training step moves by `rate` of the way to the mean of
    `value`."""

    statistic: Expression
    value: Expression
    rate: float
    type: Type
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Let:
    """Assignments in order, then what the block returns."""

    assignments: tuple[tuple[str, Expression], ...]
    result: Expression
    type: Type
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Record:
    """A state made of its components, in the order of the state."""

    components: tuple[Expression, ...]
    type: Type
    span: Span = attrs.field(eq=False, repr=False)


Expression = (
    Constant
    | Local
    | ParameterUse
    | TableRow
    | FieldUse
    | Noise
    | VertexUse
    | FunctionCall
    | CellCall
    | ComponentUse
    | Apply
    | Follow
    | Let
    | Record
)

# ---- declarations ------------------------------------------------------------------------------


@attrs.frozen
class Parameter:
    """A declared parameter, used or not."""

    name: str
    kind: str
    dimensions: tuple[Dimension, ...]
    initializer: Initializer
    frozen: bool
    running: bool
    rate: float
    density: float
    span: Span = attrs.field(eq=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, an open one as 0."""
        return tuple(dimension.size or 0 for dimension in self.dimensions)


@attrs.frozen
class Cell:
    """A checked cell."""

    name: str
    arguments: tuple[tuple[str, Type], ...]
    result: Type
    body: Expression
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Function:
    """A checked function: a body per arm, all of them the same one where there is no match.

    implicit: it stands for a field, and nobody wrote it.
    """

    name: str
    struct: str
    result: Type
    matched: bool
    bodies: tuple[tuple[str, Expression], ...]
    span: Span = attrs.field(eq=False, repr=False)
    implicit: bool = False

    @property
    def components(self) -> tuple[Component, ...]:
        """What a call returns; a tensor is one component called "value"."""
        if isinstance(self.result, State):
            return self.result.components
        assert isinstance(self.result, TensorType)
        return (Component("value", self.result),)


@attrs.frozen
class Term:
    """A loss, a metric or an output. name: "" for losses; kind: "loss", "metric", "output" or "push".

    measure: how a metric is measured; one of several values has a term for each, in order.
    """

    kind: str
    name: str
    struct: str
    arms: tuple[str, ...]
    selection: str
    value: Expression
    span: Span = attrs.field(eq=False, repr=False)
    measure: str = ""


@attrs.frozen
class CheckedModel:
    """A program without mistakes."""

    name: str
    dimensions: tuple[Dimension, ...]
    structs: tuple[Struct, ...]
    root: str
    parameters: tuple[Parameter, ...]
    cells: dict[str, Cell]
    functions: dict[str, Function]
    terms: tuple[Term, ...]
