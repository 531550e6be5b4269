"""Regions of a kernel (`dnc/ir/regions.py`): which loops there are, and which of them hold weights."""

from __future__ import annotations

import pytest

from dnc.ir.phases import Phases
from dnc.ir.plan import REGISTER, Plan
from dnc.ir.program import FORWARD, LEVEL
from dnc.ir.regions import FRONT, Regions, are_reused
from tests.support.plans import plan_of, plan_of_text

TARGETS = {"targets": 12_000, "hidden": 64, "embed": 64}


def regions_of_queue(plan: Plan) -> list[int]:
    """The regions of all stages in the order of their phases."""
    phases, regions = Phases.of(plan.program), Regions.of(plan)
    stages = sorted(plan.program.stages, key=phases.of_stage)
    return [regions.of_stage[stage.name] for stage in stages]


@pytest.mark.parametrize(
    "example, settings",
    [
        ("treelstm", {}),
        ("bilstm_tagger", {}),
        ("encoder_decoder", TARGETS),
        ("char_tagger", {}),
        ("lstm2", {}),
    ],
)
def test_a_queue_goes_through_them_in_order(example: str, settings: dict[str, int]) -> None:
    plan = plan_of(example, settings)
    found = regions_of_queue(plan)
    assert found == sorted(found)
    numbers = [opcode.region for opcode in plan.opcodes]
    assert numbers == sorted(numbers) and numbers[-1] == Regions.of(plan).behind


def test_three_loops_will_do_where_products_between_levels_stay_on_the_chip() -> None:
    plan = plan_of("treelstm", {"hidden": 64, "embed": 64})
    regions = Regions.of(plan)
    assert not regions.apart and regions.behind == 3 and regions.with_registers == {FRONT + 1}


def test_levels_are_apart_from_a_product_that_streams() -> None:
    """In front, levels of both recursions, logits and their gradients, levels backward, behind."""
    plan = plan_of("encoder_decoder", TARGETS, cluster=8)
    regions = Regions.of(plan)
    assert regions.apart and regions.behind == FRONT + 4
    held = regions.with_registers
    assert held == {FRONT + 1, FRONT + 3}
    for stage in plan.program.stages:
        assert (stage.placement == LEVEL) == (regions.of_stage[stage.name] in held)


def test_what_stands_between_two_recursions_has_a_loop() -> None:
    plan = plan_of("char_tagger", {"hidden": 256, "half": 64, "char": 64, "mlp": 256})
    regions = Regions.of(plan)
    assert regions.apart and regions.behind == FRONT + 8
    assert regions.of_stage["right"] < regions.of_stage["forward.pre"] < regions.of_stage["forward"]


@pytest.mark.parametrize("options", [{"registers": 0}, {"residency": "shared"}])
def test_without_weights_in_registers_nothing_is_apart(options: dict[str, object]) -> None:
    assert not Regions.of(plan_of("encoder_decoder", TARGETS, **options)).apart


def test_a_recursion_that_may_be_left_is_not_apart() -> None:
    """What stands behind it runs within it, window by window."""
    plan = plan_of("../tests/support/decoder", {"hidden": 64, "embed": 20})
    assert not Regions.of(plan).apart and plan.opcode("leave").region == FRONT + 1


def test_recursions_have_the_same_registers() -> None:
    """Both matrices would take 256 of 160: each recursion has them for its own, in a loop of its own."""
    plan = plan_of("encoder_decoder", {"targets": 12_000, "hidden": 256, "embed": 256}, cluster=8)
    places = {p.parameter: p for p in plan.placements}
    assert places["Us"].registers == places["Ut"].registers == range(128)
    regions = Regions.of(plan)
    assert regions.of_stage["encode"] + 1 == regions.of_stage["decode"]
    assert regions.of_stage["decode.grad"] + 1 == regions.of_stage["encode.grad"]
    assert regions.behind == FRONT + 6


SHARED_WITH_AN_ENCODING = """
model Outside(vocab, width = 128)
struct Word = Word(form: token<vocab>)
struct Other = Other(form: token<vocab>)
struct Text = Text(words: [Word], others: [Other], label: class<3>)
param E: table[vocab, width], A: [width, width], C: [width, width], V: [3, width]
fn one(w: Word) -> [width] = tanh(A @ one(w.prev) + E[w.form])
fn two(o: Other) -> [width] = tanh(C @ (two(o.prev) else one(o.parent.words.last)) + A @ E[o.form])
loss sum(t in all(Text)) cross_entropy(V @ two(t.others.last), t.label)
"""


@pytest.mark.parametrize("options", [{}, {"residency": "register"}])
def test_nothing_is_reused_where_weights_have_to_be_there_all_the_time(options: dict[str, str]) -> None:
    """A is multiplied by in front of the recursions, too."""
    plan = plan_of_text(SHARED_WITH_AN_ENCODING, cluster=8, registers=8, **options)
    assert any(p.residency == REGISTER for p in plan.placements)
    assert plan.program.strata == 2 and not are_reused(plan)


def test_what_another_recursion_uses_too_keeps_its_registers() -> None:
    """A matrix of both recursions has registers that no other has; each of the others has the rest."""
    text = """
model Both(vocab, width = 128)
struct Word = Word(form: token<vocab>)
struct Text = Text(words: [Word], others: [Other], label: class<3>)
struct Other = Other(form: token<vocab>)
param E: table[vocab, width], A: [width, width], B: [width, width], C: [width, width], V: [3, width]
fn one(w: Word) -> [width] = tanh(A @ one(w.prev) + B @ tanh(one(w.prev)) + E[w.form])
fn old(o: Other) -> [width] = two(o.prev) else one(o.parent.words.last)
fn two(o: Other) -> [width] = tanh(A @ old(o) + C @ tanh(two(o.prev)) + E[o.form])
loss sum(t in all(Text)) cross_entropy(V @ two(t.others.last), t.label)
"""
    plan = plan_of_text(text, cluster=8, registers=16)
    ranges = {p.parameter: p.registers for p in plan.placements if p.residency == REGISTER}
    assert ranges["B"] == ranges["C"] and not set(ranges["A"]) & set(ranges["B"])


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("example", ["treelstm", "token_vectors", "encoder_decoder", "char_rnn"])
@pytest.mark.parametrize("residency", [None, "register"])
def test_on_tensor_cores_gradients_have_registers_of_their_own(
    example: str, precision: str, residency: str | None
) -> None:
    settings = {"targets": 50} if example == "encoder_decoder" else {}
    options = {"cluster": 8, "precision": precision, "residency": residency}
    plan = plan_of(example, settings | {"hidden": 32}, **options)
    regions = Regions.of(plan)
    assert regions.turned and not regions.turned >= regions.with_registers
    for stage in plan.program.stages:
        region = regions.of_stage[stage.name]
        if region in regions.with_registers:
            assert (stage.direction != FORWARD) == (region in regions.turned)
    assert regions_of_queue(plan) == sorted(regions_of_queue(plan))


@pytest.mark.parametrize("precision", ["fp32", "tf32x3"])
def test_without_them_they_have_the_same(precision: str) -> None:
    regions = Regions.of(plan_of("treelstm", {"hidden": 32}, precision=precision))
    assert regions.with_registers == {FRONT + 1} and not regions.turned
