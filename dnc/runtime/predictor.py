"""Predictions of small batches with little work on the host: schedules of shapes that were seen are kept.

In: a session and small forests, one after another. Out: the declared outputs, as `Session.predict`.
Guaranteed: the same bits. Samples of one shape (arms, links, order) have schedules that differ in
their data alone: token and class numbers, vectors, and keys of random numbers. So a schedule is encoded once
a shape; later only those words are filled in, nothing is allocated for the launch, and one copy brings the
results.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.forest import Forest, path_struct
from dnc.ir.noise import NONE
from dnc.ir.plan import ClassList, TableList, VectorList, padded
from dnc.ir.states import state_layout
from dnc.ir.structure import SELECTOR
from dnc.runtime.encoder import Encoder
from dnc.runtime.encoder.ending import Ending
from dnc.runtime.encoder.keys import Keys, keys_of
from dnc.runtime.phases import PREDICT, results_of
from dnc.runtime.pool import StaticPool
from dnc.runtime.predictions import rows_by_sample
from dnc.runtime.prepared import Indices
from dnc.runtime.schedule import Schedule, list_words
from dnc.runtime.session import Session

Floats = NDArray[np.float32]

# Batches of more samples rarely have a shape again.
MOST_SAMPLES = 32
# Shapes that are kept, and words of schedules at most.
MOST_SHAPES = 4096
MOST_WORDS = 1 << 24
# Results that are closer than this many words come in one copy.
NEAR = 1024

Range = tuple[int, int]
Shape = tuple[bytes, Ending | None]


def shape_of(forest: Forest) -> bytes:
    """What two forests share whose schedules differ in their data alone."""
    parts: list[NDArray[Any]] = [forest.roots]
    for name, table in forest.tables.items():
        parts += [table.begin, table.arm, table.previous, table.parent, *table.children.values()]
        # Rows lie together by what they select from stacks.
        fields = forest.structs[name].fields.values()
        parts += [table.data[field.name] for field in fields if field.kind == SELECTOR]
        for begin, entries in table.lists.values():
            parts += [begin, entries]
    parts += [*forest.given.values(), *(rows for rows, _ in forest.known.values())]
    return b"".join(
        [np.array([len(part) for part in parts], np.int32).tobytes(), *(p.tobytes() for p in parts)]
    )


@attrs.frozen(eq=False)
class _Numbers:
    """Words that follow from the numbers in a field: base + number * stride; `absent` for none."""

    words: slice
    struct: str
    field: str
    target: Indices
    base: int
    stride: int
    absent: int
    everywhere: bool

    def fill(self, words: NDArray[np.int32], forest: Forest) -> None:
        """Writes them for the data of a forest."""
        values: Any = forest.tables[self.struct].data[self.field]
        if not len(values):
            return
        numbers = values[self.target]
        found = self.base + numbers * self.stride
        if self.everywhere and numbers.min() >= 0:
            words[self.words] = found
        else:
            words[self.words] = np.where((self.target >= 0) & (numbers >= 0), found, self.absent)


@attrs.frozen(eq=False)
class _Vectors:
    """Words that are the vectors in a field, [rows, stride], zeros for none."""

    words: slice
    struct: str
    field: str
    target: Indices
    width: int
    stride: int

    def fill(self, words: NDArray[np.int32], forest: Forest) -> None:
        """Writes them for the data of a forest."""
        values: Any = forest.tables[self.struct].data[self.field]
        if not len(values):
            return
        rows = words[self.words].view(np.float32).reshape(-1, self.stride)
        found = values.reshape(len(values), self.width)
        if len(found) == len(rows) and (self.target == np.arange(len(rows))).all():
            rows[:, : self.width] = found
        else:
            rows[:, : self.width] = np.where((self.target >= 0)[:, None], found[self.target], 0)


@attrs.frozen(eq=False)
class _Known:
    """Words that are the known states of a function."""

    words: slice
    function: str

    def fill(self, words: NDArray[np.int32], forest: Forest) -> None:
        """Writes them for the data of a forest."""
        words[self.words] = forest.known[self.function][1].reshape(-1).view(np.int32)


@attrs.frozen(eq=False)
class _Output:
    """Where an output's rows are in what was read, and which of them are a sample's.

    rows: per sample the numbers of its rows; of a root None where the sample has none. end: the number
    behind which nothing of a sample's rows is defined, and which ends what is read of them.
    """

    name: str
    part: int
    begin: int
    count: int
    width: int
    shape: tuple[int, ...]
    is_integer: bool
    rows: Sequence[Any]
    end: int | None = None

    def values(self, parts: Sequence[NDArray[np.float32]]) -> list[Any]:
        """One value or array a sample."""
        size = int(np.prod(self.shape, dtype=np.int64))
        words = parts[self.part][self.begin : self.begin + self.count * self.width]
        found = words.reshape(self.count, self.width)[:, :size].reshape(self.count, *self.shape)
        if self.end is not None:
            return [np.rint(until(found[rows], self.end)).astype(np.int32) for rows in self.rows]
        values: NDArray[Any] = np.rint(found).astype(np.int32) if self.is_integer else found.copy()
        return [None if rows is None else values[rows] for rows in self.rows]


def until(values: NDArray[Any], end: int) -> NDArray[Any]:
    """The values up to and with the first one that is `end`; all of them where there is none."""
    ends = np.flatnonzero(values == end)
    return values[: ends[0] + 1] if len(ends) else values


@attrs.frozen(eq=False)
class Template:
    """The schedule of a shape. fills: what follows from the data; keys: from a call's noise; reads: what
    comes back.

    first_record: the first of the reads that are records of states.
    """

    schedule: Schedule
    pool: StaticPool
    fills: tuple[_Numbers | _Vectors | _Known, ...]
    keys: tuple[Keys, ...]
    reads: tuple[Range, ...]
    outputs: tuple[_Output, ...]
    first_record: int


class Predictor:
    """See the module. encoded: calls so far whose schedule was not known."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._templates: OrderedDict[Shape, Template] = OrderedDict()
        self._words = 0
        self.encoded = 0

    def predict(self, forest: Forest, noise: int = NONE) -> dict[str, list[Any]]:
        """The declared outputs of all samples, in order; they are few."""
        found = self.run(forest, noise=noise)
        if found is None:  # it takes several launches
            return self.session.predict(self.session.attach(forest), noise=noise)
        return found[0]

    def run(
        self,
        forest: Forest,
        wanted: Sequence[tuple[str, int]] = (),
        ending: Ending | None = None,
        noise: int = NONE,
    ) -> tuple[dict[str, list[Any]], list[Floats]] | None:
        """The declared outputs, and the records of states, (function, vertex) each, in one launch.

        What is wanted follows from the shape. ending: its output alone, every list cut behind the word
        that ends it; states of a list that has ended are not defined then. noise: what is drawn follows from
        it. None if the samples do not fit into one launch.
        """
        self.session.settle()
        shape = shape_of(forest), ending
        found = self._templates.get(shape)
        if found is None or found.pool is not self.session.memory.pool:
            self.encoded += 1
            made = make_template(self.session, forest, wanted, ending)
            if made is None:
                return None
            self._keep(shape, made)
            found = made
        else:
            self._templates.move_to_end(shape)
        return run_template(self.session, found, forest, noise)

    def _keep(self, shape: Shape, made: Template) -> None:
        old = self._templates.pop(shape, None)
        self._words += made.schedule.words.size - (0 if old is None else old.schedule.words.size)
        self._templates[shape] = made
        while len(self._templates) > MOST_SHAPES or self._words > MOST_WORDS:
            _, gone = self._templates.popitem(last=False)
            self._words -= gone.schedule.words.size


def run_template(
    session: Session, template: Template, forest: Forest, noise: int = NONE
) -> tuple[dict[str, list[Any]], list[Floats]]:
    """One launch for the data of a forest of the template's shape: declared outputs, wanted records."""
    for fill in template.fills:
        fill.fill(template.schedule.words, forest)
    for keys in template.keys:
        keys.fill(template.schedule.words, noise)
    parts = session.run(template.schedule, template.reads)
    outputs = {output.name: output.values(parts) for output in template.outputs}
    return outputs, parts[template.first_record :]


def make_template(
    session: Session,
    forest: Forest,
    wanted: Sequence[tuple[str, int]] = (),
    ending: Ending | None = None,
) -> Template | None:
    """The template of a forest's shape; None if its samples do not fit into one launch."""
    data = session.attach(forest)
    samples = np.arange(forest.samples, dtype=np.int32)
    mode = PREDICT if ending is None else ending.mode
    schedules = session.encode(data, samples, mode, ending=ending)
    if len(schedules) > 1:
        return None
    schedule = schedules[0]
    reads, places = _ranges(schedule)
    outputs = []
    for result in results_of(schedule.plan, mode):
        rows, width = schedule.rows[result.space], schedule.plan.buffer(result.buffer).width
        part, begin = places[result.name]
        numbers = rows_by_sample(data, schedule, result.space, samples)
        end = None if ending is None else ending.word
        is_integer = result.dtype == "i32"
        outputs.append(_Output(result.name, part, begin, rows, width, result.shape, is_integer, numbers, end))
    fills, keys = _fills(data, schedule), keys_of(data, schedule)
    program = schedule.plan.program
    records = [
        (data.lists.record(function, vertex) * 4, state_layout(program, function)[""])
        for function, vertex in wanted
    ]
    pool = session.memory.pool
    return Template(schedule, pool, fills, keys, (*reads, *records), tuple(outputs), len(reads))


def _ranges(schedule: Schedule) -> tuple[tuple[Range, ...], dict[str, Range]]:
    """Ranges of the pool (first word, words) that hold all outputs; by output its range and place there."""
    wanted = sorted(
        (
            schedule.bases[result.buffer] * 4,
            schedule.rows[result.space] * schedule.plan.buffer(result.buffer).width,
            result.name,
        )
        for result in results_of(schedule.plan, schedule.mode)
    )
    ranges: list[Range] = []
    places: dict[str, Range] = {}
    for at, count, name in wanted:
        if ranges and at - sum(ranges[-1]) <= NEAR:
            first = ranges[-1][0]
            ranges[-1] = first, at + count - first
        else:
            ranges.append((at, count))
        places[name] = len(ranges) - 1, at - ranges[-1][0]
    return tuple(ranges), places


def _fills(data: Encoder, schedule: Schedule) -> tuple[_Numbers | _Vectors | _Known, ...]:
    found: list[_Numbers | _Vectors | _Known] = []
    for function, (address, count) in schedule.known.items():
        first = (address - schedule.address) * 4
        size = count * state_layout(schedule.plan.program, function)[""]
        found.append(_Known(slice(first, first + size), function))
    structs, prepared = data.prepared.forest.structs, data.prepared
    for item in data.modes.mode(schedule.mode).lists:
        if not isinstance(item, TableList | ClassList | VectorList):
            continue
        rows, positions = schedule.rows[item.space], schedule.positions[item.space]
        if not rows:
            continue
        at = list_words(schedule.words, data.layout, item.name)
        struct = path_struct(structs, schedule.plan.program.space(item.space).struct, item.path)
        target = prepared.targets[item.space, item.path][positions]
        if isinstance(item, VectorList):
            stride = padded(item.width)
            first = (int(schedule.words[at]) - schedule.address) * 4
            words = slice(first, first + rows * stride)
            found.append(_Vectors(words, struct, item.field, target, item.width, stride))
            continue
        base, stride, absent = 0, 1, -1
        if isinstance(item, TableList):
            base, absent = schedule.bases[item.parameter], 0
            stride = data.lists.table_stride(item.parameter)
        everywhere = bool((target >= 0).all())
        words = slice(at, at + rows)
        found.append(_Numbers(words, struct, item.field, target, base, stride, absent, everywhere))
    return tuple(found)
