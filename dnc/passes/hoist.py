"""Moves what does not wait for the recursion out of it (the lazy batching of Cavs).

In: a program with forward stages only. Out: every stage placed EARLY, LEVEL or LATE by the stage
graph; and products inside LEVEL stages that need only parameters, fields, table rows and EARLY
states, with the arithmetic around them, moved to a new EARLY stage `<stage>.pre` of the same space.
Guaranteed: every value stays what it was. Run it before `differentiate`, which mirrors placements,
so that the gradients of hoisted products are LATE.
"""

from __future__ import annotations

import attrs

from dnc.ir.cell import Cell, Op, Value
from dnc.ir.opdef import PRODUCT, VIEW
from dnc.ir.ops import OPS
from dnc.ir.program import (
    EARLY,
    FORWARD,
    LATE,
    LEVEL,
    FieldInput,
    Input,
    NoiseInput,
    ParameterInput,
    Program,
    SavedInput,
    SavedOutput,
    Stage,
    StateInput,
    StateOutput,
    TableInput,
)
from dnc.ir.transform import prune


@attrs.frozen
class Hoist:
    """The pass. `split`: also move products out of LEVEL stages, not only whole stages."""

    split: bool = True
    name: str = attrs.field(default="hoist", init=False)
    optional: bool = attrs.field(default=True, init=False)

    def __call__(self, program: Program) -> Program:
        """The program with placements, and with `.pre` stages where there is something to move."""
        if any(stage.direction != FORWARD for stage in program.stages):
            raise ValueError("hoist runs before differentiate: the program has backward stages")
        program = place(program)
        if not self.split:
            return program
        early = early_states(program)
        stages: list[Stage] = []
        for stage in program.stages:
            placement = {known.name: known.placement for known in (*program.stages, *stages)}
            stages.extend(split(stage, early, placement) if stage.placement == LEVEL else (stage,))
        return attrs.evolve(program, stages=tuple(stages))


def hoist(program: Program) -> Program:
    """`Hoist` with its default options."""
    return Hoist()(program)


def _producers(program: Program, source: Input) -> list[str]:
    """The stages that make what `source` reads."""
    if isinstance(source, SavedInput):
        return [source.stage]
    if isinstance(source, StateInput):
        return [
            stage.name
            for stage in program.stages
            if stage.function == source.function and StateOutput(source.component) in stage.outputs
        ]
    return []


def reachable(program: Program) -> dict[str, frozenset[str]]:
    """For every stage the stages it depends on, transitively; itself only if it is recursive."""
    direct = {
        stage.name: {name for source in stage.inputs for name in _producers(program, source)}
        for stage in program.stages
    }
    closed: dict[str, frozenset[str]] = {}
    for name in direct:
        found: set[str] = set()
        open_names = list(direct[name])
        while open_names:
            current = open_names.pop()
            if current not in found:
                found.add(current)
                open_names.extend(direct[current])
        closed[name] = frozenset(found)
    return closed


def place(program: Program) -> Program:
    """The program with the placement of every stage decided by the stage graph.

    Stages that depend on no recursion are EARLY; stages on which no recursion depends are LATE, as
    are losses, metrics and outputs; recursive stages, and those between two recursions, are LEVEL.
    """
    depends = reachable(program)
    recursive = {name for name, found in depends.items() if name in found}
    feeds_recursion = {name for other in recursive for name in depends[other]}

    def placement(stage: Stage) -> str:
        if stage.name in recursive:
            return LEVEL
        is_sink = not any(isinstance(output, StateOutput | SavedOutput) for output in stage.outputs)
        if not is_sink and not depends[stage.name] & recursive:
            return EARLY
        return LEVEL if stage.name in feeds_recursion else LATE

    stages = tuple(attrs.evolve(stage, placement=placement(stage)) for stage in program.stages)
    return attrs.evolve(program, stages=stages)


def early_states(program: Program) -> frozenset[tuple[str, str]]:
    """(function, component) that only EARLY stages produce."""
    made: dict[tuple[str, str], set[str]] = {}
    for stage in program.stages:
        for output in stage.outputs:
            if isinstance(output, StateOutput):
                made.setdefault((str(stage.function), output.component), set()).add(stage.placement)
    return frozenset(key for key, placements in made.items() if placements == {EARLY})


def split(stage: Stage, early: frozenset[tuple[str, str]], placement: dict[str, str]) -> tuple[Stage, ...]:
    """(the EARLY part, the rest), or the stage alone where nothing can be moved."""
    free = _free_values(stage, early, placement)
    moved = _boundary(stage, free)
    if not moved:
        return (stage,)
    pre = Stage(
        name=f"{stage.name}.pre",
        space=stage.space,
        function=stage.function,
        inputs=stage.inputs,
        cell=Cell(stage.cell.inputs, stage.cell.ops, tuple(moved)),
        outputs=tuple(SavedOutput(value.name) for value in moved),
        placement=EARLY,
        span=stage.span,
    )
    rest = attrs.evolve(
        stage,
        inputs=(*stage.inputs, *(SavedInput(pre.name, value.name) for value in moved)),
        cell=Cell(
            (*stage.cell.inputs, *moved),
            tuple(op for op in stage.cell.ops if op.result not in moved),
            stage.cell.results,
        ),
    )
    return (prune(pre), prune(rest))


def _free_values(stage: Stage, early: frozenset[tuple[str, str]], placement: dict[str, str]) -> set[Value]:
    """The values that do not wait for the recursion."""

    def is_free(source: Input) -> bool:
        if isinstance(source, StateInput):
            return (source.function, source.component) in early
        if isinstance(source, SavedInput):
            return placement[source.stage] == EARLY
        return isinstance(source, ParameterInput | TableInput | FieldInput | NoiseInput)

    free = {value for value, source in zip(stage.cell.inputs, stage.inputs, strict=True) if is_free(source)}
    for op in stage.cell.ops:
        if all(operand in free for operand in op.operands):
            free.add(op.result)
    return free


def _boundary(stage: Stage, free: set[Value]) -> list[Value]:
    """The free values to save: those with a product in them that the rest of the cell uses.

    A view of one free value stays in the cell, so that the whole vector is saved once.
    """
    heavy: set[Value] = set()
    for op in stage.cell.ops:
        if op.result in free and (
            OPS[op.opcode].has(PRODUCT) or any(operand in heavy for operand in op.operands)
        ):
            heavy.add(op.result)

    def stays(op: Op) -> bool:
        return OPS[op.opcode].has(VIEW) and len(op.operands) == 1

    needed = set(stage.cell.results)
    moved: set[Value] = set()
    for op in reversed(stage.cell.ops):
        if op.result not in needed:
            continue
        if op.result in heavy and not stays(op):
            moved.add(op.result)
        else:
            needed.update(op.operands)
    return [op.result for op in stage.cell.ops if op.result in moved]
