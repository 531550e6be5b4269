"""The physical lines of a program: which begin a declaration or a statement and which go on with one.

In: the text of a program without mistakes of form. Out: its lines with their tokens and comments, in
order. Guaranteed: no token and no comment is lost, and lines are joined as `dnc.frontend.layout` does.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Iterator
from typing import Any

import attrs
import lark

from dnc.frontend.layout import CLOSING, OPENING, is_joined
from dnc.frontend.parser import begins_declaration


@attrs.frozen
class Line:
    """A line with a token or a comment.

    number: counted from 1. indent: its spaces. stack: the indentations of the blocks that are open
    behind it, () where it goes on with the line before (`continues`) or holds only a comment.
    blank: whether an empty line stands before it.
    """

    number: int
    indent: int
    tokens: tuple[Any, ...]
    comment: str
    continues: bool = False
    stack: tuple[int, ...] = ()
    blank: bool = False


@functools.cache
def _lexer() -> Any:
    """The terminals of the grammar, without the layout that `parser.grammar` adds."""
    text = importlib.resources.files("dnc.frontend").joinpath("grammar.lark").read_text("utf-8")
    return lark.Lark(text, start="declaration", parser="lalr", lexer="basic")


def tokens_of(text: str) -> Iterator[Any]:
    """The tokens of a program, comments (of type COMMENT) among them; tabs count as one space."""
    for token in _lexer().lex(text.replace("\t", " "), dont_ignore=True):
        if token.type != "_NEWLINE" and str(token).strip(" "):
            yield token


def lines_of(text: str) -> list[Line]:
    """The lines of a program that are not empty."""
    written = text.split("\n")
    rows: dict[int, list[Any]] = {}
    for token in tokens_of(text):
        rows.setdefault(token.line, []).append(token)
    found: list[Line] = []
    stack: tuple[int, ...] = (0,)
    brackets: list[str] = []
    previous: Any = None
    for number, row in sorted(rows.items()):
        comment = ""
        if row[-1].type == "COMMENT":  # from the text, where its tabs still are
            comment = written[number - 1][row.pop().column - 1 :].rstrip()
        line = written[number - 1].replace("\t", " ")
        indent = len(line) - len(line.lstrip(" "))
        blank = bool(found) and number > found[-1].number + 1
        if not row:
            found.append(Line(number, indent, (), comment, blank=blank))
            continue
        starts = previous is None or begins_declaration(line)
        continues = not starts and bool(brackets or is_joined(previous, row[0]))
        if starts:
            stack = (0,)
        elif not continues:
            stack = (*(outer for outer in stack if outer < indent), indent)
        found.append(Line(number, indent, tuple(row), comment, continues, () if continues else stack, blank))
        for token in row:
            if token.type in OPENING:
                brackets.append(token.type)
            elif token.type in CLOSING and brackets:
                brackets.pop()
        previous = row[-1]
    return found
