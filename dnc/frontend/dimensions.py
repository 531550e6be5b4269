"""Dimension expressions: names, whole numbers and + - * // to sizes.

In: syntax of expressions and the model line with the user's settings. Out: `Dimension`s; an open
one has no size. Guaranteed: a size is at least 1 and every division comes out even.
"""

from __future__ import annotations

from collections.abc import Mapping

from dnc.diagnostics import Span
from dnc.frontend import syntax
from dnc.frontend.observer import SILENT, Observer
from dnc.frontend.report import Report
from dnc.frontend.syntax_walk import walk
from dnc.ir.structure import Dimension

LARGEST = 2**31 - 1
PART = "a part of a value"


class Dimensions:
    """The model's dimensions by name. A size is None while open; a broken one is missing."""

    def __init__(self, report: Report, observer: Observer = SILENT) -> None:
        self.report, self.observer = report, observer
        self.sizes: dict[str, int | None] = {}
        self.broken: set[str] = set()
        self.missed: set[str] = set()  # open ones that were reported: one place says it for all
        self.unread: dict[str, Span] = {}  # those that nothing has named, and where they are declared
        self.undeclared = False  # there is no model line: unknown names are not reported

    def declare(self, model: syntax.ModelDeclaration, settings: Mapping[str, int]) -> None:
        """Enters the dimensions of the model line; `settings` replace defaults."""
        names = [declared.name.text for declared in model.dimensions]
        for setting in settings:
            if setting not in names:
                self.report.unknown("dimension in --set", setting, names, None)
        for declared in model.dimensions:
            name = declared.name.text
            if name in self.sizes or name in self.broken:
                self.report.error(f"dimension '{name}' is declared twice", declared.name.span)
                continue
            self.unread[name] = declared.name.span
            for each in walk(declared.default) if declared.default is not None else ():
                if isinstance(each, syntax.Name):  # is named here, also where a setting replaces the default
                    self.unread.pop(each.text, None)
            if name in settings:
                self._enter(name, settings[name], declared.name.span)
            elif declared.default is None:
                self.sizes[name] = None
            else:
                size = self.known(declared.default, f"dimension '{name}'")
                self._enter(name, size, declared.default.span)

    def _enter(self, name: str, size: int | None, span: Span) -> None:
        if size is not None and not 1 <= size <= LARGEST:
            self.report.error(f"--set {name}={size}: expected a dimension of {_range(size)}", span)
            size = None
        if size is None:
            self.broken.add(name)
        else:
            self.sizes[name] = self.observer.size(name, size)

    def known(self, expression: syntax.Expression, user: str, hint: str = "") -> int | None:
        """The size of a dimension that must be known because it shapes `user`; None if it is wrong.

        hint: what else the user may have meant by an open one.
        """
        size = self._value(expression, user, hint)
        if size is not None and not 1 <= size <= LARGEST:
            how = f"{text(expression)} is {size}" if text(expression) != str(size) else f"found {size}"
            self.report.error(f"{how}, expected a dimension of {_range(size)}", expression.span)
            return None
        return size

    def bound(self, expression: syntax.Expression) -> int | None:
        """A place in a value: a size that may be 0; None if it is wrong."""
        return self._value(expression, PART, "")

    def open_or_known(self, expression: syntax.Expression, user: str) -> Dimension | None:
        """A dimension that may be open, for rows of tables, tokens and classes."""
        if isinstance(expression, syntax.Name) and self.sizes.get(expression.text, 0) is None:
            self.unread.pop(expression.text, None)
            return Dimension(expression.text, None)
        size = self.known(expression, user)
        return None if size is None else Dimension(text(expression), size)

    def value(self, name: str) -> int | None:
        """The size of a dimension that is named as a number; None where there is none."""
        self.unread.pop(name, None)
        return self.sizes.get(name)

    def warn_unused(self) -> None:
        """Of those that nothing names."""
        for name, span in self.unread.items():
            self.report.warning(f"dimension '{name}' is never used", span)

    def all(self) -> tuple[Dimension, ...]:
        """The dimensions of the model line."""
        return tuple(Dimension(name, size) for name, size in self.sizes.items())

    def _value(self, expression: syntax.Expression, user: str, hint: str = "") -> int | None:
        if isinstance(expression, syntax.Number):
            if expression.text.isdigit() and len(expression.text) < 12:
                return int(expression.text)
            whole = expression.text.isdigit()
            found = f"a number of {len(expression.text)} digits" if whole else expression.text
            expected = f"at most {LARGEST}" if whole else "a whole number"
            self.report.error(f"found {found}, expected {expected}", expression.span)
            return None
        if isinstance(expression, syntax.Name):
            return self._named(expression, user, hint)
        if isinstance(expression, syntax.Negation):
            operand = self._value(expression.operand, user)
            return None if operand is None else -operand
        if isinstance(expression, syntax.Binary):
            return self._binary(expression, user)
        what = "a bound" if user == PART else "a dimension"
        self.report.error(
            f"{what} is made of names of dimensions, whole numbers and + - * //", expression.span
        )
        return None

    def _named(self, name: syntax.Name, user: str, hint: str) -> int | None:
        if name.text in self.broken or self.undeclared:
            return None
        self.unread.pop(name.text, None)
        if name.text not in self.sizes:
            self.report.unknown("dimension", name.text, self.sizes, name.span)
            return None
        size = self.sizes[name.text]
        if size is None and name.text not in self.missed:
            self.missed.add(name.text)
            self.report.error(
                f"dimension '{name.text}' is open but shapes {user}: set it in the model line "
                f"or with --set {name.text}=N{hint}",
                name.span,
            )
        return size

    def _binary(self, expression: syntax.Binary, user: str) -> int | None:
        left, right = self._value(expression.left, user), self._value(expression.right, user)
        operator = expression.operator
        if operator.text in ("/", "@", "=="):
            meant = "; division is '//'" if operator.text == "/" else ""
            self.report.error(f"found '{operator}' in a dimension, expected + - * //{meant}", operator.span)
            return None
        if left is None or right is None:
            return None
        if operator.text == "//":
            if right == 0 or left % right:
                why = "division by zero" if right == 0 else f"{left} // {right} is not a whole number"
                self.report.error(f"{text(expression)}: {why}", expression.span)
                return None
            return left // right
        return {"+": left + right, "-": left - right, "*": left * right}[operator.text]


def _range(size: int) -> str:
    return "at least 1" if size < 1 else f"at most {LARGEST}"


def text(expression: syntax.Expression) -> str:
    """A dimension expression as it is shown to the user."""
    if isinstance(expression, syntax.Binary):
        return f"{_factor(expression.left)} {expression.operator} {_factor(expression.right)}"
    if isinstance(expression, syntax.Negation):
        return f"-{_factor(expression.operand)}"
    return expression.text if isinstance(expression, syntax.Name | syntax.Number) else "?"


def _factor(expression: syntax.Expression) -> str:
    shown = text(expression)
    sums = isinstance(expression, syntax.Binary) and expression.operator.text in ("+", "-")
    return f"({shown})" if sums else shown
