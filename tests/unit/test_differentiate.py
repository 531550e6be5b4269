"""Reverse mode: whole-program gradients against finite differences, and what the stages look like."""

from pathlib import Path

import attrs
import numpy as np
import pytest

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.ir.forest import Forest
from dnc.ir.interpreter import interpret
from dnc.ir.parser import parse_program
from dnc.ir.plan import UNIT
from dnc.ir.program import BACKWARD, EARLY, LATE, SavedInput, SlotOutput, StateInput
from dnc.ir.verifier import verify
from dnc.passes.canonicalize import Canonicalize
from dnc.passes.differentiate import Differentiate
from dnc.passes.hoist import Hoist
from tests.support.forests import ForestGrower
from tests.support.gradients import check_gradients
from tests.support.ir_models import MODELS, dag, instance

EXAMPLES = [p for p in sorted(Path("examples").glob("*.dn")) if "\nloss" in p.read_text()]
PIPELINES = {
    "plain": (Differentiate(),),
    "hoisted": (Hoist(), Differentiate()),
    "all": (Canonicalize(), Hoist(), Differentiate(), Canonicalize()),
}


def through(passes, program):
    for step in passes:
        program = step(program)
        verify(program)
    return program


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("model", MODELS)
def test_gradients_of_models(model, pipeline):
    program, forest, parameters = instance(model, seed=5)
    changed = through(PIPELINES[pipeline], program)
    assert interpret(changed, forest, parameters).loss == pytest.approx(
        interpret(program, forest, parameters).loss
    )
    check_gradients(changed, forest, parameters, program)


SMALL = {"layers": 2, "embed": 3, "hidden": 2, "width": 3, "classes": 3, "tags": 3}


def load(path):
    """An example with small dimensions, a random forest and random parameters."""
    text = path.read_text()
    head = next(line for line in text.split("\n") if line.startswith("model"))
    settings = {name: size for name, size in SMALL.items() if name in head}
    if "pieces(1, 2" in text:  # a number for each of five classes
        settings["classes"] = 5
    program, _ = load_program(Source(str(path), text), settings)
    sharing = 0.0 if ".prev" in text else 0.5  # a word that is shared has no one before it
    forest: Forest = ForestGrower(program, 3).grow(samples=3, size=6, sharing=sharing)
    random = np.random.default_rng(4)
    parameters = {
        p.name: random.normal(scale=0.5, size=tuple(dim.size or 11 for dim in p.dimensions))
        for p in program.parameters
    }
    for p in program.parameters:
        if p.running:  # of a variance the root is taken
            parameters[p.name] = np.abs(parameters[p.name]) + 0.5
    return program, forest, parameters


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_gradients_of_examples(path):
    program, forest, parameters = load(path)
    verify(program)
    plain = interpret(through(PIPELINES["plain"], program), forest, parameters).gradients
    changed = through(PIPELINES["all"], program)
    check_gradients(changed, forest, parameters, program, directions=1)
    for name, gradient in interpret(changed, forest, parameters).gradients.items():
        np.testing.assert_allclose(gradient, plain[name], rtol=1e-9, atol=1e-12)


def test_frozen_parameters_get_no_gradient():
    program = dag(frozen=True)
    _, forest, parameters = instance("dag", seed=6)
    changed = through(PIPELINES["all"], program)
    check_gradients(changed, forest, parameters, program)
    assert {pair.parameter for pair in changed.weight_gradients} == {"U", "b", "D", "V", "b_v"}
    assert "up.pre.grad" not in {stage.name for stage in changed.stages}


def test_placements_are_mirrored():
    stages = {stage.name: stage for stage in through(PIPELINES["all"], instance("tree")[0]).stages}
    assert [name for name, stage in stages.items() if stage.direction == BACKWARD] == [
        "head.Tree.all.grad",
        "encode.Node.grad",
        "encode.Leaf.grad",
    ]
    assert stages["encode.Leaf.grad"].placement == LATE
    assert stages["head.Tree.all.grad"].placement == EARLY


def test_inputs_are_read_again_and_not_saved():
    changed = through(PIPELINES["all"], instance("tree")[0])
    node = changed.stage("encode.Node.grad")
    assert StateInput("encode", "c", ("left",)) in node.inputs
    saved = [source for source in node.inputs if isinstance(source, SavedInput)]
    assert len(saved) == 6  # five gates and tanh(c)
    (pair,) = [pair for pair in changed.weight_gradients if pair.parameter == "U"]
    left, right = (StateInput("encode", "h", (side,)) for side in ("left", "right"))
    assert pair.x == ((left, 0, 3), (right, 0, 3))


def test_a_scalar_of_a_whole_vector_is_kept_by_the_forward_stage():
    text = Path("examples/language_model.dn").read_text()
    program = transform(load_program(Source("language_model.dn", text), {"vocab": 600})[0])
    stages = {stage.name: stage for stage in program.stages}
    makes = [name for name, stage in stages.items() if "max" in {op.opcode for op in stage.cell.ops}]
    assert makes == ["loss"]  # neither perplexity, which has no gradient, nor the gradient itself
    kept = {source.name for source in stages["loss.grad"].inputs if isinstance(source, SavedInput)}
    assert {"max", "softmax_scale"} <= kept
    plan = make_plan(program, "sm_90a")
    segments = [segment for segment in plan.segments if segment.stage == "loss.grad"]
    assert [segment.mapping for segment in segments] == [UNIT]  # scores are read once more, where V is
    assert [turned.parameter for turned in segments[0].transposed] == ["V"]


def test_a_value_that_is_a_state_is_read_as_a_state():
    changed = through((Differentiate(),), instance("dag")[0])
    up = changed.stage("up.grad")
    assert StateInput("up", "h", ()) in up.inputs  # tanh's derivative by its result


def test_every_edge_has_a_slot():
    changed = through((Differentiate(),), instance("tree")[0])
    slots = [output for output in changed.stage("encode.Node.grad").outputs if isinstance(output, SlotOutput)]
    assert {(slot.component, slot.path) for slot in slots} == {
        (component, (side,)) for component in "hc" for side in ("left", "right")
    }


MATRIX = """
program Matrix
struct Thing { Thing(x: vector<3>) }
root Thing
parameter A: dense[m = 2, k = 3] = zeros(0.0)
parameter B: dense[k = 3, n = 2] = zeros(0.0)
parameter v: dense[n = 2] = zeros(0.0)
parameter s: dense[] = zeros(0.0)
space all = Thing(Thing) all
stage loss over all late forward {
  input %A: f32[2x3] = parameter A
  input %B: f32[3x2] = parameter B
  input %v: f32[2] = parameter v
  input %s: f32[] = parameter s
  input %x: f32[3] = field x at ()
  %BA: f32[3x3] = matmul(%B, %A)
  %y: f32[3] = matmul(%BA, %x)
  %z: f32[2] = matmul_t(%B, %y)
  %t0: f32[2] = tanh(%z)
  %t: f32[2] = mul(%t0, %s)
  %e: f32[] = squared_error(%t, %v)
  loss = %e
}
"""


def matrix_instance():
    program = parse_program(MATRIX)
    random = np.random.default_rng(0)
    forest = ForestGrower(program, 0).grow(samples=3, size=1)
    return program, forest, {p.name: random.normal(size=p.type.shape) for p in program.parameters}


@pytest.mark.parametrize(("pipeline", "pieces"), [("hoisted", [0, 1]), ("all", [1, 1])])
def test_matrices_times_matrices(pipeline, pieces):
    program, forest, parameters = matrix_instance()
    changed = through(PIPELINES[pipeline], program)
    check_gradients(changed, forest, parameters, program)
    pairs = [pair for pair in changed.weight_gradients if pair.parameter == "B"]
    # B @ A per row, unless it has become B @ (A @ x); B's transpose as a pair
    assert sorted(len(pair.x) for pair in pairs) == pieces


def test_a_large_matrix_gradient_is_refused():
    program, _, _ = matrix_instance()
    with pytest.raises(DiagnosticError) as caught:
        Differentiate(matrix_limit=5)(program)
    assert "the gradient of 'A' in 'loss' is not a product of two vectors" in str(caught.value)
    assert "6 numbers a row; at most 5 are kept" in str(caught.value)
    assert "<program>:16:3" in str(caught.value)


def test_large_computed_matrices_have_products_of_two_vectors():
    """-C @ x is (-C) @ x, and 2 * C @ x is (2 * C) @ x."""
    text = """model M(d = 128)
struct T = T(x: vector<d>, s: float)
param A: [64, d], B: [64, d], C: [d, d], D: [d, d]
loss sum(t in root) sum(-C @ t.x + 2 * D @ t.x + t.s * C @ D @ t.x) + sum(concat(A, B) @ t.x)
"""
    program = transform(load_program(Source("m.dn", text), {})[0], PlanOptions())
    assert {pair.parameter for pair in program.weight_gradients} == set("ABCD")
    assert all(pair.x for pair in program.weight_gradients)


def test_without_a_loss_nothing_happens():
    program = instance("tree")[0]
    program = attrs.evolve(program, stages=program.stages[:2])
    assert Differentiate()(program) == program
