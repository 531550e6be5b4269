"""Formatting of texts and files.

In: a text, or paths of `.dn` files and of folders that hold some. Out: the formatted texts, written
where that is wanted. Guaranteed: a file is written whole or not at all, only where it changes, and not
where its text has a mistake; a mistake in one file does not keep the others from being formatted. Builds are
only read: none is formatted, and a folder's are passed over.
"""

from __future__ import annotations

import difflib
import io
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import attrs

from dnc.diagnostics import Diagnostic, DiagnosticError, Source, fail, read_source, unreadable
from dnc.frontend.format import format_program
from dnc.runtime.atomic import check_output, write_text
from dnc.runtime.build import check_outside, is_build

SUFFIX = ".dn"
_NO_END = "\n\\ No newline at end of file\n"


@attrs.frozen
class Formatted:
    """A text before and after."""

    name: str
    before: str
    after: str

    @property
    def changed(self) -> bool:
        """Whether the text was not formatted before."""
        return self.before != self.after

    def diff(self) -> str:
        """The change as a unified diff; "" where there is none."""
        before, after = (list(io.StringIO(text, newline="\n")) for text in (self.before, self.after))
        lines = difflib.unified_diff(before, after, self.name, f"{self.name} (formatted)")
        return "".join(line if line.endswith("\n") else f"{line}{_NO_END}" for line in lines)


def format_text(text: str, name: str = "model.dn") -> Formatted:
    """The text of a program, formatted; DiagnosticError with all mistakes of form."""
    return Formatted(name, text, format_program(Source(name, text)))


def format_paths(
    paths: Iterable[str | Path], *, write: bool = True
) -> tuple[tuple[Formatted, ...], tuple[Diagnostic, ...]]:
    """Formats files, and the `.dn` files in folders: what became of them, and what is wrong in others."""
    results: list[Formatted] = []
    errors: list[Diagnostic] = []
    for path in paths:
        try:
            for file in _files(Path(path), errors):
                try:
                    check_outside(file)
                    found = format_text(read_source(file, newline="").text, str(file))
                    if write and found.changed:
                        _replace(file, found.after)
                    results.append(found)
                except DiagnosticError as error:
                    errors += error.diagnostics
        except DiagnosticError as error:
            errors += error.diagnostics
    return tuple(results), tuple(errors)


def _files(path: Path, errors: list[Diagnostic]) -> list[Path]:
    """A file, or the programs in a folder outside of builds; `errors` gets what cannot be read there."""
    if not os.path.isdir(path):
        return [path]
    found: list[Path] = []
    unread: list[OSError] = []
    for place, folders, names in os.walk(path, onerror=unread.append):
        folders[:] = [each for each in folders if not is_build(Path(place, each))]
        programs = [Path(place, each) for each in names if each.endswith(SUFFIX)]
        closed = not os.access(place, os.X_OK)  # then it is not known what is a file
        found += [each for each in programs if closed or each.is_file()]
    errors += [Diagnostic(f"{Path(error.filename)}: {unreadable(error)}") for error in unread]
    if not found and not unread:
        raise fail(f"{path}: holds no {SUFFIX} files")
    return sorted(found)


def _replace(path: Path, text: str) -> None:
    """Writes a file anew with its permissions."""
    check_output(path)
    if not os.access(path, os.W_OK):  # renaming would write it nevertheless
        raise fail(f"{path}: cannot be written: it is read-only")
    mode = stat.S_IMODE(path.stat().st_mode)
    write_text(path, text)
    os.chmod(path, mode)
