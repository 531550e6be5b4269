"""Declared outputs: from the rows of result buffers to values in the order of the samples.

In: words of the pool behind a prediction launch. Out: per output one value a sample, or for an
output over all vertices one array a sample. Guaranteed: the order is that of the samples asked
for; within a sample that of its vertices in the data: for flat samples the order of the file
(`in_file_order`), for nested ones children before parents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.cell import Value
from dnc.ir.forest import Ints, path_struct
from dnc.ir.plan import Plan, Result
from dnc.ir.program import (
    ROOT,
    DeclaredOutput,
    FieldInput,
    MetricOutput,
    Output,
    ParameterInput,
    Program,
    Stage,
    TableInput,
)
from dnc.ir.reads import makers
from dnc.ir.structure import CLASS, TOKEN, Dimension
from dnc.ir.types import TensorType
from dnc.runtime.backend import Backend
from dnc.runtime.data import Dataset, Vocabulary
from dnc.runtime.encoder import Encoder
from dnc.runtime.schedule import Schedule

Array = NDArray[Any]
Numbers = NDArray[np.signedinteger]


def collect(backend: Backend, data: Encoder, schedule: Schedule, samples: Ints) -> dict[str, list[Any]]:
    """The outputs of a launch: by name a list that matches `samples` (each sample occurs once).

    Where a sample's root has an arm without this output, the value is None.
    """
    found: dict[str, list[Any]] = {}
    plan = schedule.plan
    for result in plan.results:
        if result.kind == "output":
            values = read_result(backend, schedule, result)
            found[result.name] = _by_sample(data, schedule, result.space, values, samples)
    return found


@attrs.frozen(eq=False)
class Gradients:
    """Gradients by the vectors of a field. vertices: rows of the struct's table, ascending."""

    vertices: Numbers
    values: Array

    def of(self, vertices: Numbers) -> Array:
        """The gradients of some vertices; zeros for those that are not among these."""
        found = np.zeros((len(vertices), *self.values.shape[1:]), np.float32)
        known = np.isin(vertices, self.vertices)
        found[known] = self.values[np.searchsorted(self.vertices, vertices[known])]
        return found


def collect_gradients(backend: Backend, data: Encoder, schedule: Schedule) -> dict[str, Gradients]:
    """By "Struct.field" the gradient by a pulled field, of the vertices of the batch that need it."""
    parts: dict[str, list[tuple[Numbers, Array]]] = {}
    for result in schedule.plan.results:
        if result.kind == "gradient":
            rows = data.prepared.spaces[result.space].vertex[schedule.positions[result.space]]
            parts.setdefault(result.name, []).append((rows, read_result(backend, schedule, result)))
    found = {}
    for name, each in parts.items():
        vertices = np.unique(np.concatenate([rows for rows, _ in each]))
        values = np.zeros((len(vertices), *each[0][1].shape[1:]), np.float32)
        for rows, added in each:
            values[np.searchsorted(vertices, rows)] += added
        found[name] = Gradients(vertices, values)
    return found


def read_columns(backend: Backend, schedule: Schedule) -> dict[str, Array]:
    """The columns of metrics that a launch has left, by name."""
    columns = [result for result in schedule.plan.results if result.kind == "column"]
    return {result.name: read_result(backend, schedule, result) for result in columns}


def read_result(backend: Backend, schedule: Schedule, result: Result) -> Array:
    """What a launch left for `result`: a value for every row of its space, in the order of the launch."""
    rows = schedule.rows[result.space]
    width = schedule.plan.buffer(result.buffer).width
    words = backend.read(schedule.bases[result.buffer] * 4, rows * width).reshape(rows, width)
    size = int(np.prod(result.shape, dtype=np.int64))
    values: Array = words[:, :size].reshape(rows, *result.shape)
    return np.rint(values).astype(np.int32) if result.dtype == "i32" else values


def _by_sample(data: Encoder, schedule: Schedule, space: str, values: Array, samples: Ints) -> list[Any]:
    """Splits the rows of a space by sample, in the order of `samples`."""
    rows = rows_by_sample(data, schedule, space, samples)
    return [None if each is None else values[each] for each in rows]


def rows_by_sample(data: Encoder, schedule: Schedule, space: str, samples: Ints) -> list[Any]:
    """The rows of each sample in a space: their numbers, or of roots the number (None if it has none)."""
    prepared = data.prepared.spaces[space]
    position = schedule.positions[space]
    sample = np.searchsorted(prepared.begin, position, side="right") - 1
    order = np.lexsort((prepared.vertex[position], sample))
    ordered = sample[order]
    first = np.searchsorted(ordered, samples, side="left")
    last = np.searchsorted(ordered, samples, side="right")
    if schedule.plan.program.space(space).selection == ROOT:
        return [order[a] if a < b else None for a, b in zip(first, last, strict=True)]
    return [order[a:b] for a, b in zip(first, last, strict=True)]


def has_file_order(plan: Plan, dataset: Dataset) -> bool:
    """Whether there is an output whose vertices stand in another order in the file than in the data."""
    spaces = [plan.program.space(result.space) for result in plan.results if result.kind == "output"]
    return any(each.struct in dataset.positions and each.selection != ROOT for each in spaces)


def in_file_order(
    outputs: Mapping[str, list[Any]], plan: Plan, dataset: Dataset, samples: Ints
) -> dict[str, list[Any]]:
    """What `collect` found, with the vertices of flat samples in the order of the file."""
    found = dict(outputs)
    for result in plan.results:
        if result.name not in found or result.kind != "output":
            continue
        space = plan.program.space(result.space)
        positions = dataset.positions.get(space.struct)
        if positions is None or space.selection == ROOT:
            continue
        rows, begin = dataset.forest.vertices(space), dataset.forest.tables[space.struct].begin
        first, last = np.searchsorted(rows, begin[samples]), np.searchsorted(rows, begin[samples + 1])
        found[result.name] = [
            values[np.argsort(positions[rows[a:b]])]
            for values, a, b in zip(outputs[result.name], first, last, strict=True)
        ]
    return found


def named_classes(program: Program, vocabularies: Mapping[str, Vocabulary]) -> dict[str, tuple[str, ...]]:
    """The words behind the numbers of outputs that are classes or tokens, by output.

    `argmax` chooses among as many classes as its vector has elements; the labels of a dimension of classes
    are meant where it has that size, and the parameters that the vector is made of are declared with it, or
    with numbers alone. Where that is none or several, the output has no entry: it is numbers, as in the data.
    """
    return {
        output.output: words
        for output, words in _classes(program, vocabularies)
        if isinstance(output, DeclaredOutput)
    }


def class_count(program: Program, vocabularies: Mapping[str, Vocabulary], output: str) -> int | None:
    """How many numbers an output of classes or tokens has to choose from; None where that is unknown."""
    for stage in program.stages:
        for position, each in enumerate(stage.outputs):
            if isinstance(each, DeclaredOutput) and each.output == output:
                vector, dimension = _vector(stage, position), _dimension(program, stage, position)
                if vector is not None or dimension is None:
                    return None if vector is None else _elements(vector)
                known = vocabularies.get(dimension.name)
                return dimension.size if known is None else known.size
    return None


def metric_classes(program: Program, vocabularies: Mapping[str, Vocabulary]) -> dict[str, tuple[str, ...]]:
    """The same by metric; what comes last among the values that are measured decides."""
    return {
        output.metric: words
        for output, words in _classes(program, vocabularies)
        if isinstance(output, MetricOutput)
    }


def _classes(
    program: Program, vocabularies: Mapping[str, Vocabulary]
) -> Iterator[tuple[Output, tuple[str, ...]]]:
    for stage in program.stages:
        for position, output in enumerate(stage.outputs):
            if isinstance(output, DeclaredOutput | MetricOutput):
                dimension = _dimension(program, stage, position)
                known = None if dimension is None else vocabularies.get(dimension.name)
                if known is not None and known.words is not None:
                    yield output, known.words


def _dimension(program: Program, stage: Stage, position: int) -> Dimension | None:
    """The dimension that the result at `position` is a number of."""
    value = stage.cell.results[position]
    structs = {struct.name: struct for struct in program.structs}
    for given, source in zip(stage.cell.inputs, stage.inputs, strict=True):
        if given == value and isinstance(source, FieldInput):
            start = program.space(stage.space).struct
            return structs[path_struct(structs, start, source.path)].fields[source.field].dimension
    vector = _vector(stage, position)
    if vector is None:
        return None
    names = _names(program, stage, vector)
    for kind in (CLASS, TOKEN):  # words are chosen from, too
        numbered = {
            field.dimension
            for struct in program.structs
            for field in struct.fields.values()
            if field.kind == kind and field.dimension is not None
        }
        fitting = [each for each in numbered if _elements(vector) == each.size]
        fitting = [each for each in fitting if not names or each.name in names]
        if fitting:
            return fitting[0] if len(fitting) == 1 else None
    return None


def _names(program: Program, stage: Stage, vector: Value) -> set[str]:
    """The dimensions with which parameters are declared that the elements of a vector are made of.

    What is read of other stages is followed there; of a matrix, its rows (axis 0) or its columns count.
    """
    todo, found = [(stage, vector, 0)], set[str]()
    seen = set[tuple[str, str, int]]()
    while todo:
        stage, value, axis = todo.pop()
        if (stage.name, value.name, axis) in seen:
            continue
        seen.add((stage.name, value.name, axis))
        source = dict(zip(stage.cell.inputs, stage.inputs, strict=True)).get(value)
        if isinstance(source, ParameterInput | TableInput):
            is_chosen = isinstance(source, TableInput) or bool(source.field)
            size = program.parameter(source.parameter).dimensions[axis + is_chosen].name
            found.update(re.findall(r"[A-Za-z_]\w*", size))
        elif source is not None:
            todo += [(other, made, axis) for other, made in makers(program, source)]
        else:
            op = next(op for op in stage.cell.ops if op.result == value)
            operands = op.operands
            if op.opcode == "matmul":
                operands = (operands[axis],)
            elif op.opcode == "row":
                operands, axis = operands[:1], 1
            todo += [(stage, each, axis) for each in operands if each.tensor.shape]
    return found


def _elements(vector: Value) -> int:
    assert isinstance(vector.type, TensorType)
    return vector.type.size


def _vector(stage: Stage, position: int) -> Value | None:
    """What `argmax` chooses from, where that makes the result at `position`."""
    for op in stage.cell.ops:
        if op.result == stage.cell.results[position] and op.opcode == "argmax":
            return op.operands[0]
    return None
