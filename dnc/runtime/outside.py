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

from dnc.diagnostics import fail
from dnc.ir.forest import Ints
from dnc.ir.program import ROOT, DeclaredOutput, Program, Space
from dnc.ir.structure import OUTSIDE
from dnc.runtime.data import Dataset

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


def hand_in(
    dataset: Dataset, samples: Ints, places: Mapping[str, tuple[Space, str]], given: Arrays, what: str
) -> None:
    """Fills in the arrays of all `places`: one a sample, [vertices, width], or [width] for a root."""
    unknown = sorted(set(given) - set(places))
    missing = sorted(set(places) - set(given))
    if unknown or missing:
        name, how = (unknown[0], "is unknown") if unknown else (missing[0], "is missing")
        raise fail(f"the {what} '{name}' {how}; the program has: {', '.join(places) or 'none'}")
    for name, (space, field) in places.items():
        arrays = given[name]
        if len(arrays) != len(samples):
            raise fail(
                f"the {what} '{name}' has {len(arrays)} arrays, expected one for each of {len(samples)}"
            )
        column: NDArray[Any] = dataset.forest.tables[space.struct].data[field]
        for number, rows in enumerate(vertices_of(dataset, space, samples)):
            array = np.asarray(arrays[number], np.float32)
            shape = (len(rows), column.shape[1])
            if space.selection == ROOT and len(rows) == 1 and array.ndim == 1:
                array = array[None]
            whose = f"the {what} '{name}' of sample {number + 1}"
            if array.shape != shape:
                raise fail(f"{whose} is {list(array.shape)}, expected {list(shape)}")
            if not np.isfinite(array).all():
                raise fail(f"{whose} has numbers that are not finite")
            column[rows] = array


def hand_back(
    dataset: Dataset,
    samples: Ints,
    places: Mapping[str, tuple[Space, str]],
    gradients: Mapping[str, NDArray[Any]],
) -> dict[str, list[Any]]:
    """The gradients by what was handed in at `places`, shaped alike.

    gradients: a row for every vertex of the struct; what nothing depends on has none.
    """
    found = {}
    for name, (space, field) in places.items():
        shape = dataset.forest.tables[space.struct].data[field].shape
        rows = gradients.get(name, np.zeros(shape, np.float32))
        found[name] = [rows[vertices] for vertices in vertices_of(dataset, space, samples)]
    return found


def vertices_of(dataset: Dataset, space: Space, samples: Ints) -> list[Ints]:
    """The vertices of a space, sample by sample, as the user counts them."""
    rows = dataset.forest.vertices(space)
    begin = dataset.forest.tables[space.struct].begin
    if space.selection != ROOT:
        rows = np.sort(rows)
    order = np.argsort(rows, kind="stable")
    first = np.searchsorted(rows[order], begin[samples])
    last = np.searchsorted(rows[order], begin[samples + 1])
    positions = dataset.positions.get(space.struct)
    found = []
    for a, b in zip(first, last, strict=True):
        own = rows[order][a:b]
        found.append(own if positions is None else own[np.argsort(positions[own], kind="stable")])
    return found
