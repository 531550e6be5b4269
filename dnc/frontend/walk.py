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
        todo += reversed(below(found))


def below(expression: typed.Expression) -> list[typed.Expression]:
    """What an expression is made of, in order."""
    match expression:
        case typed.FunctionCall(instead=instead) if instead is not None:
            return [instead]
        case typed.CellCall():
            return [*expression.arguments]
        case typed.ComponentUse():
            return [expression.base]
        case typed.Apply():
            return [*expression.operands]
        case typed.Follow():
            return [expression.statistic, expression.value]
        case typed.Let():
            return [*(value for _, value in expression.assignments), expression.result]
        case typed.Record():
            return [*expression.components]
        case _:
            return []


def calls(expression: typed.Expression) -> Iterator[typed.FunctionCall]:
    """The calls of functions in an expression."""
    return (found for found in walk(expression) if isinstance(found, typed.FunctionCall))
