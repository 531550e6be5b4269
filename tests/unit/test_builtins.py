"""What editors say of the language's own names covers all of them."""

from __future__ import annotations

import lark
import pytest

from dnc.editing import builtins
from dnc.editing.sizes import Size, symbolic
from dnc.frontend.declarations import BUILTINS
from dnc.frontend.expectations import DECLARATION_WORDS
from dnc.frontend.initializers import RULES
from dnc.frontend.parser import grammar, terminal_texts
from dnc.frontend.reductions import ATTEND, REDUCTIONS
from dnc.frontend.structs import INDEXED_KINDS, LINKS
from dnc.ir.measures import MEASURES
from dnc.ir.program import ALL, ROOT, STACK, TABLE

ALL_OF_THEM = {
    "FUNCTIONS": BUILTINS,
    "REDUCTIONS": {*REDUCTIONS, ATTEND},
    "MEASURES": {*MEASURES, "sum"},
    "INITIALIZERS": RULES,
    "LINKS": LINKS,
    "KINDS": {*INDEXED_KINDS, "float"},
    "DOMAINS": {ALL, ROOT},
    "PARAMETER_KINDS": {STACK, TABLE},
    "DECLARATIONS": DECLARATION_WORDS,
}


@pytest.mark.parametrize("table, names", ALL_OF_THEM.items(), ids=ALL_OF_THEM)
def test_every_name_is_explained(table, names):
    found = getattr(builtins, table)
    assert set(found) == set(names)
    assert all(each.signature for each in found.values())


def test_declarations_begin_with_what_the_grammar_accepts():
    with pytest.raises(lark.UnexpectedInput) as caught:
        grammar().parse("strct")
    accepted = caught.value.interactive_parser.accepts()
    assert set(builtins.DECLARATIONS) == {terminal_texts()[name] for name in accepted}


A, B = Size.named("a", 6), Size.named("b", 4)


@pytest.mark.parametrize(
    "size, value, text",
    [
        (3 * A, 18, "3 * a"),
        (A + 2 * B - 1, 13, "a + 2 * b - 1"),
        (1 - A, -5, "-a + 1"),
        (A - A, 0, "0"),
        (A * B * A, 144, "a * a * b"),
        ((2 * A * B) // (2 * B), 6, "a"),
        ((4 * A + 2) // 2, 13, "2 * a + 1"),
        (A // 4, 1, "a // 4"),
        ((A + B) // B, 2, "(a + b) // b"),
        (12 // A, 2, "12 // a"),
        (sum([A, B]), 10, "a + b"),
        (-A, -6, "-a"),
        (7, 7, "7"),
    ],
)
def test_sizes_remember_their_dimensions(size, value, text):
    assert size == value and hash(size) == hash(value) and str(size) == str(value) == f"{size}"
    assert symbolic(size) == text
