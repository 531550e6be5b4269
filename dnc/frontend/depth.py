"""What is said of a program that is nested deeper than Python's stack.

In: a tree that could not be gone through. Out: a diagnostic at the expression with the most levels, or at
the cell with the longest chain of calls. Guaranteed: deep trees need no deep stack here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

from dnc.diagnostics import Diagnostic, DiagnosticError
from dnc.frontend import syntax
from dnc.frontend.syntax_walk import children, walk

FEW = 50
"""An expression with fewer levels is not what fills the stack: cells that call each other are."""


def too_deep(model: syntax.Model) -> DiagnosticError:
    """For a program of which all declarations could be read."""
    expressions = get_args(syntax.Expression)
    found, levels = deepest(model, children, lambda node: isinstance(node, expressions))
    if levels < FEW:
        return DiagnosticError(_chain(model))
    return DiagnosticError(nested(found.span, levels))


def nested(span: Any, levels: int) -> Diagnostic:
    """What is said of an expression."""
    message = f"an expression is nested too deeply, in {levels:,} levels; assign parts of it to names"
    return Diagnostic(message, span)


def _chain(model: syntax.Model) -> Diagnostic:
    """What is said of cells and functions, at the first one of the longest chain."""
    callables = {
        each.name.text: each for each in model.declarations if isinstance(each, syntax.CallableDeclaration)
    }
    calls = {
        name: {node.function.text for node in walk(each.body) if isinstance(node, syntax.Call)}
        & callables.keys()
        for name, each in callables.items()
    }
    lengths: dict[str, int] = {}  # of the chain that begins with each; 0 while it is looked for
    for first in calls:
        todo = [(first, False)]
        while todo:
            name, is_known = todo.pop()
            if is_known:
                lengths[name] = 1 + max((lengths[each] for each in calls[name]), default=0)
            elif name not in lengths:
                lengths[name] = 0
                todo += [(name, True), *((each, False) for each in calls[name])]
    longest = max(lengths, key=lengths.__getitem__, default=None)
    if longest is None:
        return Diagnostic("the program is nested too deeply")
    message = f"cells and functions call each other too deeply, {lengths[longest]:,} in a chain"
    return Diagnostic(f"{message}; write several as one", callables[longest].name.span)


def deepest(
    root: Any, below: Callable[[Any], Iterable[Any]], is_expression: Callable[[Any], bool]
) -> tuple[Any, int]:
    """The outermost expression with the most levels of expressions, the first of several, and their number.

    The root and 0 where there is no expression. below: the nodes directly below one.
    """
    best, most = root, 0
    todo = [(root, root, 0)]
    while todo:
        node, outermost, levels = todo.pop()
        if is_expression(node):
            outermost, levels = (outermost, levels + 1) if levels else (node, 1)
            if levels > most:
                best, most = outermost, levels
        todo += [(each, outermost, levels) for each in reversed(list(below(node)))]
    return best, most
