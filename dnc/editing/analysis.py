"""Everything that is known of a program while it is edited.

In: a text, right or not. Out: an `Analysis`: the declarations that could be read, the type of every name
and expression that could be checked, and all diagnostics. Guaranteed: it never fails, whatever the text is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from dnc.diagnostics import Diagnostic, Source, Span
from dnc.editing.sizes import Size
from dnc.frontend import syntax, typed
from dnc.frontend.depth import too_deep
from dnc.frontend.observer import Observer
from dnc.frontend.parser import parse_partly
from dnc.frontend.typecheck import Examined, examine

Settings = Mapping[str, int]
NONE: Settings = {}
Names = Mapping[str, typed.Expression | None]


@attrs.frozen(eq=False)
class Seen:
    """An expression, the names in scope, and its type where it has one."""

    node: Any
    names: Names
    found: typed.Expression | None


class Recorder(Observer):
    """Keeps what the checker finds; nodes are told apart by identity, which equality does not."""

    def __init__(self) -> None:
        self.expressions: dict[int, Seen] = {}
        self.names: dict[int, typed.Expression | None] = {}

    def size(self, name: str, size: int) -> int:
        """The size with its name."""
        return Size.named(name, size)

    def name(self, name: syntax.Identifier, found: typed.Expression | None) -> None:
        """Kept by identity."""
        self.names[id(name)] = found

    def expression(self, expression: syntax.Expression, names: Names, found: typed.Expression | None) -> None:
        """Kept by identity."""
        self.expressions[id(expression)] = Seen(expression, dict(names), found)


@attrs.frozen(eq=False)
class Analysis:
    """A text and what is known of it. complete: every declaration could be read."""

    source: Source
    model: syntax.Model
    examined: Examined | None
    recorder: Recorder
    diagnostics: tuple[Diagnostic, ...]
    complete: bool

    def seen(self, node: Any) -> Seen | None:
        """What was found for an expression."""
        return self.recorder.expressions.get(id(node))

    def type_of(self, node: Any) -> typed.Type | None:
        """The type of an expression."""
        seen = self.seen(node)
        return None if seen is None or seen.found is None else seen.found.type


def analyze(source: Source, settings: Settings = NONE) -> Analysis:
    """Reads and checks a program as far as possible.

    settings: sizes of dimensions, as of `--set`; those of dimensions that the program lacks do not count.
    """
    recorder = Recorder()
    model, errors = parse_partly(source)
    try:
        examined = examine(model, _known(model, settings), recorder)
    except RecursionError:
        return Analysis(source, model, None, recorder, errors or too_deep(model).diagnostics, not errors)
    found = errors or examined.diagnostics
    return Analysis(source, model, examined, recorder, found, not errors)


def _known(model: syntax.Model, settings: Settings) -> dict[str, int]:
    """The settings of dimensions that the program has."""
    declared = [each for each in model.declarations if isinstance(each, syntax.ModelDeclaration)]
    names = {dimension.name.text for each in declared[:1] for dimension in each.dimensions}
    return {name: size for name, size in settings.items() if name in names}


def covers(span: Span, line: int, column: int) -> bool:
    """Whether a place (from 1) lies in a span, or right behind it, as a cursor does."""
    return span.line == line and span.column <= column <= span.column + span.length
