"""What editors see of a check: the types of names and expressions while the checker finds them.

In: calls by the checker. Out: whatever a subclass keeps. Guaranteed: the base class does nothing, and
observing changes no message.
"""

from __future__ import annotations

from collections.abc import Mapping

from dnc.frontend import syntax, typed


class Observer:
    """Sees the sizes, names and expressions of a program; also of one with mistakes."""

    def size(self, name: str, size: int) -> int:
        """The size of the dimension `name`, as it is used in shapes from here on."""
        return size

    def name(self, name: syntax.Identifier, found: typed.Expression | None) -> None:
        """A name of a scope and what it stands for; None after a mistake."""

    def expression(
        self,
        expression: syntax.Expression,
        names: Mapping[str, typed.Expression | None],
        found: typed.Expression | None,
    ) -> None:
        """An expression, the names in its scope and its type; None after a mistake."""


SILENT = Observer()
