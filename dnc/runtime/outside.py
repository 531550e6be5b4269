"""What a batch is handed from outside, and what goes back: pulled vectors, gradients of pushed ones.

In: a data set, sample numbers, arrays by sample. Out: the data set's columns filled in; gradients.
Guaranteed: the vertices of a sample are in the order in which `predict` hands out values: that of the
file for flat samples, children before parents for nested ones; a wrong name or shape is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import counted, fail
from dnc.ir.forest import Ints
from dnc.ir.program import ROOT, DeclaredOutput, Program, Space
from dnc.ir.structure import OUTSIDE
from dnc.runtime.data import Dataset
from dnc.runtime.predictions import Gradients

Arrays = Mapping[str, Sequence[Any]]


def pulled_fields(program: Program) -> dict[str, tuple[Space, str]]:
    """By "Struct.field" where pulled vectors go: the vertices that have the field, and its name."""
    pushed = {field for _, field in pushed_values(program).values()}
    found = {}
    for struct in program.structs:
        for field in struct.fields.values():
            if field.kind == OUTSIDE and field.name not in pushed:
                arms = tuple(arm.name for arm in struct.arms if arm.field(field.name) is not None)
                found[f"{struct.name}.{field.name}"] = Space("", struct.name, arms), field.name
    return found


def pushed_values(program: Program) -> dict[str, tuple[Space, str]]:
    """By name where the gradient of a pushed value goes: its vertices, and the field."""
    return {
        output.output: (program.space(stage.space), output.gradient)
        for stage in program.stages
        for output in stage.outputs
        if isinstance(output, DeclaredOutput) and output.gradient
    }


def check_unaided(program: Program, what: str) -> None:
    """DiagnosticError where a program pulls vectors, of which `what` is handed none."""
    names = tuple(pulled_fields(program))
    if names:
        raise fail(
            f"{what}: the program pulls {', '.join(names)}, which is not in the data",
            "vectors are handed in with Model.forward, and trained on with Model.backward behind it",
        )


def hand_in(
    dataset: Dataset,
    samples: Ints,
    places: Mapping[str, tuple[Space, str]],
    given: Arrays | None,
    what: str,
) -> object:
    """Fills in the arrays of all `places`: one a sample, [vertices, width], or [width] for a root.

    Nothing is filled in at a place where an array is refused. What comes back stands for all of it, see
    `Dataset.check_handed`.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise fail(f"found {type(given).__name__}, expected a {what} by name")
    unknown = sorted(set(given) - set(places))
    missing = sorted(set(places) - set(given))
    if unknown or missing:
        name, how = (unknown[0], "is unknown") if unknown else (missing[0], "is missing")
        raise fail(f"the {what} '{name}' {how}; the program has: {', '.join(places) or 'none'}")
    for name, (space, field) in places.items():
        arrays = given[name]
        if not isinstance(arrays, Sequence) and not hasattr(arrays, "__array__"):
            raise fail(f"the {what} '{name}' is {type(arrays).__name__}, expected a list of arrays")
        if len(arrays) != len(samples):
            has = counted(len(arrays), "array")
            raise fail(f"the {what} '{name}' has {has}, expected {len(samples)}, one a sample")
        column: NDArray[Any] = dataset.forest.tables[space.struct].data[field]
        order, width = dataset.order(space), column.shape[1]
        handed = []
        for number, count in enumerate(order.counts(samples)):
            whose = f"the {what} '{name}' of sample {number + 1}"
            try:
                array = np.asarray(arrays[number], np.float32)
            except (TypeError, ValueError) as error:
                raise fail(f"{whose} is no array of numbers: {error}") from None
            if space.selection == ROOT and count == 1 and array.ndim == 1:
                array = array[None]
            if array.shape != (count, width):
                raise fail(f"{whose} is {list(array.shape)}, expected {[int(count), width]}")
            handed.append(array)
        values = np.concatenate(handed)
        if not np.isfinite(values).all():
            number = next(number for number, array in enumerate(handed) if not np.isfinite(array).all())
            raise fail(f"the {what} '{name}' of sample {number + 1} has numbers that are not finite")
        column[order.of(samples)] = values
    return dataset.handed() if places else None


def hand_back(
    dataset: Dataset,
    samples: Ints,
    places: Mapping[str, tuple[Space, str]],
    gradients: Mapping[str, Gradients],
) -> dict[str, list[Any]]:
    """The gradients by what was handed in at `places`, shaped alike; what nothing depends on has zeros."""
    found = {}
    for name, (space, field) in places.items():
        order, width = dataset.order(space), dataset.forest.tables[space.struct].data[field].shape[1]
        vertices = order.of(samples)
        rows = (
            gradients[name].of(vertices)
            if name in gradients
            else np.zeros((len(vertices), width), np.float32)
        )
        found[name] = np.split(rows, np.cumsum(order.counts(samples))[:-1])
    return found
