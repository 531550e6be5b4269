"""The formats that can be imported, and the import itself.

In: a format's name, a text file. Out: JSONL beside a `Report` of what was taken and left out.
Guaranteed: a mistake in the source is a `DiagnosticError` with its line, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs

from dnc.diagnostics import fail
from dnc.runtime.atomic import check_output, write_atomically
from dnc.runtime.data.lines import load
from dnc.runtime.data.problems import file_problem, names, suggestion
from dnc.runtime.importers.ptb_trees import read_ptb_trees
from dnc.runtime.importers.source import Counts, Source

Importer = Callable[[Source, Counts], Iterator[bytes]]
"""Yields JSONL lines from a source and counts what it sees; raises Problem through the source."""

FORMATS: Mapping[str, Importer] = {"ptb-trees": read_ptb_trees}


@attrs.frozen
class Report:
    """What an import did. left_out: how many of what ("blank lines") were not taken."""

    source: str
    destination: str
    samples: int
    vertices: int
    vocabulary: int
    left_out: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        counts = f"{self.samples:,} samples, {self.vertices:,} vertices, {self.vocabulary:,} different words"
        left = ", ".join(f"{count:,} {what}" for what, count in self.left_out) or "nothing"
        return f"{self.source} -> {self.destination}: {counts}; left out: {left}"


def import_file(format: str, source: str | Path, destination: str | Path) -> Report:
    """Write `source`, a file in `format`, as JSONL to `destination`."""
    if format not in FORMATS:
        hint = suggestion(format, FORMATS) or f"; the formats are {names(sorted(FORMATS))}"
        raise fail(f"unknown format '{format}'{hint}")
    check_output(destination, source)
    counts = Counts()
    lines = list(FORMATS[format](Source(str(source), load(source).decode("utf-8")), counts))
    if not lines:
        raise file_problem(str(source), "the file holds no samples")
    try:
        write_atomically(Path(destination), lines)
    except OSError as error:
        raise file_problem(str(destination), f"cannot be written: {error.strerror}") from None
    left_out = tuple((what, count) for what, count in counts.left_out.items() if count)
    return Report(str(source), str(destination), len(lines), counts.vertices, len(counts.words), left_out)
