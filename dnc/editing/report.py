"""Diagnostics as data, for editors and other tools: what `dnc check --json` prints.

In: diagnostics. Out: a `CheckResult`, whose fields are the documented form (docs/check.schema.json is
made from these classes). Guaranteed: fields are only added within a version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from dnc.diagnostics import Diagnostic
from dnc.runtime.data.problems import DataDiagnostic

VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=1)]


class Position(msgspec.Struct, frozen=True):
    """A character of a file; line and column count from 1."""

    line: Count
    column: Count


class Range(msgspec.Struct, frozen=True):
    """From the first character to behind the last one."""

    start: Position
    end: Position


class Finding(msgspec.Struct, frozen=True):
    """One mistake or warning; `range` is null where it belongs to no place, `file` where to no file."""

    file: str | None
    range: Range | None
    severity: Literal["error", "warning"]
    message: str
    notes: list[str]


class CheckResult(msgspec.Struct, frozen=True):
    """What `dnc check --json` prints; `model` is the model's name, null where there are errors."""

    version: int
    program: str
    ok: bool
    model: str | None
    diagnostics: list[Finding]

    def json(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()


def check_result(program: str, model: str | None, diagnostics: Iterable[Diagnostic]) -> CheckResult:
    """The result of checking a program."""
    found = [finding(diagnostic) for diagnostic in diagnostics]
    ok = all(each.severity != "error" for each in found)
    return CheckResult(VERSION, _unicode(program), ok, model if ok else None, found)


def finding(diagnostic: Diagnostic) -> Finding:
    """A diagnostic as data."""
    file: str | None = None
    range: Range | None = None
    if isinstance(diagnostic, DataDiagnostic):
        file = diagnostic.path
        if diagnostic.line is not None:
            column = diagnostic.column or 1
            range = _range(diagnostic.line, column, 1)
    elif diagnostic.span is not None:
        span = diagnostic.span
        file, range = span.source.name, _range(span.line, span.column, span.length)
    severity: Literal["error", "warning"] = "warning" if diagnostic.severity == "warning" else "error"
    file = None if file is None else _unicode(file)
    return Finding(file, range, severity, _unicode(diagnostic.message), [*map(_unicode, diagnostic.notes)])


def schema() -> str:
    """The JSON Schema of `CheckResult`."""
    text = msgspec.json.format(msgspec.json.encode(msgspec.json.schema(CheckResult)), indent=2)
    return f"{text.decode()}\n"


def _unicode(text: str) -> str:
    """A text that may name a path of other bytes than UTF-8, as standard error shows it."""
    return text.encode("utf-8", "backslashreplace").decode()


def _range(line: int, column: int, length: int) -> Range:
    return Range(Position(line, column), Position(line, column + length))
