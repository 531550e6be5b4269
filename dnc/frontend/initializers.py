"""Initializers of parameters: which exist and whether one fits its parameter.

In: the declaration. Out: an `Initializer`; where none is written, xavier for matrices, zeros for
vectors and normal(0.1) for tables. What fits one parameter of a stack fits the stack.
"""

from __future__ import annotations

import attrs

from dnc.diagnostics import counted
from dnc.frontend import syntax
from dnc.frontend.report import Report
from dnc.ir.program import STACK, TABLE, Initializer
from dnc.ir.structure import Dimension
from dnc.ir.types import fits_float


@attrs.frozen
class Rule:
    """How many numbers an initializer takes and what it fits: vectors, matrices and tables."""

    arguments: int | None
    meaning: str
    only_for: str = ""
    positive: bool = False


RULES = {
    "zeros": Rule(0, "no number"),
    "constant": Rule(1, "one number, the value"),
    "uniform": Rule(1, "one number, the bound", positive=True),
    "normal": Rule(1, "one number, the deviation", positive=True),
    "xavier": Rule(0, "no number", only_for="matrices"),
    "orthogonal": Rule(0, "no number", only_for="matrices"),
    "identity": Rule(0, "no number", only_for="matrices"),
    "pieces": Rule(None, "one number a piece", only_for="vectors"),
}


def initializer(
    declared: syntax.ParameterDeclaration, kind: str, dimensions: tuple[Dimension, ...], report: Report
) -> Initializer | None:
    """The initializer of a parameter of known shape; None (and an error) where it does not fit."""
    dimensions = dimensions[1:] if kind == STACK else dimensions
    written, is_vector = declared.initializer, len(dimensions) == 1
    if written is None:
        if kind == TABLE:
            return Initializer("normal", 0.1)
        return Initializer("zeros" if is_vector else "xavier")
    name, values, span = written.kind.text, written.values, written.span
    if name not in RULES:
        report.unknown("initializer", name, RULES, written.kind.span)
        return None
    rule = RULES[name]
    fits = "vectors" if is_vector else "matrices"
    if rule.only_for and (rule.only_for != fits or kind == TABLE):
        what = "a table" if kind == TABLE else f"a {'vector' if is_vector else 'matrix'}"
        report.error(f"'{name}' is for {rule.only_for}, but '{declared.name}' is {what}", span)
        return None
    if len(values) != rule.arguments and (rule.arguments is not None or not values):
        report.error(f"'{name}' has {counted(len(values), 'number')}, expected {rule.meaning}", span)
        return None
    wrong = [value for value in values if not fits_float(value) or (rule.positive and value < 0)]
    if wrong:
        least = " of at least 0" if rule.positive else ""
        report.error(f"found {wrong[0]:g}, expected a number{least} that fits in 32 bits", span)
        return None
    if rule.arguments is not None:
        return Initializer(name, values[0] if values else 0.0)
    size = int(dimensions[0].size or 0)
    if size % len(values):
        report.error(
            f"{len(values)} pieces do not divide the {size} elements of '{declared.name}' evenly", span
        )
        return None
    return Initializer("constant", 0.0, values)
