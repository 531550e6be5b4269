"""Walks over typed expressions.

In: an expression. Out: it and all expressions below it, cells not entered.
"""

from __future__ import annotations

from collections.abc import Iterator

from dnc.frontend import typed


def walk(expression: typed.Expression) -> Iterator[typed.Expression]:
    """The expression and everything below it."""
    todo = [expression]
    while todo:
        found = todo.pop()
        yield found
        match found:
            case typed.FunctionCall(instead=instead) if instead is not None:
                todo.append(instead)
            case typed.CellCall():
                todo += reversed(found.arguments)
            case typed.ComponentUse():
                todo.append(found.base)
            case typed.Apply():
                todo += reversed(found.operands)
            case typed.Follow():
                todo += [found.value, found.statistic]
            case typed.Let():
                todo += [found.result, *(value for _, value in reversed(found.assignments))]
            case typed.Record():
                todo += reversed(found.components)
            case _:
                pass


def calls(expression: typed.Expression) -> Iterator[typed.FunctionCall]:
    """The calls of functions in an expression."""
    return (found for found in walk(expression) if isinstance(found, typed.FunctionCall))
