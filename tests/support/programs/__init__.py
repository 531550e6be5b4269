"""Random well-typed programs as source text.

A grammar in four parts: `structs` (fields and links), `values` (an entry per operation), `scope` (what
may be read where), `callables` (cells, functions, terms). `programs` is the strategy: each choice is
drawn by Hypothesis, so that a program that fails is made smaller. `program_of` takes a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.support.programs.callables import add_functions, add_terms
from tests.support.programs.draft import SMALL_WIDTHS, WIDTHS, Draft
from tests.support.programs.structs import add_structs

__all__ = ["SMALL_WIDTHS", "WIDTHS", "program_of", "programs"]


@st.composite
def programs(
    draw: Callable[[st.SearchStrategy[Any]], Any],
    widths: Sequence[int] = SMALL_WIDTHS,
    groups: int = 3,
    depth: int = 3,
) -> str:
    """The text of a program; the first width is the simplest.

    groups: of functions, at most. depth: of expressions.
    """
    return _text(lambda least, most: int(draw(st.integers(least, most))), widths, groups, depth)


def program_of(seed: int, widths: Sequence[int] = SMALL_WIDTHS, groups: int = 3, depth: int = 3) -> str:
    """The program of a seed, for runs of any length."""
    return _text(random.Random(seed).randint, widths, groups, depth)


def _text(number: Callable[[int, int], int], widths: Sequence[int], groups: int, depth: int) -> str:
    draft = Draft(number, widths, depth)
    add_structs(draft)
    add_functions(draft, groups)
    add_terms(draft)
    return draft.text()
