"""Where an exchange stands inside a stage, and where whole vectors save one."""

import pytest

from dnc.compiler import make_plan, transform
from dnc.diagnostics import Source
from dnc.explain.facts import exchange_count, levels
from dnc.frontend.build import load_program
from dnc.ir.plan import UNIT, VERTEX, Plan
from dnc.passes.distribute import Distribution
from tests.support.models import EXAMPLES
from tests.support.plans import plan_of

HEAD = """model M(d = 64)
struct Word = Word(x: vector<d>)
struct Text = Text(words: [Word])
param U: [d, d], g: [d]
"""


def plan(body: str, loss: str = "sum(f(w))") -> Plan:
    text = f"{HEAD}{body}\nloss sum(w in all(Word)) {loss}\n"
    return make_plan(transform(load_program(Source("m.dn", text), {})[0]), "cpu")


def mappings(plan: Plan, stage: str) -> list[tuple[str, int]]:
    """How the segments of a stage are shared out, and in which step."""
    return [(segment.mapping, segment.step) for segment in plan.segments if segment.stage == stage]


def test_what_follows_a_mean_is_made_with_it() -> None:
    """And the next product waits once for all of it."""
    found = plan(
        "fn f(w: Word) -> [d] = normal(U @ f(w.prev) + w.x)\ncell normal(a: [d]):\n"
        "    e = a - mean(a)\n    tanh(g * e / sqrt(mean(e * e) + 1e-5))"
    )
    assert mappings(found, "f") == [(UNIT, 0), (VERTEX, 1)]
    assert mappings(found, "f.grad") == [(VERTEX, 0), (UNIT, 1)]


def test_what_a_maximum_follows_from_is_made_with_it() -> None:
    found = plan("fn f(w: Word) -> [d] = softmax(tanh(g * f(w.prev) + w.x))")
    assert mappings(found, "f") == [(VERTEX, 0)]
    assert mappings(found, "f.grad") == [(VERTEX, 0)]


def test_without_an_exchange_to_save_units_are_shared_out() -> None:
    """The sum is needed by nothing else, and other units would wait for the product in any case."""
    found = plan("fn f(w: Word) -> [d] = tanh(U @ f(w.prev) + g * w.x)")
    assert mappings(found, "f") == [(UNIT, 0)]


@pytest.mark.parametrize("hidden, meetings", [(16, [2, 2]), (72, [9, 9])])
def test_a_layer_normalised_lstm_meets_less_where_it_is_narrow(hidden: int, meetings: list[int]) -> None:
    (both,) = levels(plan_of("layer_norm_lstm", {"hidden": hidden}))
    assert [exchange_count(steps) for steps in both] == meetings


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.dn")))
def test_no_stage_has_more_steps_than_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> dict[str, int]:
        found: dict[str, int] = {}
        for segment in plan_of(name).segments:
            found[segment.stage] = max(found.get(segment.stage, 0), segment.step)
        return found

    saved = steps()
    monkeypatch.setattr(Distribution, "_save_exchanges", lambda self, vertex: None)
    for stage, last in steps().items():
        assert saved[stage] <= last
