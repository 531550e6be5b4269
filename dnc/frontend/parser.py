"""From text to the syntax tree.

In: a `Source`. Out: a `syntax.Model`. Guaranteed: every mistake of form is reported with its place
and what was found and expected; a program is cut into its declarations first, so that one broken
declaration does not hide the mistakes of the next.
"""

from __future__ import annotations

import functools
import importlib.resources
from typing import Any

import lark

from dnc.diagnostics import Diagnostic, DiagnosticError, Source, Span
from dnc.frontend import syntax
from dnc.frontend.convert import Converter
from dnc.frontend.expectations import (
    DECLARATION_WORDS,
    explain_character,
    explain_token,
    form_of,
    statement_elsewhere,
)
from dnc.frontend.layout import Layout, LayoutError


@functools.cache
def grammar() -> Any:
    """The parser of one declaration."""
    text = importlib.resources.files("dnc.frontend").joinpath("grammar.lark").read_text("utf-8")
    return lark.Lark(
        text, start="declaration", parser="lalr", lexer="basic", postlex=Layout(), propagate_positions=True
    )


@functools.cache
def terminal_texts() -> dict[str, str]:
    """The text of every terminal that is a fixed text."""
    return {terminal.name: str(terminal.pattern.value) for terminal in grammar().terminals}


def parse(source: Source) -> syntax.Model:
    """The syntax tree of a program; DiagnosticError with all mistakes of form."""
    model, errors = parse_partly(source)
    if errors:
        raise DiagnosticError(*errors)
    return model


def parse_partly(source: Source) -> tuple[syntax.Model, tuple[Diagnostic, ...]]:
    """The declarations that could be parsed, and what is wrong with the others."""
    source = Source(source.name, source.text.replace("\r\n", "\n"))
    declarations: list[syntax.Declaration] = []
    errors: list[Diagnostic] = list(_tabs(source))
    broken, tabs = False, {found.span.line for found in errors if found.span}
    for line, text in _chunks(source.text.replace("\t", " ")):
        word = text.split(maxsplit=1)[0] if text.split() else ""
        continues = word not in DECLARATION_WORDS
        own = range(line, line + text.count("\n") + 1)
        tabbed = not tabs.isdisjoint(own)  # what else is wrong comes of it
        try:
            tree = grammar().parse("\n" * (line - 1) + text)
            declarations.append(Converter(source).declaration(tree))
            broken = False
        except DiagnosticError as error:
            errors += error.diagnostics
            broken = False
        except lark.UnexpectedInput as error:
            if not (broken and continues) and not tabbed:
                errors.append(_explain(source, line, text, error))
            broken = True
        except LayoutError as error:
            if not (broken and continues) and not tabbed:
                errors.append(Diagnostic(error.message, _token_span(source, error.token)))
            broken = True
    if not declarations and not errors:
        errors.append(
            Diagnostic("the program is empty, expected: model Name(dimensions)", Span(source, 1, 1))
        )
    return syntax.Model(tuple(declarations)), tuple(sorted(errors, key=_position))


def accepted_behind(text: str) -> list[str]:
    """The words of the language that may follow the beginning of a declaration."""
    tokens: list[Any] = []
    try:
        for token in grammar().lex(text):
            tokens.append(token)
    except lark.UnexpectedInput:
        return []
    except LayoutError:  # a bracket is still open
        pass
    while tokens and tokens[-1].type in ("_NEWLINE", "_DEDENT"):
        tokens.pop()
    state = grammar().parse_interactive("")
    try:
        for token in tokens:
            state.feed_token(token)
    except lark.UnexpectedInput:
        return []
    words = (terminal_texts()[name] for name in state.accepts() if name in terminal_texts())
    return sorted(word for word in words if word.isidentifier())


def _position(diagnostic: Diagnostic) -> tuple[int, int]:
    return (diagnostic.span.line, diagnostic.span.column) if diagnostic.span else (0, 0)


def _tabs(source: Source) -> list[Diagnostic]:
    """The lines indented with tabs."""
    found = []
    for number, line in enumerate(source.text.split("\n"), start=1):
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        if "\t" in indent and line.strip() and not line.strip().startswith("#"):
            span = Span(source, number, indent.index("\t") + 1)
            found.append(Diagnostic("found a tab in the indentation, expected spaces", span))
    return found


def begins_declaration(line: str) -> bool:
    """Whether a declaration begins with the line: in column 1, with what cannot go on with another."""
    return line[:1] not in ("", " ", "#", "|", ")", "]")


def _chunks(text: str) -> list[tuple[int, str]]:
    """The declarations with the numbers of their first lines: each begins with a word in column 1."""
    chunks: list[tuple[int, list[str]]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if begins_declaration(line) or (not chunks and line.strip() and not line.strip().startswith("#")):
            chunks.append((number, [line]))
        elif chunks:
            chunks[-1][1].append(line)
    return [(number, "\n".join(lines)) for number, lines in chunks]


def _token_span(source: Source, token: Any) -> Span:
    return Span(source, token.line, token.column, max(1, len(str(token).split("\n")[0])))


def _explain(source: Source, line: int, text: str, error: Any) -> Diagnostic:
    """What was found and what was expected, in plain words."""
    if isinstance(error, lark.UnexpectedCharacters):
        span = Span(source, error.line, error.column)
        return Diagnostic(explain_character(source.line_text(error.line), error.column), span)
    token = error.token
    unclosed = _unclosed(text)
    if unclosed is not None and token.line > line + unclosed[0]:
        row, column = unclosed
        bracket = text.split("\n")[row][column]
        return Diagnostic(f"'{bracket}' is never closed", Span(source, line + row, column + 1))
    accepted = error.interactive_parser.accepts()
    found = statement_elsewhere(token, source.line_text(token.line), terminal_texts())
    if found is not None:
        column, length, message = found
        return Diagnostic(message, Span(source, token.line, column, length))
    message = explain_token(token, source.line_text(token.line), accepted, terminal_texts())
    if token.type == "$END":
        row = next(row for row in reversed(range(text.count("\n") + 1)) if _code(text.split("\n")[row]))
        span = Span(source, line + row, len(_code(text.split("\n")[row])) + 1)
    elif token.type == "_NEWLINE":  # borrows the position of the last token before it: point behind that
        span = Span(source, token.end_line, token.end_column)
    else:
        span = _token_span(source, token)
    return Diagnostic(message, span, notes=form_of(text))


def _code(line: str) -> str:
    """A line without its comment."""
    return line.split("#")[0].rstrip()


def _unclosed(text: str) -> tuple[int, int] | None:
    """Row and column, from 0, of the innermost bracket that is never closed."""
    opened: list[tuple[int, int]] = []
    for row, line in enumerate(text.split("\n")):
        for column, character in enumerate(_code(line)):
            if character in "([":
                opened.append((row, column))
            elif character in ")]" and opened:
                opened.pop()
    return opened[-1] if opened else None
