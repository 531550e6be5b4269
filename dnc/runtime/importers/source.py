"""What every importer is given: the text with its name, and counters.

In: a file's text. Out: its lines with numbers, and diagnostics at a line and column.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from dnc.diagnostics import DiagnosticError
from dnc.runtime.data.problems import DataDiagnostic


@attrs.frozen
class Source:
    """A file to import."""

    name: str
    text: str = attrs.field(repr=False)

    def lines(self) -> Iterator[tuple[int, str]]:
        """The lines, counted from 1, without their ends."""
        for number, line in enumerate(self.text.split("\n"), 1):
            yield number, line.removesuffix("\r")

    def mistake(self, line: int, column: int, message: str) -> DiagnosticError:
        """A mistake at a place in the file."""
        return DiagnosticError(DataDiagnostic(message, path=self.name, line=line, column=column))


@attrs.define
class Counts:
    """What an importer saw. left_out: by kind, what it did not take."""

    vertices: int = 0
    words: set[str] = attrs.field(factory=set)
    left_out: dict[str, int] = attrs.field(factory=dict)
