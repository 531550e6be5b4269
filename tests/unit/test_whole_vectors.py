"""Element-wise values on whole vectors: means in a recursion cost few exchanges, wide ones are shared out."""

from __future__ import annotations

import pytest

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.explain.facts import BACKWARD_LEVEL, FORWARD_LEVEL, exchange_count, phase_steps
from dnc.frontend.build import load_program
from dnc.ir.plan import UNIT, VERTEX, Plan
from dnc.passes.fuse import Fuse

NORMALISED = """model Normalised(vocab = 7, hidden = 32, classes = 3)
struct Word = Word(form: token<vocab>)
struct Text = Text(words: [Word], label: class<classes>)
param E: table[vocab, hidden], U: [hidden, hidden], V: [classes, hidden]
cell normal(x: [hidden]) -> [hidden]:
    y = x - mean(x)
    y / sqrt(mean(y * y) + 0.001)
fn run(w: Word) -> [hidden] = tanh(E[w.form] + normal(U @ run(w.prev)))
loss sum(t in root) cross_entropy(V @ run(t.words.last), t.label)
"""


def plan(text: str, **sizes: int) -> Plan:
    program, _ = load_program(Source("normalised.dn", text), sizes)
    return make_plan(transform(program, PlanOptions()), "sm_90a", PlanOptions())


def exchanges(made: Plan) -> tuple[int, int]:
    steps = phase_steps(made)
    return exchange_count(steps[FORWARD_LEVEL]), exchange_count(steps[BACKWARD_LEVEL])


def mapping_of(made: Plan, value: str) -> str:
    """How the segment that computes a value of the recursion is shared out."""
    found = [
        segment.mapping
        for segment in made.segments
        if segment.stage == "run" and any(op.result.name == value for op in segment.cell.ops)
    ]
    assert len(found) == 1
    return found[0]


def test_two_means_in_a_row_cost_one_exchange_before_them() -> None:
    made = plan(NORMALISED)
    assert mapping_of(made, "y") == VERTEX
    assert exchanges(made)[0] == 2, "one before the means, one behind the last value"


@pytest.mark.parametrize("hidden", (32, 4096))
def test_never_more_than_if_all_is_shared_out(hidden: int) -> None:
    program, _ = load_program(Source("normalised.dn", NORMALISED), {"hidden": hidden})
    program = transform(program, PlanOptions())

    def steps(exchange_floats: int) -> dict[str, int]:
        made = Fuse(exchange_floats=exchange_floats)(program)
        return {stage.name: max((s.step for s in made.segments if s.stage == stage.name), default=0)
                for stage in program.stages}  # fmt: skip

    shared, saved = steps(0), steps(3072)
    assert all(saved[name] <= shared[name] for name in shared)
    assert (saved == shared) == (hidden == 4096), "wide vectors take longer than the exchanges"
    assert shared["run"] == 4


def test_what_needs_no_whole_vector_stays_shared_out() -> None:
    text = NORMALISED.replace("normal(U @ run(w.prev))", "U @ run(w.prev)").replace(
        NORMALISED[NORMALISED.index("cell") : NORMALISED.index("fn")], ""
    )
    made = plan(text)
    assert {segment.mapping for segment in made.segments if segment.stage == "run"} == {UNIT}
    assert exchanges(made) == (1, 1)
