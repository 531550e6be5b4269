"""Running parameters: what moves them and by how much, and what leaves them as they are."""

from pathlib import Path

import attrs
import numpy as np
import pytest

import dnc
import dnc.kernel_cache
from dnc.compiler import PlanOptions, compile_model, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.parser import parse_program
from dnc.ir.printer import print_program
from dnc.ir.program import FollowOutput, ShareInput
from dnc.runtime.backend import VMBackend
from tests.support.executors import Bench, check_evaluation, check_group, check_parts, check_training
from tests.support.forests import ForestGrower

PROGRAM = """
model Norm(kinds = 3, width = 4)
struct Cell = Cell(kind: index<kinds>, x: vector<width>, before: Cell?)
param W: [width, width], V: [width]
running param mean: [width], spread: stack[kinds, width] = constant(1)
fn f(c: Cell) -> [width]:
    a = c.x + W @ f(c.before)
    d = a - follow(mean, a, 0.5)
    tanh(d / sqrt(follow(spread[c.kind], d * d, 0.25) + 0.1))
loss sum(c in all(Cell)) squared_error(f(c), V)
output y = f(root)
"""


def program(text: str = PROGRAM):
    return load_program(Source("norm.dn", text), {})[0]


def bench(grid: tuple[int, int] = (2, 3), text: str = PROGRAM) -> Bench:
    changed = transform(program(text), PlanOptions())
    plan = make_plan(changed, "cpu", PlanOptions())
    forest = ForestGrower(changed, 1).grow(5, 6)
    return Bench(changed, plan, VMBackend(plan, *grid, 1), forest, 1)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "norm.dn").write_text(PROGRAM)

    def load(width: int = 4):
        build = tmp_path / f"build-{width}"
        if not build.exists():
            compile_model(tmp_path / "norm.dn", build, ("cpu",), {"width": width})
        return dnc.load(build, "vm", seed=2)

    return load


SAMPLES = [
    {"kind": 0, "x": [1, 2, 3, 4], "before": {"kind": 2, "x": [0, 1, 0, 1]}},
    {"kind": 2, "x": [-1, 0, 1, 0]},
]


def test_a_step_moves_by_the_rate_to_the_mean(model) -> None:
    made = model()
    made.attach(SAMPLES)
    made.set_parameters({"W": np.zeros((4, 4), np.float32)})
    made.step([0, 1])
    made.sync()
    after, x = made.parameters(), np.array([[1, 2, 3, 4], [0, 1, 0, 1], [-1, 0, 1, 0]])
    np.testing.assert_allclose(after["mean"], 0.5 * x.mean(axis=0), rtol=1e-6)
    squares = x**2  # the mean was zero before the step
    np.testing.assert_allclose(after["spread"][0], 1 + 0.25 * (squares[0] - 1), rtol=1e-6)
    np.testing.assert_allclose(after["spread"][1], 1)  # which no vertex selects
    np.testing.assert_allclose(after["spread"][2], 1 + 0.25 * (squares[1:].mean(axis=0) - 1), rtol=1e-6)


def test_evaluation_and_prediction_move_nothing(model) -> None:
    made = model()
    made.attach(SAMPLES)
    made.step([0, 1])
    made.sync()
    before = made.parameters()
    made.evaluate([0, 1])
    made.predict(SAMPLES)
    for name, value in made.parameters().items():
        np.testing.assert_array_equal(value, before[name])


def test_a_checkpoint_goes_on_to_the_same_bits(model, tmp_path: Path) -> None:
    whole, first = model(), model()
    for made in (whole, first):
        made.configure("nesterov", 0.1, momentum=0.5)
        made.attach(SAMPLES)
        made.step([0, 1])
        made.sync()
    first.save(tmp_path / "half.safetensors")
    second = model()
    second.restore(tmp_path / "half.safetensors")
    second.attach(SAMPLES)
    for made in (whole, second):
        made.step([1, 0])
        made.sync()
    for name, value in whole.parameters().items():
        np.testing.assert_array_equal(second.parameters()[name], value)


@pytest.mark.parametrize("grid", [(1, 1), (2, 3), (3, 1)])
def test_against_the_definition(grid: tuple[int, int]) -> None:
    made = bench(grid)
    check_training(made)
    check_evaluation(made)
    check_parts(made)
    check_group(made)


def test_several_calls_move_one_parameter_together() -> None:
    text = PROGRAM.replace("tanh(d /", "tanh(follow(mean, d, 0.5) + d /")
    made = bench(text=text)
    assert len(made.program.followers("mean")) == 2
    check_training(made)
    check_parts(made)


def test_a_norm_that_is_not_finite_moves_nothing() -> None:
    made = bench()
    made.values["V"] = np.full(4, 1e30, np.float32)
    with np.errstate(all="ignore"):
        _, results = made.launch("train")
    assert results[isa.RESULT_UPDATED] == 0
    for name, value in made.parameters().items():
        np.testing.assert_array_equal(value, made.values[name])


def test_text_of_the_program_before_and_after_differentiation() -> None:
    for changed in (program(), transform(program(), PlanOptions())):
        assert parse_program(print_program(changed)) == changed


def test_a_build_for_inference_has_only_their_values() -> None:
    changed = transform(program(), PlanOptions(mode="infer"))
    assert not any(isinstance(output, FollowOutput) for stage in changed.stages for output in stage.outputs)
    assert not any(isinstance(bound, ShareInput) for stage in changed.stages for bound in stage.inputs)
    plan = make_plan(changed, "cpu", PlanOptions(mode="infer"))
    assert isa.FOLLOW not in {opcode.name for opcode in plan.opcodes}
    assert plan == attrs.evolve(plan, trains=False)


def test_what_was_hoisted_for_it_goes_with_it() -> None:
    text = """model Hoisted(d = 3)
struct Word = Word(x: vector<d>)
struct Text = Text(words: [Word])
param P: [d, d]
running param m: [d]
fn f(w: Word) -> [d] = tanh(f(w.prev) + follow(m, P @ w.x, 0.1))
loss sum(w in all(Word)) sum(f(w))
"""
    made = load_program(Source("m.dn", text), {})[0]
    for without in ((), ("canonicalize",)):
        changed = transform(made, PlanOptions(mode="infer", without=without))
        assert not any(isinstance(bound, ShareInput) for stage in changed.stages for bound in stage.inputs)


def test_a_batch_beyond_all_addresses_is_launched_in_parts(model, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(size=(6, 120)).tolist()
    samples = [{"kind": n % 3, "x": x[n], "before": {"kind": 1, "x": x[n - 1]}} for n in range(6)]
    whole, cut = model(120), model(120)
    for made in (whole, cut):
        made.attach(samples)
        made.configure("sgd", 0.01)
    whole.step(range(6))
    whole.sync()
    data = whole.attach(samples)
    schedule = whole.encoder(data).encode(np.arange(6, dtype=np.int32))
    last = (schedule.static_words + schedule.activations) // 4 - 1
    monkeypatch.setattr("dnc.runtime.encoder.MAX_ADDRESS", last)
    monkeypatch.setattr("dnc.runtime.memory.MAX_ADDRESS", last)
    cut.session.step(cut.encoder(cut.attach(samples)), range(6), cut.hyper)
    found = cut.session.sync()
    assert found is not None and found.parts > 1
    for name, value in whole.parameters().items():
        np.testing.assert_allclose(cut.parameters()[name], value, rtol=1e-4, atol=1e-5)


def test_samples_of_one_shape_that_select_otherwise(model) -> None:
    chains = [
        {"kind": a, "x": [1, 2, 3, a], "before": {"kind": b, "x": [0, b, 0, 1]}}
        for a in (0, 2)
        for b in (1, 2, 0)
    ]
    together, fresh = model(), model()
    together.attach(chains)
    fresh.attach(chains)
    for chain in chains:
        found = together.predict([chain])["y"][0]
        np.testing.assert_array_equal(found, fresh.predict(chains)["y"][chains.index(chain)])
