"""Which values lie on a path from a trained parameter to the loss.

In: a forward program. Out: `Paths`. Guaranteed: a value outside them has a zero gradient or one that
nothing needs. `differentiate` builds gradients for the values inside only.
"""

from __future__ import annotations

import attrs

from dnc.ir.cell import Value
from dnc.ir.ops import OPS
from dnc.ir.program import (
    FORWARD,
    DeclaredOutput,
    FieldInput,
    Input,
    LossOutput,
    Output,
    ParameterInput,
    Program,
    SavedInput,
    SavedOutput,
    Stage,
    StateInput,
    StateOutput,
    TableInput,
)
from dnc.ir.structure import OUTSIDE
from dnc.ir.types import Type

Key = tuple[str, str, str]  # ("state", function, component) or ("saved", stage, name)


@attrs.frozen
class Paths:
    """active: per stage the values that a trained parameter reaches and that reach the loss.

    states: (function, component) whose gradient some stage hands out.
    """

    active: dict[str, frozenset[Value]]
    states: frozenset[tuple[str, str]]

    def runs_backward(self, stage: Stage) -> bool:
        """Whether the stage has an input that wants a gradient."""
        return any(value in self.active[stage.name] for value in stage.cell.inputs)


def _is_float(type: Type) -> bool:
    return type.tensor.dtype == "f32"


def _read(source: Input) -> Key | None:
    if isinstance(source, StateInput):
        return ("state", source.function, source.component)
    return ("saved", source.stage, source.name) if isinstance(source, SavedInput) else None


def _written(stage: Stage, output: Output) -> Key | None:
    if isinstance(output, StateOutput):
        return ("state", str(stage.function), output.component)
    return ("saved", stage.name, output.name) if isinstance(output, SavedOutput) else None


def is_pulled(program: Program, stage: Stage, source: Input) -> bool:
    """Whether an input of a forward stage is a field that is handed in for every batch."""
    if not isinstance(source, FieldInput) or source.path:
        return False
    return program.struct(program.space(stage.space).struct).field(source.field).kind == OUTSIDE


def _reached(program: Program, stage: Stage, trained: set[str], known: set[Key]) -> set[Value]:
    """The values of a stage that depend on a trained parameter or a pulled vector."""
    found = set()
    for value, source in zip(stage.cell.inputs, stage.inputs, strict=True):
        is_trained = isinstance(source, ParameterInput | TableInput) and source.parameter in trained
        is_trained = is_trained or is_pulled(program, stage, source)
        if _is_float(value.type) and (is_trained or _read(source) in known):
            found.add(value)
    for op in stage.cell.ops:
        if OPS[op.opcode].gradient is not None and any(operand in found for operand in op.operands):
            found.add(op.result)
    return found


def _reaching(stage: Stage, known: set[Key]) -> set[Value]:
    """The values of a stage that the loss depends on."""
    found = set()
    for output, value in zip(stage.outputs, stage.cell.results, strict=True):
        judged = isinstance(output, LossOutput) or (isinstance(output, DeclaredOutput) and output.gradient)
        if judged or _written(stage, output) in known:
            found.add(value)
    for op in reversed(stage.cell.ops):
        if op.result in found and OPS[op.opcode].gradient is not None:
            found.update(operand for operand in op.operands if _is_float(operand.type))
    return found


def find_paths(program: Program) -> Paths:
    """The paths of `program`; two fixed points, from the parameters on and from the loss back."""
    stages = [stage for stage in program.stages if stage.direction == FORWARD]
    trained = {parameter.name for parameter in program.parameters if parameter.trained}
    after: set[Key] = set()
    size = -1
    while size != len(after):
        size = len(after)
        for stage in stages:
            reached = _reached(program, stage, trained, after)
            for output, value in zip(stage.outputs, stage.cell.results, strict=True):
                key = _written(stage, output)
                if key is not None and value in reached:
                    after.add(key)
    before: set[Key] = set()
    size = -1
    while size != len(before):
        size = len(before)
        for stage in reversed(stages):
            reaching = _reaching(stage, before)
            for value, source in zip(stage.cell.inputs, stage.inputs, strict=True):
                key = _read(source)
                if key is not None and key in after and value in reaching:
                    before.add(key)
    active = {
        stage.name: frozenset(_reached(program, stage, trained, after) & _reaching(stage, before))
        for stage in stages
    }
    states = frozenset((function, component) for kind, function, component in before if kind == "state")
    return Paths(active, states)
