"""Formats programs: spaces, indentation and columns; never tokens, comments or line breaks.

In: a `Source`. Out: its text in the one form that docs/editing.md describes. Guaranteed: the formatted
text has the same syntax tree and the same comments, and formatting it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from dnc.diagnostics import Source, fail
from dnc.frontend import syntax
from dnc.frontend.depth import too_deep
from dnc.frontend.layout import CLOSING, OPENING
from dnc.frontend.lines import Line, lines_of
from dnc.frontend.parser import parse
from dnc.frontend.spacing import is_apart, is_sign
from dnc.frontend.syntax_walk import walk

INDENT = 4
TERMS = ("loss", "metric", "output", "push")
"""Declarations whose words are padded to one width where they stand together."""


def format_program(source: Source) -> str:
    """The formatted text; DiagnosticError with all mistakes of form."""
    tree = parse(source)
    try:
        signs = frozenset((n.span.line, n.span.column) for n in walk(tree) if isinstance(n, syntax.Negation))
        rows = _rows(lines_of(source.text.replace("\r\n", "\n")), signs)
        _align(rows)
        formatted = "".join(_written(rows))
        if parse(Source(source.name, formatted)) != tree:
            raise fail(f"{source.name}: cannot be formatted: its meaning would change; please report this")
    except RecursionError:
        raise too_deep(tree) from None
    return formatted.replace("\n", "\r\n") if "\r\n" in source.text else formatted


@attrs.define
class _Row:
    """A line while it is laid out. gaps: the spaces before each of its tokens."""

    line: Line
    gaps: list[int]

    @property
    def begins(self) -> str:
        """The first token of a line that goes on with no other; "" for others."""
        return "" if self.line.continues or not self.line.tokens else str(self.line.tokens[0])

    def place(self, text: str) -> int | None:
        """Which token is the first `text`."""
        return next((at for at, token in enumerate(self.line.tokens) if str(token) == text), None)

    def width(self, end: int) -> int:
        """Columns that the tokens before `end` take."""
        return sum(map(len, self.line.tokens[:end])) + sum(self.gaps[:end])


def _rows(lines: Sequence[Line], signs: frozenset[tuple[int, int]]) -> list[_Row]:
    """The lines with a space where one belongs. signs: where a minus negates."""
    rows: list[_Row] = []
    previous: Any = None
    sign = False
    brackets: list[str] = []
    for line in lines:
        gaps: list[int] = []
        for token in line.tokens:
            bound = brackets[-1:] == ["LSQB"] and str(previous) == ":"
            gaps.append(int(bool(gaps) and not bound and is_apart(previous, token, sign)))
            sign = is_sign(previous, token, signs)
            if token.type in OPENING:
                brackets.append(token.type)
            elif token.type in CLOSING and brackets:
                brackets.pop()
            previous = token
        rows.append(_Row(line, gaps))
    return rows


# ---- columns -------------------------------------------------------------------------------------


def _align(rows: Sequence[_Row]) -> None:
    """Columns of neighbouring lines: `=` of structs, `->` of the arms of a match, values of terms."""
    for group in _groups(rows, lambda row: row.begins == "struct"):
        _pad(group, [row.place("=") for row in group])
    for group in _groups(rows, lambda row: row.begins in TERMS):
        if len({row.begins for row in group}) > 1:
            widest = max(len(row.begins) for row in group)
            for row in group:
                row.gaps[1] = widest - len(row.begins) + 2
    for group in _groups(rows, _is_arm):
        _pad(group, [row.place("->") for row in group])


def _is_arm(row: _Row) -> bool:
    """Only the arms of a match are indented and have an arrow."""
    return len(row.line.stack) > 1 and row.place("->") is not None


def _groups(rows: Sequence[_Row], belongs: Any) -> Iterator[list[_Row]]:
    """The runs of lines that belong together: no empty line and no other statement between them."""
    group: list[_Row] = []
    for row in rows:
        if row.line.blank and group:
            yield group
            group = []
        if row.line.continues or not row.line.tokens:
            continue
        if belongs(row):
            group.append(row)
        elif group:
            yield group
            group = []
    if group:
        yield group


def _pad(group: Sequence[_Row], places: Sequence[int | None]) -> None:
    """Moves one token of every line to one column."""
    found = [(row, place) for row, place in zip(group, places, strict=True) if place is not None]
    widest = max((row.width(place) for row, place in found), default=0)
    for row, place in found:
        row.gaps[place] = widest - row.width(place) + 1


# ---- lines ---------------------------------------------------------------------------------------


@attrs.frozen
class _Bracket:
    """An open bracket: its column, whether its line ends with it, and the indentation of its line."""

    column: int
    hangs: bool
    indent: int


def _written(rows: Sequence[_Row]) -> Iterator[str]:
    """The lines with their line breaks."""
    brackets: list[_Bracket] = []
    first: _Row | None = None
    previous: Any = None
    for at, row in enumerate(rows):
        if row.line.blank:
            yield "\n"
        if not row.line.tokens:
            following = next((later for later in rows[at + 1 :] if later.line.tokens), None)
            if following is not None and following.line.continues:
                indent = _continued(first, previous, following, brackets, for_comment=True)
            else:
                indent = INDENT * _comment_depth(row.line, first, following)
            yield f"{' ' * indent}{row.line.comment}\n"
            continue
        if row.line.continues:
            indent = _continued(first, previous, row, brackets)
        else:
            first, indent, brackets = row, INDENT * (len(row.line.stack) - 1), []
        yield _text(row, indent)
        column = indent
        for position, (token, gap) in enumerate(zip(row.line.tokens, row.gaps, strict=True)):
            column += gap
            if token.type in OPENING:
                brackets.append(_Bracket(column, position == len(row.line.tokens) - 1, indent))
            elif token.type in CLOSING and brackets:
                brackets.pop()
            column += len(token)
            previous = token


def _text(row: _Row, indent: int) -> str:
    pieces = (f"{' ' * gap}{token}" for token, gap in zip(row.line.tokens, row.gaps, strict=True))
    comment = f"  {row.line.comment}" if row.line.comment else ""
    return f"{' ' * indent}{''.join(pieces)}{comment}\n"


def _continued(
    first: _Row | None, previous: Any, row: _Row, brackets: Sequence[_Bracket], for_comment: bool = False
) -> int:
    """Where a line begins that goes on with the statement of `first`, or a comment before that line."""
    token = row.line.tokens[0]
    if brackets:
        bracket = brackets[-1]
        if token.type in CLOSING and not for_comment:
            return bracket.indent if bracket.hangs else bracket.column
        return bracket.indent + INDENT if bracket.hangs else bracket.column + 1
    assert first is not None
    base = INDENT * (len(first.line.stack) - 1)
    equals = first.place("=")
    if first.begins == "struct" and equals is not None and equals < len(first.line.tokens) - 1:
        column = base + first.width(equals) + first.gaps[equals]
        return column + 2 * (str(token) != "|")
    if first.begins in ("param", "frozen", "running", "output", "push") and str(previous) == ",":
        words = 2 if first.begins in ("frozen", "running") else 1
        return base + first.width(words) + first.gaps[words]
    return base + INDENT


def _comment_depth(line: Line, before: _Row | None, behind: _Row | None) -> int:
    """The block of a comment: the innermost around it that is not indented further than it is."""
    depths: dict[int, int] = {}
    for row in (before, behind):
        if row is not None:
            depths |= {indent: depth for depth, indent in enumerate(row.line.stack)}
    return depths[max((indent for indent in depths if indent <= line.indent), default=0)] if depths else 0
