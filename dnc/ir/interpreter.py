"""The definition of what a program means: float64 NumPy, one row at a time.

In: a program, a forest and the parameters. Out: `Results` with every state, every saved value,
loss, metrics, declared outputs and, where the program has backward stages, the gradient of every
parameter. Guaranteed: a row runs once, after everything it reads; no recursion in Python, so a
chain of any length works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.cell import Cell, Value
from dnc.ir.dependences import Dependences
from dnc.ir.forest import Forest, path_struct, program_structs
from dnc.ir.measures import MEASURES, Rows, in_lists
from dnc.ir.noise import NONE, vertex_keys
from dnc.ir.ops import OPS
from dnc.ir.program import (
    DeclaredOutput,
    FieldInput,
    FollowOutput,
    GradientInput,
    Input,
    LossOutput,
    MetricOutput,
    NoiseInput,
    Output,
    ParameterInput,
    Program,
    PulledGradientOutput,
    SavedInput,
    SavedOutput,
    SeedInput,
    ShareInput,
    SlotOutput,
    Stage,
    StateInput,
    StateOutput,
    TableInput,
    TableSlotOutput,
    WeightGradient,
)
from dnc.ir.types import ListType, TensorType

Array = NDArray[Any]
Reader = Callable[[int], Array]
Writer = Callable[[int, Array], None]


@attrs.frozen(eq=False)
class Results:
    """What a batch yields; all floats are float64.

    states[function, component]: one entry per row of the struct's table (zeros where no stage
    produces it). state_gradients: the same, the sum of the slots. saved[stage, name], losses[stage]
    and outputs[name]: one entry per row of the stage's space. loss: the sum of the losses over the
    number of samples. metrics: measures over all rows (NaN of none, but for f1). gradients: one array per
    parameter, as large as the parameter; of a running one what a step adds to it.
    pulled["Struct.field"]: the gradient by a field that is handed in, per row of the struct's table.
    """

    states: dict[tuple[str, str], Array]
    state_gradients: dict[tuple[str, str], Array]
    saved: dict[tuple[str, str], Array]
    losses: dict[str, Array]
    loss: float
    metrics: dict[str, float]
    outputs: dict[str, Array]
    gradients: dict[str, Array]
    pulled: dict[str, Array]


def interpret(
    program: Program,
    forest: Forest,
    parameters: dict[str, Array],
    classes: Mapping[str, Sequence[str]] | None = None,
    noise: int = NONE,
) -> Results:
    """Runs every stage of `program` on every vertex of `forest`.

    `parameters` holds an array per parameter, of its shape; a table brings its own number of rows.
    classes: by metric the names of its classes; without them their numbers are their names.
    noise: that of a training step.
    """
    return _Interpreter(program, forest, parameters, classes or {}, noise).run()


def evaluate_cell(cell: Cell, arguments: list[Array]) -> list[Array]:
    """The results of one call of a cell; a list argument has the children along its first axis."""
    values: dict[Value, Array] = dict(zip(cell.inputs, arguments, strict=True))
    for op in cell.ops:
        operands = [values[operand] for operand in op.operands]
        values[op.result] = OPS[op.opcode].evaluate(operands, dict(op.attributes))
    return [values[result] for result in cell.results]


class _Interpreter:
    """The arrays of one run, and for every input and output of a stage how to read or write it."""

    def __init__(
        self,
        program: Program,
        forest: Forest,
        parameters: dict[str, Array],
        classes: Mapping[str, Sequence[str]],
        noise: int,
    ) -> None:
        self.program, self.noise = program, noise
        self.classes = classes
        self.forest = forest
        self.structs = program_structs(program)
        self.parameters = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
        self.gradients = {name: np.zeros_like(value) for name, value in self.parameters.items()}
        self.dependences = Dependences(program, forest)
        self.states: dict[tuple[str, str], Array] = {}
        self.state_gradients: dict[tuple[str, str], Array] = {}
        for function in program.functions:
            for component in function.state:
                form = (len(forest.tables[function.struct]), *component.type.shape)
                self.states[function.name, component.name] = np.zeros(form)
                self.state_gradients[function.name, component.name] = np.zeros(form)
        self.saved: dict[tuple[str, str], Array] = {}
        self.losses: dict[str, Array] = {}
        self.metrics: dict[tuple[str, int], Array] = {}
        self.outputs: dict[str, Array] = {}
        self.pulled: dict[str, Array] = {}

    def run(self) -> Results:
        stages = self.program.stages
        writers = [
            [
                self.writer(stage, output, value)
                for output, value in zip(stage.outputs, stage.cell.results, strict=True)
            ]
            for stage in stages
        ]
        readers = [
            [
                self.reader(stage, source, value)
                for source, value in zip(stage.inputs, stage.cell.inputs, strict=True)
            ]
            for stage in stages
        ]
        begins = np.asarray([self.dependences.nodes[stage.name][:1].sum() for stage in stages])
        owner = np.repeat(
            np.arange(len(stages)), [len(self.dependences.rows[stage.name]) for stage in stages]
        )
        for wavefront in self.dependences.wavefronts():
            for node in wavefront:
                number = int(owner[node])
                row = int(node - begins[number])
                arguments = [read(row) for read in readers[number]]
                results = evaluate_cell(stages[number].cell, arguments)
                for write, result in zip(writers[number], results, strict=True):
                    write(row, result)
        for gradient in self.program.weight_gradients:
            self.add_weight_gradient(gradient)
        return Results(
            states=self.states,
            state_gradients=self.state_gradients,
            saved=self.saved,
            losses=self.losses,
            loss=float(sum(rows.sum() for rows in self.losses.values()) / max(self.forest.samples, 1)),
            metrics=self.measured(),
            outputs=self.outputs,
            gradients=self.gradients,
            pulled=self.pulled,
        )

    def measured(self) -> dict[str, float]:
        """Every metric from the values of its rows."""
        found = {}
        for stage in self.program.stages:
            for output in stage.outputs:
                if isinstance(output, MetricOutput) and output.position == 0:
                    measure, rows = MEASURES[output.measure], self.dependences.rows[stage.name]
                    sequence, place = in_lists(self.forest, self.struct(stage))
                    order = np.argsort(place[rows], kind="stable")
                    for field, path in output.known:
                        order = order[self.tokens(stage, field, path)[order] >= 0]
                    values = tuple(
                        self.metrics[output.metric, position][order]
                        for position in range(len(measure.operands))
                    )
                    seen = Rows(values, sequence[rows[order]], self.classes.get(output.metric, ()))
                    found[output.metric] = measure(seen)
        return found

    def struct(self, stage: Stage) -> str:
        return self.program.space(stage.space).struct

    def tokens(self, stage: Stage, field: str, path: tuple[str, ...]) -> Array:
        """The value of an integer field at `path` of every row; -1 where it is absent."""
        vertices = self.forest.resolve(self.struct(stage), path, self.dependences.rows[stage.name])
        data: Array = self.forest.tables[path_struct(self.structs, self.struct(stage), path)].data[field]
        if len(data) == 0:
            return np.full(len(vertices), -1)
        return np.where(vertices >= 0, data[vertices], -1)

    def reader(self, stage: Stage, source: Input, value: Value | None = None) -> Reader:
        """How to read an input at a row of the stage. `value`: the cell's input, for its type."""
        rows, struct = self.dependences.rows[stage.name], self.struct(stage)
        match source:
            case ParameterInput(parameter, ""):
                array = self.parameters[parameter]
                return lambda row: array
            case ParameterInput(parameter, selector):
                stack, chosen = self.parameters[parameter], self.tokens(stage, selector, ())
                return lambda row: np.asarray(stack[chosen[row]])
            case SeedInput():
                seed = np.asarray(1.0 / self.forest.samples if self.forest.samples else 0.0)
                return lambda row: seed
            case ShareInput(parameter, selector):
                shares = self.shares(parameter)
                at = self.tokens(stage, selector, ()) if selector else np.zeros(len(rows), np.int64)
                return lambda row: np.asarray(shares[at[row]])
            case NoiseInput(draws):
                keys = vertex_keys(np.asarray(self.noise), rows, draws)
                return lambda row: np.asarray(keys[row])
            case SavedInput(name, key):
                saved = self.saved[name, key]
                return lambda row: np.asarray(saved[row])
            case GradientInput(function, component):
                gradients = self.state_gradients[function, component]
                return lambda row: np.asarray(gradients[rows[row]])
            case TableInput(parameter, field, path):
                table, tokens = self.parameters[parameter], self.tokens(stage, field, path)
                return lambda row: table[tokens[row]] if tokens[row] >= 0 else np.zeros(table.shape[1:])
            case StateInput(function, component, path, True):
                states = self.states[function, component]
                begin, entries = self.forest.resolve_list(struct, path, rows)
                return lambda row: states[entries[begin[row] : begin[row + 1]]]
            case StateInput(function, component, path):
                states = self.states[function, component]
                at = self.forest.resolve(struct, path, rows)
                return lambda row: np.asarray(states[at[row]]) if at[row] >= 0 else np.zeros(states.shape[1:])
            case FieldInput(field, path):
                if value is not None and isinstance(value.type, TensorType) and value.type.dtype == "i32":
                    tokens = self.tokens(stage, field, path)
                    return lambda row: np.asarray(tokens[row])
                data: Array = self.forest.tables[path_struct(self.structs, struct, path)].data[field]
                shape = value.type.shape if value and isinstance(value.type, TensorType) else data.shape[1:]
                at = self.forest.resolve(struct, path, rows)
                return lambda row: (
                    data[at[row]].astype(np.float64).reshape(shape) if at[row] >= 0 else np.zeros(shape)
                )

    def writer(self, stage: Stage, output: Output, value: Value) -> Writer:
        """How to write a result of the stage's cell at a row."""
        rows, struct = self.dependences.rows[stage.name], self.struct(stage)
        assert not isinstance(value.type, ListType) or isinstance(output, SlotOutput)
        match output:
            case SlotOutput(function, component, path, True):
                gradients = self.state_gradients[function, component]
                begin, entries = self.forest.resolve_list(struct, path, rows)
                return lambda row, result: np.add.at(gradients, entries[begin[row] : begin[row + 1]], result)
            case SlotOutput(function, component, path):
                return _adder(
                    self.state_gradients[function, component], self.forest.resolve(struct, path, rows)
                )
            case TableSlotOutput(parameter, field, path):
                return _adder(self.gradients[parameter], self.tokens(stage, field, path))
            case StateOutput(component):
                return _setter(self.states[str(stage.function), component], rows)
            case SavedOutput(name):
                self.saved[stage.name, name] = array = self.new(stage, value)
            case FollowOutput():  # `differentiate` has not seen it: nothing moves
                array = self.new(stage, value)
            case LossOutput():
                self.losses[stage.name] = array = self.new(stage, value)
            case MetricOutput(name, _, position):
                self.metrics[name, position] = array = self.new(stage, value)
            case PulledGradientOutput(field):
                return _adder(self.pulled.setdefault(f"{struct}.{field}", self.outside(struct, field)), rows)
            case DeclaredOutput(name):
                self.outputs[name] = array = self.new(stage, value)
        return _setter(array, np.arange(len(rows)))

    def outside(self, struct: str, field: str) -> Array:
        """Zeros for the gradient by a field, one entry per row of the struct's table."""
        return np.zeros(self.forest.tables[struct].data[field].shape)

    def new(self, stage: Stage, value: Value) -> Array:
        """Zeros: one entry per row of the stage."""
        assert isinstance(value.type, TensorType)
        kind = np.int64 if value.type.dtype == "i32" else np.float64
        return np.zeros((len(self.dependences.rows[stage.name]), *value.type.shape), kind)

    def shares(self, parameter: str) -> Array:
        """One over the rows that move a running parameter, of a stack for each of its parameters."""
        counts = np.zeros(self.program.parameter(parameter).count)
        for space, selector in self.program.followers(parameter):
            stage = next(stage for stage in self.program.stages if stage.space == space)
            rows = len(self.dependences.rows[stage.name])
            at = self.tokens(stage, selector, ()) if selector else np.zeros(rows, np.int64)
            counts += np.bincount(at, minlength=len(counts))
        return np.asarray(1.0 / np.maximum(counts, 1.0))

    def add_weight_gradient(self, gradient: WeightGradient) -> None:
        stage = self.program.stage(gradient.stage)
        delta = self.saved[gradient.stage, gradient.delta]
        into, chosen = self.gradients[gradient.parameter], None
        if gradient.field:
            chosen = self.tokens(stage, gradient.field, ())
        if not gradient.x:
            if chosen is None:
                into += delta.sum(axis=0)
            else:
                np.add.at(into, chosen, delta)
            return
        readers = [(self.reader(stage, source), begin, end) for source, begin, end in gradient.x]
        for row in range(len(delta)):
            x = np.concatenate([read(row)[begin:end] for read, begin, end in readers])
            (into if chosen is None else into[chosen[row]])[...] += np.outer(delta[row], x)


def _adder(array: Array, at: Array) -> Writer:
    def add(row: int, result: Array) -> None:
        if at[row] >= 0:
            array[at[row]] += result

    return add


def _setter(array: Array, at: Array) -> Writer:
    def put(row: int, result: Array) -> None:
        array[at[row]] = result

    return put
