"""Reads JSONL data into a `Forest`.

In: a file (or samples in memory) in nested or flat form, the program, and vocabularies unless
they are to be built. Out: a `Dataset`. Guaranteed: either every sample is in the forest, checked
against the program, or a `DiagnosticError` names the lines that are wrong.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np

from dnc.diagnostics import fail
from dnc.ir.forest import Forest, Ints, program_structs
from dnc.ir.program import Program, Space
from dnc.ir.structure import CLASS, OUTSIDE
from dnc.runtime.data.columns import Columns, Id, assemble, empty_columns, file_positions
from dnc.runtime.data.flat import is_flat, read_flat
from dnc.runtime.data.layout import ID, Layout, field_names, missing_field
from dnc.runtime.data.lines import EMPTY_FILE, load, objects
from dnc.runtime.data.nested import nested_reader
from dnc.runtime.data.order import Order, order_of
from dnc.runtime.data.problems import MOST_SHOWN, Problem, ProblemList, given, kind_of
from dnc.runtime.data.usage import layout_of
from dnc.runtime.data.values import convert
from dnc.runtime.data.vocabulary import Beside, Vocabulary


@attrs.frozen(eq=False)
class Dataset:
    """Samples as one forest. lines: the line of the file that each sample stood in.

    positions: see `file_positions`. unlabelled: of data that may lack what is to be predicted, their layout.
    lacks: what they lack for sure, "" for none that is known. min_count: how often a word of their own
    vocabulary occurs; None where they were read with one that was given. ids: what each sample is called;
    empty if none has an id. path: as it was given, for messages; place: the absolute one, None for samples in
    memory.
    """

    forest: Forest
    vocabularies: dict[str, Vocabulary]
    samples: int
    path: str
    lines: tuple[int, ...]
    positions: dict[str, Ints] = attrs.field(factory=dict)
    unlabelled: Layout | None = None
    lacks: str = ""
    min_count: int | None = None
    ids: tuple[Id, ...] = ()
    place: str | None = None
    _missing: list[str] = attrs.field(factory=list, init=False, repr=False)
    _digest: list[str] = attrs.field(factory=list, init=False, repr=False)
    _orders: dict[Space, Order] = attrs.field(factory=dict, init=False, repr=False)
    _handed: list[object] = attrs.field(factory=list, init=False, repr=False)

    def order(self, space: Space) -> Order:
        """The order of the vertices of a space, worked out when it is first asked for."""
        if space not in self._orders:
            self._orders[space] = order_of(self.forest, self.positions.get(space.struct), space)
        return self._orders[space]

    def select(self, samples: Ints) -> Dataset:
        """The samples of these numbers, in this order, as a data set (one may occur twice)."""
        positions = {}
        for name, found in self.positions.items():
            begin = self.forest.tables[name].begin
            positions[name] = np.concatenate([found[begin[at] : begin[at + 1]] for at in samples])
        lines = tuple(self.lines[at] for at in samples)
        forest = self.forest.select(samples)
        known = (self.vocabularies, len(samples), self.path, lines, positions, self.unlabelled, self.lacks)
        ids = tuple(self.ids[at] for at in samples if self.ids)
        return Dataset(forest, *known, ids=ids, place=self.place)

    def check_labels(self, needed: bool = True) -> None:
        """DiagnosticError where something is missing that is to be predicted, if it is needed: to learn from,
        to measure."""
        if self.unlabelled is None or not needed:
            return
        if not self._missing:
            self._missing.append(self.lacks or _missing_to_learn(self.forest, self.unlabelled))
        if self._missing[0]:
            raise fail(f"{self.path}: was read without labels, and {self._missing[0]}")

    def handed(self) -> object:
        """Notes that vectors from outside were filled in; what stands for them."""
        self._handed[:] = [object()]
        return self._handed[0]

    def check_handed(self, handed: object) -> None:
        """DiagnosticError where others have been filled in since; None stands for no vectors."""
        if handed is not None and self._handed != [handed]:
            raise fail(f"{self.path}: another model was handed vectors for it since; read it for each model")

    def digest(self) -> str:
        """What the same samples have in common, wherever they were read from; worked out once."""
        if not self._digest:
            self._digest.append(self._hashed())
        return self._digest[0]

    def _hashed(self) -> str:
        found = hashlib.sha256()
        for name, table in sorted(self.forest.tables.items()):
            columns = {**table.data, **table.children, "": table.arm, " ": table.begin}
            columns |= {
                f"{field} {i}": part for field, pair in table.lists.items() for i, part in enumerate(pair)
            }
            for field, column in sorted(columns.items()):
                found.update(f"{name} {field} {column.dtype} {column.shape}".encode())
                found.update(np.ascontiguousarray(column).data)
        return found.hexdigest()


SAMPLES = "samples"  # what those in memory are called
KEYS = "Only dicts with str-like or number-like keys are supported"  # msgspec's words for all other keys


def read(
    path: str | Path,
    program: Program,
    vocabularies: Mapping[str, Vocabulary] | None = None,
    *,
    labels_required: bool = True,
    min_count: int = 1,
    beside: Mapping[str, Beside] | None = None,
) -> Dataset:
    """The samples of a JSONL file.

    vocabularies: those of the training data; None builds them from this file, where a token must
    occur `min_count` times to have a number of its own, or be `beside`. labels_required: without it,
    what is to be predicted may be missing: class fields (-1) that no output is worked out from, and vectors
    that only losses and metrics read (zeros).
    """
    problems = ProblemList(str(path))
    samples = objects(load(path), problems)
    layout = layout_of(program, labels_required)
    found = _read(samples, problems, program, vocabularies, layout, min_count, EMPTY_FILE, beside)
    return attrs.evolve(found, place=os.path.abspath(path))


def read_samples(
    samples: Iterable[Any],
    program: Program,
    vocabularies: Mapping[str, Vocabulary] | None = None,
    *,
    labels_required: bool = True,
    min_count: int = 1,
    name: str = SAMPLES,
    layout: Layout | None = None,
    beside: Mapping[str, Beside] | None = None,
) -> Dataset:
    """The same for samples in memory, as decoded JSON; errors count them from 1.

    layout: that of the program with these `labels_required`, where it is known already.
    Arrays and numbers of NumPy, or of anything else that speaks DLPack, count as lists and numbers.
    """
    if isinstance(samples, Mapping | bytes) or not isinstance(samples, Iterable):
        raise fail(f"found {given(samples)}, expected a path, a data set, or a list of samples")
    problems = ProblemList(name)
    found = _plain_samples(samples, problems)
    layout = layout or layout_of(program, labels_required)
    nothing = "there are none, expected one or more"
    return _read(found, problems, program, vocabularies, layout, min_count, nothing, beside)


def _plain_samples(samples: Iterable[Any], problems: ProblemList) -> Iterator[tuple[int, Any]]:
    """The samples with their numbers, of nothing but what JSON has."""
    for number, sample in enumerate(samples, 1):
        before = len(problems.found)
        try:
            yield (
                number,
                msgspec.to_builtins(
                    sample, enc_hook=plain, builtin_types=(bytes, bytearray, memoryview), str_keys=True
                )
                if isinstance(sample, dict)
                else sample,
            )
        except RecursionError:
            problems.add("nested too deeply; write it in the flat form", number)
        except TypeError as error:
            problems.add(f"holds what JSON has not: {error}", number)
        if len(problems.found) > before and _has_bytes_keys(sample):  # whatever else was found comes of that
            del problems.found[before:]
            problems.add(f"holds what JSON has not: {KEYS}", number)


def _has_bytes_keys(sample: Any) -> bool:
    """Whether a key within is bytes, of which msgspec makes base64 from 0.23 on."""
    waiting, seen = [sample], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            if any(isinstance(key, bytes | memoryview) for key in value):
                return True
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    return False


def plain(value: Any) -> Any:
    """An array, of NumPy or of what speaks DLPack, as a list; a number of NumPy as a number; TypeError."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value).tolist()
        except (BufferError, RuntimeError) as error:
            raise TypeError(f"a {type(value).__name__} of which no list can be made: {error}") from None
    raise TypeError(f"a {type(value).__name__}")


def _read(
    samples: Iterable[tuple[int, Any]],
    problems: ProblemList,
    program: Program,
    vocabularies: Mapping[str, Vocabulary] | None,
    layout: Layout,
    min_count: int,
    nothing: str,
    beside: Mapping[str, Beside] | None,
) -> Dataset:
    """nothing: what is said where there are no samples."""
    with _no_cycles():
        columns = _collect(samples, problems, layout)
    problems.check()
    if not columns.lines:
        problems.add(nothing)
        problems.check()
    converted, known = convert(columns, vocabularies, min_count, problems, beside)
    problems.check()
    words = any(each.unknown and each.words is not None for each in known.values())
    if vocabularies is None and min_count > 1 and not words:
        problems.add(f"min_count is {min_count}, but no token of the data is a word")
        problems.check()
    forest = _with_outside(assemble(columns, converted), program)
    _check_roots(forest, columns, problems)
    lines, positions = tuple(columns.lines), file_positions(columns)
    least = min_count if vocabularies is None else None
    ids = tuple(columns.ids) if any(each is not None for each in columns.ids) else ()
    found = Dataset(forest, known, forest.samples, problems.path, lines, positions, min_count=least, ids=ids)
    if layout.labels_required:
        return found
    return attrs.evolve(found, unlabelled=layout, lacks=_missing_vector(columns))


def _missing_vector(columns: Columns) -> str:
    """Which vector is missing of those that only losses and metrics read; "" if none is."""
    for struct, field in sorted(columns.layout.targets):
        for own in columns.structs[struct].columns:
            if None in own.values.get(field, ()):
                return f"{own.arm.name}: field '{field}' is missing"
    return ""


def _missing_to_learn(forest: Forest, layout: Layout) -> str:
    """What is missing, of classes and of lists with a first element, to learn and to measure; "" if nothing
    is."""
    needed = attrs.evolve(layout, labels_required=True)
    for name, struct in layout.structs.items():
        table = forest.tables[name]
        for index, arm in enumerate(struct.arms):
            for field in (field for field in arm.fields if (name, field.name) in needed.never_empty):
                begin, _ = table.lists[field.name]
                if (np.diff(begin)[table.arm == index] == 0).any():
                    return f"{arm.name}: list '{field.name}' is empty"
            for field in (field for field in arm.fields if field.kind == CLASS and not field.may_miss):
                rows = forest.roots if needed.may_miss(name, field) else np.arange(len(table))
                if (table.data[field.name][rows[table.arm[rows] == index]] < 0).any():
                    return f"{arm.name}: field '{field.name}' is missing"
    return ""


def _check_roots(forest: Forest, columns: Columns, problems: ProblemList) -> None:
    """Of classes that are read at the root alone, the root has to have its own."""
    table, arms = forest.tables[forest.root], columns.layout.structs[forest.root].arms
    own = table.arm[forest.roots]
    for name in sorted(columns.layout.at_root):
        has = np.array([name in field_names(arm) for arm in arms])
        for sample in np.flatnonzero(has[own] & np.less(table.data[name][forest.roots], 0))[:MOST_SHOWN]:
            arm = arms[own[sample]]
            problem = missing_field(arm, name)
            problems.add(problem.message, columns.lines[sample], note=problem.note)
    problems.check()


def _with_outside(forest: Forest, program: Program) -> Forest:
    """The forest with zeros in the fields that are handed in for every batch."""
    tables = dict(forest.tables)
    for struct in program.structs:
        widths = {f.name: f.width for f in struct.fields.values() if f.kind == OUTSIDE}
        if widths:
            table = forest.tables[struct.name]
            zeros = {name: np.zeros((len(table), width), np.float32) for name, width in widths.items()}
            tables[struct.name] = attrs.evolve(table, data={**table.data, **zeros})
    return Forest(program_structs(program), forest.root, tables, forest.roots)


@contextmanager
def _no_cycles() -> Iterator[None]:
    """No search for unreachable cycles meanwhile: decoded JSON has none, and the search takes longer
    than the reading."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _without_id(sample: dict[str, Any]) -> Id:
    """Takes the id out of a sample."""
    found = sample.pop(ID, None)
    if isinstance(found, str) and not found.isascii():
        try:
            found.encode()
        except UnicodeEncodeError:
            raise Problem(f"an {ID} holds half of a character, and the other half is missing") from None
    if found is None or (isinstance(found, str | int) and not isinstance(found, bool)):
        return found
    raise Problem(f"an {ID} must be a string or a whole number, found {kind_of(found)}")


def _collect(samples: Iterable[tuple[int, Any]], problems: ProblemList, layout: Layout) -> Columns:
    """The vertices of all samples as they stand in the file (incomplete where there are problems)."""
    columns = empty_columns(layout)
    nested = nested_reader(columns)
    for line, sample in samples:
        columns.start_sample(line)
        try:
            if type(sample) is not dict:
                raise Problem(f"a sample must be an object, found {kind_of(sample)}")
            columns.ids.append(_without_id(sample) if layout.has_ids else None)
            if is_flat(sample, layout):
                read_flat(sample, columns)
            else:
                nested.read(sample)
        except Problem as problem:
            problems.add(problem.message, line, problem.column, note=problem.note)
        if problems.full:
            break
    return columns
