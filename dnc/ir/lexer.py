"""Tokens of textual IR, and a cursor over them.

In: a source. Out: tokens with their places. Guaranteed: whatever is wrong is reported as a
diagnostic with line and column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeVar

import attrs

from dnc.diagnostics import Diagnostic, DiagnosticError, Source, Span
from dnc.ir.cell import Attribute
from dnc.ir.types import ListType, TensorType, Type

T = TypeVar("T")

TOKEN = re.compile(
    r"""
    (?P<space>[ \t]+|\#[^\n]*)
  | (?P<line>\n)
  | (?P<tensor>(?:f32|i32)\[[0-9x]*\])
  | (?P<value>%[\w.]+)
  | (?P<number>[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|inf\b|nan\b))
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<name>[A-Za-z_][\w.]*)
  | (?P<mark>->|[(){}\[\]<>:=,?])
    """,
    re.VERBOSE,
)

LONGEST = 1000  # letters of a number or a tensor type; Python reads no number of some thousand digits


@attrs.frozen
class Token:
    """kind is a group of the pattern above, or "end"."""

    kind: str
    text: str
    span: Span


def tokenize(source: Source) -> list[Token]:
    """All tokens of a source, and an "end" after them."""
    tokens, position, line, start = [], 0, 1, 0
    while position < len(source.text):
        match = TOKEN.match(source.text, position)
        span = Span(source, line, position - start + 1)
        if match is None:
            raise DiagnosticError(Diagnostic(f"unexpected character {source.text[position]!r}", span))
        kind = str(match.lastgroup)
        if kind == "line":
            line, start = line + 1, match.end()
        elif kind in ("number", "tensor") and len(match.group()) > LONGEST:
            raise DiagnosticError(Diagnostic(f"found a {kind} of {len(match.group())} letters", span))
        elif kind != "space":
            tokens.append(Token(kind, match.group(), attrs.evolve(span, length=len(match.group()))))
        position = match.end()
    return [*tokens, Token("end", "end of text", Span(source, line, position - start + 1))]


class Cursor:
    """A place in a list of tokens."""

    def __init__(self, source: Source) -> None:
        self.tokens = tokenize(source)
        self.position = 0

    @property
    def token(self) -> Token:
        """The token that comes next."""
        return self.tokens[self.position]

    def fail(self, expected: str, token: Token | None = None) -> DiagnosticError:
        """An error at a token (the next one)."""
        token = token or self.token
        return DiagnosticError(Diagnostic(f"found '{token.text}', expected {expected}", token.span))

    def at(self, text: str) -> bool:
        """Whether the next token is `text` (unquoted)."""
        return self.token.text == text and self.token.kind != "string"

    def take(self, text: str) -> bool:
        """Whether the next token is `text`; skips it if so."""
        found = self.at(text)
        self.position += found
        return found

    def expect(self, text: str) -> Token:
        """Skips `text`."""
        if not self.at(text):
            raise self.fail(f"'{text}'")
        return self.next()

    def next(self) -> Token:
        """The next token, skipped."""
        token = self.token
        self.position += token.kind != "end"
        return token

    def kind(self, kind: str, expected: str) -> Token:
        """The next token, which must be of a kind."""
        if self.token.kind != kind:
            raise self.fail(expected)
        return self.next()

    def name(self) -> str:
        """A name, quoted or not."""
        if self.token.kind == "string":
            return self.string()
        return self.kind("name", "a name").text

    def string(self) -> str:
        """What a quoted string holds."""
        token = self.next()
        try:
            text = str(json.loads(token.text))
            text.encode()  # not half a pair of surrogates
        except ValueError:
            raise self.fail("a string as JSON has it", token) from None
        return text

    def choice(self, *texts: str) -> str:
        """One of some words."""
        if self.token.text not in texts:
            raise self.fail("one of " + ", ".join(texts))
        return self.next().text

    def integer(self) -> int:
        """A whole number."""
        token = self.kind("number", "a whole number")
        if not re.fullmatch(r"[-+]?\d+", token.text):
            raise self.fail("a whole number", token)
        return int(token.text)

    def real(self) -> float:
        """A number."""
        return float(self.kind("number", "a number").text)

    def items(self, opening: str, item: Callable[[], T], closing: str) -> tuple[T, ...]:
        """Items between brackets, with commas between them."""
        found: list[T] = []
        self.expect(opening)
        while not self.at(closing):
            if found:
                self.expect(",")
            found.append(item())
        self.expect(closing)
        return tuple(found)

    def type(self) -> Type:
        """A tensor or list type."""
        if self.take("list"):
            self.expect("<")
            element = self.tensor()
            self.expect(">")
            return ListType(element)
        return self.tensor()

    def tensor(self) -> TensorType:
        """A tensor type."""
        token = self.kind("tensor", "a type such as f32[4], f32[3x4], i32[]")
        dims = token.text[4:-1]
        if dims and not re.fullmatch(r"\d+(x\d+)*", dims):
            raise self.fail("a type such as f32[4], f32[3x4], i32[]", token)
        return TensorType(tuple(int(dim) for dim in dims.split("x")) if dims else (), token.text[:3])

    def attribute(self) -> Attribute:
        """An attribute's value."""
        token = self.token
        if token.kind == "string":
            return self.string()
        if self.take("true"):
            return True
        if self.take("false"):
            return False
        if self.at("["):
            return self.items("[", self.integer, "]")
        self.kind("number", "a number, a string, true, false or [whole numbers]")
        return int(token.text) if re.fullmatch(r"[-+]?\d+", token.text) else float(token.text)
