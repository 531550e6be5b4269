"""Optimizers by the formulas of their papers, in float64, on the interpreter's gradients.

Whole arrays for dense parameters, and for tables only the rows that a batch touches. The program of
`tags.dn`, whose parameters have several rates, is what they train.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from dnc.ir.forest import Forest
from dnc.ir.interpreter import interpret
from dnc.ir.optimizers import Hyper, default_hyper
from dnc.ir.program import Program
from dnc.runtime.session import Session
from dnc.runtime.trainer import shuffled
from tests.support.forests import ForestGrower

Array = np.ndarray[Any, Any]

VOCABULARY = 11  # rows of its tables
TAGS = Path(__file__).with_name("tags.dn")
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


def batches() -> list[Array]:
    found: list[Array] = []
    while len(found) < STEPS:
        order = shuffled(SAMPLES, 3, len(found))
        found += [order[begin : begin + BATCH] for begin in range(0, SAMPLES, BATCH)]
    return found[:STEPS]


def expected(
    program: Program, forest: Forest, hyper: Hyper, first: dict[str, Array], rates: dict[str, float]
) -> dict[str, Array]:
    """Parameters after all steps, by the formulas."""
    formula, states = FORMULAS[hyper.optimizer]
    values = {name: value.astype(np.float64) for name, value in first.items()}
    state = {name: [np.zeros_like(value) for _ in range(states)] for name, value in values.items()}
    for step, batch in enumerate(batches(), start=1):
        chosen = forest.select(batch)
        gradients = interpret(program, chosen, values).gradients
        norm = math.sqrt(sum(float((gradients[name] ** 2).sum()) for name in rates))
        scale = min(1.0, hyper.clip_norm / norm)
        for name, factor in rates.items():
            touched: Any = ...
            if name == "E":
                touched = np.unique(np.flatnonzero(np.abs(gradients[name]).sum(axis=1)))
                assert 0 < len(touched) < VOCABULARY
            kept = [each[touched] for each in state[name]]
            g, rate = gradients[name][touched] * scale, hyper.learning_rate * factor
            before = values[name][touched].copy()
            values[name][touched] = formula(hyper, rate, step, before, g, kept)
            if program.parameter(name).is_sparse:  # what is zero stays so
                values[name][before == 0] = 0.0
            for each, now in zip(state[name], kept, strict=True):
                each[touched] = now
    return values


def grow(program: Program) -> Forest:
    """The data of all tests here."""
    return ForestGrower(program, 5).grow(SAMPLES, 3, "random")


def check_many_steps(made: Session, optimizer: str, decay: float, clip: float) -> None:
    """Trains a new session on all batches; AssertionError names what differs from the formulas."""
    program = made.plan.program
    forest = grow(program)
    hyper = attrs.evolve(
        default_hyper(optimizer, clip), learning_rate=RATES[optimizer], weight_decay=decay, epsilon=1e-3
    )
    rates = {p.name: p.rate for p in program.parameters if not p.frozen}
    assert set(rates.values()) == {0.25, 0.5, 1.0, 2.0}
    first, data = made.read_arrays(), made.attach(forest)
    for _ in made.steps(data, batches(), hyper):
        pass
    right, found = expected(program, forest, hyper, first, rates), made.read_arrays()
    for name, value in found.items():
        moved = float(np.abs(right[name] - first[name]).max())
        if name in rates:
            assert moved > 0.01, (name, moved)
            parameter = program.parameter(name)
            most = int((value != 0).sum(axis=-1).max()) if parameter.is_sparse else 0
            assert most == (parameter.kept if parameter.is_sparse else 0), (name, most)
            np.testing.assert_allclose(value, right[name], atol=3e-6 * max(moved, 1.0), err_msg=name)
        else:
            assert np.array_equal(value, first[name]), name
    assert made.optimizer_steps == STEPS
