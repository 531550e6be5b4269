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
from dnc.ir.remarks import Remarks
from dnc.passes.hoist import reachable
from dnc.passes.paths import is_pulled


@attrs.frozen
class Inline:
    """The pass; it has no options."""

    name: str = attrs.field(default="inline", init=False)
    optional: bool = attrs.field(default=True, init=False)

    def __call__(self, program: Program) -> Program:
        """The program with every such function gone."""
        return self.decide(program, Remarks())

    def decide(self, program: Program, remarks: Remarks) -> Program:
        """The same; why a function without recursion stays is remarked upon."""
        while (callee := _candidate(program)) is not None:
            stages = tuple(_inlined(stage, callee) for stage in program.stages if stage.name != callee.name)
            program = attrs.evolve(
                program,
                stages=stages,
                spaces=tuple(space for space in program.spaces if any(s.space == space.name for s in stages)),
                functions=tuple(f for f in program.functions if f.name != callee.function),
            )
        depends = reachable(program)
        for function in program.functions:
            own = [stage for stage in program.stages if stage.function == function.name]
            reason = _obstacle(program, function.name)
            if reason and not any(stage.name in depends[stage.name] for stage in own):
                text = f"'{function.name}' is no part of its callers' stages: {reason}"
                remarks.add(own[0].name, text, own[0].span)
        return program


def _candidate(program: Program) -> Stage | None:
    """The stage of the next function that can be inlined, or None."""
    for function in program.functions:
        if _obstacle(program, function.name) == "":
            return next(stage for stage in program.stages if stage.function == function.name)
    return None


def _obstacle(program: Program, function: str) -> str | None:
    """Why a function stays a stage of its own; "" if it need not, None if nothing calls it."""
    stages = [stage for stage in program.stages if stage.function == function]
    calls = [
        (stage, bound)
        for stage in program.stages
        for bound in stage.inputs
        if isinstance(bound, StateInput) and bound.function == function
    ]
    if not calls or not stages:
        return None
    outputs = [output for stage in stages for output in stage.outputs]
    components = next(f for f in program.functions if f.name == function).state
    if any(stage.name == stages[0].name for stage, _ in calls):
        return "it calls itself"
    if len(stages) > 1:
        return "it has a body for every arm"
    if len(stages[0].outputs) != len(components) or not all(isinstance(o, StateOutput) for o in outputs):
        return "it saves more than what it returns"
    if any(is_pulled(program, stages[0], bound) for bound in stages[0].inputs):
        return "it reads pulled vectors, whose gradients it hands out"
    for stage, bound in calls:
        if bound.path or bound.is_list:
            return f"'{stage.name}' calls it at another vertex ({'.'.join(bound.path)})"
        if not _covers(program, stages[0], stage):
            return f"'{stage.name}' runs at vertices at which it does not"
    # Of functions that call each other one stays: a callee may not call what calls it.
    callers = [stage.function for stage, _ in calls if stage.function is not None]
    return f"the function '{callers[0]}' calls it too" if callers else ""


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
