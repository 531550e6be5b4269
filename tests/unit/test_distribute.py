"""Where an exchange stands inside a stage, and where whole vectors save one."""

from typing import Any

import pytest

from dnc.compiler import PlanOptions, make_plan, settled, transform
from dnc.diagnostics import Source
from dnc.explain.facts import exchange_count, levels
from dnc.frontend.build import load_program
from dnc.ir.plan import UNIT, VERTEX, Plan, RepeatedAddress, SlotsAddress
from dnc.ir.remarks import Remarks
from dnc.ir.repeated import repeated_parts
from dnc.passes.distribute import Distribution
from dnc.passes.fuse import Fuse
from tests.support.models import EXAMPLES
from tests.support.plans import plan_of

HEAD = """model M(d = 64)
struct Word = Word(x: vector<d>)
struct Text = Text(words: [Word])
param U: [d, d], g: [d]
"""
SCALARS = ["mean_1", "add_1", "sqrt"]


def plan(body: str, loss: str = "sum(f(w))", d: int = 64, **options: Any) -> Plan:
    text = f"{HEAD}{body}\nloss sum(w in all(Word)) {loss}\n"
    chosen = PlanOptions(**options)
    return make_plan(transform(load_program(Source("m.dn", text), {"d": d})[0], chosen), "cpu", chosen)


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


@pytest.mark.parametrize(
    "hidden, reduce, meetings", [(16, None, [2, 2]), (72, False, [9, 9]), (72, True, [3, 3])]
)
def test_a_layer_normalised_lstm_meets_less(hidden: int, reduce: bool | None, meetings: list[int]) -> None:
    """Where it is narrow, or where every worker reduces whole vectors for itself."""
    (both,) = levels(plan_of("layer_norm_lstm", {"hidden": hidden}, reduce=reduce))
    assert [exchange_count(steps) for steps in both] == meetings


NORMAL = (
    "fn f(w: Word) -> [d] = normal(U @ f(w.prev) + w.x)\ncell normal(a: [d]):\n"
    "    e = a - mean(a)\n    tanh(g * e / sqrt(mean(e * e) + 1e-5))"
)


def test_every_worker_reduces_whole_vectors_for_itself() -> None:
    found = plan(NORMAL, d=128, reduce=True)
    assert mappings(found, "f") == [(UNIT, 0), (UNIT, 1)]
    assert mappings(found, "f.grad") == [(UNIT, 0), (UNIT, 1)]
    assert settled(PlanOptions(), found).reduce and not settled(PlanOptions(), found).repeat


def test_a_remark_says_where_workers_reduce_for_themselves() -> None:
    remarks = Remarks()
    program = load_program(
        Source("m.dn", f"{HEAD}{NORMAL}\nloss sum(w in all(Word)) sum(f(w))\n"), {"d": 128}
    )[0]
    Fuse(reduces=True).decide(transform(program), remarks)
    found = [remark.message for remark in remarks.all() if "itself" in remark.message]
    assert found[0].endswith("'mean' needs whole vectors, which every worker reduces for itself")


def test_the_two_parts_of_a_segment_with_scalars() -> None:
    """What scalars are made of is worked out by units, too; one worker stores what is read later."""
    found = plan(NORMAL, d=128, reduce=True)
    (segment,) = (each for each in found.segments if each.name == "f/1")
    assert [value.name for value in segment.repeated] == ["mean", "mean_1", "add_1", "sqrt"]
    whole, rest = repeated_parts(segment)
    assert whole.mapping == VERTEX and rest.mapping == UNIT
    assert [op.result.name for op in whole.cell.ops if op.operands] == ["mean", "e", "mul_1", *SCALARS]
    assert "mul_1" not in [op.result.name for op in rest.cell.ops]
    assert {load.value.name for load in rest.loads if isinstance(load.address, RepeatedAddress)} == {
        "mean",
        "sqrt",
    }
    assert {store.value.name for store in whole.stores} == {"sqrt"}
    assert not {store.value for store in rest.stores} & set(segment.repeated)


def test_a_number_that_no_unit_reads_in_its_step_stays_with_one_worker() -> None:
    body = (
        "state S = (h: [d], m: [])\nfn f(w: Word) -> S:\n"
        "    h = tanh(U @ f(w.prev).h + w.x * mean(w.x * f(w.prev).h))\n    m = mean(h) + f(w.prev).m"
    )
    found = plan(body, "f(w).m", d=128, reduce=True)
    assert mappings(found, "f") == [(UNIT, 0), (VERTEX, 1)]
    (segment, _) = (each for each in found.segments if each.stage == "f")
    assert [value.name for value in segment.repeated] == ["mean"]


def test_sums_of_what_workers_left_are_no_whole_vectors() -> None:
    """The gradient of a state is read by one worker, not by all: the mean of it is of a stored vector."""
    found = plan("fn f(w: Word) -> [d] = U @ (f(w.prev) - mean(f(w.prev))) + w.x", d=128, reduce=True)
    for segment in found.segments:
        whole, _ = repeated_parts(segment)
        assert not any(isinstance(load.address, SlotsAddress) for load in whole.loads)


def test_what_can_wait_is_made_where_it_is_read() -> None:
    """A product with given values is not exchanged to be read a step later."""
    found = plan("fn f(w: Word) -> [d] = tanh(U @ tanh(U @ f(w.prev)) + g * w.x)", d=128)
    first, second = (each for each in found.segments if each.stage == "f")
    assert [op.opcode for op in first.cell.ops] == ["tanh"]
    assert [op.opcode for op in second.cell.ops] == ["mul", "add", "tanh"]


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.dn")))
def test_gradients_of_states_are_added_up_once_a_step(name: str) -> None:
    found = [
        (segment.stage, segment.step, load.address)
        for segment in plan_of(name).segments
        for load in segment.loads
        if segment.mapping == UNIT and isinstance(load.address, SlotsAddress)
    ]
    assert len(found) == len(set(found))


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
