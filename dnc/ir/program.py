"""The program: the static stage graph of a model, with every cell's inputs and outputs bound.

The frontend builds a `Program` with forward stages only; `passes/hoist.py` moves work out of the
recursion, `passes/differentiate.py` adds the backward stages and the weight gradients. The words
follow Cavs: a stage is a vertex function, its inputs are gathers (or pulls), its outputs scatters.

A *space* is a set of rows: one row per vertex on which a stage runs. All stages of one space share
the numbering of rows, so what one stage saves another reads at the same row. A call is identified
by (function, vertex) and evaluated once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TypeAlias

import attrs

from dnc.diagnostics import Span
from dnc.ir.cell import Cell, Value
from dnc.ir.structure import Dimension, Path, Struct
from dnc.ir.types import TensorType

DENSE, TABLE, STACK = "dense", "table", "stack"
ALL, ROOT = "all", "root"

# When a stage runs. LEVEL: wavefront by wavefront, as soon as its inputs are there. EARLY: once
# for the whole batch, before the recursion of its stratum. LATE: once for the whole batch, after it.
EARLY, LEVEL, LATE = "early", "level", "late"
ORDER = {EARLY: 0, LEVEL: 1, LATE: 2}
FORWARD, BACKWARD = "forward", "backward"


@attrs.frozen
class Initializer:
    """How a parameter starts: kind is zeros, constant, uniform, normal, xavier, orthogonal or identity.

    `value` is the constant, the bound of uniform or the deviation of normal. `pieces`, when not
    empty, gives a constant for equal parts of a vector (as a forget gate's bias of 1).
    """

    kind: str
    value: float = 0.0
    pieces: tuple[float, ...] = ()

    @property
    def is_zero(self) -> bool:
        """Whether it gives nothing but zeros."""
        given = self.kind in ("zeros", "constant", "uniform", "normal")
        return given and not (self.value or any(self.pieces))


@attrs.frozen
class Parameter:
    """A trained array. A table's first dimension may be open; all others are known.

    A stack holds a dense parameter for every value of an index, its first dimension. frozen: it keeps
    its first values. running: it has no gradient, but moves towards means (`FollowOutput`). rate: its
    factor on the learning rate. density: the share of a matrix's elements that are not zero; the others are
    zero, and no update changes them.
    """

    name: str
    kind: str
    dimensions: tuple[Dimension, ...]
    initializer: Initializer
    frozen: bool = False
    rate: float = 1.0
    running: bool = False
    density: float = 1.0
    span: Span | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def is_sparse(self) -> bool:
        """Whether some elements are zero and stay so."""
        return self.density < 1.0

    @property
    def kept(self) -> int:
        """Elements of a row of a matrix that may be other than zero: at least one."""
        return max(1, math.ceil(round(self.density * self.type.shape[-1], 6)))

    @property
    def trained(self) -> bool:
        """Whether it has a gradient."""
        return not (self.frozen or self.running)

    @property
    def row_size(self) -> int:
        """Elements of a table's row, which is a vector or a matrix."""
        return math.prod(int(dim.size or 0) for dim in self.dimensions[1:])

    @property
    def type(self) -> TensorType:
        """The type of the value a cell sees: of a stack that of one of its parameters."""
        sizes = tuple(int(dim.size or 0) for dim in self.dimensions)
        return TensorType(sizes[1:] if self.kind == STACK else sizes)

    @property
    def count(self) -> int:
        """Parameters in a stack; 1 for any other kind."""
        return int(self.dimensions[0].size or 0) if self.kind == STACK else 1


@attrs.frozen
class Component:
    """One named tensor of a state."""

    name: str
    type: TensorType


@attrs.frozen
class Function:
    """A recursive (or plain) function over a struct: what it returns for every vertex."""

    name: str
    struct: str
    state: tuple[Component, ...]
    span: Span | None = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen
class Space:
    """The rows of a stage: vertices of `struct` whose arm is in `arms`; ROOT keeps sample roots."""

    name: str
    struct: str
    arms: tuple[str, ...]
    selection: str = ALL


# ---- inputs: what a cell's inputs are bound to -------------------------------------------------


@attrs.frozen
class ParameterInput:
    """A dense parameter, the same for every row; or the one of a stack that an index of the row's
    vertex selects, `field`."""

    parameter: str
    field: str = ""


@attrs.frozen
class TableInput:
    """The table's row chosen by a token field of the vertex at `path` (() = the row's own)."""

    parameter: str
    field: str
    path: Path = ()


@attrs.frozen
class FieldInput:
    """A data field of the vertex at `path`: class and token as i32[], vector as f32[width]."""

    field: str
    path: Path = ()


@attrs.frozen
class StateInput:
    """A component of `function` at the vertex at `path`; zeros where that vertex is absent.

    With `is_list` the path ends in a list field and the value has a list type.
    """

    function: str
    component: str
    path: Path
    is_list: bool = False


@attrs.frozen
class SavedInput:
    """What another stage of the same space saved under `name`."""

    stage: str
    name: str


@attrs.frozen
class GradientInput:
    """The gradient of the loss by `component` of `function` at this row's vertex.

    It is the sum of all slots written for that vertex, in slot order; zeros if there is none.
    """

    function: str
    component: str


@attrs.frozen
class SeedInput:
    """The gradient of the batch loss by this row's loss: a scalar, one over the samples."""


@attrs.frozen
class NoiseInput:
    """The key of this row's random numbers in this step, i32[]; 0 where there is to be no noise.

    draws: of classes that are drawn, in a prediction too, not of what is dropped.
    """

    draws: bool = False


@attrs.frozen
class ShareInput:
    """One over the number of rows of the batch that move the running `parameter`; of a stack, those that
    move the one which the row selects by the index `field`."""

    parameter: str
    field: str = ""


Input = (
    ParameterInput
    | TableInput
    | FieldInput
    | StateInput
    | SavedInput
    | GradientInput
    | SeedInput
    | NoiseInput
    | ShareInput
)

# ---- outputs -----------------------------------------------------------------------------------


@attrs.frozen
class StateOutput:
    """The returned component of the space's function."""

    component: str


@attrs.frozen
class SavedOutput:
    """Kept for another stage of the space, or for a weight gradient."""

    name: str


@attrs.frozen
class SlotOutput:
    """The gradient handed along an edge: for `component` of `function` at the vertex at `path`.

    Every edge owns its slot. With `is_list`, one slot per child of the list.
    """

    function: str
    component: str
    path: Path
    is_list: bool = False


@attrs.frozen
class TableSlotOutput:
    """The gradient by the table row that `TableInput` with the same fields reads."""

    parameter: str
    field: str
    path: Path = ()


@attrs.frozen
class FollowOutput:
    """What a training step adds to a running parameter: the sum over the rows; of a stack, to the one
    that the row selects by the index `field`. `differentiate` turns it into saved values and pairs."""

    parameter: str
    field: str = ""


@attrs.frozen
class LossOutput:
    """A scalar; the batch loss is the sum over rows divided by the number of samples."""


@attrs.frozen
class MetricOutput:
    """A scalar or a class that `measure` (of `dnc.ir.measures`) measures over rows of the whole set.

    position: of the value among those that the measure takes. known: classes and tokens, as (field,
    path), without which a row does not count; only the first value says so.
    """

    metric: str
    measure: str = "mean"
    position: int = 0
    known: tuple[tuple[str, Path], ...] = ()


@attrs.frozen
class DeclaredOutput:
    """A value that `predict` hands to the user.

    gradient: the field, of kind outside, in which the user hands back the gradient by it; "" if
    the value is not pushed.
    """

    output: str
    gradient: str = ""


@attrs.frozen
class PulledGradientOutput:
    """The gradient by a field of kind outside of this row's vertex, handed to the user."""

    field: str


Output = (
    StateOutput
    | SavedOutput
    | SlotOutput
    | TableSlotOutput
    | FollowOutput
    | LossOutput
    | MetricOutput
    | DeclaredOutput
    | PulledGradientOutput
)


@attrs.frozen
class Stage:
    """A cell bound to a space. `inputs` match `cell.inputs`, `outputs` match `cell.results`.

    `function` is the function whose state the space holds (None for loss, metric and outputs).
    `stratum`: of recursions that run one behind the other the one before, in, or behind which it runs
    (behind one is before the next); the number is the same for its gradients, which come last to first.
    """

    name: str
    space: str
    function: str | None
    inputs: tuple[Input, ...]
    cell: Cell
    outputs: tuple[Output, ...]
    placement: str = LEVEL
    direction: str = FORWARD
    stratum: int = 0
    span: Span | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def turn(self) -> int:
        """Orders the stages of a direction: of two with different turns the lower one runs before."""
        return ORDER[self.placement] + 2 * (self.stratum if self.direction == FORWARD else -self.stratum)

    @property
    def when(self) -> str:
        """The placement, with the stratum if that is not the first one."""
        return f"{self.placement} {self.stratum}" if self.stratum else self.placement


@attrs.frozen
class WeightGradient:
    """Adds, for every row of `space`, delta (x) x to the gradient of a parameter, or delta to a running one.

    `delta` names what `stage` saved: [m] floats. For a matrix [m, k], `x` lists the inputs whose
    concatenation is the k-vector (each an Input of the space: a state, a table row, a field or a
    saved value, with the slice taken of it); for a vector parameter `x` is empty and the rows of
    delta are summed. In a stack, a row adds to what its index `field` selects.
    """

    parameter: str
    space: str
    stage: str
    delta: str
    x: tuple[tuple[Input, int, int], ...] = ()
    field: str = ""


# A `SavedOutput` by the stage and the name, a `StateOutput` and a `SlotOutput` by function and component.
Made: TypeAlias = tuple[type, str | None, str]


@attrs.frozen
class Program:
    """A whole model. `stages` are in an order in which, level aside, producers come first."""

    name: str
    dimensions: tuple[Dimension, ...]
    structs: tuple[Struct, ...]
    root: str
    parameters: tuple[Parameter, ...]
    functions: tuple[Function, ...]
    spaces: tuple[Space, ...]
    stages: tuple[Stage, ...]
    weight_gradients: tuple[WeightGradient, ...] = ()

    @cached_property
    def made(self) -> Mapping[Made, tuple[tuple[Stage, Value], ...]]:
        """What stages make that others read, each with the result of its cell that it is."""
        found: dict[Made, tuple[tuple[Stage, Value], ...]] = {}
        for stage in self.stages:
            for value, output in zip(stage.cell.results, stage.outputs, strict=True):
                key: Made
                match output:
                    case SavedOutput(name):
                        key = (SavedOutput, stage.name, name)
                    case StateOutput(component):
                        key = (StateOutput, stage.function, component)
                    case SlotOutput(function, component):
                        key = (SlotOutput, function, component)
                    case _:
                        continue
                found[key] = (*found.get(key, ()), (stage, value))
        return found

    @property
    def strata(self) -> int:
        """How many recursions run one behind the other, at least 1."""
        return 1 + max((stage.stratum for stage in self.stages), default=0)

    def struct(self, name: str) -> Struct:
        """The struct called `name`; KeyError if there is none."""
        return {struct.name: struct for struct in self.structs}[name]

    def parameter(self, name: str) -> Parameter:
        """The parameter called `name`; KeyError if there is none."""
        return {parameter.name: parameter for parameter in self.parameters}[name]

    def function(self, name: str) -> Function:
        """The function called `name`; KeyError if there is none."""
        return {function.name: function for function in self.functions}[name]

    def space(self, name: str) -> Space:
        """The space called `name`; KeyError if there is none."""
        return {space.name: space for space in self.spaces}[name]

    def stage(self, name: str) -> Stage:
        """The stage called `name`; KeyError if there is none."""
        return {stage.name: stage for stage in self.stages}[name]

    def selectors(self, space: str) -> tuple[str, ...]:
        """The indices by which stages over `space` select from stacks, in order of their first use."""
        found: dict[str, None] = {}
        for stage in self.stages:
            if stage.space == space:
                for bound in stage.inputs:
                    if isinstance(bound, ParameterInput) and bound.field:
                        found[bound.field] = None
        return tuple(found)

    def followers(self, parameter: str) -> tuple[tuple[str, str], ...]:
        """(space, index) of all that moves a running parameter, once for each time a row does."""
        pairs = [(p.space, p.field) for p in self.weight_gradients if p.parameter == parameter]
        outputs = [
            (stage.space, output.field)
            for stage in self.stages
            for output in stage.outputs
            if isinstance(output, FollowOutput) and output.parameter == parameter
        ]
        return (*pairs, *outputs)
