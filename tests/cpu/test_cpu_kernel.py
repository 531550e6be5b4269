"""The CPU kernel against the interpreter: random structures, grids, sizes and passes left out.

A kernel is compiled once; the sharing of the work among workers is a matter of the schedule.
"""

from __future__ import annotations

import gc
from functools import cache
from weakref import ref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnc.codegen.cpu_kernel import build_cpu
from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.interpreter import interpret
from dnc.ir.optimizers import Hyper
from dnc.ir.plan import Plan
from dnc.ir.program import Program
from dnc.runtime.cpu_backend import CpuBackend
from dnc.runtime.initialize import initialize
from dnc.runtime.pool import static_pool
from dnc.runtime.results import StepResult
from dnc.runtime.session import Session
from tests.support.executors import Bench, OnGrid, check_evaluation, check_training
from tests.support.forests import SHAPES, ForestGrower
from tests.support.models import EXAMPLES, VOCABULARY
from tests.support.queues import damaged

SIZES = {
    "treelstm": {"hidden": 6, "embed": 5},
    "bilstm_tagger": {"hidden": 5, "embed": 4},
    "layer_norm_lstm": {"hidden": 72, "embed": 12},
    "lstm2": {"hidden": 5, "embed": 4},
    "lstm_classifier": {"hidden": 6, "embed": 4},
    "dag": {"hidden": 6},
    "gru_classifier": {"hidden": 18, "embed": 5},
    "childsum": {"hidden": 33, "embed": 20},
    "attention": {"hidden": 20, "embed": 6, "targets": 11},
    "mvrnn": {"width": 5},
    "similarity": {"hidden": 18, "embed": 6, "mlp": 5},
    "char_rnn": {"hidden": 17, "embed": 4, "chars": 11},
    "rnn_stack": {"hidden": 18, "layers": 3, "chars": 11},
}
GRIDS = ((1, 1), (2, 1), (1, 2), (1, 4), (1, 7), (2, 2), (3, 2))
WITHOUT: tuple[tuple[str, ...], ...] = (("fuse",), ("hoist",), ("inline",), ("fuse", "hoist", "inline"))
# Kernels that the random batches run on: some examples, and every pass left out of two of them.
KERNELS: list[tuple[str, tuple[str, ...]]] = [
    (name, ()) for name in ("attention", "bilstm_tagger", "childsum", "dag", "lstm2", "treelstm")
]
KERNELS += [("treelstm", WITHOUT[-1])]
VERTICES = 160
"""Vertices of a batch, at most: what the interpreter does in a tenth of a second."""


def model(name: str, without: tuple[str, ...] = (), **sizes: int) -> tuple[Program, Plan, CpuBackend]:
    """An example, compiled for this machine; the same backend whenever it is asked for."""
    return compiled(name, without, tuple(sizes.items()) or tuple(SIZES[name].items()))


@cache
def compiled(
    name: str, without: tuple[str, ...], sizes: tuple[tuple[str, int], ...], repeat: bool = False
) -> tuple[Program, Plan, CpuBackend]:
    options = PlanOptions(without=without, repeat=repeat, reduce=repeat)
    path = EXAMPLES / f"{name}.dn"
    source = Source(str(path), path.read_text())
    program = transform(load_program(source, dict(sizes))[0], options)
    plan = make_plan(program, "cpu", options)
    return program, plan, CpuBackend(plan, build_cpu(plan))


def bench(
    name: str,
    grid: tuple[int, int],
    batch: int,
    shape: str = "random",
    sharing: float = 0.0,
    seed: int = 0,
    without: tuple[str, ...] = (),
    **sizes: int,
) -> Bench:
    program, plan, backend = model(name, without, **sizes)
    forest = ForestGrower(program, seed).grow(batch, max(1, VERTICES // batch), shape, sharing)
    return Bench(program, plan, OnGrid(backend, grid), forest, seed)  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    kernel=st.sampled_from(KERNELS),
    grid=st.sampled_from(GRIDS),
    batch=st.integers(1, 40),
    shape=st.sampled_from(SHAPES),
    shared=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_random_batches(
    kernel: tuple[str, tuple[str, ...]],
    grid: tuple[int, int],
    batch: int,
    shape: str,
    shared: bool,
    seed: int,
) -> None:
    name, without = kernel
    made = bench(name, grid, batch, shape, 0.4 if name == "dag" and shared else 0.0, seed, without)
    check_training(made)
    check_evaluation(made)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", sorted(SIZES))
def test_every_example_on_every_grid(name: str, grid: tuple[int, int]) -> None:
    made = bench(name, grid, 5, seed=2)
    check_training(made)
    check_evaluation(made)


@pytest.mark.parametrize("name", ["attention", "char_rnn", "childsum", "gru_classifier", "layer_norm_lstm"])
def test_values_that_every_worker_makes(name: str) -> None:
    program, plan, backend = compiled(name, (), tuple(SIZES[name].items()), repeat=True)
    assert any(segment.repeated for segment in plan.segments)
    for grid in GRIDS[1::2]:
        for batch in (5, 70):  # more rows than a tile
            forest = ForestGrower(program, batch).grow(batch, 6)
            made = Bench(program, plan, OnGrid(backend, grid), forest, batch)  # type: ignore[arg-type]
            check_training(made)
            check_evaluation(made)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["treelstm", "dag"])
def test_every_shape(name: str, shape: str) -> None:
    sharing = 0.5 if name == "dag" else 0.0
    check_training(bench(name, (2, 1), 7, shape, sharing, seed=5))
    check_training(bench(name, (1, 2), 1, shape, sharing, seed=6))


@pytest.mark.parametrize("hidden, embed", [(5, 33), (33, 5), (64, 64), (100, 17)])
def test_sizes_that_do_and_do_not_fill_vectors(hidden: int, embed: int) -> None:
    for grid in ((1, 1), (1, 2), (1, 7), (3, 2)):
        check_training(bench("treelstm", grid, 9, seed=hidden, hidden=hidden, embed=embed))


def test_more_vertices_than_a_tile_and_more_workers_than_units() -> None:
    check_training(bench("treelstm", (1, 7), 60, "single"))
    check_training(bench("lstm_classifier", (1, 7), 150, "single"))


@pytest.mark.parametrize("grid", GRIDS)
def test_the_same_bits_twice(grid: tuple[int, int]) -> None:
    made, found = bench("bilstm_tagger", grid, 12, seed=8), []
    for _ in range(2):
        _, results = made.launch("train", Hyper(learning_rate=0.5))
        found.append({"results": results, **made.parameters()})
    for name, value in found[0].items():
        assert np.array_equal(value, found[1][name]), name


# ---- the update ----------------------------------------------------------------------------------


def updated(made: Bench, hyper: Hyper) -> dict[str, np.ndarray]:
    """Every parameter after one update, from the interpreter's gradients."""
    gradients = interpret(made.program, made.forest, made.values).gradients
    norm = np.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
    scale = min(1.0, hyper.clip_norm / norm)
    after = {}
    for name, before in made.values.items():
        step = gradients[name] * scale
        if hyper.optimizer == "adagrad":
            # The element's state starts at zero, so its root is the size of the step itself.
            step = step / (np.abs(step) + hyper.epsilon)
        after[name] = before - hyper.learning_rate * step
    return after


@pytest.mark.parametrize("clip", [float("inf"), 0.05])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("grid", [(1, 2), (3, 2)])
def test_the_update_is_that_of_the_optimizer(grid: tuple[int, int], optimizer: str, clip: float) -> None:
    made = bench("childsum", grid, 6, seed=4)
    # A large epsilon: near a gradient of zero AdaGrad would show nothing but rounding.
    hyper = Hyper(optimizer, learning_rate=0.3, clip_norm=clip, epsilon=1e-2)
    made.launch("train", hyper)
    expected = updated(made, hyper)
    for name, found in made.parameters().items():
        np.testing.assert_allclose(found, expected[name], atol=3e-5, err_msg=name)


def test_machine_code_of_a_kernel_is_made_once() -> None:
    """It takes seconds; every model of a build, and every grid that is timed, has the same."""
    _, plan, _ = model("dag")
    files = build_cpu(plan)
    assert CpuBackend(plan, files)._module is CpuBackend(plan, files)._module


def test_a_norm_that_is_not_finite_leaves_the_parameters() -> None:
    made = bench("treelstm", (1, 2), 3)
    made.values["V"][0, 0] = np.inf
    _, results = made.launch("train", Hyper(learning_rate=0.1))
    assert results[isa.RESULT_UPDATED] == 0 and not np.isfinite(results[isa.RESULT_NORM])
    for name, found in made.parameters().items():
        assert np.array_equal(found, made.values[name]), name


# ---- a session -----------------------------------------------------------------------------------


def session(name: str, memory: int | None = None) -> Session:
    """A session on the one backend of an example, whose pool it takes over."""
    program, plan, backend = model(name)
    rows = {p.name: VOCABULARY for p in plan.program.parameters if p.kind == "table"}
    return Session(plan, OnGrid(backend, (2, 1)), rows, initialize(program, rows, 1), memory)  # type: ignore[arg-type]


def test_a_pool_that_was_replaced_is_given_back(nothing_to_collect: None) -> None:
    own = session("treelstm")
    data = own.attach(ForestGrower(own.plan.program, 3).grow(20, 12))
    list(own.predictions(data, [[at] for at in range(20)]))
    results = own.backend.finish(0)
    for replaces in (lambda: own.memory.grow(10, 2 * own.memory.words), own.backend.close):
        array = own.backend.pool_array()
        pool = ref(array if array.base is None else array.base)
        del array
        replaces()
        gc.collect()
        assert pool() is None
        np.testing.assert_array_equal(own.backend.finish(0), results)


@pytest.mark.parametrize("name", ["treelstm", "dag"])
def test_a_batch_in_parts_is_one_update(name: str) -> None:
    forest = ForestGrower(model(name)[0], 3).grow(9, 12)
    samples, rate = np.arange(9, dtype=np.int32), Hyper("sgd", 0.1)

    def train(memory: int | None) -> tuple[Session, StepResult, dict[str, np.ndarray]]:
        made = session(name, memory)
        made.step(made.attach(forest), samples, rate)
        result = made.sync()
        assert result is not None
        return made, result, made.read_arrays()

    whole, expected, after = train(None)
    encoded = whole.attach(forest).encode(samples, replicas=2)
    pool = static_pool(whole.plan, whole.memory.table_rows, len(encoded.words))
    tight = pool.words + encoded.activations * 2 // 3
    (_, result, once), (_, _, twice) = train(tight), train(tight)
    assert expected.parts == 1 and result.parts > 1
    np.testing.assert_allclose((result.loss, result.norm), (expected.loss, expected.norm), rtol=1e-5)
    for parameter, value in after.items():
        np.testing.assert_allclose(once[parameter], value, rtol=1e-5, atol=1e-6)
        assert np.array_equal(once[parameter], twice[parameter])


# ---- launches that are given up ------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, word, value, message",
    [
        (isa.REPLICA_BARRIER, 1, 50, r"barrier of a replica, \d+ arrivals missing"),
        (isa.GRID_BARRIER, 1, 50, r"barrier of the whole grid, \d+ arrivals missing"),
        (isa.NORM, 0, 99, "none: an unknown opcode"),
        (isa.NORM, 0, -1, "none: an unknown opcode"),
    ],
)
def test_a_launch_that_cannot_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, name: str, word: int, value: int, message: str
) -> None:
    made = bench("treelstm", (1, 2), 3)
    made.launch("train")
    backend = model("treelstm")[2]
    with monkeypatch.context() as patch:
        patch.setattr(backend, "_limit", 1 << 15)
        schedule = made.encoder.encode(made.samples, replicas=1, workers=2)
        backend.launch([damaged(schedule, 0, name, 0, word, value)], 0)
        with pytest.raises(DiagnosticError, match=rf"worker \d gave up at instruction \d+ \({message}"):
            backend.finish(0)
    check_training(made)  # the next launch is not troubled
