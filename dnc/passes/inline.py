"""Inlines plain functions into the stages that call them at the same vertex.

In: a program with forward stages. Out: a program in which a function without recursion and without
`match`, called only at the caller's own vertex, has become part of its callers' cells. Guaranteed:
the same values; a call that two stages share is computed in both, which costs a product twice
where loss and metric are evaluated together, and saves a stage with its exchange in training.
"""

from __future__ import annotations

import attrs

from dnc.ir.cell import Cell, Op, Value
from dnc.ir.program import Input, Program, Stage, StateInput, StateOutput
from dnc.passes.paths import is_pulled


@attrs.frozen
class Inline:
    """The pass; it has no options."""

    name: str = attrs.field(default="inline", init=False)
    optional: bool = attrs.field(default=True, init=False)

    def __call__(self, program: Program) -> Program:
        """The program with every such function gone."""
        while (callee := _candidate(program)) is not None:
            stages = tuple(_inlined(stage, callee) for stage in program.stages if stage.name != callee.name)
            program = attrs.evolve(
                program,
                stages=stages,
                spaces=tuple(space for space in program.spaces if any(s.space == space.name for s in stages)),
                functions=tuple(f for f in program.functions if f.name != callee.function),
            )
        return program


def _candidate(program: Program) -> Stage | None:
    """The stage of the next function that can be inlined, or None."""
    for function in program.functions:
        stages = [stage for stage in program.stages if stage.function == function.name]
        calls = [
            (stage, bound)
            for stage in program.stages
            for bound in stage.inputs
            if isinstance(bound, StateInput) and bound.function == function.name
        ]
        alone = len(stages) == 1 and len(stages[0].outputs) == len(function.state)
        outside = any(is_pulled(program, stages[0], bound) for bound in stages[0].inputs) if stages else True
        plain = not outside and all(
            isinstance(output, StateOutput) for stage in stages for output in stage.outputs
        )
        same_vertex = all(not bound.path and not bound.is_list for _, bound in calls)
        covered = alone and all(_covers(program, stages[0], stage) for stage, _ in calls)
        recursive = any(stage.name == stages[0].name for stage, _ in calls) if stages else True
        # Of functions that call each other one stays: a callee may not call what calls it.
        last = all(stage.function is None for stage, _ in calls)
        if calls and alone and plain and same_vertex and covered and last and not recursive:
            return stages[0]
    return None


def _covers(program: Program, callee: Stage, caller: Stage) -> bool:
    """Whether the callee runs at every vertex at which the caller does."""
    own, other = program.space(callee.space), program.space(caller.space)
    return own.struct == other.struct and set(other.arms) <= set(own.arms)


def _inlined(stage: Stage, callee: Stage) -> Stage:
    """`stage` with its calls of `callee` replaced by the callee's cell."""
    called = {
        value: bound.component
        for value, bound in zip(stage.cell.inputs, stage.inputs, strict=True)
        if isinstance(bound, StateInput) and bound.function == callee.function
    }
    if not called:
        return stage
    kept = [(v, b) for v, b in zip(stage.cell.inputs, stage.inputs, strict=True) if v not in called]
    bound_to: dict[Input, Value] = {bound: value for value, bound in kept}
    renamed: dict[Value, Value] = {}
    for value, bound in zip(callee.cell.inputs, callee.inputs, strict=True):
        if bound not in bound_to:
            bound_to[bound] = Value(f"{callee.name}__{value.name}", value.type)
            kept.append((bound_to[bound], bound))
        renamed[value] = bound_to[bound]
    ops: list[Op] = []
    for op in callee.cell.ops:
        renamed[op.result] = Value(f"{callee.name}__{op.result.name}", op.result.type)
        ops.append(_renamed(op, renamed))
    results = {
        output.component: renamed[value]
        for value, output in zip(callee.cell.results, callee.outputs, strict=True)
        if isinstance(output, StateOutput)
    }
    replaced = {value: results[component] for value, component in called.items()}
    ops += [_renamed(op, replaced) for op in stage.cell.ops]
    cell = Cell(
        tuple(value for value, _ in kept),
        tuple(ops),
        tuple(replaced.get(value, value) for value in stage.cell.results),
    )
    return attrs.evolve(stage, cell=cell, inputs=tuple(bound for _, bound in kept))


def _renamed(op: Op, names: dict[Value, Value]) -> Op:
    operands = tuple(names.get(value, value) for value in op.operands)
    return attrs.evolve(op, operands=operands, result=names.get(op.result, op.result))
