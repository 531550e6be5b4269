"""Which stages a stage reads, and the parts of a recursion that do not read each other.

In: a program. Out: names of stages; of every space of the recursion the number of its part. Guaranteed: what
one part makes no level of another one waits for, forwards or backwards.
"""

from __future__ import annotations

from collections.abc import Iterable

from dnc.ir.program import (
    LEVEL,
    GradientInput,
    Input,
    Program,
    SavedInput,
    SlotOutput,
    Stage,
    StateInput,
    StateOutput,
)


def stage_producers(program: Program, stage: Stage) -> set[str]:
    """Names of the stages whose results `stage` reads, in whatever row."""
    return producers(program, stage.inputs)


def producers(program: Program, inputs: Iterable[Input]) -> set[str]:
    """Names of the stages that make what some inputs read."""
    found: set[str] = set()
    for bound in inputs:
        if isinstance(bound, SavedInput):
            found.add(bound.stage)
        elif isinstance(bound, StateInput):
            found.update(
                other.name
                for other in program.stages
                if other.function == bound.function
                and any(isinstance(output, StateOutput) for output in other.outputs)
            )
        elif isinstance(bound, GradientInput):
            for other in program.stages:
                for output in other.outputs:
                    if isinstance(output, SlotOutput) and (
                        (output.function, output.component) == (bound.function, bound.component)
                    ):
                        found.add(other.name)
    return found


def parts_of_recursion(program: Program) -> dict[str, int]:
    """By space the part of the recursion it belongs to: stages of which one reads the other are in one."""
    levels = {stage.name: stage for stage in program.stages if stage.placement == LEVEL}
    found = {space: at for at, space in enumerate(dict.fromkeys(stage.space for stage in levels.values()))}
    for stage in levels.values():
        for name in stage_producers(program, stage) & set(levels):
            low, high = sorted((found[stage.space], found[levels[name].space]))
            found = {space: low if part == high else part for space, part in found.items()}
    return found
