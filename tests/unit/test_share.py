"""What a loss, metrics and outputs compute alike is computed once, outside of them."""

import numpy as np
import pytest

from dnc.compiler import transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir.interpreter import interpret
from dnc.ir.opdef import PRODUCT
from dnc.ir.ops import OPS
from dnc.ir.program import FORWARD, LEVEL, Program, SavedInput, Stage
from dnc.passes.share import SHARED, Share
from dnc.runtime.phases import EVALUATE, PREDICT, TRAIN, needed_stages
from tests.support.executors import random_parameters
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES
from tests.support.plans import plan_of
from tests.support.programs import program_of

LARGE = {
    "language_model": {"hidden": 16, "embed": 4, "vocab": 1000},
    "attention": {"hidden": 8, "targets": 2000},
}


def program(name: str, without: tuple[str, ...] = ()) -> Program:
    return plan_of(name, LARGE[name], without=without).program


def multiplies(stage: Stage) -> bool:
    return any(OPS[op.opcode].has(PRODUCT) for op in stage.cell.ops)


@pytest.mark.parametrize("name", sorted(LARGE))
def test_large_products_are_made_once(name: str) -> None:
    found = program(name)
    late = [s for s in found.stages if s.direction == FORWARD and s.placement != LEVEL and s.space == "loss"]
    assert [stage.name for stage in late if multiplies(stage)] == [SHARED]
    readers = [stage for stage in late if stage.name != SHARED]
    assert {"loss", "accuracy", "output"} <= {stage.name for stage in readers}
    for stage in readers:
        assert any(isinstance(source, SavedInput) and source.stage == SHARED for source in stage.inputs)
    assert len({stage.space for stage in readers}) == 1


@pytest.mark.parametrize("name", sorted(LARGE))
def test_values_and_gradients_are_those_without_it(name: str) -> None:
    shared, apart = program(name), program(name, ("share",))
    forest = ForestGrower(shared, 3).grow(3, 5, "random", 0.0)
    values = random_parameters(shared, 3)
    one, other = (interpret(each, forest, values) for each in (shared, apart))
    assert one.loss == pytest.approx(other.loss, rel=1e-12)
    for found, expected in ((one.gradients, other.gradients), (one.outputs, other.outputs)):
        assert found.keys() == expected.keys()
        for key, array in found.items():
            np.testing.assert_allclose(array, expected[key], rtol=1e-12, atol=1e-300)
    assert one.metrics == other.metrics


@pytest.mark.parametrize("mode", [TRAIN, EVALUATE, PREDICT])
def test_training_runs_as_many_segments_and_others_no_more(mode: str) -> None:
    for name, sizes in LARGE.items():
        plans = [plan_of(name, sizes, without=without) for without in ((), ("share",))]
        counts = [
            sum(segment.stage in needed_stages(plan, mode) for segment in plan.segments) for plan in plans
        ]
        assert counts[0] < counts[1] if mode == EVALUATE else counts[0] == counts[1]


def test_predictions_need_no_labels() -> None:
    plan = plan_of("language_model", LARGE["language_model"])
    assert "loss" not in needed_stages(plan, PREDICT) and SHARED in needed_stages(plan, PREDICT)


def test_small_products_stay_where_they_are() -> None:
    plan = plan_of("treelstm", {"hidden": 16, "embed": 4})
    assert SHARED not in {stage.name for stage in plan.program.stages}
    assert SHARED in {stage.name for stage in Share(vertex_floats=0)(plan.program).stages}


def test_each_product_goes_to_all_that_have_it() -> None:
    """V is multiplied by all, Z by the loss and the output."""
    text = (EXAMPLES / "language_model.dn").read_text()
    for old, new in (
        ("\nloss ", "\nparam Z: [vocab, vocab]\nfn more(w: Word) = Z @ tanh(logits(w))\nloss "),
        (
            "loss    sum(w in all(Word)) cross_entropy(logits(w)",
            "loss    sum(w in all(Word)) cross_entropy(more(w)",
        ),
        ("[argmax(logits(w))", "[argmax(more(w))"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    found = transform(load_program(Source("m.dn", text), LARGE["language_model"])[0])
    readers = {
        stage.name: {source.stage for source in stage.inputs if isinstance(source, SavedInput)}
        for stage in found.stages
        if stage.direction == FORWARD
    }
    assert readers["accuracy"] == readers["perplexity"] == readers[f"{SHARED}.2"] == {SHARED}
    assert readers["loss"] == readers["output"] == {f"{SHARED}.2"}


def test_functions_and_recursions_share_nothing() -> None:
    """Without `hoist` all stages are in the recursion; stages of functions keep their spaces."""
    levels = program("language_model", ("hoist",))
    assert Share(vertex_floats=0)(levels) == levels
    for seed in range(40):
        made = transform(load_program(Source("random.dn", program_of(seed)), {})[0])
        found = Share(vertex_floats=0)(made)
        functions = [stage for stage in found.stages if stage.function is not None]
        assert functions == [stage for stage in made.stages if stage.function is not None]
