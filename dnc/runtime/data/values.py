"""From the values in a file to numbers: tokens, classes, vectors.

In: the data columns as they stand in the file, and vocabularies (or none: then they are built).
Out: int32 and float32 arrays per column. Guaranteed: every token and class is within its
dimension (-1 for a label that may be missing), every vector has its width and is finite (zeros for a target
that may be missing).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import attrs
import numpy as np

from dnc.diagnostics import counted, fail
from dnc.ir.structure import CLASS, SELECTOR, TOKEN, VECTOR, Dimension, Field
from dnc.runtime.data.columns import Columns
from dnc.runtime.data.problems import MOST_SHOWN, ProblemList, kind_of, names, shown, suggestion
from dnc.runtime.data.vocabulary import Beside, Vocabulary, build_vocabulary

Key = tuple[str, int, str]
_LARGEST = 2**31 - 1


@attrs.frozen(eq=False)
class _Column:
    """A data column: (struct, arm index, field), its declaration, its values."""

    key: Key
    field: Field
    values: list[Any]

    @property
    def present(self) -> list[bool]:
        """Of every entry whether it is there."""
        return [each is not None for each in self.values]


@attrs.frozen(eq=False)
class _Conversion:
    """The columns of a file on their way to arrays."""

    columns: Columns
    problems: ProblemList

    def report(self, column: _Column, position: int, message: str, note: str = "") -> None:
        """A mistake in an entry of a column."""
        line, vertex = self.columns.place_of(column.key[0], column.key[1], position)
        what = f"{vertex}.{column.field.name}" if vertex else f"field '{column.field.name}'"
        self.problems.add(f"{what} {message}", line, note=note)

    def report_first(self, column: _Column, accepted: tuple[type, ...], expected: str) -> bool:
        """Report the first entry whose type is not accepted; whether there was one."""
        found = set(map(type, column.values)).difference(accepted)
        if not found:
            return False
        position = self.first(column, (type(each) in found for each in column.values))
        value = column.values[position]
        text = "is missing" if value is None else f"{expected}, found {kind_of(value)}"
        self.report(column, position, text)
        return True

    def report_word(self, group: list[_Column], word: str, message: str) -> None:
        """A mistake in the first entry of a column that is `word`, which one of the columns holds."""
        column = next(column for column in group if word in column.values)
        self.report(column, self.first(column, (each == word for each in column.values)), message)

    def first(self, column: _Column, wrong: Iterable[Any]) -> int:
        """The position of the entry that stands first in the file, of those that are wrong; there is one."""
        positions = [at for at, each in enumerate(wrong) if each]
        places = self.columns.order_of(*column.key[:2], positions)
        return min(zip(places, positions, strict=True))[1]


def convert(
    columns: Columns,
    vocabularies: Mapping[str, Vocabulary] | None,
    min_count: int,
    problems: ProblemList,
    beside: Mapping[str, Beside] | None = None,
) -> tuple[dict[Key, Any], dict[str, Vocabulary]]:
    """All data columns as arrays, and the vocabularies (built where none were given, with those beside)."""
    conversion = _Conversion(columns, problems)
    converted: dict[Key, Any] = {}
    dimensions: dict[str, list[_Column]] = {}
    sizes: dict[str, Dimension] = {}
    for name, table in columns.structs.items():
        for index, each in enumerate(table.columns):
            for field in each.arm.fields:
                column = _Column((name, index, field.name), field, each.values[field.name])
                if field.kind == VECTOR:
                    converted[column.key] = _vectors(conversion, column)
                elif field.kind == SELECTOR and field.dimension is not None:
                    if not conversion.report_first(
                        column, (int,), "must be a whole number, which selects from a stack"
                    ):
                        converted[column.key] = _numbers(conversion, column, field.dimension, None)
                elif field.kind in (TOKEN, CLASS) and field.dimension is not None:
                    dimensions.setdefault(field.dimension.name, []).append(column)
                    sizes[field.dimension.name] = field.dimension
    known = dict(vocabularies or {})
    for name, group in dimensions.items():
        good = [column for column in group if not _mistyped(conversion, column)]
        strings = _is_text(conversion, good)
        if len(good) < len(group) or _mixed(conversion, good, strings):
            continue
        vocabulary = known.get(name)
        if vocabularies is None:
            more = (beside or {}).get(name)
            if more is not None and not strings:
                if any(any(column.present) for column in good):
                    raise fail(f"{more.source}: '{name}' has numbers in {problems.path}, not words or labels")
                strings = True
            vocabulary = _build(conversion, sizes[name], good, strings, min_count, more)
            if vocabulary is not None:
                known[name] = vocabulary
        for column in good:
            if strings:
                converted[column.key] = _strings(conversion, column, name, vocabulary)
            else:
                converted[column.key] = _numbers(conversion, column, sizes[name], vocabulary)
    return converted, known


def _mistyped(conversion: _Conversion, column: _Column) -> bool:
    token = column.field.kind == TOKEN
    may_miss = conversion.columns.layout.may_miss(column.key[0], column.field)
    accepted = (int, str, type(None)) if may_miss else (int, str)
    return conversion.report_first(
        column, accepted, "must be a word or a whole number" if token else "must be a whole number or a label"
    )


def _is_text(conversion: _Conversion, group: list[_Column]) -> bool:
    """Whether a dimension's values are strings; where numbers are among them, the first one decides."""
    kinds = set(map(type, chain.from_iterable(column.values for column in group))) - {type(None)}
    if len(kinds) < 2:
        return str in kinds
    firsts = []
    for column in group:
        if any(column.present):
            position = conversion.first(column, column.present)
            (place,) = conversion.columns.order_of(*column.key[:2], [position])
            firsts.append((place, type(column.values[position]) is str))
    return min(firsts)[1]


def _mixed(conversion: _Conversion, group: list[_Column], strings: bool) -> bool:
    wanted, expected = (str, "a string") if strings else (int, "a number")
    found = False
    for column in group:
        if conversion.report_first(column, (wanted, type(None)), f"holds {expected} elsewhere in this file"):
            found = True
    return found


def _build(
    conversion: _Conversion,
    dimension: Dimension,
    group: list[_Column],
    strings: bool,
    min_count: int,
    beside: Beside | None,
) -> Vocabulary | None:
    """A dimension's vocabulary; None where its size is fixed and its values are numbers."""
    unknown = any(column.field.kind == TOKEN for column in group)
    size = dimension.size
    if not strings:
        if size is not None:
            return None
        largest = min(max(_present(group), default=0), _LARGEST - 1)
        return Vocabulary(dimension.name, None, max(largest + 1, 0), unknown)
    built = build_vocabulary(
        dimension.name,
        _present(group),
        unknown=unknown,
        min_count=min_count if unknown else 1,
        limit=size if unknown else None,
        beside=() if beside is None else beside.words,
    )
    try:
        "".join(built.words or ()).encode()
    except UnicodeEncodeError as error:  # samples of memory; a file with half of a character is refused
        half = error.object[error.start]
        text = f"holds {shown(half)}, half of a character, and the other half is missing"
        conversion.report_word(group, next(word for word in built.words or () if half in word), text)
    if size is None or built.size <= size:
        return built
    present = set(_present(group))
    if beside is not None and (unknown or len(present) <= size):
        what = "words with <unk>" if unknown else "labels"
        new = [shown(each) for each in beside.words if each not in present]
        raise fail(
            f"{beside.source}: with its entries '{dimension.name}' has {built.size} {what}, but it is {size}",
            f"for as many: dnc compile --set {dimension.name}={built.size}",
            f"not in the data: {', '.join(new[:3])}{', ...' if len(new) > 3 else ''}",
        )
    own = build_vocabulary(dimension.name, _present(group), unknown=unknown).words or ()
    rarest = own[-1]
    text = f"has {len(own)} different labels, but '{dimension.name}' is {size}; the rarest is {shown(rarest)}"
    conversion.report_word(group, rarest, text)
    return built


def _present(group: list[_Column]) -> Iterator[Any]:
    """The values of the columns that are there."""
    return (each for column in group for each in column.values if each is not None)


def _strings(conversion: _Conversion, column: _Column, name: str, vocabulary: Vocabulary | None) -> Any:
    if vocabulary is None or vocabulary.words is None:
        text = f"is a string, but the model knows '{name}' as numbers"
        if not any(column.present):  # of several arms not all have one
            return np.full(len(column.values), -1, np.int32)
        conversion.report(column, conversion.first(column, column.present), text)
        return None
    index = vocabulary.index
    if vocabulary.unknown:
        unknown = vocabulary.unknown_number
        return np.fromiter(
            (-1 if each is None else index.get(each, unknown) for each in column.values),
            np.int32,
            len(column.values),
        )
    token = column.field.kind == TOKEN
    if token or not conversion.columns.layout.may_be_unknown(column.key[0], column.field):
        strange = set(column.values).difference(index, (None,))
        if strange:
            position = conversion.first(column, (each in strange for each in column.values))
            found, what = column.values[position], "word" if token else "label"
            few = f"; its {what}s are {names(index)}" if len(index) <= MOST_SHOWN else ""
            hint = suggestion(found, index) or few or f"; it has {counted(len(index), what)}"
            why = ", and none of them stands for others" if token else ""
            text = f"is {shown(found)}, which is no {what} of '{name}'{why}{hint}"
            option = f"dnc run --vocabulary {name}=FILE, as training begins"
            note = "" if token else f"for labels that the training data lack: {option}"
            conversion.report(column, position, text, note)
            return None
    return np.fromiter((index.get(each, -1) for each in column.values), np.int32, len(column.values))


def _numbers(
    conversion: _Conversion, column: _Column, dimension: Dimension, vocabulary: Vocabulary | None
) -> Any:
    values = [-1 if each is None else each for each in column.values]
    present = [each for each in column.values if each is not None]
    if vocabulary is not None and vocabulary.words is not None and present:
        text = f"is a number, but the model knows '{dimension.name}' as strings"
        conversion.report(column, conversion.first(column, column.present), text)
        return None
    size = dimension.size if vocabulary is None else vocabulary.size
    limit = min(_LARGEST if size is None else size, _LARGEST)
    if present and not (min(present) >= 0 and max(present) < limit):
        position = conversion.first(
            column, (each is not None and not 0 <= each < limit for each in column.values)
        )
        bad = column.values[position]
        limits = "starts at 0" if bad < 0 else f"has 0..{limit - 1}"
        if bad >= 0 and dimension.size is None and vocabulary is not None:
            limits += f", as training had; dnc compile --set {dimension.name}={bad + 1} has room for it"
        text = f"is {shown(bad)}, but {column.field.kind}<{dimension.name}> {limits}"
        conversion.report(column, position, text)
        return None
    return np.asarray(values, np.int32)


def _vectors(conversion: _Conversion, column: _Column) -> Any:
    """float32[n, width]; a `float` field (width 0) is one plain number."""
    width, values = column.field.width, column.values
    if None in values and conversion.columns.layout.may_miss(column.key[0], column.field):
        values = [([0.0] * width if width else 0.0) if each is None else each for each in values]
        column = attrs.evolve(column, values=values)
    if width == 0:
        if conversion.report_first(column, (int, float), "must be a number"):
            return None
        rows: list[list[Any]] = [[each] for each in values]
    else:
        if conversion.report_first(column, (list,), f"must be a list of {width} numbers"):
            return None
        if set(map(len, values)).difference((width,)):
            at = conversion.first(column, (len(each) != width for each in values))
            conversion.report(column, at, f"must be a list of {width} numbers, found {len(values[at])}")
            return None
        rows = values
    bad = set(map(type, chain.from_iterable(rows))).difference((int, float))
    if bad:
        at = conversion.first(column, (not bad.isdisjoint(map(type, row)) for row in rows))
        wrong = next(each for each in rows[at] if type(each) in bad)
        conversion.report(column, at, f"must be a list of {width} numbers, found {kind_of(wrong)} in it")
        return None
    wide = np.zeros((len(rows), max(width, 1)), np.float64)
    try:
        if rows:
            wide[:] = rows
    except OverflowError:
        wide[:] = [[float(min(max(each, -1e300), 1e300)) for each in row] for row in rows]
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    if not np.isfinite(narrow).all():
        is_finite = np.isfinite(narrow)
        at = conversion.first(column, (not each.all() for each in is_finite))
        wrong = rows[at][int(np.argmin(is_finite[at]))]
        known = isinstance(wrong, int) or np.isfinite(wrong)
        text = (
            f"is {shown(wrong)}, too large for 32-bit floats" if known else f"is {wrong}, numbers are finite"
        )
        conversion.report(column, at, text)
        return None
    return narrow
