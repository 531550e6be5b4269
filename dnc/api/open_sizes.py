"""Sizes that a program leaves open though parameters have them: what they are for some data.

In: the mistakes of such a program, and data. Out: the same mistakes with the sizes that the data ask for.
Guaranteed: nothing is said where the program has other mistakes, or the data any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import attrs

from dnc.compiler import read_program
from dnc.diagnostics import DiagnosticError
from dnc.ir.program import Program
from dnc.ir.structure import Arm, Struct
from dnc.runtime.data import Vocabulary, read

OPEN = re.compile(r"dimension '(\w+)' is open")
ANY = 840  # a size that much divides


def with_sizes(
    error: DiagnosticError,
    path: str | Path,
    data: str | Path,
    settings: Mapping[str, int],
    labels_required: bool,
) -> DiagnosticError:
    """The mistakes of the program in `path`; of open dimensions with their sizes in `data`."""
    found = [OPEN.search(each.message) for each in error.diagnostics]
    names = {each[1] for each in found if each is not None}
    if None in found:
        return error
    try:
        program = read_program(path, {**settings, **dict.fromkeys(names, ANY)})[1]
        known = read(data, _opened(program, names), labels_required=labels_required).vocabularies
    except DiagnosticError:
        return error
    told = []
    for each, match in zip(error.diagnostics, found, strict=True):
        name = match[1] if match is not None else ""
        notes = (_size(name, known[name], data),) if name in known and len(known[name]) else ()
        told.append(attrs.evolve(each, notes=(*each.notes, *notes)))
    return DiagnosticError(*told)


def _size(name: str, found: Vocabulary, data: str | Path) -> str:
    what = "numbers" if found.words is None else "words with <unk>" if found.unknown else "labels"
    return f"{data} has {len(found)} {what}: --set {name}={len(found)}"


def _opened(program: Program, names: set[str]) -> Program:
    """The program's data with these dimensions open."""

    def arm(given: Arm) -> Arm:
        fields = (
            attrs.evolve(field, dimension=attrs.evolve(field.dimension, size=None))
            if field.dimension is not None and field.dimension.name in names
            else field
            for field in given.fields
        )
        return attrs.evolve(given, fields=tuple(fields))

    def struct(given: Struct) -> Struct:
        return attrs.evolve(given, arms=tuple(map(arm, given.arms)))

    return attrs.evolve(program, structs=tuple(map(struct, program.structs)))
