"""Prints cells, stages and programs as text that `dnc.ir.parser` reads back.

In: IR. Out: text; one line an operation, an input or an output. Guaranteed: parsing the text gives
an equal object (spans are not printed and do not count).
"""

from __future__ import annotations

import json
import re

from dnc.ir.cell import Attribute, Cell, Op, Value
from dnc.ir.program import (
    DeclaredOutput,
    FieldInput,
    FollowOutput,
    GradientInput,
    Initializer,
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
    Stage,
    StateInput,
    StateOutput,
    TableInput,
    TableSlotOutput,
)
from dnc.ir.structure import (
    CHILD,
    LIST,
    NUMBERED_KINDS,
    OPTIONAL,
    OUTSIDE,
    VECTOR,
    Dimension,
    Field,
    Path,
    Struct,
)

BARE = re.compile(r"(?!(?:inf|nan)\b)[A-Za-z_][\w.]*")


def name(text: str) -> str:
    """A name, quoted unless it is a plain identifier with dots, and no number."""
    return text if BARE.fullmatch(text) else json.dumps(text)


def print_attribute(value: Attribute) -> str:
    """An attribute's value; its kind can be told from the text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return repr(value)


def print_op(op: Op) -> str:
    """`%r: f32[4] = opcode(%a, %b) {factor = 2.0}`."""
    operands = ", ".join(str(operand) for operand in op.operands)
    attributes = ", ".join(f"{key} = {print_attribute(value)}" for key, value in op.attributes)
    return f"{typed(op.result)} = {op.opcode}({operands})" + (f" {{{attributes}}}" if attributes else "")


def typed(value: Value) -> str:
    """`%name: type`."""
    return f"{value}: {value.type}"


def print_cell(cell: Cell) -> str:
    """A cell on its own."""
    lines = [f"cell({', '.join(typed(value) for value in cell.inputs)}) {{"]
    lines += [f"  {print_op(op)}" for op in cell.ops]
    lines += [f"  return {', '.join(str(value) for value in cell.results)}".rstrip(), "}"]
    return "\n".join(lines)


def print_path(path: Path) -> str:
    """`(left, right)`; `()` is the vertex itself."""
    return f"({', '.join(name(step) for step in path)})"


def _by(selector: str) -> str:
    return f" by {name(selector)}" if selector else ""


def print_input(source: Input) -> str:
    """What an input of a cell is bound to."""
    match source:
        case ParameterInput(parameter, ""):
            return f"parameter {name(parameter)}"
        case ParameterInput(parameter, selector):
            return f"selected {name(parameter)} {name(selector)}"
        case TableInput(parameter, field, path):
            return f"table {name(parameter)} {name(field)} at {print_path(path)}"
        case FieldInput(field, path):
            return f"field {name(field)} at {print_path(path)}"
        case StateInput(function, component, path, is_list):
            return (
                f"{'states' if is_list else 'state'} {name(function)} {name(component)} at {print_path(path)}"
            )
        case SavedInput(stage, key):
            return f"saved {name(stage)} {name(key)}"
        case GradientInput(function, component):
            return f"gradient {name(function)} {name(component)}"
        case SeedInput():
            return "seed"
        case NoiseInput(draws):
            return "draws" if draws else "noise"
        case ShareInput(parameter, selector):
            return f"share {name(parameter)}{_by(selector)}"


def print_output(output: Output) -> str:
    """Where a result of a cell goes."""
    match output:
        case StateOutput(component):
            return f"state {name(component)}"
        case SavedOutput(key):
            return f"saved {name(key)}"
        case SlotOutput(function, component, path, is_list):
            return (
                f"{'slots' if is_list else 'slot'} {name(function)} {name(component)} at {print_path(path)}"
            )
        case TableSlotOutput(parameter, field, path):
            return f"table {name(parameter)} {name(field)} at {print_path(path)}"
        case FollowOutput(parameter, selector):
            return f"follow {name(parameter)}{_by(selector)}"
        case LossOutput():
            return "loss"
        case MetricOutput(metric, measure, position, known):
            where = "".join(f" where {name(field)} at {print_path(path)}" for field, path in known)
            return f"metric {name(metric)} {measure} {position}{where}"
        case DeclaredOutput(key, ""):
            return f"output {name(key)}"
        case DeclaredOutput(key, gradient):
            return f"pushed {name(key)} {name(gradient)}"
        case PulledGradientOutput(field):
            return f"pulled {name(field)}"


def print_stage(stage: Stage) -> str:
    """A stage: inputs with their bindings, operations, results with theirs."""
    function = f" of {name(stage.function)}" if stage.function is not None else ""
    lines = [f"stage {name(stage.name)} over {name(stage.space)}{function} {stage.when} {stage.direction} {{"]
    for value, source in zip(stage.cell.inputs, stage.inputs, strict=True):
        lines.append(f"  input {typed(value)} = {print_input(source)}")
    lines += [f"  {print_op(op)}" for op in stage.cell.ops]
    for result, output in zip(stage.cell.results, stage.outputs, strict=True):
        lines.append(f"  {print_output(output)} = {result}")
    return "\n".join([*lines, "}"])


def print_dimension(dimension: Dimension) -> str:
    """`vocab = 100`, or `vocab = open`."""
    return f"{name(dimension.name)} = {'open' if dimension.size is None else dimension.size}"


def print_field(field: Field) -> str:
    """A field of an arm, in the notation of the language where that says everything."""
    if field.kind in NUMBERED_KINDS and field.dimension is not None:
        kind = f"{field.kind}<{print_dimension(field.dimension)}>{'?' * field.may_miss}"
    elif field.kind == OUTSIDE:
        kind = f"outside<{field.width}>"
    elif field.kind == VECTOR:
        dimension = f", {print_dimension(field.dimension)}" if field.dimension is not None else ""
        kind = f"vector<{field.width}{dimension}>"
    elif field.kind in (CHILD, OPTIONAL, LIST):
        kind = f"{field.kind}<{name(str(field.target))}>"
    else:
        raise ValueError(f"field {field.name}: unknown kind {field.kind}")
    return f"{name(field.name)}: {kind}"


def print_struct(struct: Struct) -> str:
    """A struct with an arm a line."""
    lines = [f"struct {name(struct.name)} {{"]
    lines += [f"  {name(arm.name)}({', '.join(map(print_field, arm.fields))})" for arm in struct.arms]
    return "\n".join([*lines, "}"])


def print_initializer(initializer: Initializer) -> str:
    """`normal(0.05)`; pieces follow the value."""
    return (
        f"{initializer.kind}({', '.join(repr(float(x)) for x in (initializer.value, *initializer.pieces))})"
    )


def print_parameter(parameter: Parameter) -> str:
    """`parameter W: dense[hidden = 4, embed = 3] = xavier(0.0) density 0.1`."""
    frozen = "frozen " if parameter.frozen else "running " if parameter.running else ""
    dimensions = ", ".join(print_dimension(dimension) for dimension in parameter.dimensions)
    start = print_initializer(parameter.initializer)
    density = f" density {parameter.density!r}" if parameter.is_sparse else ""
    rate = "" if parameter.rate == 1.0 else f" rate {parameter.rate!r}"
    kind = f"{parameter.kind}[{dimensions}]"
    return f"{frozen}parameter {name(parameter.name)}: {kind} = {start}{density}{rate}"


def print_program(program: Program) -> str:
    """The whole program, with a newline at its end."""
    blocks = [
        f"program {name(program.name)}",
        "\n".join(f"dimension {print_dimension(dimension)}" for dimension in program.dimensions),
        *(print_struct(struct) for struct in program.structs),
        f"root {name(program.root)}",
        "\n".join(print_parameter(parameter) for parameter in program.parameters),
    ]
    lines = []
    for function in program.functions:
        state = ", ".join(f"{name(part.name)}: {part.type}" for part in function.state)
        lines.append(f"function {name(function.name)}({name(function.struct)}) -> ({state})")
    for space in program.spaces:
        arms = ", ".join(name(arm) for arm in space.arms)
        lines.append(f"space {name(space.name)} = {name(space.struct)}({arms}) {space.selection}")
    blocks.append("\n".join(lines))
    blocks += [print_stage(stage) for stage in program.stages]
    pairs = []
    for pair in program.weight_gradients:
        pieces = ", ".join(f"{print_input(source)}[{begin}:{end}]" for source, begin, end in pair.x)
        head = f"weight_gradient {name(pair.parameter)} over {name(pair.space)}"
        pairs.append(f"{head}{_by(pair.field)} = saved {name(pair.stage)} {name(pair.delta)} x ({pieces})")
    blocks.append("\n".join(pairs))
    return "\n\n".join(block for block in blocks if block) + "\n"
