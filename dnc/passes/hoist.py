"""Moves what does not wait for a recursion out of it (the lazy batching of Cavs).

In: a program with forward stages only. Out: every stage placed EARLY, LEVEL or LATE by the stage
graph; and products inside LEVEL stages that need only parameters, fields, table rows and states made
before their recursion, with the arithmetic around them, moved to a new EARLY stage `<stage>.pre` of the
same space. Recursions that feed others are strata: one behind the other, so that what stands between
two of them runs once. Guaranteed: every value stays what it was. Run it before `differentiate`, which
mirrors placements, so that the gradients of hoisted products are LATE.
"""

from __future__ import annotations

import attrs

from dnc.ir.cell import Op, Value
from dnc.ir.opdef import PRODUCT
from dnc.ir.ops import OPS
from dnc.ir.program import (
    EARLY,
    FORWARD,
    LATE,
    LEVEL,
    FieldInput,
    Input,
    ParameterInput,
    Program,
    SavedInput,
    SavedOutput,
    Stage,
    StateInput,
    StateOutput,
    TableInput,
)
from dnc.ir.reads import closure, stage_producers
from dnc.ir.remarks import Remarks
from dnc.ir.structure import unless_path
from dnc.ir.transform import behind_products, boundary, giving, reading


@attrs.frozen
class Hoist:
    """The pass. `split`: also move products out of LEVEL stages, not only whole stages."""

    split: bool = True
    name: str = attrs.field(default="hoist", init=False)
    optional: bool = attrs.field(default=True, init=False)

    def __call__(self, program: Program) -> Program:
        """The program with placements, and with `.pre` stages where there is something to move."""
        return self.decide(program, Remarks())

    def decide(self, program: Program, remarks: Remarks) -> Program:
        """The same; what stays in the recursion is remarked upon."""
        if any(stage.direction != FORWARD for stage in program.stages):
            raise ValueError("hoist runs before differentiate: the program has backward stages")
        program = place(program)
        _remark_stages(program, remarks)
        if not self.split:
            return program
        turns = _Turns(program)
        stages: list[Stage] = []
        for stage in program.stages:
            if stage.placement == LEVEL:
                _remark_products(stage, _free_values(stage, turns), remarks)
                stages.extend(split(stage, turns))
            else:
                stages.append(stage)
        return attrs.evolve(program, stages=tuple(stages))


def reachable(program: Program) -> dict[str, frozenset[str]]:
    """For every stage the stages it depends on, transitively; itself only if it is recursive."""
    direct = {stage.name: stage_producers(program, stage) for stage in program.stages}
    return {name: frozenset(closure(read, direct.__getitem__)) for name, read in direct.items()}


def place(program: Program) -> Program:
    """The program with the placement of every stage decided by the stage graph.

    Stages that depend on no recursion are EARLY; stages on which no recursion depends are LATE, as
    are losses, metrics and outputs; recursive stages, and those between two recursions of one stratum,
    are LEVEL, those between two strata EARLY in the next one.
    """
    depends = reachable(program)
    strata = _strata(program, depends)
    last = max(strata.values(), default=0)

    def placed(stage: Stage) -> tuple[str, int]:
        if stage.name in strata:
            return LEVEL, strata[stage.name]
        is_sink = not any(isinstance(output, StateOutput | SavedOutput) for output in stage.outputs)
        before = max((strata[name] for name in depends[stage.name] if name in strata), default=-1)
        behind = min((at for name, at in strata.items() if stage.name in depends[name]), default=None)
        if is_sink or (behind is None and before >= 0):
            return LATE, last
        return (LEVEL, before) if before == behind else (EARLY, before + 1)

    found = {stage.name: placed(stage) for stage in program.stages}
    stages = (
        attrs.evolve(stage, placement=found[stage.name][0], stratum=found[stage.name][1])
        for stage in program.stages
    )
    return attrs.evolve(program, stages=tuple(stages))


# Stages that read each other.
_Recursion = frozenset[str]


def _strata(program: Program, depends: dict[str, frozenset[str]]) -> dict[str, int]:
    """The strata of recursive stages. A recursion over other structs than one that it reads, as that of a
    sentence's words over letters, comes behind that; over the same structs, as a layer over the one below,
    both go on together: then the second one is but a level behind the first."""
    space_struct = {space.name: space.struct for space in program.spaces}
    struct = {stage.name: space_struct[stage.space] for stage in program.stages}
    recursive = [name for name, found in depends.items() if name in found]
    whole = {
        name: frozenset(other for other in recursive if other in depends[name] and name in depends[other])
        for name in recursive
    }
    structs = {stages: {struct[name] for name in stages} for stages in whole.values()}
    found: dict[_Recursion, int] = {}
    below: dict[_Recursion, set[_Recursion]] = {}
    # Whatever a recursion reads depends on less than it does.
    for name in sorted(recursive, key=lambda name: len(depends[name])):
        own = whole[name]
        if own not in found:
            below[own] = {whole[other] for other in depends[name] if other in whole} - {own}
            least = [found[each] + structs[each].isdisjoint(structs[own]) for each in below[own]]
            found[own] = max(least, default=0)
    together = _together(found, below, structs)
    return {name: together[stages] for name, stages in whole.items()}


def _together(
    first: dict[_Recursion, int],
    below: dict[_Recursion, set[_Recursion]],
    structs: dict[_Recursion, set[str]],
) -> dict[_Recursion, int]:
    """The strata of recursions that may begin in their first one, what they read first: each in the last one
    in which others go on over the same structs, if what is behind it can stay behind it.

    So words that read letters one way, and none the other way, go on both ways at once, with fewer levels.
    """
    found = dict(first)
    for own in reversed(first):  # what reads it has its stratum
        above = [each for each in first if own in below[each]]
        latest = min(
            (found[each] - (first[each] > first[own]) for each in above), default=max(first.values())
        )
        others = {found[each] for each in first if each != own and structs[each] & structs[own]}
        found[own] = max((at for at in others if first[own] <= at <= latest), default=first[own])
    return found


class _Turns:
    """When inputs are there: the turn (`Stage.turn`) of the last stage that makes them."""

    def __init__(self, program: Program) -> None:
        self._stages = {stage.name: stage.turn for stage in program.stages}
        self._states: dict[tuple[str, str], int] = {}
        for stage in program.stages:
            for output in stage.outputs:
                if isinstance(output, StateOutput):
                    key = str(stage.function), output.component
                    self._states[key] = max(stage.turn, self._states.get(key, 0))

    def of(self, source: Input) -> int:
        """The turn of an input of a forward stage; what no stage makes is there from the beginning."""
        if isinstance(source, StateInput):
            return self._states[source.function, source.component]
        return self._stages[source.stage] if isinstance(source, SavedInput) else 0


def split(stage: Stage, turns: _Turns) -> tuple[Stage, ...]:
    """(the EARLY part, the rest), or the stage alone where nothing can be moved."""
    free = _free_values(stage, turns)
    moved = boundary(stage.cell, behind_products(stage.cell, free))
    if not moved:
        return (stage,)
    pre = attrs.evolve(stage, name=f"{stage.name}.pre", placement=EARLY)
    pre = giving(pre, ((SavedOutput(value.name), value) for value in moved))
    there = max((turns.of(source) for source in pre.inputs), default=0)
    pre = attrs.evolve(pre, stratum=(there + 1) // 2)
    return (pre, reading(stage, {value: SavedInput(pre.name, value.name) for value in moved}))


def _free_values(stage: Stage, turns: _Turns) -> set[Value]:
    """The values that do not wait for the stage's recursion."""

    def is_free(source: Input) -> bool:
        return turns.of(source) < stage.turn

    free = {value for value, source in zip(stage.cell.inputs, stage.inputs, strict=True) if is_free(source)}
    for op in stage.cell.ops:
        if all(operand in free for operand in op.operands):
            free.add(op.result)
    return free


def _remark_stages(program: Program, remarks: Remarks) -> None:
    """Stages that run wavefront by wavefront without being recursive themselves."""
    depends = reachable(program)
    recursive = {stage.name: stage.stratum for stage in program.stages if stage.name in depends[stage.name]}
    for stage in program.stages:
        if stage.placement == LEVEL and stage.name not in recursive:
            same = [name for name, stratum in recursive.items() if stratum == stage.stratum]
            before = sorted(depends[stage.name].intersection(same))
            behind = sorted(name for name in same if stage.name in depends[name])
            remarks.add(
                stage.name,
                f"'{stage.name}' runs wavefront by wavefront: it waits for the recursion of "
                f"{', '.join(before)}, and that of {', '.join(behind)} waits for it",
                stage.span,
            )


def _remark_products(stage: Stage, free: set[Value], remarks: Remarks) -> None:
    """Products with parameters that stay in a stage of the recursion, and for what they wait."""
    sources = dict(zip(stage.cell.inputs, stage.inputs, strict=True))
    made = stage.cell.definitions()
    for op in stage.cell.ops:
        parameters = [sources.get(operand) for operand in op.operands]
        named = [source.parameter for source in parameters if isinstance(source, ParameterInput)]
        if op.result in free or not OPS[op.opcode].has(PRODUCT) or not named:
            continue
        waits, loose = _inputs(op, made, free)
        text = ", ".join(dict.fromkeys(_words(sources[value]) for value in waits))
        notes: tuple[str, ...] = ()
        operand = made.get(op.operands[-1])
        if operand is not None and operand.opcode == "concat" and loose:
            parts = ", ".join(dict.fromkeys(_words(sources[value]) for value in loose))
            columns = f"{named[0]} @ concat(a, b) is {named[0]}_a @ a + {named[0]}_b @ b"
            notes = (f"{parts} would not wait: {columns}, and what has no part in the recursion leaves it",)
        remarks.add(
            stage.name,
            f"the product with {named[0]} stays in the recursion: it waits for {text}",
            op.span,
            *notes,
        )


def _inputs(op: Op, made: dict[Value, Op], free: set[Value]) -> tuple[list[Value], list[Value]]:
    """The cell's inputs behind an operation that wait for the recursion, and those that do not.

    Parameters are left out.
    """
    waits: dict[Value, None] = {}
    loose: dict[Value, None] = {}
    todo, seen = list(reversed(op.operands[-1:])), set[Value]()
    todo += [value for value in op.operands[:-1] if value not in free]
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in made:
            todo.extend(reversed(made[value].operands))
        else:
            (loose if value in free else waits).setdefault(value)
    return list(waits), list(loose)


def _words(source: Input) -> str:
    """What an input is, for people."""
    path = source.path if isinstance(source, StateInput | TableInput) else ()
    steps = ".".join(step for step in path if unless_path(step) is None)
    absent = [".".join(found) for found in map(unless_path, path) if found is not None]
    where = (f" at {steps}" if steps else "") + (f" (without {', '.join(absent)})" if absent else "")
    if isinstance(source, StateInput):
        component = "" if source.component == "value" else f"{source.component} of "
        return f"{component}{source.function}{where}"
    if isinstance(source, TableInput):
        return f"{source.parameter}[{source.field}]{where}"
    if isinstance(source, FieldInput):
        return f"field {source.field}"
    if isinstance(source, ParameterInput):
        return source.parameter
    return f"what {source.stage} makes" if isinstance(source, SavedInput) else "random numbers"
