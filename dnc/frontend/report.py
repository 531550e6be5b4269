"""Collects the mistakes of a program, so that all are reported at once.

In: messages with places. Out: the diagnostics in the order of the text. Guaranteed: the same
message is not reported twice at the same place.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import attrs

from dnc.diagnostics import Diagnostic, Span


class Report:
    """A list of diagnostics that only grows."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, int], Diagnostic] = {}
        self._explained = 0

    @property
    def count(self) -> int:
        """How many findings there are."""
        return len(self._found)

    def explain(self, since: int, notes: Iterable[str]) -> None:
        """Adds notes to what was found since there were so many findings, unless it was explained before."""
        since, self._explained = max(since, self._explained), self.count
        if since < self.count:
            added = tuple(notes)
            for key in list(self._found)[since:]:
                self._found[key] = attrs.evolve(self._found[key], notes=(*self._found[key].notes, *added))

    def error(self, message: str, span: Span | None, *notes: str) -> None:
        """A mistake."""
        self._add(Diagnostic(message, span, "error", notes))

    def warning(self, message: str, span: Span, *notes: str) -> None:
        """Something odd that does not hinder."""
        self._add(Diagnostic(message, span, "warning", notes))

    def unknown(
        self,
        what: str,
        name: str,
        known: Iterable[str],
        span: Span | None,
        owner: str = "",
        notes: tuple[str, ...] = (),
    ) -> None:
        """A name that nothing of `owner` is called; proposes the closest one, or lists the known ones.

        notes: what is said where neither helps.
        """
        names = list(dict.fromkeys(known))
        close = difflib.get_close_matches(name, names, 1)
        if close:
            hint = f"; did you mean '{close[0]}'?"
        elif names and len(names) <= 8:
            hint = f"; known: {', '.join(names)}"
        else:
            hint = "" if names else "; there are none"
        notes = notes if not hint else ()
        self.error(f"unknown {what} '{name}'{' of ' if owner else ''}{owner}{hint}", span, *notes)

    def _add(self, diagnostic: Diagnostic) -> None:
        span = diagnostic.span
        key = (diagnostic.message, span.line if span else 0, span.column if span else 0)
        self._found.setdefault(key, diagnostic)

    def of(self, severity: str) -> tuple[Diagnostic, ...]:
        """All findings of a severity, in the order of the text."""
        found = [diagnostic for diagnostic in self._found.values() if diagnostic.severity == severity]
        return tuple(sorted(found, key=lambda d: (d.span.line, d.span.column) if d.span else (0, 0)))
