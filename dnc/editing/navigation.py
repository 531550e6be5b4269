"""Going about in a program: definitions, references, renaming, and its outline.

In: an `Analysis` and a place. Out: spans. Guaranteed: renaming changes the meaning of no other name; where
it would, it is refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from dnc.diagnostics import Diagnostic, DiagnosticError, Source, Span
from dnc.editing.analysis import NONE, Analysis, Settings, analyze
from dnc.editing.hover import occurrence_at
from dnc.editing.symbols import Occurrence, Symbol, occurrences
from dnc.frontend import syntax

NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def definitions(analysis: Analysis, line: int, column: int) -> list[Span]:
    """Where the name at a place is declared: a field in every arm that has it."""
    return [each.span for each in same(analysis, line, column) if each.declares]


def same(analysis: Analysis, line: int, column: int) -> list[Occurrence]:
    """The occurrences of the name at a place; none for what the language brings."""
    found = occurrence_at(analysis, line, column)
    if found is None or not found.symbol.is_own:
        return []
    return [each for each in occurrences(analysis) if each.symbol == found.symbol]


def rename(analysis: Analysis, line: int, column: int, new: str, settings: Settings = NONE) -> list[Span]:
    """What is to be replaced by `new`; DiagnosticError with the reason why that cannot be."""
    found = renameable(analysis, line, column)
    if not NAME.fullmatch(new):
        raise _refused(f"'{new}' is no name: letters, digits and _, not beginning with a digit", found.span)
    spans = [each.span for each in same(analysis, line, column)]
    text = analysis.source.text.split("\n")
    for span in sorted(spans, key=lambda each: (each.line, each.column), reverse=True):
        row = text[span.line - 1]
        text[span.line - 1] = row[: span.column - 1] + new + row[span.column - 1 + span.length :]
    after = analyze(Source(analysis.source.name, "\n".join(text)), settings)
    if not after.complete:
        raise _refused(f"'{new}' is a word of the language", found.span)
    if _meaning(occurrences(analysis)) != _meaning(occurrences(after)) or _errors(after) > _errors(analysis):
        raise _refused(
            f"'{new}' already means something else where '{found.symbol.name}' is used", found.span
        )
    return spans


def renameable(analysis: Analysis, line: int, column: int) -> Occurrence:
    """The name at a place, if it can be renamed."""
    found = occurrence_at(analysis, line, column)
    if found is None:
        raise _refused("there is no name here", Span(analysis.source, line, column))
    if not found.symbol.is_own:
        raise _refused(f"'{found.symbol.name}' belongs to the language", found.span)
    if not analysis.complete:
        raise _refused("a declaration cannot be read; correct it first, it may use the name", found.span)
    return found


def _refused(message: str, span: Span) -> DiagnosticError:
    return DiagnosticError(Diagnostic(message, span))


def _errors(analysis: Analysis) -> int:
    return sum(each.severity == "error" for each in analysis.diagnostics)


def _meaning(found: Sequence[Occurrence]) -> list[tuple[int, str, bool]]:
    """Which names mean the same, whatever they are called."""
    numbers: dict[Symbol, int] = {}
    return [
        (numbers.setdefault(each.symbol, len(numbers)), each.symbol.kind, each.declares) for each in found
    ]


# ---- outline -------------------------------------------------------------------------------------


@attrs.frozen
class Entry:
    """A declaration: its name, what it is, where it is named, its last line, and what it holds."""

    name: str
    kind: str
    detail: str
    span: Span
    last_line: int
    inner: tuple[Entry, ...] = ()


def outline(analysis: Analysis) -> list[Entry]:
    """The declarations in the order of the text."""
    declarations = analysis.model.declarations
    lines = analysis.source.text.split("\n")
    begins = [*(each.span.line for each in declarations), len(lines) + 1]
    found: list[Entry] = []
    for declared, following in zip(declarations, begins[1:], strict=True):
        last = following - 1
        while last > declared.span.line and not lines[last - 1].split("#")[0].strip():
            last -= 1
        found += _entries(declared, last)
    return found


def _entries(declared: syntax.Declaration, last: int) -> list[Entry]:
    match declared:
        case syntax.ModelDeclaration(name=name):
            inner = tuple(_leaf(each.name, "dimension") for each in declared.dimensions)
            return [Entry(name.text, "model", "", name.span, last, inner)]
        case syntax.StructDeclaration(name=name):
            arms = tuple(
                Entry(
                    arm.name.text,
                    "arm",
                    "",
                    arm.name.span,
                    max([arm.name.span.line, *(field.name.span.line for field in arm.fields)]),
                    tuple(_leaf(field.name, "field") for field in arm.fields),
                )
                for arm in declared.arms
            )
            return [Entry(name.text, "struct", "", name.span, last, arms)]
        case syntax.ParametersDeclaration():
            return [_leaf(each.name, "parameter") for each in declared.parameters]
        case syntax.StateDeclaration(name=name):
            inner = tuple(_leaf(each.name, "component") for each in declared.components)
            return [Entry(name.text, "state", "", name.span, last, inner)]
        case syntax.CallableDeclaration(name=name):
            kind = "cell" if declared.keyword == "cell" else "function"
            return [Entry(name.text, kind, "", name.span, last)]
        case syntax.LossDeclaration():
            return [Entry("loss", "loss", "", declared.span, last)]
        case syntax.MetricDeclaration(name=name):
            return [Entry(name.text, "metric", declared.reduction.name.text, name.span, last)]
        case syntax.OutputDeclaration():
            return [_leaf(each.name, declared.keyword) for each in declared.items]


def _leaf(name: syntax.Identifier, kind: str) -> Entry:
    return Entry(name.text, kind, "", name.span, name.span.line)
