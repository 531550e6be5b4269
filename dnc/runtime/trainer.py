"""Training: epochs of shuffled batches, measurements, checkpoints.

In: a session, data, options, a place to start from. Out: events (plain dicts, for people and for
metrics.jsonl) and checkpoints. Guaranteed: the order of the samples follows from seed and epoch
alone, so a run that goes on from a checkpoint makes the same updates as one that never stopped. A gradient
that is not finite makes no update and stops training; batches behind it may have been under way, and have
made theirs. What is saved then has these, and stands behind them: whoever goes on takes no batch again.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import attrs
import numpy as np

from dnc.diagnostics import DiagnosticError, fail
from dnc.ir.forest import Ints
from dnc.ir.measures import MEASURES
from dnc.ir.optimizers import DEFAULT, Hyper
from dnc.ir.plan import Plan
from dnc.ir.program import MetricOutput
from dnc.runtime.checkpoint import Position
from dnc.runtime.encoder import Encoder
from dnc.runtime.rates import RateSchedule
from dnc.runtime.results import Evaluation, NotFinite, StepResult
from dnc.runtime.session import Session

Event = dict[str, Any]

# Seconds between two calls of `tick`.
TICK = 0.1
# Worse than this is no score; a number that JSON has.
LARGEST = sys.float_info.max
LOSS = "loss"  # no metric is called so


@attrs.frozen
class TrainOptions:
    """What a run is. epochs: in all, those before a checkpoint included. log_every: batches.

    schedule: of the learning rate. patience: epochs without a better score on the dev set after which
    training ends. save_every: batches between two checkpoints inside an epoch. best: what that score is, one
    of `scores_of`; None for the first.
    """

    epochs: int = 1
    batch: int = 32
    hyper: Hyper = DEFAULT
    seed: int = 1
    log_every: int = 10
    schedule: RateSchedule = RateSchedule()
    patience: int | None = None
    save_every: int | None = None
    best: str | None = None


def shuffled(samples: int, seed: int, epoch: int) -> Ints:
    """The order of the samples in an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(samples).astype(np.int32)


@attrs.define(eq=False)
class Trainer:
    """See the module. save: called with the kind of checkpoint, "last" or "best".

    stop: asked before every batch whether to end here; what was done is saved. tick: told now and
    then how many samples of the epoch are done, and their mean loss. best: the best score on the dev set
    so far, after `best_epoch` epochs.
    """

    session: Session
    data: Encoder
    options: TrainOptions
    report: Callable[[Event], None]
    save: Callable[[str], None]
    dev: Encoder | None = None
    position: Position = Position()
    best: float | None = None
    best_epoch: int = 0
    stop: Callable[[], bool] = lambda: False
    tick: Callable[[int, float], None] = lambda samples, loss: None
    _ticked: float = 0.0
    _is_stopped: bool = False
    _taken: int = 0  # stretches of batches that have not ended

    def run(self) -> bool:
        """Trains; whether training came to its end (False: stopped)."""
        samples = self.data.prepared.samples
        self.session.reserve(self.data, min(self.options.batch, samples))
        results = self.session.stretches(self.data, self._stretches(samples), self._hyper(samples))
        self._is_stopped, self._taken = False, 0
        try:
            while self.position.epoch < self.options.epochs and not self.exhausted():
                if self._is_stopped:
                    return False
                self._epoch(results, samples)
        except NotFinite:
            raise
        except BaseException:  # of whoever was told something, or an interrupt
            results.close()
            self.position = self.place()
            raise
        return True

    def place(self) -> Position:
        """The position behind all steps that were started, as the weights are once these are over.

        Nobody has looked at the losses of the last ones: the mean loss of the epoch stays what it was.
        """
        place, made = self.position, self.session.steps_done
        if made == place.step:
            return place
        batch = place.batch + made - place.step
        seen = min(batch * self.options.batch, self.data.prepared.samples)
        return Position(place.epoch, batch, made, place.loss / max(place.seen, 1) * seen, seen)

    def exhausted(self) -> bool:
        """Whether so many epochs have brought no better score that training ends early."""
        patience = self.options.patience
        waited = self.position.epoch - self.best_epoch
        return patience is not None and self.best is not None and waited >= patience

    def _epoch(self, results: Iterator[StepResult | None], samples: int) -> None:
        """What is left of an epoch, or of it until training is to stop."""
        epoch, begin = self.position.epoch, time.perf_counter()
        first = self.position.seen
        while True:
            try:
                while (result := next(results, None)) is not None:
                    self._measure(result)
            except NotFinite as problem:
                for result in (*problem.before, *problem.behind):
                    self._measure(result)
                self.position = self.place()
                with suppress(DiagnosticError):  # weights that an update spoilt are not written
                    self.save("last")
                raise
            self._taken -= 1
            if self._taken:  # the next batches asked some time ago
                self._is_stopped |= self.stop()
            if self.position.batch >= self._batches_of(samples):
                break
            self.save("last")
            if self._is_stopped:
                return
        seconds, place = time.perf_counter() - begin, self.position
        event: Event = {"event": "epoch", "epoch": epoch + 1, "step": place.step}
        event |= {"loss": place.loss / max(place.seen, 1), "samples": place.seen}
        speed = (place.seen - first) / seconds
        event |= {"seconds": round(seconds, 3), "samples_per_second": round(speed, 1)}
        self.position = Position(epoch + 1, 0, place.step)
        if self.dev is not None:
            measured = self.session.evaluate(self.dev)
            event |= evaluation_event("dev", measured)
            score = _score(self.session.plan, measured, self.options.best)
            if self.best is None or score > self.best:
                self.best, self.best_epoch = score, epoch + 1
                event["best"] = True
        # The event first, "last" at the end: whoever goes on from "last" has all that belongs to it.
        self.report(event)
        if event.get("best"):
            self.save("best")
        self.save("last")

    def _batches_of(self, samples: int) -> int:
        """Batches of an epoch."""
        return -(-samples // self.options.batch)

    def _stretches(self, samples: int) -> Iterator[Iterator[Ints]]:
        """What is left of all epochs, up to the next checkpoint each; until training is to stop."""
        start, end = self.position, self._batches_of(samples)
        for epoch in range(start.epoch, self.options.epochs):
            order = shuffled(samples, self.options.seed, epoch)
            first = start.batch if epoch == start.epoch else 0
            piece = self.options.save_every or end
            for begin in range(first, end, piece) or (end,):  # a checkpoint may say that none is left
                self._taken += 1
                yield self._batches(order, range(begin, min(begin + piece, end)))
                if self._is_stopped:
                    return

    def _batches(self, order: Ints, numbers: range) -> Iterator[Ints]:
        size = self.options.batch
        for number in numbers:
            self._is_stopped = self.stop()
            if self._is_stopped:
                return
            yield order[number * size : (number + 1) * size]

    def _hyper(self, samples: int) -> Callable[[int], Hyper]:
        """The settings of every step."""
        options, place = self.options, self.position
        per_epoch = self._batches_of(samples)
        ahead = place.epoch * per_epoch + place.batch - place.step

        def hyper(step: int) -> Hyper:
            factor = options.schedule.factor(step, per_epoch, options.epochs, ahead)
            return attrs.evolve(options.hyper, learning_rate=options.hyper.learning_rate * factor)

        return hyper

    def _measure(self, result: StepResult) -> None:
        place = self.position
        loss, seen = place.loss + result.loss * result.samples, place.seen + result.samples
        self.position = Position(place.epoch, place.batch + 1, place.step + 1, loss, seen)
        if result.step % self.options.log_every == 0:
            event: Event = {"event": "step", "step": result.step, "epoch": place.epoch + 1}
            rate = self._hyper(self.data.prepared.samples)(result.step).learning_rate
            event |= {"loss": result.loss, "norm": result.norm, "learning_rate": rate}
            self.report(event | {"samples": result.samples})
        now = time.perf_counter()
        if now - self._ticked >= TICK:
            self._ticked = now
            self.tick(seen, loss / seen)


def evaluation_event(name: str, measured: Evaluation) -> Event:
    """A set's measurements under its name."""
    return {name: {"loss": measured.loss, **measured.metrics, "samples": measured.samples}}


def scores_of(plan: Plan) -> dict[str, int]:
    """What "best" can mean, by name: 1 where more is better, -1 where less is. The first is the default.

    That is every metric of which more, or less, is better (a mean is one where it counts hits), and the loss.
    """
    found: dict[str, int] = {}
    for stage in plan.program.stages:
        producers = {op.result: op.opcode for op in stage.cell.ops}
        for value, output in zip(stage.cell.results, stage.outputs, strict=True):
            if isinstance(output, MetricOutput):
                better = MEASURES[output.measure].better or int(producers.get(value) == "equal")
                if better:
                    found.setdefault(output.metric, better)
    return {**found, LOSS: -1}


def score_name(plan: Plan, best: str | None) -> str:
    """The name of the score by which an epoch is the best; DiagnosticError where it can be none."""
    known = scores_of(plan)
    if best is None:
        return next(iter(known))
    if isinstance(best, str) and best in known:
        return best
    metrics = [o.metric for s in plan.program.stages for o in s.outputs if isinstance(o, MetricOutput)]
    unclear = ", of which neither more nor less is better" if best in metrics else ""
    raise fail(f"best: found {best!r}{unclear}; expected one of {', '.join(known)}")


def _score(plan: Plan, measured: Evaluation, best: str | None) -> float:
    """What is larger where an epoch is better. One that is not defined (NaN) is the worst."""
    name = score_name(plan, best)
    score = scores_of(plan)[name] * (measured.loss if name == LOSS else measured.metrics[name])
    return score if math.isfinite(score) else -LARGEST
