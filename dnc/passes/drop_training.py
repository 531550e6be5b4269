"""Leaves out of a program what only training needs: the counterpart of `differentiate` for inference.

In: a program with forward stages only. Out: the same stages without random numbers, without what moves
running parameters, and without what was hoisted for that alone. Guaranteed: losses, metrics and outputs have
the values that a program with gradients has outside training.
"""

from __future__ import annotations

import attrs

from dnc.ir.cell import Op, Value
from dnc.ir.program import FollowOutput, Program, Stage
from dnc.ir.transform import giving, prune, substitute
from dnc.passes.canonicalize import remove_unread

DROPOUT = "dropout"


@attrs.frozen
class DropTraining:
    """The pass; it has no options. No gradient and no saved value is made behind it either."""

    name: str = attrs.field(default="drop-training", init=False)
    optional: bool = attrs.field(default=False, init=False)

    def __call__(self, program: Program) -> Program:
        """The program for inference."""
        stages = (_without_noise(_at_rest(stage)) for stage in program.stages)
        return remove_unread(attrs.evolve(program, stages=tuple(stages)))


def _at_rest(stage: Stage) -> Stage:
    """The stage without what moves running parameters."""
    kept = [
        (output, value)
        for output, value in zip(stage.outputs, stage.cell.results, strict=True)
        if not isinstance(output, FollowOutput)
    ]
    if len(kept) == len(stage.outputs):
        return stage
    return giving(stage, kept)


def _without_noise(stage: Stage) -> Stage:
    """The stage with `x` for every `dropout(x)`, which is `x` outside training."""
    replaced: dict[Value, Value] = {}
    kept: list[Op] = []
    for op in stage.cell.ops:
        op = substitute(op, replaced)
        if op.opcode == DROPOUT:
            replaced[op.result] = op.operands[0]
        else:
            kept.append(op)
    if not replaced:
        return stage
    results = tuple(replaced.get(value, value) for value in stage.cell.results)
    cell = attrs.evolve(stage.cell, ops=tuple(kept), results=results)
    return prune(attrs.evolve(stage, cell=cell))
