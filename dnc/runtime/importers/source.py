"""What every importer is given and gives: texts with their names, counters, sequences of words.

In: files' texts. Out: their lines with numbers, and diagnostics at a line and column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from dnc.diagnostics import DiagnosticError
from dnc.runtime.data.lines import load
from dnc.runtime.data.problems import DataDiagnostic

WORDS = ("form", "target")
"""The fields of a sentence's words that are words."""
LONGEST_SHOWN = 40
MOST_NESTED = 500
"""Levels of objects and arrays; deeper JSON could not be read back in nested form."""


@attrs.frozen
class Source:
    """A file to import."""

    name: str
    text: str = attrs.field(repr=False)

    def lines(self) -> Iterator[tuple[int, str]]:
        """The lines, counted from 1, without their ends."""
        lines = self.text.split("\n")
        if not lines[-1]:
            del lines[-1]
        for number, line in enumerate(lines, 1):
            yield number, line.removesuffix("\r")

    def mistake(self, line: int, column: int | None, message: str, *notes: str) -> DiagnosticError:
        """A mistake at a place in the file."""
        return DiagnosticError(DataDiagnostic(message, path=self.name, line=line, column=column, notes=notes))


def open_source(path: str | Path) -> Source:
    """The text of a file; DiagnosticError if it cannot be read or is not UTF-8."""
    return Source(str(path), load(path).decode("utf-8"))


def shown(text: str) -> str:
    """What was found, in a message: the beginning of what is long."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


@attrs.define
class Counts:
    """What an importer saw. left_out: by kind, what it did not take. notes: what may be meant otherwise."""

    words: set[str] = attrs.field(factory=set)
    labels: set[str] = attrs.field(factory=set)
    left_out: dict[str, int] = attrs.field(factory=dict)
    notes: list[str] = attrs.field(factory=list)

    def leave_out(self, what: str, count: int = 1) -> None:
        """Counts what is not taken."""
        self.left_out[what] = self.left_out.get(what, 0) + count

    def keep(self, sentences: Sequence[Sentence]) -> None:
        """Forgets the words and labels that none of the sentences holds."""
        words: set[str] = set()
        labels = {str(value) for sentence in sentences for value in sentence.rest.values()}
        for word in (word for sentence in sentences for word in sentence.words):
            for name, value in word.items():
                (words if name in WORDS else labels).add(value)
        self.words &= words
        self.labels &= labels


@attrs.frozen
class Options:
    """How to read; docs/data.md has the meaning of each, and which format has which.

    columns: none for those of the format. written: the fields that go into the file, by their names before
    `--fields`.
    """

    tokens: str = "spaces"
    length: int | None = None
    marks: bool = True
    columns: tuple[str, ...] = ()
    delimiter: str = ","
    quotes: bool = True
    comments: str | None = None
    unlabelled: str | None = None
    numeric: bool = False
    separator: str = "|"
    classes: int = 5
    structure: str = "sequence"
    seed: int = 1
    rare: int = 0
    counted_in: str | Path | None = None
    longest: int | None = None
    layers: int | None = None
    skip: int = 0
    written: frozenset[str] = frozenset()


@attrs.frozen
class Sentence:
    """Words with what belongs to each ("form" among it), and what belongs to them all."""

    words: list[dict[str, Any]]
    rest: dict[str, Any] = attrs.field(factory=dict)


Sample = dict[str, Any]
