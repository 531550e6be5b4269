"""Functions of one recursion that meet at a vertex take one level, and what waits for others does not."""

from collections.abc import Mapping

import numpy as np
import pytest

from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir.interpreter import interpret
from dnc.ir.program import Program, StateOutput
from dnc.passes.differentiate import Differentiate
from dnc.passes.hoist import Hoist
from dnc.passes.inline import Inline
from dnc.passes.merge import Merge
from tests.support.executors import random_parameters
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES

HEAD = """model M(d = 3)
struct Tree = Leaf(x: vector<d>) | Node(x: vector<d>, left: Tree, right: Tree)
struct Word = Word(x: vector<d>)
struct Text = Text(words: [Word], tree: Tree)
param P: [d, d], Q: [d, d]
"""


def program(body: str, loss: str) -> Program:
    text = f"{HEAD}{body}\nloss sum(t in all(Word)) sum({loss})\n"
    return Inline()(load_program(Source("m.dn", text), {})[0])


def example(name: str, sizes: Mapping[str, int] = {}) -> Program:
    return load_program(Source(name, (EXAMPLES / f"{name}.dn").read_text(encoding="utf-8")), sizes)[0]


def states(program: Program) -> dict[str, list[str]]:
    """The components of every function."""
    return {each.name: [component.name for component in each.state] for each in program.functions}


def test_what_two_functions_return_is_one_state() -> None:
    found = program(
        "fn a(t: Word) -> [d] = tanh(b(t.prev) + t.x)\nfn b(t: Word) -> [d] = softmax(a(t)) + t.x",
        "a(t) * b(t)",
    )
    assert states(found) == {"a": ["value"], "b": ["value"]}
    merged = Merge()(found)
    assert states(merged) == {"a": ["value", "b"]}
    (stage,) = [stage for stage in merged.stages if stage.function == "a"]
    assert {output.component for output in stage.outputs if isinstance(output, StateOutput)} == {"value", "b"}
    assert "b" not in {stage.space for stage in merged.stages} | {space.name for space in merged.spaces}


def test_three_in_a_row_and_states_of_several_values() -> None:
    found = program(
        "state S = (h: [d], c: [d])\ncell make(p: [d], q: [d]) -> S:\n    h = p\n    c = q\n"
        "fn a(t: Word) -> S = make(t.x + e(t.prev), t.x)\n"
        "fn b(t: Word) -> S = make(exp(a(t).h), a(t).c)\n"
        "fn e(t: Word) -> [d] = softmax(b(t).h) + b(t).c * a(t).h",
        "e(t) + a(t.prev).h",
    )
    assert states(Merge()(found)) == {"a": ["h", "c", "b_h", "b_c", "e"]}


@pytest.mark.parametrize(
    "body, loss",
    [
        # It waits for another recursion, which the first one does not wait for.
        (
            "fn z(t: Word) -> [d] = t.x + z(t.next)\nfn a(t: Word) -> [d] = t.x + b(t.prev)\n"
            "fn b(t: Word) -> [d] = z(t) + a(t)",
            "b(t)",
        ),
        # It reads the other one at a vertex in front of this one, too.
        ("fn a(t: Word) -> [d] = t.x + b(t.prev)\nfn b(t: Word) -> [d] = a(t) + a(t.prev)", "b(t)"),
        # It is another recursion, a layer on top.
        ("fn a(t: Word) -> [d] = t.x + a(t.prev)\nfn b(t: Word) -> [d] = a(t) + b(t.prev)", "b(t)"),
        # One multiplies by a parameter.
        ("fn a(t: Word) -> [d] = t.x + b(t.prev)\nfn b(t: Word) -> [d] = P @ a(t)", "b(t)"),
        ("fn a(t: Word) -> [d] = P @ (t.x + b(t.prev))\nfn b(t: Word) -> [d] = exp(a(t))", "b(t)"),
        # The other one has a body for every arm.
        (
            "fn a(t: Tree) -> [d] = match t:\n    Leaf(x) -> x\n"
            "    Node(x, left, right) -> x + b(left) + a(right)\n"
            "fn b(t: Tree) -> [d] = exp(a(t))\nfn f(t: Text) = a(t.tree)",
            "f(t.parent)",
        ),
    ],
)
def test_what_is_not_merged(body: str, loss: str) -> None:
    found = program(body, loss)
    assert Merge()(found) == found


@pytest.mark.parametrize("name", ["childsum", "lstm2", "char_rnn", "bilstm_tagger", "rnn_stack", "attention"])
def test_layers_directions_and_products_stay_apart(name: str) -> None:
    found = Inline()(example(name))
    assert Merge()(found) == found


def test_values_and_gradients_are_those_without_it() -> None:
    found = Inline()(example("crf_tagger", {"embed": 4, "hidden": 4}))
    merged = Merge()(found)
    assert len(merged.stages) < len(found.stages)
    one, other = (Differentiate()(Hoist()(each)) for each in (merged, found))
    forest, values = ForestGrower(one, 3).grow(3, 6, "random", 0.0), random_parameters(one, 3)
    here, there = (interpret(each, forest, values) for each in (one, other))
    assert here.loss == pytest.approx(there.loss, rel=1e-12)
    for parameter, gradient in there.gradients.items():
        np.testing.assert_allclose(here.gradients[parameter], gradient, rtol=1e-12, atol=1e-15)
    assert here.metrics == pytest.approx(there.metrics)
