"""What editors ask of a program that is damaged or half typed: an answer, never a failure.

Many more: `python -m tests.property.test_editing 5000`.
"""

from __future__ import annotations

import contextlib
import sys
import traceback

from hypothesis import given, settings
from hypothesis import strategies as st

from dnc.diagnostics import DiagnosticError, Source
from dnc.editing.analysis import analyze
from dnc.editing.completion import complete
from dnc.editing.documents import Documents
from dnc.editing.navigation import definitions, outline, rename
from dnc.editing.symbols import occurrences
from dnc.editing.texts import shape
from dnc.frontend.build import load_program
from dnc.ir.types import TensorType
from tests.property.test_mutations import TEXTS, make_program
from tests.support.mutations import Choices, seeded

quick = settings(deadline=None, derandomize=True, max_examples=40)


def edit(choices: Choices) -> None:
    """Opens a program, damages it or cuts it off, and asks for everything at some places."""
    documents = Documents()
    good = choices.pick(TEXTS)
    documents.get("m", good)
    damaged = make_program(choices)
    text = damaged if choices.number(0, 2) else good[: choices.number(0, len(good))]
    document = documents.get("m", text)
    same_diagnostics(text)
    assert outline(document.current) is not None
    lines = text.split("\n")
    for found in occurrences(document.current):
        row = lines[found.span.line - 1].replace("\t", " ")
        start = found.span.column - 1
        assert row[start : start + found.span.length] == found.symbol.name
    for _ in range(6):
        line = choices.number(1, len(lines))
        column = choices.number(1, len(lines[line - 1]) + 1)
        document.hover(line, column)
        document.definitions(line, column)
        complete(text, line, column)
    line = choices.number(1, len(lines))
    with contextlib.suppress(DiagnosticError):
        rename(document.current, line, choices.number(1, len(lines[line - 1]) + 1), "renamed")


def same_diagnostics(text: str) -> None:
    """An editor shows what a compilation reports."""
    try:
        expected = load_program(Source("m", text), {})[1]
    except DiagnosticError as error:
        expected = error.diagnostics
    assert [str(each) for each in analyze(Source("m", text)).diagnostics] == [str(each) for each in expected]


@quick
@given(st.integers(0, 2**32))
def test_any_program(seed: int) -> None:
    edit(seeded(seed))


@quick
@given(st.sampled_from(TEXTS))
def test_right_programs(text: str) -> None:
    """Every expression of a right program has a type, and its shape in dimensions has the right size."""
    analysis = analyze(Source("m", text))
    sizes = {}
    assert analysis.examined is not None
    for name, size in analysis.examined.declarations.dimensions.sizes.items():
        sizes[name] = size
    for seen in analysis.recorder.expressions.values():
        assert seen.found is not None
        if isinstance(seen.found.type, TensorType):
            names, numbers = shape(seen.found.type.shape)
            assert eval(names, {}, sizes) == eval(numbers)
    for each in occurrences(analysis):
        if each.symbol.is_own:
            assert definitions(analysis, each.span.line, each.span.column), each


if __name__ == "__main__":
    for seed in range(int(sys.argv[1])):
        try:
            edit(seeded(seed))
        except Exception as error:
            print(f"seed {seed}: {''.join(traceback.format_exception(error)[-3:])}")
