"""Spaces between the tokens of a line.

In: two neighbours. Out: whether a space stands between them. Guaranteed: it never changes which tokens
there are, so that formatting keeps the syntax tree.
"""

from __future__ import annotations

from typing import Any

_TIGHT_BEFORE = frozenset({",", ":", ")", "]", "?", ".", "<", ">"})
_TIGHT_BEHIND = frozenset({"(", "[", ".", "<"})
_ENDS_VALUE = frozenset({"NAME", "NUMBER", "RPAR", "RSQB"})


def is_sign(previous: Any, token: Any, negations: frozenset[tuple[int, int]]) -> bool:
    """Whether a token is the minus of a number or a value, not of a difference.

    negations: line and column of those in expressions, from the syntax tree, which knows that
    `sum(t in root) -x` is one and `f(t) - x` is none.
    """
    if token.type != "MINUS":
        return False
    return previous is None or previous.type not in _ENDS_VALUE or (token.line, token.column) in negations


def is_apart(previous: Any, token: Any, behind_sign: bool) -> bool:
    """Whether a space stands between `previous` and `token`; behind_sign: `previous` is a sign."""
    before, text = str(previous), str(token)
    if behind_sign or before in _TIGHT_BEHIND or text in _TIGHT_BEFORE:
        return False
    if text == "(":
        return bool(previous.type != "NAME")
    if text == "[":
        return previous.type not in ("NAME", "RPAR", "RSQB")
    return True
