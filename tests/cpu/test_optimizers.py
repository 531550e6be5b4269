"""Every optimizer, many steps, on the reference VM and the CPU kernel, against formulas in float64."""

from __future__ import annotations

import math
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
from dnc.ir.opdef import NUMPY_MATH
from dnc.ir.optimizers import OPTIMIZERS, Hyper, default_hyper
from dnc.ir.plan import Plan
from dnc.runtime.backend import VMBackend
from dnc.runtime.cpu_backend import CpuBackend
from dnc.runtime.initialize import initialize
from dnc.runtime.session import Session
from tests.support.optimizers import TAGS, VOCABULARY, batches, check_many_steps, grow

Array = np.ndarray[Any, Any]


@cache
def plan() -> Plan:
    program, warnings = load_program(Source(TAGS.name, TAGS.read_text()), {"vocab": VOCABULARY})
    assert not warnings
    return make_plan(transform(program), "cpu")


@cache
def kernel() -> CpuBackend:
    return CpuBackend(plan(), build_cpu(plan()), 1, 2)


def session(device: str) -> Session:
    rows = {p.name: VOCABULARY for p in plan().program.parameters if p.kind == "table"}
    backend = kernel() if device == "cpu" else VMBackend(plan(), 2, 1)
    return Session(plan(), backend, rows, initialize(plan().program, rows, 1))


FOREST = grow(plan().program)


@pytest.mark.parametrize("device", ["vm", "cpu"])
@pytest.mark.parametrize("decay, clip", [(0.0, math.inf), (0.1, 0.3)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_many_steps(device: str, optimizer: str, decay: float, clip: float) -> None:
    check_many_steps(session(device), optimizer, decay, clip)


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
    groups = isa.update_groups(plan())
    assert [(group.rate, group.sparse) for group in groups] == [
        (0.25, False),
        (0.25, True),
        (1.0, False),
        (2.0, False),
    ]
    assert sum(group.count for group in groups) == isa.trained_floats(plan())


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
