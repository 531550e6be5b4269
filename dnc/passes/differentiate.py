"""Adds the gradient of the loss: a backward stage per forward stage, and the weight gradients.

In: a program with forward stages only. Out: the same forward stages, which now also save the values
that the backward ones need, and what these would read whole vectors or matrices again for; for each stage on
a path from a trained parameter to the loss a stage `<name>.grad` over the same space, EARLY and LATE
exchanged; and a (delta, x) pair per product with a parameter. Guaranteed: metrics, outputs and frozen
parameters get no gradient; a forward input is read again instead of being saved.
"""

from __future__ import annotations

import attrs

from dnc.diagnostics import Diagnostic, DiagnosticError, Span
from dnc.ir.builder import Builder
from dnc.ir.cell import Cell, Op, Value
from dnc.ir.opdef import CONSTANT, ELEMENTWISE, REDUCTION, VIEW
from dnc.ir.ops import OPS
from dnc.ir.program import (
    BACKWARD,
    EARLY,
    FORWARD,
    LATE,
    LEVEL,
    DeclaredOutput,
    FieldInput,
    FollowOutput,
    GradientInput,
    Input,
    LossOutput,
    Output,
    ParameterInput,
    Program,
    PulledGradientOutput,
    SavedInput,
    SavedOutput,
    SeedInput,
    SlotOutput,
    Stage,
    StateInput,
    StateOutput,
    TableInput,
    TableSlotOutput,
    WeightGradient,
)
from dnc.ir.transform import prune
from dnc.ir.types import ListType, TensorType
from dnc.passes.paths import Paths, find_paths

MIRRORED = {EARLY: LATE, LEVEL: LEVEL, LATE: EARLY}


@attrs.frozen
class Differentiate:
    """The pass. `matrix_limit`: the most elements of a matrix whose gradient is kept per row, where
    it is not a product of two vectors."""

    matrix_limit: int = 4096
    name: str = attrs.field(default="differentiate", init=False)
    optional: bool = attrs.field(default=False, init=False)

    def __call__(self, program: Program) -> Program:
        """The program with its backward stages; a program without a loss stays as it is."""
        program = _with_pairs_of_running(program)
        paths = find_paths(program)
        forward = {stage.name: stage for stage in program.stages}
        backward: list[Stage] = []
        pairs: list[WeightGradient] = []
        saved: dict[tuple[str, str], list[SavedInput]] = {}
        for stage in reversed(program.stages):
            if stage.direction == FORWARD and paths.runs_backward(stage):
                reverse = _Reverse(program, stage, paths, saved, self.matrix_limit)
                forward[stage.name] = reverse.forward_stage()
                backward.append(reverse.backward_stage())
                pairs.extend(reverse.pairs)
        stages = (*(forward[stage.name] for stage in program.stages), *backward)
        return attrs.evolve(program, stages=stages, weight_gradients=(*program.weight_gradients, *pairs))


def _with_pairs_of_running(program: Program) -> Program:
    """The program in which every row saves what it adds to a running parameter."""
    stages, pairs = [], list(program.weight_gradients)
    for stage in program.stages:
        outputs: list[Output] = []
        for output in stage.outputs:
            if isinstance(output, FollowOutput):
                count = sum(isinstance(before, SavedOutput) for before in outputs)
                name = f"follow {output.parameter} {count}"
                pair = WeightGradient(output.parameter, stage.space, stage.name, name, (), output.field)
                pairs.append(pair)
                outputs.append(SavedOutput(name))
            else:
                outputs.append(output)
        stages.append(attrs.evolve(stage, outputs=tuple(outputs)))
    return attrs.evolve(program, stages=tuple(stages), weight_gradients=tuple(pairs))


class _Reverse:
    """Reverse mode through one stage.

    The builder starts with a copy of the forward cell, so that gradients may name forward values.
    Afterwards the forward values that are used become inputs of the backward cell.
    """

    def __init__(
        self,
        program: Program,
        stage: Stage,
        paths: Paths,
        saved_gradients: dict[tuple[str, str], list[SavedInput]],
        matrix_limit: int,
    ) -> None:
        self.program = program
        self.stage = stage
        self.name = f"{stage.name}.grad"
        self.paths = paths
        self.saved_gradients = saved_gradients
        self.matrix_limit = matrix_limit
        self.binding = dict(zip(stage.cell.inputs, stage.inputs, strict=True))
        self.definitions = stage.cell.definitions()
        self.saved: dict[Value, str] = {
            value: output.name
            for output, value in zip(stage.outputs, stage.cell.results, strict=True)
            if isinstance(output, SavedOutput)
        }
        self.added: list[tuple[Value, SavedOutput]] = []
        self.moved: list[Op] = []
        self.build = Builder(stage.cell.inputs, stage.cell.ops)
        self.inputs: list[tuple[Value, Input]] = []
        self.outputs: list[tuple[Value, Output]] = []
        self.pairs: list[WeightGradient] = []
        self.gradients: dict[Value, list[Value]] = {}
        self._seed_results()
        self._sweep()
        self._emit_inputs()
        self._bind_forward_values()

    # ---- the sweep -------------------------------------------------------------------------

    def _input(self, source: Input, like: Value, name: str) -> Value:
        value = self.build.input(like.type, name)
        self.inputs.append((value, source))
        return value

    def _seed_results(self) -> None:
        """The gradients that reach the results from outside."""
        active = self.paths.active[self.stage.name]
        for output, value in zip(self.stage.outputs, self.stage.cell.results, strict=True):
            if value not in active:
                continue
            sources: list[Input] = []
            if isinstance(output, LossOutput):
                sources = [SeedInput()]
            elif isinstance(output, DeclaredOutput):
                sources = [FieldInput(output.gradient)]
            elif isinstance(output, StateOutput):
                function = str(self.stage.function)
                if (function, output.component) in self.paths.states:
                    sources = [GradientInput(function, output.component)]
            elif isinstance(output, SavedOutput):
                sources = list(self.saved_gradients.get((self.stage.name, output.name), ()))
            for source in sources:
                grad = self._input(source, value, f"d_{value.name}")
                self.gradients.setdefault(value, []).append(grad)

    def _sweep(self) -> None:
        active = self.paths.active[self.stage.name]
        for op in reversed(self.stage.cell.ops):
            if op.result not in self.gradients:
                continue
            gradient = OPS[op.opcode].gradient
            if gradient is None:
                continue
            self.build.span = op.span
            grad = self.build.total(self.gradients[op.result])
            for operand, contribution in zip(op.operands, gradient(self.build, op, grad), strict=True):
                if contribution is not None and operand in active:
                    self.gradients.setdefault(operand, []).append(contribution)

    def _emit_inputs(self) -> None:
        """Hands the gradients by the inputs on: slots, saved values and weight gradients."""
        for value, source in self.binding.items():
            contributions = self.gradients.get(value)
            if not contributions:
                continue
            if isinstance(source, ParameterInput):
                self._parameter(source, contributions)
            elif isinstance(source, StateInput):
                slot = SlotOutput(source.function, source.component, source.path, source.is_list)
                if isinstance(value.type, ListType):
                    self.outputs.extend((grad, slot) for grad in contributions)
                else:
                    self.outputs.append((self.build.total(contributions), slot))
            elif isinstance(source, TableInput):
                total = self.build.total(contributions)
                self.outputs.append((total, TableSlotOutput(source.parameter, source.field, source.path)))
            elif isinstance(source, FieldInput):
                total = self.build.total(contributions)
                self.outputs.append((total, PulledGradientOutput(source.field)))
            elif isinstance(source, SavedInput):
                name = self._save(self.build.total(contributions))
                key = (source.stage, source.name)
                self.saved_gradients.setdefault(key, []).append(SavedInput(self.name, name))

    # ---- weight gradients ------------------------------------------------------------------

    def _parameter(self, source: ParameterInput, contributions: list[Value]) -> None:
        made = {op.result: op for op in self.build.ops}
        others: list[Value] = []
        for grad in contributions:
            op = made.get(grad)
            if op is not None and op.opcode == "outer":
                stage, delta = self._delta(op.operands[0])
                x = tuple(self._factor(op.operands[1]))
                self._pair(source, stage, delta, x)
            else:
                others.append(grad)
        if not others:
            return
        total = self.build.total(others)
        assert isinstance(total.type, TensorType)
        if len(total.type.shape) > 1 and total.type.size > self.matrix_limit:
            span = self._span_of_use(source)
            where = f"the gradient of '{source.parameter}' in '{self.stage.name}'"
            found = f"{total.type.size} numbers a row; at most {self.matrix_limit} are kept"
            raise DiagnosticError(
                Diagnostic(
                    f"{where} is not a product of two vectors",
                    span,
                    notes=(
                        found,
                        "use the matrix as the left operand of @ with a vector on the right",
                        "a build of --mode infer makes no gradients",
                    ),
                )
            )
        stage, delta = self._delta(total)
        self._pair(source, stage, delta)

    def _pair(
        self, source: ParameterInput, stage: str, delta: str, x: tuple[tuple[Input, int, int], ...] = ()
    ) -> None:
        self.pairs.append(WeightGradient(source.parameter, self.stage.space, stage, delta, x, source.field))

    def _span_of_use(self, source: ParameterInput) -> Span | None:
        for op in self.stage.cell.ops:
            for operand in op.operands:
                if self.binding.get(operand) == source and op.span is not None:
                    return op.span
        return self.stage.span

    def _delta(self, value: Value) -> tuple[str, str]:
        """(stage, name) under which `value` is saved."""
        for known, source in self.inputs:
            if known == value and isinstance(source, SavedInput):
                return source.stage, source.name
        return self.name, self._save(value)

    def _save(self, value: Value) -> str:
        """The name under which the backward stage saves `value`."""
        for known, output in self.outputs:
            if known == value and isinstance(output, SavedOutput):
                return output.name
        self.outputs.append((value, SavedOutput(value.name)))
        return value.name

    def _factor(self, value: Value) -> list[tuple[Input, int, int]]:
        """The inputs, with the slice taken of each, whose concatenation is the vector `value`."""
        assert isinstance(value.type, TensorType)
        width = value.type.shape[0]
        source = self.binding.get(value)
        if isinstance(source, StateInput | TableInput | FieldInput | SavedInput):
            return [(source, 0, width)]
        for known, input in self.inputs:
            if known == value and isinstance(input, SavedInput):
                return [(input, 0, width)]
        op = self.definitions.get(value)
        if op is not None and op.opcode == "concat":
            return [piece for operand in op.operands for piece in self._factor(operand)]
        if op is not None and op.opcode == "slice":
            begin, end = int(str(op.attribute("begin"))), int(str(op.attribute("end")))
            return cut(self._factor(op.operands[0]), begin, end)
        if op is not None or source is not None:
            return [(self._forward(value), 0, width)]
        return [(SavedInput(self.name, self._save(value)), 0, width)]

    # ---- forward values --------------------------------------------------------------------

    def _forward(self, value: Value) -> Input:
        """Where a backward stage finds a value of the forward cell; saves it if need be."""
        source = self.binding.get(value)
        if source is not None and not isinstance(source, ParameterInput):
            return source
        for output, result in zip(self.stage.outputs, self.stage.cell.results, strict=True):
            if result == value and isinstance(output, StateOutput):
                return StateInput(str(self.stage.function), output.component, ())
        if value not in self.saved:
            taken = set(self.saved.values())
            name, count = value.name, 0
            while name in taken:
                count += 1
                name = f"{value.name}_{count}"
            self.saved[value] = name
            self.added.append((value, SavedOutput(name)))
        return SavedInput(self.stage.name, self.saved[value])

    def _recomputed(self) -> set[Value]:
        """Forward values that are computed again: constants, views of inputs, lists, which no buffer holds,
        and matrices that follow element by element from what there is, as `T + outer(a, b)`."""
        found = set(self.stage.cell.inputs)
        for op in self.stage.cell.ops:
            definition = OPS[op.opcode]
            free = definition.has(CONSTANT) or isinstance(op.result.type, ListType) or op.opcode == "outer"
            view = definition.has(VIEW) and found.issuperset(op.operands)
            matrices = {operand for operand in op.operands if _is_matrix(operand)}
            matrix = definition.has(ELEMENTWISE) and _is_matrix(op.result) and found.issuperset(matrices)
            if free or view or matrix:
                found.add(op.result)
        return found

    def _reductions(self, ops: list[Op]) -> list[Op]:
        """Those of the backward stage that are scalars of whole vectors of the forward one, or vectors of
        matrices: this makes them, as it has just read these for others like them."""
        known = {*self.stage.cell.inputs, *self.definitions}
        reduced = [op for op in ops if OPS[op.opcode].has(REDUCTION) and _is_smaller(op)]
        return [op for op in reduced if known.issuperset(op.operands)]

    def _bind_forward_values(self) -> None:
        """Splits off the backward cell: what it uses of the forward one becomes its inputs."""
        cheap = self._recomputed()
        count = len(self.stage.cell.ops)
        forward, own = self.build.ops[:count], self.build.ops[count:]
        reductions = self._reductions(own)
        own = [op for op in own if op not in reductions]
        needed = {value for value, _ in self.outputs}
        kept: list[Op] = []
        for op in reversed([*(op for op in forward if op.result in cheap), *own]):
            if op.result in needed:
                kept.append(op)
                needed.update(op.operands)
        made = {op.result for op in kept}
        for value in self.stage.cell.inputs:
            if value in needed:
                self.inputs.append((value, self.binding[value]))
        self.moved = [op for op in reductions if op.result in needed]
        for op in (*forward, *self.moved):
            if op.result in needed and op.result not in made:
                self.inputs.append((op.result, self._forward(op.result)))
        self.ops = tuple(reversed(kept))

    # ---- what comes out --------------------------------------------------------------------

    def forward_stage(self) -> Stage:
        """The forward stage, which also saves what is needed."""
        stage = self.stage
        results = (*stage.cell.results, *(value for value, _ in self.added))
        outputs = (*stage.outputs, *(output for _, output in self.added))
        cell = attrs.evolve(stage.cell, ops=(*stage.cell.ops, *self.moved), results=results)
        return attrs.evolve(stage, cell=cell, outputs=outputs)

    def backward_stage(self) -> Stage:
        """The backward stage."""
        cell = Cell(
            tuple(value for value, _ in self.inputs), self.ops, tuple(value for value, _ in self.outputs)
        )
        stage = Stage(
            name=self.name,
            space=self.stage.space,
            function=self.stage.function,
            inputs=tuple(source for _, source in self.inputs),
            cell=cell,
            outputs=tuple(output for _, output in self.outputs),
            placement=MIRRORED[self.stage.placement],
            direction=BACKWARD,
            stratum=self.stage.stratum,
            span=self.stage.span,
        )
        return prune(stage)


def _is_matrix(value: Value) -> bool:
    return len(value.tensor.shape) == 2


def _is_smaller(op: Op) -> bool:
    """Whether a reduction gives a scalar or a class, or a vector of a matrix."""
    return not op.result.tensor.shape or (not _is_matrix(op.result) and all(map(_is_matrix, op.operands)))


def cut(pieces: list[tuple[Input, int, int]], begin: int, end: int) -> list[tuple[Input, int, int]]:
    """Elements begin to end - 1 of the concatenation of `pieces`."""
    found, position = [], 0
    for source, first, last in pieces:
        low, high = max(begin, position), min(end, position + last - first)
        if low < high:
            found.append((source, first + low - position, first + high - position))
        position += last - first
    return found
