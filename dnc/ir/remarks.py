"""Remarks: what a pass left as it was, and why, with the place in the source.

In: what passes say while they decide. Out: remarks in that order, each once, which print in the manner
of the other diagnostics. Guaranteed: a remark changes nothing of what a pass makes.
"""

from __future__ import annotations

import attrs

from dnc.diagnostics import Diagnostic, Span


@attrs.frozen
class Remark:
    """Pass `decided_by` says `message` of `stage`. target: the only one it is about, "" for all."""

    decided_by: str
    stage: str
    message: str
    span: Span | None = None
    notes: tuple[str, ...] = ()
    target: str = ""

    def diagnostic(self) -> Diagnostic:
        """The remark as it is shown: `file:line:column: remark: message [pass]` and a caret."""
        where = f"{self.decided_by}, {self.target}" if self.target else self.decided_by
        return Diagnostic(f"{self.message} [{where}]", self.span, "remark", self.notes)


@attrs.define
class Remarks:
    """Collects remarks; `decided_by` is the pass at work, `target` what it works for."""

    target: str = ""
    decided_by: str = ""
    found: dict[Remark, None] = attrs.field(factory=dict)

    def add(self, stage: str, message: str, span: Span | None, *notes: str) -> None:
        """Notes a remark, unless it was made before."""
        self.found.setdefault(Remark(self.decided_by, stage, message, span, notes, self.target))

    def all(self) -> tuple[Remark, ...]:
        """The remarks in the order in which they were made."""
        return tuple(self.found)
