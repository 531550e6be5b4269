"""Newlines and indentation: turns the lexer's tokens into tokens with _NEWLINE, _INDENT, _DEDENT.

In: tokens in which every line break is a _NEWLINE holding the next line's indentation. Out: the
same with blank lines and continued lines joined. A line goes on inside brackets, after a comma, an
operator, `=` or `->`, and where the next line begins with `|`. A word that means something in one place
only is a name in every other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
from lark import Token

OPENING = {"LPAR": "RPAR", "LSQB": "RSQB"}
CLOSING = frozenset(OPENING.values())
PARAMETERS = frozenset({"PARAM", "FROZEN", "RUNNING"})  # what their declarations begin with
BEFORE_DENSITY = frozenset({*CLOSING, "NAME"})  # shape and initializer
CONTINUES = frozenset({"COMMA", "EQUAL", "PLUS", "MINUS", "STAR", "SLASH", "FLOOR", "AT", "VBAR"})
CONTINUING_TEXTS = frozenset({"=", "->", "<", "."})


@attrs.frozen
class LayoutError(Exception):
    """A line that fits no block, or a bracket that is never closed, at `token`."""

    message: str
    token: Any


class Layout:
    """The post-lexer of the grammar; holds no state between programs."""

    always_accept = ("_NEWLINE",)

    def process(self, stream: Iterator[Any]) -> Iterator[Any]:
        """The tokens of one declaration with its layout made explicit."""
        indents: list[int] = [0]
        brackets: list[Any] = []
        pending: Any = None
        previous: Any = None
        parameters = False
        for token in stream:
            if token.type == "_NEWLINE":
                pending = token if previous is not None else None
                continue
            if pending is not None and not brackets and not is_joined(previous, token):
                yield Token.new_borrow_pos("_NEWLINE", "\n", previous)
                width = len(pending) - 1
                if width > indents[-1]:
                    indents.append(width)
                    yield Token.new_borrow_pos("_INDENT", "", token)
                outer = indents[-1]
                while width < indents[-1]:
                    outer = indents.pop()
                    yield Token.new_borrow_pos("_DEDENT", "", token)
                if width != indents[-1]:
                    known = " or ".join(str(indent) for indent in (*indents, outer))
                    raise LayoutError(
                        f"found an indentation of {width} spaces, expected that of an open block: {known}",
                        token,
                    )
            pending = None
            parameters = parameters or (previous is None and token.type in PARAMETERS)
            if token.type == "DENSITY" and not (parameters and previous.type in BEFORE_DENSITY):
                token.type = "NAME"
            if token.type in OPENING:
                brackets.append(token)
            elif brackets and token.type == OPENING[brackets[-1].type]:
                brackets.pop()
            yield token
            previous = token
        if brackets:
            raise LayoutError(f"'{brackets[-1]}' is never closed", brackets[-1])
        if previous is not None:
            yield Token.new_borrow_pos("_NEWLINE", "\n", previous)
            for _ in indents[1:]:
                yield Token.new_borrow_pos("_DEDENT", "", previous)


def is_joined(previous: Any, token: Any) -> bool:
    """Whether the line break between the two tokens is none."""
    return previous.type in CONTINUES or str(previous) in CONTINUING_TEXTS or str(token) == "|"
