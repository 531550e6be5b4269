"""Regions of a kernel (`dnc/ir/regions.py`): which loops there are, and which of them hold weights."""

from __future__ import annotations

import pytest

from dnc.ir.phases import Phases
from dnc.ir.plan import Plan
from dnc.ir.program import LEVEL
from dnc.ir.regions import FRONT, Regions
from tests.support.plans import plan_of

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
    assert not regions.apart and regions.behind == 3 and regions.with_registers(plan) == {FRONT + 1}


def test_levels_are_apart_from_a_product_that_streams() -> None:
    """In front, levels of both recursions, logits and their gradients, levels backward, behind."""
    plan = plan_of("encoder_decoder", TARGETS)
    regions = Regions.of(plan)
    assert regions.apart and regions.behind == FRONT + 4
    held = regions.with_registers(plan)
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
