"""Share: what a loss, metrics and outputs compute alike is computed once, in a stage of its own.

In: a program behind `differentiate` or `drop-training`. Out: the same, where forward stages of no function,
outside the recursion and over the same vertices, are of one space and read what a new stage, `shared`, saves:
what they have in common, if large products are in it. Guaranteed: every value stays what it was, and no stage
reads more of the data. Stages of functions keep their spaces, from which follows whose state a row is.

`inline` makes a function like `logits` part of all its callers, so that their gradients join its products.
Here the forward cells come apart again behind these products, where an exchange stands anyway: training has
the same instructions, evaluation multiplies once for all results, and a kernel has the code once. Small
products stay: they are computed vertex by vertex, with no exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count

import attrs

from dnc.ir.cell import Op, Value
from dnc.ir.opdef import PRODUCT
from dnc.ir.ops import OPS
from dnc.ir.program import (
    FORWARD,
    LEVEL,
    Input,
    ParameterInput,
    Program,
    SavedInput,
    SavedOutput,
    Stage,
    WeightGradient,
)
from dnc.ir.transform import behind_products, boundary, giving, reading, used_ops
from dnc.passes.distribute import VERTEX_FLOATS

SHARED = "shared"


@attrs.frozen
class Share:
    """The pass. `vertex_floats`: see `Fuse`; products with no more weights than that are not shared."""

    vertex_floats: int = VERTEX_FLOATS
    name: str = attrs.field(default="share", init=False)
    optional: bool = attrs.field(default=True, init=False)

    def __call__(self, program: Program) -> Program:
        """The program with a stage for what others have in common, as long as there are such."""
        while (found := self._most(program)) is not None:
            program = _with_shared(program, found)
        return program

    def _most(self, program: Program) -> _Common | None:
        """What most stages have in common."""
        groups: dict[object, list[Stage]] = {}
        spaces = {space.name: attrs.evolve(space, name="") for space in program.spaces}
        for stage in program.stages:
            if stage.direction == FORWARD and stage.placement != LEVEL and stage.function is None:
                groups.setdefault((spaces[stage.space], stage.turn), []).append(stage)
        found = [common for stages in groups.values() for common in _commons(stages)]
        large = [common for common in found if common.weights > self.vertex_floats]
        return max(large, key=lambda common: len(common.stages), default=None)


@attrs.frozen(eq=False)
class _Common:
    """What some stages have in common: numbers of values, which are those of all that is computed alike.

    numbers: by stage those of its values. made: what an operation makes in each of them.
    """

    stages: tuple[Stage, ...]
    numbers: Mapping[str, Mapping[Value, int]]
    made: frozenset[int]

    @property
    def weights(self) -> int:
        """Elements of the matrices that are multiplied."""
        stage = self.stages[0]
        bound = dict(zip(stage.cell.inputs, stage.inputs, strict=True))
        read = {value for op in self.operations(stage) for value in op.operands}
        matrices = [value for value in read if isinstance(bound.get(value), ParameterInput)]
        return sum(value.tensor.size for value in matrices if len(value.tensor.shape) == 2)

    def operations(self, stage: Stage) -> list[Op]:
        """Those of a stage, in order."""
        return [op for op in stage.cell.ops if self.numbers[stage.name][op.result] in self.made]


def _commons(stages: Sequence[Stage]) -> Iterator[_Common]:
    """For every product that several of the stages have, all that these have in common."""
    known: dict[object, int] = {}
    numbers: dict[str, dict[Value, int]] = {}
    for stage in stages:
        own = numbers[stage.name] = {}
        for value, source in zip(stage.cell.inputs, stage.inputs, strict=True):
            own[value] = known.setdefault((source, value.type), len(known))
        for op in stage.cell.ops:
            key = (op.opcode, op.attributes, *(own[operand] for operand in op.operands))
            own[op.result] = known.setdefault(key, len(known))
    made = {stage.name: {numbers[stage.name][op.result] for op in stage.cell.ops} for stage in stages}
    products = {
        numbers[stage.name][op.result]
        for stage in stages
        for op in stage.cell.ops
        if OPS[op.opcode].has(PRODUCT)
    }
    for product in sorted(products):
        members = tuple(stage for stage in stages if product in made[stage.name])
        if len(members) > 1:
            common = frozenset.intersection(*(frozenset(made[stage.name]) for stage in members))
            yield _Common(members, numbers, common)


def _movable(stage: Stage, common: _Common) -> set[Value]:
    """What a stage need not make: products, what follows from them, and what they are made of."""
    ops = tuple(common.operations(stage))
    behind = behind_products(stage.cell, {op.result for op in ops})
    return behind | {op.result for op in used_ops(ops, tuple(behind))}


def _with_shared(program: Program, common: _Common) -> Program:
    """The program in which the stages read what they have in common."""
    first, taken = common.stages[0], {stage.name for stage in program.stages}
    names = chain([SHARED], (f"{SHARED}.{number}" for number in count(2)))
    name = next(name for name in names if name not in taken)
    moved = {stage.name: boundary(stage.cell, _movable(stage, common)) for stage in common.stages}
    read = {common.numbers[stage][value] for stage, values in moved.items() for value in values}
    saved = {
        number: op.result
        for op in common.operations(first)
        if (number := common.numbers[first.name][op.result]) in read
    }
    outputs = ((SavedOutput(value.name), value) for value in saved.values())
    shared = giving(attrs.evolve(first, name=name), outputs)
    made, handed_on = dict[str, Stage](), dict[Input, Input]()
    for stage in common.stages:
        own = common.numbers[stage.name]
        sources: dict[Value, Input] = {v: SavedInput(name, saved[own[v]].name) for v in moved[stage.name]}
        made[stage.name], others = _without(reading(stage, sources), sources)
        handed_on |= others
    stages = [
        each
        for stage in program.stages
        for each in ([shared] if stage == first else []) + [made.get(stage.name, stage)]
        if each.outputs
    ]
    spaces = {stage.space: first.space for stage in common.stages}
    return _renamed(attrs.evolve(program, stages=tuple(stages)), handed_on, spaces)


def _without(stage: Stage, sources: Mapping[Value, Input]) -> tuple[Stage, dict[Input, Input]]:
    """The stage without saving what it only reads, and where others find that."""
    pairs = list(zip(stage.outputs, stage.cell.results, strict=True))
    again = [(o, value) for o, value in pairs if isinstance(o, SavedOutput) and value in sources]
    kept = [pair for pair in pairs if pair not in again]
    found: dict[Input, Input] = {SavedInput(stage.name, o.name): sources[value] for o, value in again}
    return giving(stage, kept), found


def _renamed(program: Program, inputs: Mapping[Input, Input], spaces: Mapping[str, str]) -> Program:
    """The program that reads other inputs for some, and has one space for some that are alike."""

    def of_stage(stage: Stage) -> Stage:
        bound = tuple(inputs.get(source, source) for source in stage.inputs)
        return attrs.evolve(stage, inputs=bound, space=spaces.get(stage.space, stage.space))

    def of_pair(gradient: WeightGradient) -> WeightGradient:
        x = tuple((inputs.get(source, source), begin, end) for source, begin, end in gradient.x)
        return attrs.evolve(gradient, x=x, space=spaces.get(gradient.space, gradient.space))

    return attrs.evolve(
        program,
        spaces=tuple(s for s in program.spaces if spaces.get(s.name, s.name) == s.name),
        stages=tuple(map(of_stage, program.stages)),
        weight_gradients=tuple(map(of_pair, program.weight_gradients)),
    )
