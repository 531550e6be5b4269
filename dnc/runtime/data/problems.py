"""What is wrong in a data file, and where.

In: a message, and the line (and column) it belongs to. Out: one-line diagnostics of the form
``path:line: error: message``. Guaranteed: the readers raise `Problem` for a user's mistake inside
a line; `ProblemList` turns them into one `DiagnosticError`, sorted by line, ten at most, what many
lines say alike only once.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from dnc.diagnostics import Diagnostic, DiagnosticError

MOST_SHOWN = 10
_LONGEST_VALUE = 40


@attrs.frozen
class DataDiagnostic(Diagnostic):
    """A finding in a data file. `line` and `column` count from 1; None where there is none."""

    path: str = ""
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = [self.path] + [str(number) for number in (self.line, self.column) if number is not None]
        notes = "".join(f"\n  {note}" for note in self.notes)
        return f"{':'.join(place)}: {self.severity}: {self.message}{notes}"


class Problem(Exception):
    """A mistake in the line being read. `column` counts characters from 1; `note`: what would help."""

    def __init__(self, message: str, column: int | None = None, *, note: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.note = note


@attrs.define
class ProblemList:
    """Collects the problems of one file."""

    path: str
    found: list[DataDiagnostic] = attrs.field(factory=list)

    def add(
        self, message: str, line: int | None = None, column: int | None = None, *, note: str = ""
    ) -> None:
        """Note a problem."""
        notes = (note,) if note else ()
        self.found.append(DataDiagnostic(message, notes=notes, path=self.path, line=line, column=column))

    @property
    def full(self) -> bool:
        """Whether further problems would not be shown."""
        return len(self.found) >= MOST_SHOWN

    def check(self) -> None:
        """Raise what was found, if anything."""
        if self.found:
            self.found.sort(key=lambda each: (each.line or 0, each.column or 0))
            raise DiagnosticError(*_merged(self.found[:MOST_SHOWN], self.full))


def _merged(found: list[DataDiagnostic], more: bool) -> list[DataDiagnostic]:
    """The findings, those with the same message on several lines as one.

    more: whether reading stopped, so that lines behind may be wrong too.
    """
    groups: dict[str, list[DataDiagnostic]] = {}
    for each in found:
        groups.setdefault(each.message, []).append(each)
    merged, perhaps = [], ", perhaps more" if more else ""
    for message, group in groups.items():
        lines = [each.line for each in group if each.line != group[0].line]
        also = f" (and in line{'s' if len(lines) > 1 else ''} {_ranges(lines)}{perhaps})" if lines else ""
        merged.append(attrs.evolve(group[0], message=message + also))
    return merged


def _ranges(lines: list[int | None]) -> str:
    """Line numbers, neighbours as 2..5."""
    runs: list[list[int]] = []
    for line in filter(None, lines):
        if runs and line == runs[-1][-1] + 1:
            runs[-1][1:] = [line]
        elif not runs or line != runs[-1][-1]:
            runs.append([line])
    return ", ".join("..".join(map(str, run)) for run in runs)


def file_problem(path: str, message: str) -> DiagnosticError:
    """A problem of a whole file."""
    return DiagnosticError(DataDiagnostic(message, path=path))


def kind_of(value: Any) -> str:
    """What a JSON value is, in words: "a string", "an array"."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a truth value", int: "a number"}
    names |= {float: "a fractional number", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def given(value: Any) -> str:
    """What was handed in where samples are expected, in words: "one sample", "int"."""
    return "one sample" if isinstance(value, Mapping) else type(value).__name__


def shown(value: Any) -> str:
    """A JSON value as it stands in the file, shortened."""
    if isinstance(value, (dict, list)):
        return kind_of(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_LONGEST_VALUE:
        return f"a number of more than {_LONGEST_VALUE} digits"
    text = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 4]}...{text[-1]}"


def shortened(name: str) -> str:
    """A name on one line, cut where it is longer than a person reads."""
    name = name if name.isprintable() else json.dumps(name)[1:-1]
    return name if len(name) <= _LONGEST_VALUE else f"{name[: _LONGEST_VALUE - 3]}..."


def suggestion(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" for the closest known name, else nothing."""
    if len(name) > _LONGEST_VALUE:
        return ""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean '{close[0]}'?" if close else ""


def names(items: Iterable[str]) -> str:
    """Names in quotes, separated by commas; of very many the first ones."""
    given = list(items)
    more = f" and {len(given) - MOST_SHOWN} more" if len(given) > MOST_SHOWN + 1 else ""
    given = given[:MOST_SHOWN] if more else given
    return ", ".join(f"'{shortened(item)}'" for item in given) + more
