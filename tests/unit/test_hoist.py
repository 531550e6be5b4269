"""Placement of stages, products moved out of the recursion, and unchanged values."""

import pytest

from dnc.ir.interpreter import interpret
from dnc.ir.opdef import PRODUCT
from dnc.ir.ops import OPS
from dnc.ir.program import EARLY, LATE, LEVEL, SavedInput
from dnc.ir.verifier import verify
from dnc.passes.differentiate import Differentiate
from dnc.passes.hoist import Hoist
from tests.support.ir_models import MODELS, instance


def placements(program):
    return {stage.name: stage.placement for stage in program.stages}


def test_leaves_are_early_and_losses_late():
    assert placements(Hoist()(instance("tree")[0])) == {
        "encode.Leaf": EARLY,
        "encode.Node": LEVEL,
        "head.Tree.all": LATE,
    }


def test_input_products_leave_the_recursion():
    program = Hoist()(instance("bilstm")[0])
    assert placements(program) == {
        "forward.pre": EARLY,
        "forward": LEVEL,
        "backward.pre": EARLY,
        "backward": LEVEL,
        "tags": LATE,
        "head.Sentence": LATE,
    }
    products = [op for op in program.stage("forward").cell.ops if OPS[op.opcode].has(PRODUCT)]
    assert len(products) == 1  # U @ h
    pre = program.stage("forward.pre")
    assert [op.opcode for op in pre.cell.ops] == ["concat", "matmul", "mul"]
    saved = [source for source in program.stage("forward").inputs if isinstance(source, SavedInput)]
    assert saved == [SavedInput("forward.pre", pre.outputs[0].name)]


def test_a_state_that_waits_for_another_recursion_stays():
    program = Hoist()(instance("dag")[0])
    assert placements(program)["down"] == LEVEL and "down.pre" not in placements(program)


def test_gradients_of_hoisted_products_are_late():
    program = Differentiate()(Hoist()(instance("bilstm")[0]))
    assert program.stage("forward.pre.grad").placement == LATE
    (pair,) = [pair for pair in program.weight_gradients if pair.parameter == "U_forward"]
    assert pair.stage == "forward.grad"


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_values_stay_what_they_were(model, split):
    program, forest, parameters = instance(model)
    changed = Hoist(split=split)(program)
    verify(changed)
    before, after = (interpret(p, forest, parameters) for p in (program, changed))
    assert before.loss == after.loss and before.metrics == after.metrics
    for key, states in before.states.items():
        assert (states == after.states[key]).all()


def test_it_refuses_a_differentiated_program():
    with pytest.raises(ValueError, match="hoist runs before differentiate"):
        Hoist()(Differentiate()(instance("tree")[0]))
