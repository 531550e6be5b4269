"""From tensors to parameters, and back.

In: a map, tensors by name, the shapes of the parameters. Out: values by parameter; or from values
tensors by name. Guaranteed: nothing is taken in part. Every missing, unused or misshapen tensor is
reported, by the name that it has in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import attrs
import numpy as np

from dnc.diagnostics import Diagnostic, DiagnosticError, fail
from dnc.runtime.data.problems import names, shortened, suggestion
from dnc.runtime.initialize import check_finite
from dnc.runtime.weights.nodes import Concat, Conflict, Floats, MapProblem, Shape, gates_of, merged, shown
from dnc.runtime.weights.parse import WeightMap


@attrs.frozen(eq=False)
class Gathered:
    """Values by parameter. sources: the tensors each is made of. kept: those that keep first values."""

    values: dict[str, Floats]
    sources: dict[str, tuple[str, ...]]
    kept: tuple[str, ...]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{name} {shown(value.shape)}: {', '.join(self.sources[name]) or 'a constant'}"
            for name, value in self.values.items()
        ]
        if self.kept:
            lines.append(f"first values as declared: {', '.join(self.kept)}")
        if self.ignored:
            lines.append(f"ignored: {', '.join(self.ignored)}")
        return "\n".join(lines)


def rows_of(weights: WeightMap, parameter: str, tensors: Mapping[str, Floats]) -> int | None:
    """The rows that the tensors give a parameter; None if they give none."""
    node = weights.of(parameter)
    if node is None or not set(node.names()) <= set(tensors):
        return None
    try:
        found = node.gather(lambda name: tensors[name], None)
    except MapProblem:  # said in words when the shapes are compared
        return None
    return found.shape[0] if found.ndim else None


def check_gates(weights: WeightMap, rows: Mapping[str, str]) -> None:
    """DiagnosticError where gates would be cut inside: 2 parts of rows that are declared as 3 * hidden.

    rows: by parameter how the program writes its first dimension.
    """
    for name, node in weights.parameters.items():
        declared = re.fullmatch(r"(\d+) \* \w+", rows.get(name, ""))
        if node is None or declared is None:
            continue
        for gates in gates_of(node):
            parts, pieces = len(gates.wanted), int(declared[1])
            if parts % pieces and pieces % parts:
                rows_are = f"{name} has {declared[0]} rows"
                raise fail(f"{weights.where(name)}.gates: {parts} parts are wanted, but {rows_are}")


def gather(
    weights: WeightMap,
    tensors: Mapping[str, Floats],
    others: Mapping[str, str],
    shapes: Mapping[str, Shape],
    path: str,
    entries: Mapping[str, str] | None = None,
) -> Gathered:
    """The values of all parameters but those that keep their first ones.

    others: tensors that hold no floats, and what they hold. path: of the tensors' file. entries: of tables
    what they have a row for each of, "words of 'vocab'".
    """
    _check_names(weights, shapes)
    problems, notes = list[str](), list[str]()
    expected: dict[str, tuple[Shape, str]] = {}
    for name, shape in shapes.items():
        node, where = weights.of(name), weights.where(name)
        if node is None:
            continue
        try:
            wanted = list(node.expect(shape))
        except MapProblem as problem:
            problems.append(f"{where}: {problem}")
            continue
        for source, own in wanted:
            known, first = expected.setdefault(source, (own, name))
            if known != own:
                problems.append(
                    f"{where}: '{source}' would be {shown(own)}, but {shown(known)} for {first}; "
                    f"{name} is {shown(shape)}"
                )
    for source, (own, name) in expected.items():
        found = tensors.get(source)
        if found is None:
            problems.append(_missing(weights, name, shapes[name], source, tensors, others, path))
        elif found.shape != own:
            made = "" if own == shapes[name] else f" for {name} {shown(shapes[name])}"
            if entries and name in entries and not made and found.shape[1:] == own[1:]:
                each = f"one for each of the {own[0]:,} {entries[name]}"
                problems.append(f"{path}: '{source}' has {found.shape[0]:,} rows, expected {each}")
                continue
            problems.append(f"{path}: '{source}' is {shown(found.shape)}, expected {shown(own)}{made}")
            node = weights.of(name)
            if isinstance(node, Concat) and len(set(node.sizes)) == 1 and len(found.shape) == len(own):
                notes.append(
                    f"parts of a 'concat' are equal unless it says otherwise: {weights.where(name)}.sizes"
                )
    unused = [name for name in (*tensors, *others) if name not in expected]
    ignored = [name for name in unused if any(fnmatchcase(name, each) for each in weights.ignore)]
    left = [name for name in unused if name not in ignored]
    if left:
        sizes = {name: f" {shown(found.shape)}" for name, found in tensors.items()}
        listed = [f"{shortened(name)}{sizes.get(name, '')}" for name in left]
        problems.append(f"{path}: not used: {', '.join(listed)}")
    if problems:
        if left:
            notes.append("what is not needed is named in the map, as ignore = ['decoder.*']")
        last = Diagnostic(problems.pop(), notes=tuple(dict.fromkeys(notes)))
        raise DiagnosticError(*map(Diagnostic, problems), last)
    check_finite({source: tensors[source] for source in expected}, path)
    nodes = {name: node for name in shapes if (node := weights.of(name)) is not None}
    values = {
        name: np.ascontiguousarray(node.gather(lambda source: tensors[source], shapes[name]), np.float32)
        for name, node in nodes.items()
    }
    check_finite(values, path)  # sums of tensors may not be, where these are
    return Gathered(
        values,
        {name: tuple(dict.fromkeys(node.names())) for name, node in nodes.items()},
        tuple(name for name in shapes if name not in nodes),
        tuple(ignored),
    )


def _check_names(weights: WeightMap, known: Iterable[str]) -> None:
    unknown = [name for name in weights.parameters if name not in known]
    if unknown:
        hint = suggestion(unknown[0], known) or f"; the parameters are {names(known)}"
        raise fail(f"{weights.where(unknown[0])}: there is no such parameter{hint}")


def _missing(
    weights: WeightMap,
    parameter: str,
    shape: Shape,
    source: str,
    tensors: Mapping[str, Floats],
    others: Mapping[str, str],
    path: str,
) -> str:
    """What is said of a tensor that a map names and a file lacks."""
    if source in others:
        return f"{path}: '{source}' holds {others[source]}, expected floats, for {parameter}"
    hint = suggestion(source, tensors)
    if parameter not in weights.parameters:
        place = "the map" if weights.path is None else weights.path
        return (
            f"{path}: nothing for {parameter} {shown(shape)}: no tensor has this name, and {place} "
            f"says nothing of it{hint}"
        )
    return f"{path}: there is no '{source}', which {weights.where(parameter)} names{hint}"


def spread(weights: WeightMap, values: Mapping[str, Floats]) -> dict[str, Floats]:
    """The tensors that the values of all parameters stand for; the inverse of `gather`.

    DiagnosticError where two parameters say different things about an element, or none says anything.
    """
    _check_names(weights, values)
    found: dict[str, Floats] = {}
    makers: dict[str, list[str]] = {}
    for parameter, value in values.items():
        node, where = weights.of(parameter), weights.where(parameter)
        if node is None:
            continue

        def give(name: str, array: Floats, parameter: str = parameter, where: str = where) -> None:
            before = makers.setdefault(name, [])
            if name not in found:
                found[name] = array
            elif found[name].shape != array.shape:
                shapes = f"{shown(array.shape)}, but {shown(found[name].shape)} for {before[0]}"
                raise fail(f"{where}: '{name}' would be {shapes}")
            else:
                try:
                    found[name] = merged(found[name], array)
                except Conflict as problem:
                    makes = " and ".join(dict.fromkeys((*before, parameter)))
                    raise fail(f"{where}: '{name}' {problem}: {makes} share it and differ now") from None
            before.append(parameter)

        try:
            list(node.expect(value.shape))
            node.spread(value, give)
        except (Conflict, MapProblem) as problem:
            raise fail(f"{where}: {parameter} {shown(value.shape)}: {problem}") from None
    problems = [
        f"'{name}': {np.isnan(array).sum():,} of its {array.size:,} numbers {shown(array.shape)} are in no "
        f"parameter; it is read for {', '.join(dict.fromkeys(makers[name]))}"
        for name, array in found.items()
        if np.isnan(array).any()
    ]
    if problems:
        where = "" if weights.path is None else f"{weights.path}: "
        raise DiagnosticError(*(Diagnostic(where + problem) for problem in problems))
    return found
