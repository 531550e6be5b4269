"""Formatting keeps the syntax tree and the comments, and does nothing the second time.

Many more: `python -m tests.property.test_format 20000`.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.format import format_program
from dnc.frontend.lines import lines_of, tokens_of
from dnc.frontend.parser import parse
from tests.property.test_mutations import TEXTS, drawn, make_program
from tests.support.mutations import Choices, seeded
from tests.support.programs import program_of, programs
from tests.support.ruffle import ruffled

quick = settings(deadline=None, derandomize=True, max_examples=30)


def check(text: str) -> str:
    """Formats a right program; its tokens, comments and empty lines are those of the formatted text."""
    formatted = format_program(Source("model.dn", text))
    assert parse(Source("model.dn", formatted)) == parse(Source("model.dn", text))
    assert format_program(Source("model.dn", formatted)) == formatted
    text = text.replace("\r\n", "\n")
    assert pieces(formatted) == pieces(text)
    assert [line.blank for line in lines_of(formatted)] == [line.blank for line in lines_of(text)]
    assert not re.search(r"[ \r]$|\n\n\n|\A\n|\n\n\Z", formatted, re.MULTILINE) or "#" in formatted
    assert formatted.endswith("\n")
    return formatted


def pieces(text: str) -> list[str]:
    """The tokens and comments; ends of lines within a comment may be trimmed."""
    found: list[Any] = [line.comment for line in lines_of(text)]
    return [*map(str, (token for token in tokens_of(text) if token.type != "COMMENT")), *found]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.split("\n")[0][:40])
def test_written_programs(text: str) -> None:
    check(text)
    assert check(text.replace("\n", "\r\n").replace("\r\n", "\n")) == check(text)


@quick
@given(programs())
def test_random_programs(text: str) -> None:
    check(text)


def make_ruffled(choices: Choices) -> tuple[str, str]:
    """A program and the same with another layout."""
    number = choices.number(0, len(TEXTS) + 40)
    text = TEXTS[number] if number < len(TEXTS) else program_of(number)
    return text, ruffled(choices, text)


@quick
@given(st.integers(0, 2**32))
def test_any_layout(seed: int) -> None:
    laid_out(seed)


def laid_out(seed: int) -> None:
    """The same program in another layout is the same program, and is formatted."""
    text, disturbed = make_ruffled(seeded(seed))
    assert parse(Source("model.dn", disturbed)) == parse(Source("model.dn", text))
    check(disturbed)


@quick
@given(drawn(make_program))
def test_damaged_programs(text: str) -> None:
    damaged(text)


def damaged(text: str) -> None:
    """A damaged program is refused, or formatted as any other."""
    try:
        format_program(Source("model.dn", text))
    except DiagnosticError as error:
        assert "please report" not in str(error)
        return
    check(text)


if __name__ == "__main__":
    for seed in range(int(sys.argv[1])):
        try:
            if seed % 2:
                damaged(make_program(seeded(seed)))
            else:
                laid_out(seed)
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
