"""Simplifies cells: the same values with fewer operations, in one form.

In: a program. Out: a program in which equal expressions are computed once, constants are folded,
nested slices and concats are flat, sums of pads that fill a vector are concats, vectors are multiplied by
parameters rather than by what is computed of them, and operations, inputs, saved values, slots and stages
that nothing reads are gone. Guaranteed: states, losses, metrics, outputs and gradients are what they were
(up to rounding where constants are folded, and where (s * W) @ x is s * (W @ x)).
"""

from __future__ import annotations

import attrs

from dnc.ir.cell import Cell, Value
from dnc.ir.program import (
    GradientInput,
    Input,
    Output,
    Program,
    SavedInput,
    SavedOutput,
    SlotOutput,
    Stage,
)
from dnc.ir.transform import giving, prune, substitute
from dnc.passes.simplify import simplify_cell


@attrs.frozen
class Canonicalize:
    """The pass; it has no options."""

    name: str = attrs.field(default="canonicalize", init=False)
    optional: bool = attrs.field(default=True, init=False)

    def __call__(self, program: Program) -> Program:
        """The simplified program."""
        previous = None
        while program != previous:
            previous = program
            stages = tuple(simplify_stage(stage) for stage in program.stages)
            program = remove_unread(attrs.evolve(program, stages=stages))
        return program


def simplify_stage(stage: Stage) -> Stage:
    """The stage with a simplified cell, equal inputs bound once and unread ones dropped."""
    first: dict[tuple[Input, object], Value] = {}
    replaced: dict[Value, Value] = {}
    kept: list[tuple[Value, Input]] = []
    for value, source in zip(stage.cell.inputs, stage.inputs, strict=True):
        known = first.setdefault((source, value.type), value)
        if known == value:
            kept.append((value, source))
        else:
            replaced[value] = known
    cell = Cell(
        tuple(value for value, _ in kept),
        tuple(substitute(op, replaced) for op in stage.cell.ops),
        tuple(replaced.get(result, result) for result in stage.cell.results),
    )
    stage = attrs.evolve(stage, inputs=tuple(source for _, source in kept), cell=simplify_cell(cell))
    return prune(stage)


def remove_unread(program: Program) -> Program:
    """The program without saved values and slots that nothing reads, and without empty stages."""
    while (stages := _read_stages(program)) != program.stages:
        program = attrs.evolve(program, stages=stages)
    return program


def _read_stages(program: Program) -> tuple[Stage, ...]:
    """The stages with what some stage or weight gradient reads, and with what leaves the program."""
    sources = {source for stage in program.stages for source in stage.inputs}
    sources |= {source for pair in program.weight_gradients for source, _, _ in pair.x}
    sources |= {SavedInput(pair.stage, pair.delta) for pair in program.weight_gradients}

    def is_read(stage: Stage, output: Output) -> bool:
        if isinstance(output, SavedOutput):
            return SavedInput(stage.name, output.name) in sources
        if isinstance(output, SlotOutput):
            return GradientInput(output.function, output.component) in sources
        return True

    stages = []
    for stage in program.stages:
        kept = [
            (output, result)
            for output, result in zip(stage.outputs, stage.cell.results, strict=True)
            if is_read(stage, output)
        ]
        if len(kept) < len(stage.outputs):
            stage = giving(stage, kept)
        if kept:
            stages.append(stage)
    return tuple(stages)
