"""The types of what a stage's inputs and outputs are bound to.

In: a program. Out: the type behind an `Input` or `Output`. Guaranteed: KeyError or ValueError, with
a message for people, where what it names does not exist.
"""

from __future__ import annotations

from dnc.ir.forest import parent_struct
from dnc.ir.measures import CLASS, MEASURES
from dnc.ir.program import (
    STACK,
    TABLE,
    DeclaredOutput,
    FieldInput,
    FollowOutput,
    GradientInput,
    Input,
    LossOutput,
    MetricOutput,
    NoiseInput,
    Output,
    Parameter,
    ParameterInput,
    Program,
    PulledGradientOutput,
    SavedInput,
    SavedOutput,
    SeedInput,
    ShareInput,
    SlotOutput,
    Space,
    Stage,
    StateInput,
    StateOutput,
    TableInput,
    TableSlotOutput,
)
from dnc.ir.structure import (
    FIRST,
    LAST,
    LIST,
    NEXT,
    OUTSIDE,
    PARENT,
    PREVIOUS,
    SELECTOR,
    VECTOR,
    VERTEX_KINDS,
    Field,
    Path,
    unless_path,
)
from dnc.ir.types import INDEX, SCALAR, ListType, TensorType, Type


class Bindings:
    """Looks names up in one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.parameters = {parameter.name: parameter for parameter in program.parameters}
        self.structs = {struct.name: struct for struct in program.structs}
        self.states = {
            (function.name, component.name): (component.type, function.struct)
            for function in program.functions
            for component in function.state
        }
        self.saved = {
            (stage.name, output.name): value.type
            for stage in program.stages
            for output, value in zip(stage.outputs, stage.cell.results, strict=False)
            if isinstance(output, SavedOutput)
        }

    def field(self, struct: str, name: str) -> Field:
        """The field called `name` in any arm of a struct."""
        found = self.structs[struct].fields.get(name)
        if found is None:
            raise KeyError(f"struct {struct} has no field '{name}'")
        return found

    def end(self, struct: str, path: Path, is_list: bool = False) -> str:
        """The struct at the end of a path; with `is_list` its last step is a list field."""
        position = 0
        while position < len(path):
            step = path[position]
            position += 1
            if step in (PREVIOUS, NEXT):
                continue
            if step == PARENT:
                above = parent_struct(self.structs, struct)
                if above is None:
                    raise ValueError(f"'{struct}' has no parent: not one struct refers to it")
                struct = above
                continue
            if (other := unless_path(step)) is not None:
                self.end(struct, other)
                continue
            field = self.field(struct, step)
            if field.kind not in VERTEX_KINDS:
                raise ValueError(f"'{step}' of {struct} is a {field.kind}, expected a vertex")
            if field.kind == LIST and not (is_list and position == len(path)):
                if position == len(path) or path[position] not in (FIRST, LAST):
                    raise ValueError(f"'{step}' of {struct} is a list, expected first or last of it")
                position += 1
            elif is_list and position == len(path) and field.kind != LIST:
                raise ValueError(f"'{step}' of {struct} is a {field.kind}, expected a list")
            struct = str(field.target)
        return struct

    def state(self, space: Space, function: str, component: str, path: Path, is_list: bool) -> Type:
        """The type of a state at the end of a path."""
        if (function, component) not in self.states:
            raise KeyError(f"there is no state {function}.{component}")
        type, struct = self.states[function, component]
        end = self.end(space.struct, path, is_list)
        if end != struct:
            raise ValueError(f"the path ends at a {end}, expected a {struct} for '{function}'")
        return ListType(type) if is_list else type

    def data(self, space: Space, name: str, path: Path) -> TensorType:
        """The type of a data field at the end of a path."""
        struct = self.end(space.struct, path)
        field = self.field(struct, name)
        if field.kind in VERTEX_KINDS:
            raise ValueError(f"'{name}' of {struct} is a {field.kind}, expected data")
        if not path:
            for arm in space.arms:
                if self.structs[struct].arm(arm).field(name) is None:
                    raise ValueError(f"arm {arm} has no field '{name}'")
        if field.kind in (VECTOR, OUTSIDE):
            return TensorType((field.width,)) if field.width else SCALAR
        return INDEX

    def row(self, space: Space, parameter: str, field: str, path: Path) -> TensorType:
        """The type of a table's row."""
        if parameter not in self.parameters or self.parameters[parameter].kind != TABLE:
            raise KeyError(f"there is no table '{parameter}'")
        if self.data(space, field, path) != INDEX:
            raise ValueError(f"field '{field}' is no token or class")
        return TensorType(self.parameters[parameter].type.shape[1:])

    def selection(self, space: Space, parameter: Parameter, selector: str) -> None:
        """Checks that a stack, and nothing else, is read by an index of its size."""
        if (parameter.kind == STACK) != bool(selector):
            how = "by an index" if parameter.kind == STACK else "as a whole"
            raise ValueError(f"parameter '{parameter.name}' is a {parameter.kind}, expected to be read {how}")
        if selector:
            self.data(space, selector, ())
            field = self.field(space.struct, selector)
            size = field.dimension.size if field.dimension is not None else None
            if field.kind != SELECTOR or size != parameter.count:
                found = f"'{selector}' is a {field.kind} of {size}"
                raise ValueError(f"{found}, expected an index of {parameter.count}")

    def running(self, space: Space, name: str, selector: str) -> Parameter:
        """The running parameter of that name, selected as it must be."""
        if name not in self.parameters or not self.parameters[name].running:
            raise KeyError(f"there is no running parameter '{name}'")
        self.selection(space, self.parameters[name], selector)
        return self.parameters[name]

    def input_type(self, space: Space, source: Input) -> Type:
        """The type of what an input of a stage over `space` reads."""
        match source:
            case ParameterInput(name, selector):
                if name not in self.parameters:
                    raise KeyError(f"there is no parameter '{name}'")
                parameter = self.parameters[name]
                self.selection(space, parameter, selector)
                if parameter.kind == TABLE and parameter.dimensions[0].size is None:
                    raise ValueError(f"table '{name}' is open and cannot be read as a whole")
                return parameter.type
            case TableInput(name, field, path):
                return self.row(space, name, field, path)
            case FieldInput(field, path):
                return self.data(space, field, path)
            case StateInput(function, component, path, is_list):
                return self.state(space, function, component, path, is_list)
            case SavedInput(stage, name):
                if (stage, name) not in self.saved:
                    raise KeyError(f"no stage '{stage}' saves '{name}'")
                return self.saved[stage, name]
            case GradientInput(function, component):
                return self.state(space, function, component, (), False)
            case SeedInput():
                return SCALAR
            case NoiseInput():
                return INDEX
            case ShareInput(name, selector):
                self.running(space, name, selector)
                return SCALAR

    def output_type(self, stage: Stage, output: Output) -> Type | None:
        """The type of a result bound to `output`; None if any tensor will do."""
        space = self.program.space(stage.space)
        match output:
            case StateOutput(component):
                return self.state(space, str(stage.function), component, (), False)
            case SlotOutput(function, component, path, is_list):
                return self.state(space, function, component, path, is_list)
            case TableSlotOutput(parameter, field, path):
                return self.row(space, parameter, field, path)
            case FollowOutput(name, selector):
                return self.running(space, name, selector).type
            case LossOutput():
                return SCALAR
            case MetricOutput(_, measure, position, known):
                for field, path in known:
                    self.data(space, field, path)
                operands = MEASURES[measure].operands
                if not 0 <= position < len(operands):
                    raise ValueError(f"found expression {position}, but '{measure}' has {len(operands)}")
                return INDEX if operands[position] == CLASS else SCALAR
            case PulledGradientOutput(field):
                return self.data(space, field, ())
            case SavedOutput() | DeclaredOutput():
                return None
