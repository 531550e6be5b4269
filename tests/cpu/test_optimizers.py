"""Every optimizer, many steps, on the reference VM and the CPU kernel, against formulas written here.

The formulas are those of the papers in float64, on the interpreter's gradients: whole arrays for dense
parameters, and for tables only the rows that a batch touches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import attrs
import numpy as np
import pytest

from dnc.codegen.cpu_kernel import build_cpu
from dnc.compiler import make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.interpreter import interpret
from dnc.ir.opdef import NUMPY_MATH
from dnc.ir.optimizers import OPTIMIZERS, Hyper, default_hyper
from dnc.ir.plan import Plan
from dnc.runtime.backend import VMBackend
from dnc.runtime.cpu_backend import CpuBackend
from dnc.runtime.initialize import initialize
from dnc.runtime.session import Session
from dnc.runtime.trainer import shuffled
from tests.support.forests import ForestGrower
from tests.support.models import VOCABULARY

Array = np.ndarray[Any, Any]

# Dense parameters of three rates, a table with its own, a frozen matrix and a frozen table.
PROGRAM = """
model Tags(vocab, embed = 5, hidden = 17, tags = 4)

struct Sentence = Sentence(words: [Word])
struct Word = Word(form: token<vocab>, tag: class<tags>)

param E: table[vocab, embed] = normal(0.5) lr * 0.5
frozen param F: table[vocab, embed] = normal(0.5)
param W: [hidden, embed], U: [hidden, hidden] lr * 0.25
frozen param A: [embed, embed] = normal(0.5)
param b: [hidden] lr * 2, V: [tags, hidden] = normal(0.5) lr * 0.25

cell step(h: [hidden], x: [embed]) -> [hidden] = tanh(W @ x + U @ h + b)

fn memory(w: Word) -> [hidden] = step(memory(w.prev), E[w.form] + A @ F[w.form])

loss sum(w in all(Word)) cross_entropy(V @ memory(w), w.tag)
"""
# About how far a step moves an element: some optimizers take the size of a gradient, some its sign.
RATES = {"sgd": 0.3, "momentum": 0.1, "nesterov": 0.1, "adagrad": 0.1, "adam": 0.02, "adamw": 0.02}
STEPS, BATCH, SAMPLES = 30, 3, 8
Formula = Callable[[Hyper, float, int, Array, Array, list[Array]], Array]


def sgd(hyper: Hyper, rate: float, step: int, p: Array, g: Array, state: list[Array]) -> Array:
    return p - rate * (g + hyper.weight_decay * p)


def momentum(hyper: Hyper, rate: float, step: int, p: Array, g: Array, state: list[Array]) -> Array:
    state[0] = hyper.momentum * state[0] + g + hyper.weight_decay * p
    return p - rate * state[0]


def nesterov(hyper: Hyper, rate: float, step: int, p: Array, g: Array, state: list[Array]) -> Array:
    """As Sutskever et al. write it, at the point from which the gradient is taken."""
    before = state[0]
    state[0] = hyper.momentum * before - rate * (g + hyper.weight_decay * p)
    return p + (1 + hyper.momentum) * state[0] - hyper.momentum * before


def adagrad(hyper: Hyper, rate: float, step: int, p: Array, g: Array, state: list[Array]) -> Array:
    g = g + hyper.weight_decay * p
    state[0] = state[0] + g**2
    return p - rate * g / (np.sqrt(state[0]) + hyper.epsilon)


def adam(hyper: Hyper, rate: float, step: int, p: Array, g: Array, state: list[Array]) -> Array:
    g = g + hyper.weight_decay * p
    state[0] = hyper.beta1 * state[0] + (1 - hyper.beta1) * g
    state[1] = hyper.beta2 * state[1] + (1 - hyper.beta2) * g**2
    mean = state[0] / (1 - hyper.beta1**step)
    square = state[1] / (1 - hyper.beta2**step)
    return p - rate * mean / (np.sqrt(square) + hyper.epsilon)


def adamw(hyper: Hyper, rate: float, step: int, p: Array, g: Array, state: list[Array]) -> Array:
    decayed = p * (1 - rate * hyper.weight_decay)
    return decayed - p + adam(attrs.evolve(hyper, weight_decay=0.0), rate, step, p, g, state)


FORMULAS: dict[str, tuple[Formula, int]] = {
    "sgd": (sgd, 0),
    "momentum": (momentum, 1),
    "nesterov": (nesterov, 1),
    "adagrad": (adagrad, 1),
    "adam": (adam, 2),
    "adamw": (adamw, 2),
}


@cache
def plan() -> Plan:
    program, warnings = load_program(Source("tags.dn", PROGRAM), {"vocab": VOCABULARY})
    assert not warnings
    return make_plan(transform(program), "cpu")


@cache
def kernel() -> CpuBackend:
    return CpuBackend(plan(), build_cpu(plan()), 1, 2)


def session(device: str) -> Session:
    rows = {p.name: VOCABULARY for p in plan().program.parameters if p.kind == "table"}
    backend = kernel() if device == "cpu" else VMBackend(plan(), 2, 1)
    return Session(plan(), backend, rows, initialize(plan().program, rows, 1))


def batches() -> list[Array]:
    found: list[Array] = []
    while len(found) < STEPS:
        order = shuffled(SAMPLES, 3, len(found))
        found += [order[begin : begin + BATCH] for begin in range(0, SAMPLES, BATCH)]
    return found[:STEPS]


FOREST = ForestGrower(plan().program, 5).grow(SAMPLES, 3, "random")


def expected(hyper: Hyper, first: dict[str, Array], rates: dict[str, float]) -> dict[str, Array]:
    """Parameters after all steps, by the formulas."""
    formula, states = FORMULAS[hyper.optimizer]
    values = {name: value.astype(np.float64) for name, value in first.items()}
    state = {name: [np.zeros_like(value) for _ in range(states)] for name, value in values.items()}
    for step, batch in enumerate(batches(), start=1):
        chosen = FOREST.select(batch)
        gradients = interpret(plan().program, chosen, values).gradients
        norm = math.sqrt(sum(float((gradients[name] ** 2).sum()) for name in rates))
        scale = min(1.0, hyper.clip_norm / norm)
        for name, factor in rates.items():
            touched: Any = ...
            if name == "E":
                touched = np.unique(np.flatnonzero(np.abs(gradients[name]).sum(axis=1)))
                assert 0 < len(touched) < VOCABULARY
            kept = [each[touched] for each in state[name]]
            g, rate = gradients[name][touched] * scale, hyper.learning_rate * factor
            values[name][touched] = formula(hyper, rate, step, values[name][touched], g, kept)
            for each, now in zip(state[name], kept, strict=True):
                each[touched] = now
    return values


@pytest.mark.parametrize("device", ["vm", "cpu"])
@pytest.mark.parametrize("decay, clip", [(0.0, math.inf), (0.1, 0.3)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_many_steps(device: str, optimizer: str, decay: float, clip: float) -> None:
    hyper = attrs.evolve(
        default_hyper(optimizer, clip), learning_rate=RATES[optimizer], weight_decay=decay, epsilon=1e-3
    )
    made, rates = session(device), {p.name: p.rate for p in plan().program.parameters if not p.frozen}
    assert set(rates.values()) == {0.25, 0.5, 1.0, 2.0}
    first, data = made.read_arrays(), made.attach(FOREST)
    for _ in made.steps(data, batches(), hyper):
        pass
    right, found = expected(hyper, first, rates), made.read_arrays()
    for name, value in found.items():
        moved = float(np.abs(right[name] - first[name]).max())
        if name in rates:
            assert moved > 0.01, (name, moved)
            np.testing.assert_allclose(value, right[name], atol=2e-4 * max(moved, 1.0), err_msg=name)
        else:
            assert np.array_equal(value, first[name]), name
    assert made.optimizer_steps == STEPS


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_grouped_steps_with_changing_rates_are_single_steps(optimizer: str) -> None:
    """One launch after another, each with its own rate and correction, however they are encoded."""

    def hyper(step: int) -> Hyper:
        return attrs.evolve(default_hyper(optimizer), learning_rate=0.1 / step)

    together = session("cpu")
    data = together.attach(FOREST)
    for _ in together.steps(data, batches(), hyper):
        pass
    found, alone = together.read_arrays(), session("cpu")  # which takes over the one backend
    data = alone.attach(FOREST)
    for step, batch in enumerate(batches(), start=1):
        alone.step(data, batch, hyper(step))
    alone.sync()
    for name, value in alone.read_arrays().items():
        assert np.array_equal(value, found[name]), name


def test_another_optimizer_begins_anew() -> None:
    """What one optimizer kept is nothing for another; the pool grows when more is kept."""
    made, fresh = session("vm"), session("vm")
    data, adam = made.attach(FOREST), default_hyper("adam")
    made.step(data, [0, 1], default_hyper("sgd"))
    assert made.memory.pool.states == 0 and made.read_state() == {}
    made.step(data, [2, 3], default_hyper("adagrad"))
    values = made.read_arrays()
    assert made.memory.pool.states == 1 and set(made.read_state()) == {"squares"}
    fresh.write_arrays(values)
    for each in (made, fresh):
        each.step(each.attach(FOREST), [4, 5], adam)
        each.sync()
    assert made.memory.pool.states == 2 and made.optimizer_steps == 1
    for name, value in made.read_arrays().items():
        assert np.array_equal(value, fresh.read_arrays()[name])
    for name, state in made.read_state().items():
        assert all(np.array_equal(state[n], v) for n, v in fresh.read_state()[name].items())


def test_the_state_can_be_taken_elsewhere() -> None:
    whole, first, second = session("vm"), session("vm"), session("vm")
    hyper = default_hyper("adamw")
    order = batches()[:6]
    for _ in whole.steps(whole.attach(FOREST), order, hyper):
        pass
    for _ in first.steps(first.attach(FOREST), order[:4], hyper):
        pass
    second.write_arrays(first.read_arrays())
    second.write_state("adamw", first.optimizer_steps, first.read_state())
    for _ in second.steps(second.attach(FOREST), order[4:], hyper):
        pass
    for name, value in whole.read_arrays().items():
        assert np.array_equal(value, second.read_arrays()[name]), name


def test_parameters_of_one_rate_are_one_instruction() -> None:
    groups = isa.rate_groups(plan())
    assert [rate for _, _, rate in groups] == [0.25, 1.0, 2.0]
    assert sum(count for _, count, _ in groups) == isa.trained_floats(plan())


TORCH = {
    "sgd": ("SGD", {"weight_decay": 0.1}),
    "momentum": ("SGD", {"momentum": 0.8, "weight_decay": 0.1}),
    "nesterov": ("SGD", {"momentum": 0.8, "weight_decay": 0.1, "nesterov": True}),
    "adagrad": ("Adagrad", {"weight_decay": 0.1}),
    "adam": ("Adam", {"betas": (0.7, 0.95), "weight_decay": 0.1}),
    "adamw": ("AdamW", {"betas": (0.7, 0.95), "weight_decay": 0.1}),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_step_is_that_of_torch(optimizer: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")
    name, settings = TORCH[optimizer]
    random = np.random.default_rng(2)
    start = random.normal(size=7)
    twin = torch.tensor(start, requires_grad=True)
    made = getattr(torch.optim, name)([twin], lr=0.1, **settings)
    hyper = attrs.evolve(
        default_hyper(optimizer), learning_rate=0.1, weight_decay=0.1, momentum=0.8, beta1=0.7, beta2=0.95
    )
    entry = OPTIMIZERS[optimizer]
    values = [start, *(np.zeros(7) for _ in entry.states)]
    for step in range(1, 21):
        gradient = random.normal(size=7)
        twin.grad = torch.tensor(gradient)
        made.step()
        old, *state = values
        values = list(entry.step(NUMPY_MATH, hyper.update(step).coefficients, old, gradient, *state))
    np.testing.assert_allclose(values[0], twin.detach().numpy(), rtol=1e-9)
