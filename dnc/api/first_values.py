"""What a model begins with: whether its parameters can be there, and weights that come by name.

In: a model without parameters; for weights a file that says nothing of words, or a checkpoint, and data.
Out: a model with parameters. Guaranteed: no row of a file is taken for that of another word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from dnc.api.origin import Origin
from dnc.api.reading import Words, beside_of
from dnc.diagnostics import counted, fail
from dnc.ir.program import TABLE, Program
from dnc.runtime.checkpoint import stored_vocabularies
from dnc.runtime.data import dimension_names, read, vocabulary_dimensions
from dnc.runtime.initialize import shapes
from dnc.runtime.measurements import class_metrics
from dnc.runtime.memory import FIRST_SCHEDULE, MEGABYTE, too_little
from dnc.runtime.pool import static_pool
from dnc.runtime.tensors import read_tensors
from dnc.runtime.weights.words import token_dimensions

if TYPE_CHECKING:
    from dnc.api.model import Model


def check_memory(model: Model, rows: dict[str, int], states: int = 0) -> None:
    """DiagnosticError if the parameters cannot be there, before they are made.

    rows: of tables. states: numbers that the optimizer will keep for each of them, in training.
    """
    states = states if model.plan.trains else 0
    need = static_pool(model.plan, rows, FIRST_SCHEDULE, states).words
    have = max(model.backend.capacity(), 0)
    have = have if model.memory_words is None else min(have, model.memory_words)
    if need > have:
        sizes = shapes(model.program, rows)
        largest = max(sizes, key=lambda name: math.prod(sizes[name]))
        size = math.prod(sizes[largest]) * 4 / MEGABYTE
        kept = " and what the optimizer keeps" if states else ""
        raise fail(
            f"{model.backend.name}: the parameters with their gradients{kept} need {too_little(need, have)}",
            f"the largest is {largest} {list(sizes[largest])}: {size:,.1f} MiB",
        )


def check_class_metrics(
    program: Program,
    classes: Mapping[str, object],
    lack: str = "but the data hold numbers",
    note: str = "the classes are tags, as B-PER, I-PER and O",
) -> None:
    """DiagnosticError where a metric needs names of classes that are not known; classes: those known, by
    metric. lack, note: why there are none, and what helps."""
    for name in class_metrics(program):
        if name not in classes:
            raise fail(
                f"metric '{name}' has to know what its classes are called, {lack}",
                note,
            )


def unnamed_classes(model: Model) -> list[str]:
    """Of every dimension of classes with more of them than there are labels, what that comes to."""
    found, tokens = [], token_dimensions(model.program)
    for name, dimension in vocabulary_dimensions(model.program).items():
        known, size = (model.vocabularies or {}).get(name), dimension.size
        if name in tokens or known is None or known.words is None or size is None or len(known) >= size:
            continue
        found.append(
            f"'{name}' is {size}, but the data have {counted(len(known), 'label')}: other classes would be "
            f"predicted as numbers (dnc compile --set {name}={len(known)}, or --vocabulary {name}=FILE)"
        )
    return found


def start_by_name(
    model: Model,
    path: str | Path,
    data: str | Path,
    *,
    trains: bool,
    min_count: int = 1,
    vocabulary: Words | None = None,
) -> tuple[str, ...]:
    """Gives a model without a vocabulary the weights of a file; their names.

    A checkpoint among such files has its vocabulary. What it lacks, as one of another program may, and for
    another file all, `data` say: in training, where the file holds no rows of such words; for measuring,
    where these are no words.
    """
    tensors, metadata = read_tensors(path)
    vocabularies = stored_vocabularies(metadata, path) or {}
    origin = Origin.of_words(None, min_count)
    if vocabulary_dimensions(model.program).keys() - vocabularies:
        beside = beside_of(model.program, vocabulary)
        dataset = read(data, model.program, labels_required=trains, min_count=min_count, beside=beside)
        found = dataset.vocabularies
        origin = origin if vocabularies else Origin.of_words(dataset.digest(), min_count, vocabulary)
        worded = {n for n, each in found.items() if each.words is not None and n not in vocabularies}
        unclear = worded & dimension_names(model.program, tensors) if trains else worded
        if unclear:
            named = ", ".join(f"'{name}'" for name in found if name in unclear)
            raise fail(
                f"{path}: which of its rows are which words or labels of {named} is not known; "
                f"{data} would number them in its own way",
                f"with their words by row: dnc import-weights {path} --build {model.build.path} "
                f"--vocabulary {min(unclear)}=words.txt, or --vocabulary RUN/vocabulary.json",
                "with the words of a run: --checkpoint beside --weights; or --weights with its checkpoint",
            )
        rows = {
            p.dimensions[0].name: len(tensors[p.name])
            for p in model.program.parameters
            if p.kind == TABLE and p.name in tensors and tensors[p.name].ndim
        }
        of_data = {
            name: each if each.words is not None else attrs.evolve(each, size=rows.get(name, each.size))
            for name, each in found.items()
        }
        vocabularies = {name: vocabularies.get(name, each) for name, each in of_data.items()}
    model.start(vocabularies, origin=origin)
    return model.load_weights(path)
