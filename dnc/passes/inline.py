"""Inlines plain functions into the stages that call them at the same vertex.

In: a program with forward stages. Out: a program in which a function without recursion and without
`match`, called only at the caller's own vertex, has become part of its callers' cells. Guaranteed:
the same values; a call that two stages share is computed in both, which saves a stage with its
exchange in training. Products that would be made twice `share` takes out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import attrs

from dnc.ir.cell import Cell, Op, Value
from dnc.ir.program import Function, Input, Program, Space, Stage, StateInput, StateOutput
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
        callees = _order(_Calls.of(program))
        if callees:
            gone = {callee.name for callee in callees}
            functions = {callee.function for callee in callees}
            stages = tuple(inlined(stage, callees) for stage in program.stages if stage.name not in gone)
            used = {stage.space for stage in stages}
            program = attrs.evolve(
                program,
                stages=stages,
                spaces=tuple(space for space in program.spaces if space.name in used),
                functions=tuple(f for f in program.functions if f.name not in functions),
            )
        depends, calls = reachable(program), _Calls.of(program)
        for function in program.functions:
            own = calls.stages.get(function.name, [])
            reason = calls.obstacle(function.name)
            if reason and not any(stage.name in depends[stage.name] for stage in own):
                text = f"'{function.name}' is no part of its callers' stages: {reason}"
                remarks.add(own[0].name, text, own[0].span)
        return program


@attrs.frozen(eq=False)
class _Calls:
    """The stages of every function, and who calls it: both by function, in the order of the program."""

    program: Program
    spaces: dict[str, Space]
    functions: dict[str, Function]
    stages: dict[str, list[Stage]]
    calls: dict[str, list[tuple[Stage, StateInput]]]

    @staticmethod
    def of(program: Program) -> _Calls:
        """Those of a program."""
        stages: dict[str, list[Stage]] = {}
        calls: dict[str, list[tuple[Stage, StateInput]]] = {}
        for stage in program.stages:
            if stage.function is not None:
                stages.setdefault(stage.function, []).append(stage)
            for bound in stage.inputs:
                if isinstance(bound, StateInput):
                    calls.setdefault(bound.function, []).append((stage, bound))
        spaces = {space.name: space for space in program.spaces}
        functions = {function.name: function for function in program.functions}
        return _Calls(program, spaces, functions, stages, calls)

    def obstacle(self, function: str) -> str | None:
        """Why a function stays a stage of its own; "" if it need not, None if nothing calls it."""
        calls, stages = self.calls.get(function), self.stages.get(function)
        if not calls or not stages:
            return None
        reason = self.own_obstacle(function)
        if reason:
            return reason
        for stage, bound in calls:
            if bound.path or bound.is_list:
                return f"'{stage.name}' calls it at another vertex ({'.'.join(bound.path)})"
            if not self.covers(stages[0], stage):
                return f"'{stage.name}' runs at vertices at which it does not"
        # Of functions that call each other one stays: a callee may not call what calls it.
        callers = [stage.function for stage, _ in calls if stage.function is not None]
        return f"the function '{callers[0]}' calls it too" if callers else ""

    def own_obstacle(self, function: str) -> str:
        """The same as far as it does not depend on who else calls it."""
        stages = self.stages[function]
        outputs = [output for stage in stages for output in stage.outputs]
        if any(stage.name == stages[0].name for stage, _ in self.calls[function]):
            return "it calls itself"
        if len(stages) > 1:
            return "it has a body for every arm"
        if len(stages[0].outputs) != len(self.functions[function].state) or not all(
            isinstance(output, StateOutput) for output in outputs
        ):
            return "it saves more than what it returns"
        if any(is_pulled(self.program, stages[0], bound) for bound in stages[0].inputs):
            return "it reads pulled vectors, whose gradients it hands out"
        return ""

    def covers(self, callee: Stage, caller: Stage) -> bool:
        """Whether the callee runs at every vertex at which the caller does."""
        own, other = self.spaces[callee.space], self.spaces[caller.space]
        return own.struct == other.struct and set(other.arms) <= set(own.arms)


def _order(calls: _Calls) -> list[Stage]:
    """The stages of the functions that can be inlined, each behind all functions that call it.

    What is called by such a function alone is called by its callers once that is inlined.
    """
    number = {name: at for at, name in enumerate(calls.functions)}
    callers = {
        name: {stage.name: stage for stage, _ in found}
        for name, found in calls.calls.items()
        if name in number
    }
    waits = {name: sum(s.function is not None for s in found.values()) for name, found in callers.items()}

    def is_free(name: str) -> bool:
        """Whether no function calls it any more, and nothing else hinders."""
        if waits[name] or name not in calls.stages or calls.own_obstacle(name):
            return False
        here = not any(bound.path or bound.is_list for _, bound in calls.calls[name])
        return here and all(calls.covers(calls.stages[name][0], stage) for stage in callers[name].values())

    free = [number[name] for name in callers if is_free(name)]
    heapify(free)
    names, found = list(number), list[Stage]()
    while free:
        name = names[heappop(free)]
        (callee,) = calls.stages[name]
        found.append(callee)
        for called in {
            b.function for b in callee.inputs if isinstance(b, StateInput) and b.function in callers
        }:
            del callers[called][callee.name]
            callers[called] |= callers[name]
            waits[called] -= 1
            if is_free(called):
                heappush(free, number[called])
    return found


def inlined(stage: Stage, callees: Sequence[Stage]) -> Stage:
    """`stage` with its calls replaced by the cells of callees, in this order."""
    inputs: dict[Value, Input] = dict(zip(stage.cell.inputs, stage.inputs, strict=True))
    bound_to: dict[Input, Value] = {bound: value for value, bound in inputs.items()}
    called: dict[str, list[Value]] = {}
    for value, bound in inputs.items():
        if isinstance(bound, StateInput):
            called.setdefault(bound.function, []).append(value)
    replaced: dict[Value, Value] = {}
    bodies: list[list[Op]] = []
    for callee in callees:
        values = called.pop(str(callee.function), None)
        if values is None:
            continue
        taken = {value: inputs.pop(value) for value in values}
        for bound in taken.values():
            bound_to.pop(bound, None)
        renamed: dict[Value, Value] = {}
        for value, bound in zip(callee.cell.inputs, callee.inputs, strict=True):
            if bound not in bound_to:
                new = bound_to[bound] = Value(f"{callee.name}__{value.name}", value.type)
                inputs[new] = bound
                if isinstance(bound, StateInput):
                    called.setdefault(bound.function, []).append(new)
            renamed[value] = bound_to[bound]
        body: list[Op] = []
        for op in callee.cell.ops:
            renamed[op.result] = Value(f"{callee.name}__{op.result.name}", op.result.type)
            body.append(_renamed(op, renamed))
        results = {
            output.component: renamed[value]
            for value, output in zip(callee.cell.results, callee.outputs, strict=True)
            if isinstance(output, StateOutput)
        }
        replaced |= {v: results[b.component] for v, b in taken.items() if isinstance(b, StateInput)}
        bodies.append(body)
    if not bodies:
        return stage
    for value in reversed(replaced):  # what stands for it may be an input that was replaced later
        replaced[value] = replaced.get(replaced[value], replaced[value])
    ops = [op for body in reversed(bodies) for op in body]
    cell = Cell(
        tuple(inputs),
        tuple(_renamed(op, replaced) for op in (*ops, *stage.cell.ops)),
        tuple(replaced.get(value, value) for value in stage.cell.results),
    )
    return attrs.evolve(stage, cell=cell, inputs=tuple(inputs.values()))


def _renamed(op: Op, names: dict[Value, Value]) -> Op:
    operands = tuple(names.get(value, value) for value in op.operands)
    return attrs.evolve(op, operands=operands, result=names.get(op.result, op.result))
