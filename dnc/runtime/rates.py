"""Learning-rate schedules: what the rate of a run is multiplied with, step by step.

In: the number of a step, the length of an epoch and of the run. Out: a factor. Guaranteed: a pure
function of those, so a run that goes on from a checkpoint has the same rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from dnc.diagnostics import fail
from dnc.ir.optimizers import Setting


@attrs.frozen
class RateSchedule:
    """kind: see KINDS. decay: a factor. every: epochs between two steps. warmup: steps of a linear start.

    During the warm-up, step s has the share s / warmup of what the schedule says.
    """

    kind: str = "constant"
    decay: float = 0.1
    every: int = 1
    warmup: int = 0

    def factor(self, step: int, per_epoch: int, epochs: int, ahead: int = 0) -> float:
        """The factor of a step, counted from 1, in a run of so many epochs of `per_epoch` steps.

        ahead: steps that epochs which were shorter would have had more; fewer than 0 if they were longer.
        """
        rising = min(1.0, step / self.warmup) if self.warmup else 1.0
        return rising * KINDS[self.kind](self, step - 1 + ahead, per_epoch, epochs)


def _step(schedule: RateSchedule, done: int, per_epoch: int, epochs: int) -> float:
    return math.pow(schedule.decay, done // per_epoch // schedule.every)


def _exponential(schedule: RateSchedule, done: int, per_epoch: int, epochs: int) -> float:
    return math.pow(schedule.decay, done / (per_epoch * schedule.every))


def _cosine(schedule: RateSchedule, done: int, per_epoch: int, epochs: int) -> float:
    left = max(per_epoch * epochs - schedule.warmup, 1)
    share = min(max(done - schedule.warmup, 0) / left, 1.0)
    return schedule.decay + (1.0 - schedule.decay) * 0.5 * (1.0 + math.cos(math.pi * share))


# constant; decay ** (epochs done // every); the same without steps; half a cosine from 1 down to decay.
KINDS: dict[str, Callable[[RateSchedule, int, int, int], float]] = {
    "constant": lambda schedule, done, per_epoch, epochs: 1.0,
    "step": _step,
    "exponential": _exponential,
    "cosine": _cosine,
}
# What a schedule's decay is where none is given.
DECAYS = {"constant": 1.0, "step": 0.1, "exponential": 0.5, "cosine": 0.0}


def decay_of(kind: str | None) -> Setting:
    """What the decay of a kind of schedule can be."""
    return Setting(1e-6 if kind in ("step", "exponential") else 0.0, 1.0, closed=True)


def rate_schedule(
    kind: str | None = None, decay: float | None = None, every: int | None = None, warmup: int | None = None
) -> RateSchedule:
    """A schedule with its defaults; DiagnosticError for one that cannot be."""
    kind = kind or "constant"
    if not isinstance(kind, str) or kind not in KINDS:
        raise fail(f"unknown schedule '{kind}'; schedules: {', '.join(KINDS)}")
    if isinstance(decay, bool) or not isinstance(decay, int | float | None):
        raise fail(f"the decay is {decay!r}, expected a number")
    if decay is not None and kind == "constant":
        raise fail("a constant learning rate has no decay; schedules with one: step, exponential, cosine")
    if every is not None and kind not in ("step", "exponential"):
        raise fail(f"a {kind} learning rate has no steps; schedules with some: step, exponential")
    if decay is not None and not decay_of(kind).accepts(decay):
        raise fail(f"the decay is {decay:g}, expected {decay_of(kind)}")
    for name, value, smallest in (("decay every", every, 1), ("warmup", warmup, 0)):
        if value is not None and not (isinstance(value, int) and smallest <= value < 2**31):
            raise fail(f"{name} is {value}, expected {smallest} or more")
    return RateSchedule(kind, DECAYS[kind] if decay is None else decay, every or 1, warmup or 0)
