"""Measures: how the values of a metric's vertices become one number for a whole set.

In: the values that a metric's expressions have at its vertices. Out: a float, NaN where it is not
defined. Guaranteed: the order of the rows matters only within a sequence. A measure is one entry of
`MEASURES`; those that follow from a mean are summed on the device, the others see every row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.forest import Forest, Ints, target_of
from dnc.ir.program import MetricOutput
from dnc.ir.structure import LIST

Array = NDArray[np.generic]

SCALAR, CLASS = "scalar", "class"
"""The kinds of an expression that is measured."""

OUTSIDE = "O"
_TAG = re.compile(r"([BIESLU])-(.+)", re.DOTALL)


@attrs.frozen(eq=False)
class Rows:
    """What a measure of rows sees, in order within each sequence.

    values: per expression its values. sequence: per row the list that holds its vertex. classes: the
    names of the classes; where there are none, their numbers.
    """

    values: tuple[Array, ...]
    sequence: Ints
    classes: Sequence[str] = ()


@attrs.frozen
class Measure:
    """A measure. operands: the kinds of its expressions. better: 1 where more is better, -1 where
    less is, 0 where it depends. It has either of_mean, of the mean of its expression, or of_rows;
    with in_lists it goes along the lists that hold the vertices, and needs the names of classes.
    """

    operands: tuple[str, ...]
    better: int
    of_mean: Callable[[float], float] | None = None
    of_rows: Callable[[Rows], float] | None = None
    in_lists: bool = False

    def __call__(self, rows: Rows) -> float:
        """The measure of rows that are all there."""
        if self.of_mean is not None:
            values = rows.values[0].astype(np.float64)
            return self.of_mean(float(values.mean())) if values.size else math.nan
        assert self.of_rows is not None
        return self.of_rows(rows)


def is_summed(output: MetricOutput) -> bool:
    """Whether a metric follows from the sum of its values over all rows."""
    return MEASURES[output.measure].of_mean is not None and not output.known


def perplexity(mean: float) -> float:
    """e to the mean of losses in nats; infinite where that is too large."""
    return math.exp(mean) if mean < 709.0 else math.inf


def pearson(rows: Rows) -> float:
    """The coefficient of correlation; NaN where one side is constant."""
    if not rows.sequence.size or any((value == value[0]).all() for value in rows.values):
        return math.nan  # a mean of numbers that are alike may be another one, by rounding
    x, y = (value.astype(np.float64) - value.astype(np.float64).mean() for value in rows.values)
    scale = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
    return float(x @ y) / scale if scale > 0 else math.nan


def spearman(rows: Rows) -> float:
    """The coefficient of correlation of ranks, of those that are alike their mean; NaN where one side is
    constant, or holds a NaN."""
    if any(np.isnan(value).any() for value in rows.values):
        return math.nan
    return pearson(attrs.evolve(rows, values=tuple(map(_ranks, rows.values))))


def _ranks(values: Array) -> Array:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks


def rmse(rows: Rows) -> float:
    """The root of the mean of the squares of differences."""
    x, y = (value.astype(np.float64) for value in rows.values)
    with np.errstate(invalid="ignore"):  # inf on both sides
        return math.sqrt(float(((x - y) ** 2).mean())) if x.size else math.nan


def macro_f1(rows: Rows) -> float:
    """The mean of F1 over the classes that are predicted or right somewhere."""
    predicted, right = (value.astype(np.int64) for value in rows.values)
    if not right.size:
        return math.nan
    size = int(max(predicted.max(), right.max())) + 1
    hits = np.bincount(right[predicted == right], minlength=size)
    both = np.bincount(predicted, minlength=size) + np.bincount(right, minlength=size)
    return float((2 * hits[both > 0] / both[both > 0]).mean())


def spans(classes: Array, sequence: Ints, names: Sequence[str]) -> set[tuple[int, int, str]]:
    """The entities that a class per row marks, as (first row, behind the last row, type).

    As in the evaluation of CoNLL: a name says how its class is meant. O is outside. B-X, S-X and U-X
    begin an entity of type X; I-X, E-X and L-X go on with one, or begin one where there is none of
    type X to go on with; E, L, S and U end it. Any other name is itself a type, whose entities are
    the runs of its class (IO).
    """
    found: set[tuple[int, int, str]] = set()
    begin, kind, previous = 0, "", -1
    for row, (number, own) in enumerate(zip(classes.tolist(), sequence.tolist(), strict=True)):
        name = OUTSIDE if number < 0 else names[number] if number < len(names) else str(number)
        tag = _TAG.fullmatch(name)
        prefix, type = (tag[1], tag[2]) if tag else ("I", "" if name == OUTSIDE else name)
        if kind and (own != previous or type != kind or prefix in "BSU"):
            found.add((begin, row, kind))
            kind = ""
        if type and not kind:
            begin, kind = row, type
        if kind and prefix in "ELSU":
            found.add((begin, row + 1, kind))
            kind = ""
        previous = own
    if kind:
        found.add((begin, len(classes), kind))
    return found


def span_f1(rows: Rows) -> float:
    """F1 over entities: those of the first classes that the second ones have exactly so; 0 if none.

    A row whose second class is unknown (-1) is outside on both sides.
    """
    known = rows.values[1].astype(np.int64) >= 0
    predicted, right = (
        spans(np.where(known, each.astype(np.int64), -1), rows.sequence, rows.classes) for each in rows.values
    )
    hits = len(predicted & right)
    return 2 * hits / (len(predicted) + len(right)) if hits else 0.0


MEASURES: Mapping[str, Measure] = {
    "mean": Measure((SCALAR,), 0, of_mean=float),
    "perplexity": Measure((SCALAR,), -1, of_mean=perplexity),
    "pearson": Measure((SCALAR, SCALAR), 1, of_rows=pearson),
    "spearman": Measure((SCALAR, SCALAR), 1, of_rows=spearman),
    "rmse": Measure((SCALAR, SCALAR), -1, of_rows=rmse),
    "macro_f1": Measure((CLASS, CLASS), 1, of_rows=macro_f1),
    "f1": Measure((CLASS, CLASS), 1, of_rows=span_f1, in_lists=True),
}


def in_lists(forest: Forest, struct: str) -> tuple[Ints, Ints]:
    """Per vertex of a struct the number of the list that holds it, and its place among all of them.

    Where several lists hold a vertex, the first one counts; a vertex in none is one of its own.
    """
    size = len(forest.tables[struct])
    entries: list[Ints] = []
    lists: list[Ints] = []
    count = 0
    for name, each in forest.structs.items():
        for field in each.fields.values():
            if field.kind == LIST and target_of(each, field.name) == struct:
                begin, held = forest.tables[name].lists[field.name]
                entries.append(held)
                own = np.arange(count, count + len(begin) - 1, dtype=np.int32)
                lists.append(np.repeat(own, np.diff(begin)))
                count += len(own)
    held, own = (np.concatenate([np.zeros(0, np.int32), *each]) for each in (entries, lists))
    vertices, first = np.unique(held, return_index=True)
    sequence = np.arange(count, count + size, dtype=np.int32)
    place = np.arange(len(held), len(held) + size, dtype=np.int32)
    sequence[vertices], place[vertices] = own[first], first
    return sequence, place
