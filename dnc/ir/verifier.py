"""Checks that cells and programs are what the rest of the compiler takes for granted.

In: a cell or a program. Out: diagnostics, none for a valid one. Guaranteed of a valid cell: SSA,
unique printable names, types by the op table. Of a valid program: everything that is named exists,
inputs and outputs have the types of what they are bound to, a saved value comes from an earlier
stage of the same space, and no stage reads what a later placement makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dnc.diagnostics import Diagnostic, DiagnosticError
from dnc.ir.bindings import Bindings
from dnc.ir.builder import infer_type
from dnc.ir.cell import Cell, Value
from dnc.ir.program import (
    ALL,
    BACKWARD,
    DENSE,
    FORWARD,
    LEVEL,
    ORDER,
    ROOT,
    GradientInput,
    Input,
    Output,
    Program,
    PulledGradientOutput,
    SavedInput,
    SavedOutput,
    SeedInput,
    SlotOutput,
    Stage,
    StateInput,
    StateOutput,
    TableSlotOutput,
    WeightGradient,
)
from dnc.ir.types import TensorType

NAME = re.compile(r"[\w.]+")


def verify(program: Program) -> None:
    """Raises DiagnosticError with everything that is wrong."""
    found = program_errors(program)
    if found:
        raise DiagnosticError(*found)


def cell_errors(cell: Cell) -> tuple[Diagnostic, ...]:
    """What is wrong with a cell."""
    return tuple(_cell_errors(cell))


def program_errors(program: Program) -> tuple[Diagnostic, ...]:
    """What is wrong with a program. Stages are looked at when all declarations are right."""
    found = list(_declaration_errors(program))
    if not found:
        bindings = Bindings(program)
        for number, stage in enumerate(program.stages):
            found += _named(stage, _cell_errors(stage.cell))
            found += _named(stage, _stage_errors(bindings, number, stage))
        found += [error for pair in program.weight_gradients for error in _pair_errors(bindings, pair)]
    return tuple(found)


def _named(stage: Stage, errors: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    for error in errors:
        yield Diagnostic(
            f"stage '{stage.name}': {error.message}", error.span or stage.span, notes=error.notes
        )


def _cell_errors(cell: Cell) -> Iterator[Diagnostic]:
    defined: set[Value] = set()
    names: set[str] = set()

    def define(value: Value) -> Iterator[str]:
        if not NAME.fullmatch(value.name):
            yield f"'{value.name}' is no name for a value"
        if value.name in names:
            yield f"{value} is defined twice"
        names.add(value.name)
        defined.add(value)

    for value in cell.inputs:
        yield from (Diagnostic(message) for message in define(value))
    for op in cell.ops:
        missing = [operand for operand in op.operands if operand not in defined]
        for operand in missing:
            yield Diagnostic(
                f"{op.opcode} uses {operand}: {operand.type}, which is not defined above", op.span
            )
        yield from (Diagnostic(message, op.span) for message in define(op.result))
        if missing:
            continue
        try:
            expected = infer_type(op.opcode, tuple(o.type for o in op.operands), dict(op.attributes))
        except ValueError as error:
            yield Diagnostic(str(error), op.span)
            continue
        if expected != op.result.type:
            yield Diagnostic(
                f"{op.opcode}: found {op.result.type} for {op.result}, expected {expected}", op.span
            )
    for result in cell.results:
        if result not in defined:
            yield Diagnostic(f"result {result}: {result.type} is not defined")


def _declaration_errors(program: Program) -> Iterator[Diagnostic]:
    for what, items in (
        ("struct", program.structs),
        ("parameter", program.parameters),
        ("function", program.functions),
        ("space", program.spaces),
        ("stage", program.stages),
    ):
        seen: set[str] = set()
        for item in items:
            if item.name in seen:
                yield Diagnostic(f"{what} '{item.name}' is declared twice", getattr(item, "span", None))
            seen.add(item.name)
    for parameter in program.parameters:
        is_matrix = parameter.kind == DENSE and len(parameter.dimensions) == 2
        if not 0 < parameter.density <= 1 or (parameter.is_sparse and not is_matrix):
            found = f"parameter '{parameter.name}': found density {parameter.density!r}"
            yield Diagnostic(f"{found}, expected a matrix and a number above 0, at most 1", parameter.span)
    structs = {struct.name: struct for struct in program.structs}
    if program.root not in structs:
        yield Diagnostic(f"the root struct '{program.root}' does not exist")
    for function in program.functions:
        if function.struct not in structs:
            yield Diagnostic(f"function '{function.name}': no struct '{function.struct}'", function.span)
    spaces = {space.name: space for space in program.spaces}
    for space in program.spaces:
        arms = {arm.name for arm in structs[space.struct].arms} if space.struct in structs else set()
        if space.struct not in structs or not arms.issuperset(space.arms):
            found = f"{space.struct}({', '.join(space.arms)})"
            yield Diagnostic(f"space '{space.name}': {found} does not exist")
        if space.selection not in (ALL, ROOT):
            yield Diagnostic(
                f"space '{space.name}': found selection '{space.selection}', expected all or root"
            )
    functions = {function.name: function for function in program.functions}
    for stage in program.stages:
        if stage.space not in spaces:
            yield Diagnostic(f"stage '{stage.name}': no space '{stage.space}'", stage.span)
        if stage.function is not None and stage.function not in functions:
            yield Diagnostic(f"stage '{stage.name}': no function '{stage.function}'", stage.span)
        if stage.placement not in ORDER or stage.direction not in (FORWARD, BACKWARD):
            found = f"{stage.placement} {stage.direction}"
            yield Diagnostic(f"stage '{stage.name}': no placement '{found}'", stage.span)
        if not 0 <= stage.stratum < len(program.stages):
            yield Diagnostic(f"stage '{stage.name}': there is no stratum {stage.stratum}", stage.span)
    of_space: dict[str, Stage] = {}
    for stage in program.stages:
        first = of_space.setdefault(stage.space, stage) if stage.placement == LEVEL else stage
        if first.stratum != stage.stratum:
            found = f"stage '{stage.name}': found {stage.when}, expected {first.when}"
            yield Diagnostic(f"{found} as '{first.name}', of the same space", stage.span)


def _stage_errors(bindings: Bindings, number: int, stage: Stage) -> Iterator[Diagnostic]:
    program = bindings.program
    space = program.space(stage.space)
    if stage.function is not None and program.function(stage.function).struct != space.struct:
        expected = program.function(stage.function).struct
        yield Diagnostic(f"found rows of {space.struct}, expected {expected} as in '{stage.function}'")
    for what, bound, values in (
        ("inputs", stage.inputs, stage.cell.inputs),
        ("outputs", stage.outputs, stage.cell.results),
    ):
        if len(bound) != len(values):
            yield Diagnostic(f"found {len(bound)} {what}, expected {len(values)} as in its cell")
    for source, value in zip(stage.inputs, stage.cell.inputs, strict=False):
        try:
            expected_type = bindings.input_type(space, source)
        except (KeyError, ValueError) as error:
            yield Diagnostic(f"input {value}: {error.args[0]}")
            continue
        if value.type != expected_type:
            yield Diagnostic(f"input {value}: found {value.type}, expected {expected_type}")
        yield from (Diagnostic(f"input {value}: {m}") for m in _order_errors(program, number, source))
    for output, value in zip(stage.outputs, stage.cell.results, strict=False):
        try:
            expected_result = bindings.output_type(stage, output)
        except (KeyError, ValueError) as error:
            yield Diagnostic(f"result {value}: {error.args[0]}")
            continue
        if expected_result is not None and value.type != expected_result:
            yield Diagnostic(f"result {value}: found {value.type}, expected {expected_result}")
        yield from (Diagnostic(f"result {value}: {m}") for m in _direction_errors(stage, output))
    outputs = [output for output in stage.outputs if isinstance(output, StateOutput | SavedOutput)]
    for output in {output for output in outputs if outputs.count(output) > 1}:
        yield Diagnostic(f"found {output} twice, expected once")


def _order_errors(program: Program, number: int, source: Input) -> Iterator[str]:
    """Reading backwards in time: from a later stage of the list or from a later placement."""
    stage = program.stages[number]
    if isinstance(source, GradientInput | SeedInput) and stage.direction != BACKWARD:
        yield "a gradient in a forward stage"
    made: list[Stage] = []
    if isinstance(source, SavedInput):
        made = [program.stage(source.stage)]
        if made[0].space != stage.space:
            yield f"found a value saved over {made[0].space}, expected {stage.space}"
        if made[0] not in program.stages[:number]:
            yield f"stage '{source.stage}' comes later"
    elif isinstance(source, StateInput):
        made = [
            other
            for other in program.stages
            if other.function == source.function and StateOutput(source.component) in other.outputs
        ]
        own = {other.space: None for other in program.stages if other.function == source.function}
        there = {other.space for other in made}
        for space in (each for each in own if each not in there):
            yield f"no stage over '{space}' makes '{source.component}' of '{source.function}'"
        if not own:
            yield f"no stage is of '{source.function}'"
    for other in made:
        if other.direction == stage.direction and other.turn > stage.turn:
            yield f"stage '{other.name}' is {other.when}, expected {stage.when} at the latest"


def _direction_errors(stage: Stage, output: Output) -> Iterator[str]:
    backward = isinstance(output, SlotOutput | TableSlotOutput | PulledGradientOutput)
    if backward and stage.direction != BACKWARD:
        yield "a slot in a forward stage"
    if not backward and not isinstance(output, SavedOutput) and stage.direction == BACKWARD:
        yield f"{type(output).__name__} in a backward stage"


def _pair_errors(bindings: Bindings, pair: WeightGradient) -> Iterator[Diagnostic]:
    program, where = bindings.program, f"weight gradient of '{pair.parameter}'"
    try:
        parameter = program.parameter(pair.parameter)
        shape, space = parameter.type.shape, program.space(pair.space)
        bindings.selection(space, parameter, pair.field)
        delta = bindings.input_type(space, SavedInput(pair.stage, pair.delta))
        widths = [(bindings.input_type(space, source), begin, end) for source, begin, end in pair.x]
    except (KeyError, ValueError) as error:
        yield Diagnostic(f"{where}: {error.args[0]}")
        return
    for type, begin, end in widths:
        if not isinstance(type, TensorType) or len(type.shape) != 1 or not 0 <= begin < end <= type.shape[0]:
            yield Diagnostic(f"{where}: found [{begin}:{end}] of {type}, expected a part of a vector")
    total = sum(end - begin for _, begin, end in widths)
    found = (*(delta.shape if isinstance(delta, TensorType) else ()), *((total,) if pair.x else ()))
    if found != shape:
        yield Diagnostic(f"{where}: found {TensorType(found)}, expected {TensorType(shape)}")
