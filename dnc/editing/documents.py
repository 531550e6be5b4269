"""The programs that an editor has open.

In: their texts as they change. Out: an `Analysis` of each, and what it last was when every declaration
could be read, so that a half-typed line takes nothing away. Guaranteed: every text is analyzed once.
"""

from __future__ import annotations

import difflib

import attrs

from dnc.diagnostics import Source, Span
from dnc.editing.analysis import NONE, Analysis, Settings, analyze
from dnc.editing.hover import Hover, hover_at
from dnc.editing.navigation import NAME, definitions
from dnc.editing.symbols import occurrences


@attrs.frozen(eq=False)
class Document:
    """A program. good: its last analysis in which every declaration could be read."""

    current: Analysis
    good: Analysis | None

    def hover(self, line: int, column: int) -> Hover | None:
        """What is known at a place, counted from 1; where its declaration is broken, what was known."""
        found = hover_at(self.current, line, column)
        if found is not None or self.good is None or self.current.complete:
            return found
        before = self._earlier_line(line)
        if before is not None:
            found = hover_at(self.good, before, column)
            return None if found is None else _moved(found, self.current, line, before)
        return self._by_name(line, column)

    def definitions(self, line: int, column: int) -> list[Span]:
        """Where a name is declared; in a broken declaration, what is called so at the top level."""
        found = definitions(self.current, line, column)
        if found or self.current.complete:
            return found
        name, _ = self._word(line, column)
        declared = (each for each in occurrences(self.current) if each.declares and not each.symbol.owner)
        return [each.span for each in declared if each.symbol.name == name]

    def _word(self, line: int, column: int) -> tuple[str, int]:
        """The name at a place, and the column where it begins."""
        text = self.current.source.line_text(line)
        for found in NAME.finditer(text):
            if found.start() <= column - 1 <= found.end():
                return found[0], found.start() + 1
        return "", column

    def _earlier_line(self, line: int) -> int | None:
        """Where a line that has not changed stood in the last good text."""
        assert self.good is not None
        now, before = (analysis.source.text.split("\n") for analysis in (self.current, self.good))
        matcher = difflib.SequenceMatcher(None, now, before, autojunk=False)
        for block in matcher.get_matching_blocks():
            if block.a <= line - 1 < block.a + block.size:
                return block.b + line - block.a
        return None

    def _by_name(self, line: int, column: int) -> Hover | None:
        """What a name meant anywhere in the last good text, in a line that has changed."""
        assert self.good is not None
        name, begin = self._word(line, column)
        named = [each for each in occurrences(self.good) if each.symbol.name == name]
        close = min(named, key=lambda each: abs(each.span.line - line), default=None)
        if close is None:
            return None
        found = hover_at(self.good, close.span.line, close.span.column)
        return None if found is None else _moved(found, self.current, line, close.span.line, begin)


def _moved(hover: Hover, to: Analysis, line: int, before: int, column: int | None = None) -> Hover:
    """A hover of the last good text in the current one."""
    span = attrs.evolve(
        hover.span,
        source=to.source,
        line=hover.span.line + line - before,
        column=hover.span.column if column is None else column,
    )
    return attrs.evolve(hover, span=span)


class Documents:
    """The open programs by name. settings: sizes of dimensions, as of `--set`."""

    def __init__(self, settings: Settings = NONE) -> None:
        self.settings = settings
        self._open: dict[str, Document] = {}

    def get(self, name: str, text: str) -> Document:
        """The program `name`, whose text is `text` now."""
        known = self._open.get(name)
        if known is None or known.current.source.text != text:
            current = analyze(Source(name, text), self.settings)
            good = current if current.complete else known.good if known else None
            known = self._open[name] = Document(current, good)
        return known

    def close(self, name: str) -> None:
        """Forgets a program."""
        self._open.pop(name, None)
