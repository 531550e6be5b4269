"""What a model is given as data: a path, samples, or a set that was read before.

In: data in one of these forms, and the model's vocabulary, or words for one. Out: a `Dataset`. Guaranteed: a
set that was read with another vocabulary is refused; what the data have to look like is worked out once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dnc.api.arguments import Data
from dnc.diagnostics import fail
from dnc.ir.forest import program_structs
from dnc.ir.program import Program
from dnc.runtime.data import (
    Beside,
    Dataset,
    Layout,
    Vocabulary,
    layout_of,
    read,
    read_samples,
    vocabulary_dimensions,
)
from dnc.runtime.data.problems import shown
from dnc.runtime.weights.words import check_dimensions, read_words

Words = Mapping[str, str | Path | Sequence[str]]
"""By dimension a file of words or labels, one a line, or a list of them."""


class Reader:
    """Reads for one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._layouts: dict[bool, Layout] = {}

    def layout(self, labels_required: bool) -> Layout:
        """What the data have to look like, worked out once."""
        if labels_required not in self._layouts:
            self._layouts[labels_required] = layout_of(self.program, labels_required)
        return self._layouts[labels_required]

    def read(
        self,
        data: Data,
        known: Mapping[str, Vocabulary] | None,
        labels_required: bool,
        min_count: int = 1,
        words: Words | None = None,
    ) -> Dataset:
        """known: the model's vocabularies; None where the data have their own, of words met `min_count` times
        or more, and of those that are given."""
        beside = beside_of(self.program, words)
        found = self._read(data, known, labels_required, min_count, beside)
        for name, each in beside.items():
            index = found.vocabularies[name].index if name in found.vocabularies else {}
            strange = next((word for word in each.words if word not in index), None)
            if strange is not None:
                what = f"{shown(strange)} is not in the vocabulary of '{name}', which the model has already"
                raise fail(f"{each.source}: {what}")
        return found

    def _read(
        self,
        data: Data,
        known: Mapping[str, Vocabulary] | None,
        labels_required: bool,
        min_count: int,
        beside: Mapping[str, Beside],
    ) -> Dataset:
        if isinstance(data, Dataset):
            if known is not None and data.vocabularies != known:
                raise fail(f"{data.path} was read with another vocabulary; read it with this model")
            own = (program_structs(self.program), self.program.root)
            if (data.forest.structs, data.forest.root) != own:
                raise fail(f"{data.path} was read for other structs, or other sizes; read it with this model")
            return data
        if isinstance(data, str | Path):
            return read(
                data,
                self.program,
                known,
                labels_required=labels_required,
                min_count=min_count,
                beside=beside,
            )
        return read_samples(
            data,
            self.program,
            known,
            labels_required=labels_required,
            min_count=min_count,
            layout=self.layout(labels_required),
            beside=beside,
        )


def beside_of(program: Program, words: Words | None) -> dict[str, Beside]:
    """The words and labels that are given by dimension; DiagnosticError where they cannot be meant."""
    if not isinstance(words, Mapping | None):
        raise fail(f"vocabulary: found {type(words).__name__}, expected files of words by dimension")
    for name in words or {}:
        if not isinstance(name, str):
            raise fail(f"vocabulary: found {name!r}, expected the name of a dimension")
    check_dimensions(words or {}, vocabulary_dimensions(program))
    return {name: _beside(name, given) for name, given in (words or {}).items()}


def _beside(name: str, given: object) -> Beside:
    if isinstance(given, str | Path):
        found = read_words(given)
        if "" in found:
            raise fail(f"{given}: entry {found.index('') + 1} is empty, expected a word or a label")
        return Beside(tuple(found), str(given))
    source = f"vocabulary of '{name}'"
    if not isinstance(given, Sequence) or not all(isinstance(each, str) and each for each in given):
        raise fail(f"{source}: found {type(given).__name__}, expected a file, or a list of words")
    try:
        "".join(given).encode()
    except UnicodeEncodeError as error:
        raise fail(f"{source}: holds {shown(error.object[error.start])}, half of a character") from None
    if len(set(given)) < len(given):
        twice = next(each for each in given if given.count(each) > 1)
        raise fail(f"{source}: {shown(twice)} is in it more than once")
    return Beside(tuple(given), source)
