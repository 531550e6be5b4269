"""Source texts, spans in them, and diagnostics with carets.

In: places in a text and what is wrong there. Out: messages of the form
``file:line:column: error: what`` with the line and a caret below. Guaranteed: a user's
mistake is always reported through `DiagnosticError`, which may carry several diagnostics.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

# Characters of a source line that a message shows.
LONGEST_LINE = 160


@functools.lru_cache(maxsize=8)
def _lines(text: str) -> list[str]:
    """The lines of a text: every node of its syntax tree asks for one."""
    return text.split("\n")


@attrs.frozen
class Source:
    """A named text. `name` is what the user calls it (usually a path)."""

    name: str
    text: str

    def line_text(self, line: int) -> str:
        """The text of a line, counted from 1; empty beyond the end."""
        lines = _lines(self.text)
        return lines[line - 1] if 0 < line <= len(lines) else ""


@attrs.frozen
class Span:
    """A piece of one line: line and column count from 1, `length` in characters (at least 1)."""

    source: Source = attrs.field(repr=False)
    line: int
    column: int
    length: int = 1


@attrs.frozen
class Diagnostic:
    """One finding. `severity` is "error" or "warning"; `notes` are further lines below it."""

    message: str
    span: Span | None = None
    severity: str = "error"
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What stands in messages and sources as it comes from files steers no terminal."""
        notes = "".join(f"\n  {_printed(note)}" for note in self.notes)
        message = _printed(self.message)
        if self.span is None:
            return f"{self.severity}: {message}{notes}"
        span = self.span
        shown, column = _window(span.source.line_text(span.line).expandtabs(1), span.column)
        caret = " " * (column - 1) + "^" * max(1, min(span.length, len(shown) - column + 1))
        shown = "".join(each if each.isprintable() else "\ufffd" for each in shown)
        head = f"{span.source.name}:{span.line}:{span.column}: {self.severity}: {message}"
        return f"{head}\n  {shown}\n  {caret}{notes}"


def _printed(text: str) -> str:
    """A text with escapes for what is not printed."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _window(line: str, column: int) -> tuple[str, int]:
    """What is shown of a line, and the column in it: of a very long line, the part around the column."""
    if len(line) <= LONGEST_LINE:
        return line, column
    start = max(0, min(column - 1 - LONGEST_LINE // 3, len(line) - LONGEST_LINE))
    before, after = "..." if start else "", "..." if start + LONGEST_LINE < len(line) else ""
    return f"{before}{line[start : start + LONGEST_LINE]}{after}", column - start + len(before)


class DiagnosticError(Exception):
    """Raised for a user's mistake; `str()` is what the user should see."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__("\n".join(str(diagnostic) for diagnostic in diagnostics))
        self.diagnostics = diagnostics


def fail(message: str, *notes: str) -> DiagnosticError:
    """A diagnostic without a place in a program, e.g. for data files and builds."""
    return DiagnosticError(Diagnostic(message, notes=tuple(notes)))


def counted(count: int, noun: str) -> str:
    """`1 argument`, `2 arguments`, `3,000 arguments`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def check_path(path: object, what: str) -> None:
    """DiagnosticError unless `path` can be one. what: whose it is, as "a build"."""
    if not isinstance(path, str | os.PathLike):
        found = type(path).__name__
    elif path == "":
        found = "an empty text"
    elif "\0" in os.fsdecode(path):
        found = "a text with a zero byte"
    else:
        return
    raise fail(f"found {found}, expected the path of {what}")


def check_noted(*paths: str | Path) -> None:
    """DiagnosticError where the bytes of a path are no text, so that no file of ours can name it."""
    for path in paths:
        try:
            str(path).encode()
        except UnicodeEncodeError:
            found = f"{path}: is not {sys.getfilesystemencoding().upper()}"
            raise fail(f"{found}, and what is written here has to name it") from None


def unreadable(error: OSError) -> str:
    """What is wrong with a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, IsADirectoryError):
        return "is a directory, expected a file"
    return f"cannot be read: {error.strerror}"


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """What goes wrong with a file that is read inside, as a DiagnosticError."""
    check_path(path, "a file to read")
    try:
        yield
    except OSError as error:
        raise fail(f"{path}: {unreadable(error)}") from None


def read_source(path: str | Path, newline: str | None = None) -> Source:
    """The text of a `.dn` file; DiagnosticError where it cannot be read.

    newline: "" keeps line breaks as they are, otherwise they become "\\n".
    """
    try:
        with reading(path), Path(path).open(encoding="utf-8-sig", newline=newline) as file:
            return Source(str(path), file.read())
    except UnicodeDecodeError as error:
        raise undecoded(str(path), error) from None


def undecoded(name: str, error: UnicodeDecodeError) -> DiagnosticError:
    """What is said of a text that is not UTF-8: at its first wrong byte. name: as that of a `Source`."""
    before = error.object[: error.start].decode()
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    span = Span(Source(name, error.object.decode(errors="replace")), line, column)
    return DiagnosticError(Diagnostic(f"not UTF-8: byte 0x{error.object[error.start]:02x}", span))
