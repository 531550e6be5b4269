"""Which stages a stage reads, directly or not, and the parts of recursions that do not read each other.

In: a program. Out: stages, or their names; of every space of a recursion the number of its part, by stratum.
Guaranteed: what one part makes no level of another one of the stratum waits for, forwards or backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dnc.ir.cell import Value
from dnc.ir.program import (
    LEVEL,
    GradientInput,
    Input,
    Program,
    SavedInput,
    SavedOutput,
    SlotOutput,
    Stage,
    StateInput,
    StateOutput,
)


def closure(first: Iterable[str], below: Callable[[str], Iterable[str]]) -> set[str]:
    """Some names and all that lie below them, directly or not."""
    found, todo = set[str](), list(first)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += below(name)
    return found


def needed(program: Program, names: Iterable[str]) -> set[str]:
    """Names of some stages and of all whose results they read, directly or not."""
    return closure(names, lambda name: stage_producers(program, program.stage(name)))


def stage_producers(program: Program, stage: Stage) -> set[str]:
    """Names of the stages whose results `stage` reads, in whatever row."""
    return producers(program, stage.inputs)


def producers(program: Program, inputs: Iterable[Input]) -> set[str]:
    """Names of the stages that make what some inputs read."""
    return {stage.name for bound in inputs for stage, _ in makers(program, bound)}


def makers(program: Program, bound: Input) -> tuple[tuple[Stage, Value], ...]:
    """The stages that make what an input reads, each with the result of its cell that it is."""
    match bound:
        case SavedInput(stage, name):
            return program.made.get((SavedOutput, stage, name), ())
        case StateInput(function, component):
            return program.made.get((StateOutput, function, component), ())
        case GradientInput(function, component):
            return program.made.get((SlotOutput, function, component), ())
    return ()


def parts_of_recursions(program: Program) -> list[dict[str, int]]:
    """Of every stratum, by space the part of its recursion: stages of which one reads the other are in one;
    parts are numbered from 0."""
    found: list[dict[str, int]] = []
    for stratum in range(program.strata):
        levels = {s.name: s for s in program.stages if (s.placement, s.stratum) == (LEVEL, stratum)}
        part = {space: at for at, space in enumerate(dict.fromkeys(stage.space for stage in levels.values()))}
        for stage in levels.values():
            for name in stage_producers(program, stage) & set(levels):
                low, high = sorted((part[stage.space], part[levels[name].space]))
                part = {space: low if own == high else own for space, own in part.items()}
        numbers = sorted(set(part.values()))
        found.append({space: numbers.index(own) for space, own in part.items()})
    return found
