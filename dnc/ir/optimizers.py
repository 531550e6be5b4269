"""Optimizers: one entry holds everything that dnc knows about one.

In: an element of a parameter, its gradient (clipped already), its state, coefficients. Out: their
new values, written once with the functions of `Math`; encoder, reference VM, and the kernels of all
targets derive the instructions for dense parameters and for the rows of tables from it. Guaranteed:
rates and corrections are coefficients of the schedule's header, worked out on the host (`Hyper`), so
no kernel depends on them; the state of every element begins as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs
import numpy as np

from dnc.ir.opdef import Expression, Math

Coefficients = Mapping[str, Expression]
# step(m, c, p, g, *state) -> (p, *state): new values of one element.
Step = Callable[..., tuple[Expression, ...]]

# Words of the schedule's header, by name. `gain`s are 1 - beta, `correction`s what a mean that began
# as zero is multiplied with.
COEFFICIENTS = (
    "learning_rate",
    "epsilon",
    "weight_decay",
    "momentum",
    "gain1",
    "gain2",
    "correction1",
    "correction2",
)


@attrs.frozen
class Setting:
    """A number that a user may choose: at least `least` (above it if `open`), and below `limit` (at most
    that if `closed`)."""

    least: float
    limit: float
    open: bool = False
    closed: bool = False

    def accepts(self, value: float) -> bool:
        """Whether the number is in range, and held by a 32-bit float; NaN never is."""
        if value == self.limit:
            return self.closed
        held = abs(value) <= LARGEST_FLOAT and (value == 0 or np.float32(value) != 0)
        return held and (self.least < value if self.open else self.least <= value) and value < self.limit

    def __str__(self) -> str:
        """What is expected."""
        expected = "a positive number" if self.open else f"a number of at least {self.least:g}"
        if self.limit < math.inf:
            most = f"to {self.limit:g}" if self.closed else f"and below {self.limit:g}"
            expected = f"a number {'from' if self.closed else 'of at least'} {self.least:g} {most}"
        return f"{expected} that a 32-bit float holds"


LARGEST_FLOAT = float(np.finfo(np.float32).max)

SETTINGS = {
    "learning_rate": Setting(0.0, math.inf, open=True),
    "epsilon": Setting(0.0, math.inf, open=True),
    "weight_decay": Setting(0.0, math.inf),
    "momentum": Setting(0.0, 1.0),
    "beta1": Setting(0.0, 1.0),
    "beta2": Setting(0.0, 1.0),
}
# The largest norm of a gradient; infinite where none is too large.
CLIP = Setting(0.0, math.inf, open=True, closed=True)


@attrs.frozen
class State:
    """A number kept for every element of a trained parameter. `squares`: it is never negative."""

    name: str
    squares: bool = False


@attrs.frozen
class Optimizer:
    """An optimizer. meaning: a line for people. settings: those it uses, with their defaults."""

    name: str
    meaning: str
    settings: Mapping[str, float]
    states: tuple[State, ...]
    step: Step


def _sgd(m: Math, c: Coefficients, p: Expression, g: Expression) -> tuple[Expression, ...]:
    return (p - c["learning_rate"] * (g + c["weight_decay"] * p),)


def _momentum(
    m: Math, c: Coefficients, p: Expression, g: Expression, velocity: Expression
) -> tuple[Expression, ...]:
    velocity = c["momentum"] * velocity + (g + c["weight_decay"] * p)
    return p - c["learning_rate"] * velocity, velocity


def _nesterov(
    m: Math, c: Coefficients, p: Expression, g: Expression, velocity: Expression
) -> tuple[Expression, ...]:
    g = g + c["weight_decay"] * p
    velocity = c["momentum"] * velocity + g
    return p - c["learning_rate"] * (g + c["momentum"] * velocity), velocity


def _adagrad(
    m: Math, c: Coefficients, p: Expression, g: Expression, squares: Expression
) -> tuple[Expression, ...]:
    g = g + c["weight_decay"] * p
    squares = squares + g * g
    return p - c["learning_rate"] * g / (m.sqrt(squares) + c["epsilon"]), squares


def _adam(
    m: Math, c: Coefficients, p: Expression, g: Expression, mean: Expression, squares: Expression
) -> tuple[Expression, ...]:
    return _adam_step(m, c, p, g + c["weight_decay"] * p, mean, squares)


def _adamw(
    m: Math, c: Coefficients, p: Expression, g: Expression, mean: Expression, squares: Expression
) -> tuple[Expression, ...]:
    return _adam_step(m, c, p - c["learning_rate"] * c["weight_decay"] * p, g, mean, squares)


def _adam_step(
    m: Math, c: Coefficients, p: Expression, g: Expression, mean: Expression, squares: Expression
) -> tuple[Expression, ...]:
    mean = mean + c["gain1"] * (g - mean)
    squares = squares + c["gain2"] * (g * g - squares)
    root = m.sqrt(squares) * c["correction2"] + c["epsilon"]
    return p - c["learning_rate"] * c["correction1"] * mean / root, mean, squares


_ADAM = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
_ADAM_STATES = (State("mean"), State("squares", squares=True))

_ENTRIES = (
    Optimizer("sgd", "plain steps", {"learning_rate": 0.05, "weight_decay": 0.0}, (), _sgd),
    Optimizer(
        "momentum",
        "steps along a velocity (Polyak 1964)",
        {"learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.0},
        (State("velocity"),),
        _momentum,
    ),
    Optimizer(
        "nesterov",
        "momentum that looks ahead (Sutskever et al. 2013)",
        {"learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.0},
        (State("velocity"),),
        _nesterov,
    ),
    Optimizer(
        "adagrad",
        "a rate for every element (Duchi et al. 2011)",
        {"learning_rate": 0.05, "epsilon": 1e-10, "weight_decay": 0.0},
        (State("squares", squares=True),),
        _adagrad,
    ),
    Optimizer(
        "adam",
        "running means of gradient and square (Kingma and Ba 2015)",
        {**_ADAM, "weight_decay": 0.0},
        _ADAM_STATES,
        _adam,
    ),
    Optimizer(
        "adamw",
        "Adam with decoupled weight decay (Loshchilov and Hutter 2019)",
        {**_ADAM, "weight_decay": 0.01},
        _ADAM_STATES,
        _adamw,
    ),
)
OPTIMIZERS = {entry.name: entry for entry in _ENTRIES}
MOST_STATES = max(len(entry.states) for entry in _ENTRIES)


@attrs.frozen
class Update:
    """What a launch makes of its gradient: an optimizer, with its words for the schedule's header.

    clip_norm: gradients whose norm, over all parameters, is larger are scaled down to it. Without
    coefficients they are zero, and plain SGD changes nothing.
    """

    optimizer: str = "sgd"
    clip_norm: float = math.inf
    coefficients: Mapping[str, float] = attrs.field(factory=dict)


@attrs.frozen
class Hyper:
    """How parameters are updated: an optimizer's name and settings; those it does not use mean nothing."""

    optimizer: str = "sgd"
    learning_rate: float = 0.01
    clip_norm: float = math.inf
    epsilon: float = 1e-10
    weight_decay: float = 0.0
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999

    def update(self, step: int = 1) -> Update:
        """The update of a step, counted from 1 since the state was zero."""
        coefficients = {
            "learning_rate": self.learning_rate,
            "epsilon": self.epsilon,
            "weight_decay": self.weight_decay,
            "momentum": self.momentum,
            "gain1": 1.0 - self.beta1,
            "gain2": 1.0 - self.beta2,
            "correction1": 1.0 / (1.0 - self.beta1**step),
            "correction2": 1.0 / math.sqrt(1.0 - self.beta2**step),
        }
        return Update(self.optimizer, self.clip_norm, coefficients)


def default_hyper(optimizer: str, clip_norm: float = math.inf) -> Hyper:
    """An optimizer with its default settings."""
    return Hyper(optimizer, clip_norm=clip_norm, **OPTIMIZERS[optimizer].settings)


DEFAULT = default_hyper("adagrad")
