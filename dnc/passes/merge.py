"""Merges functions of one recursion that meet at the same vertex: what follows a state is computed with it.

In: a program with forward stages. Out: one in which a function that a recursion calls, and that reads of it
what another function has at the same vertex, is further components of that other function's state. So
`paths(w)`, which reads `onward(w.prev)`, and `onward(w)`, which reads `paths(w)`, take one level a vertex
in place of two. Guaranteed: the same values; a function waits for nothing that it did not wait for before.
Functions with products by parameters stay: their workers meet in front of the product or behind it in any
case, and levels of other vertices run beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from dnc.ir.cell import Cell, Value
from dnc.ir.opdef import PRODUCT
from dnc.ir.ops import OPS
from dnc.ir.program import Function, Input, ParameterInput, Program, Stage, StateInput, StateOutput
from dnc.passes.hoist import reachable
from dnc.passes.inline import inlined
from dnc.passes.paths import is_pulled


@attrs.frozen
class Merge:
    """The pass; it has no options."""

    name: str = attrs.field(default="merge", init=False)
    optional: bool = attrs.field(default=True, init=False)

    def __call__(self, program: Program) -> Program:
        """The program in which no such functions are left."""
        while (found := _pair(program)) is not None:
            program = _merged(program, *found)
        return program


def _pair(program: Program) -> tuple[Stage, Stage] | None:
    """A stage, and one of the same recursion that can be computed with it."""
    depends = reachable(program)
    loops = {name for name, below in depends.items() if name in below}
    waiting = {s.function for s in program.stages if loops & {s.name, *depends[s.name]}}
    bodies: dict[str, list[Stage]] = {}
    for stage in program.stages:
        if stage.function is not None:
            bodies.setdefault(stage.function, []).append(stage)
    for second in (stages[0] for stages in bodies.values() if len(stages) == 1):
        here = dict.fromkeys(b.function for b in second.inputs if isinstance(b, StateInput) and not b.path)
        for first, *others in (bodies[function] for function in here if function in bodies):
            related = second.name in depends[first.name] and not others
            if related and _is_ready(program, first, second, waiting):
                return first, second
    return None


def _is_ready(program: Program, first: Stage, second: Stage, waiting: Collection[str | None]) -> bool:
    """Whether `second` runs at the vertices at which `first` does, and can as soon as that has run."""
    if any(map(_multiplies, (first, second))):
        return False

    def is_there(bound: Input) -> bool:
        if not isinstance(bound, StateInput):
            return not is_pulled(program, second, bound)
        if bound.function == first.function:
            return not bound.path
        return bound.function not in waiting or bound in first.inputs

    one, other = (attrs.evolve(program.space(stage.space), name="") for stage in (first, second))
    outputs = (*first.outputs, *second.outputs)
    only_states = all(isinstance(output, StateOutput) for output in outputs)
    return one == other and only_states and all(map(is_there, second.inputs))


def _multiplies(stage: Stage) -> bool:
    """Whether a product by a parameter is in it."""
    inputs = zip(stage.cell.inputs, stage.inputs, strict=True)
    parameters = {value for value, bound in inputs if isinstance(bound, ParameterInput)}
    return any(OPS[op.opcode].has(PRODUCT) and parameters & {*op.operands} for op in stage.cell.ops)


def _merged(program: Program, first: Stage, second: Stage) -> Program:
    """The program in which the state of `first` has the components of `second`, too."""
    own, other = program.function(str(first.function)), program.function(str(second.function))
    names = _names(own, other)
    state = (*own.state, *(attrs.evolve(each, name=names[each.name]) for each in other.state))

    def renamed(stage: Stage) -> Stage:
        inputs = (
            attrs.evolve(bound, function=own.name, component=names[bound.component])
            if isinstance(bound, StateInput) and bound.function == other.name
            else bound
            for bound in stage.inputs
        )
        return attrs.evolve(stage, inputs=tuple(inputs))

    both = inlined(_handing_on(second, own), [first])
    components = [names[o.component] for o in second.outputs if isinstance(o, StateOutput)]
    components += [each.name for each in own.state]
    both = attrs.evolve(
        both,
        name=first.name,
        space=first.space,
        function=own.name,
        outputs=tuple(map(StateOutput, components)),
    )
    stages = (both if stage == first else stage for stage in program.stages if stage != second)
    functions = (attrs.evolve(each, state=state) if each == own else each for each in program.functions)
    return attrs.evolve(
        program,
        functions=tuple(each for each in functions if each != other),
        spaces=tuple(each for each in program.spaces if each.name != second.space),
        stages=tuple(map(renamed, stages)),
    )


def _handing_on(stage: Stage, function: Function) -> Stage:
    """The stage that also returns what a function has at its vertex."""
    added = {
        Value(f"{function.name}.{each.name}", each.type): StateInput(function.name, each.name, ())
        for each in function.state
    }
    cell = Cell((*stage.cell.inputs, *added), stage.cell.ops, (*stage.cell.results, *added))
    return attrs.evolve(stage, inputs=(*stage.inputs, *added.values()), cell=cell)


def _names(own: Function, other: Function) -> Mapping[str, str]:
    """What the components of `other` are called beside those of `own`."""
    taken, found = {each.name for each in own.state}, dict[str, str]()
    for each in other.state:
        name = other.name if len(other.state) == 1 else f"{other.name}_{each.name}"
        while name in taken:
            name += "_"
        taken.add(name)
        found[each.name] = name
    return found
