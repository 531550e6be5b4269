"""Training: epochs of shuffled batches, measurements, checkpoints.

In: a session, data, options, a place to start from. Out: events (plain dicts, for people and for
metrics.jsonl) and checkpoints. Guaranteed: the order of the samples follows from seed and epoch
alone, so a run that goes on from a checkpoint makes the same updates as one that never stopped; a
gradient that is not finite stops training with the last good weights saved.
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

from dnc.diagnostics import DiagnosticError
from dnc.ir.forest import Ints
from dnc.ir.measures import MEASURES
from dnc.ir.optimizers import DEFAULT, Hyper
from dnc.ir.plan import Plan
from dnc.ir.program import MetricOutput
from dnc.runtime.checkpoint import Position
from dnc.runtime.encoder import Encoder
from dnc.runtime.session import Evaluation, NotFinite, Session, StepResult

Event = dict[str, Any]

# Seconds between two calls of `tick`.
TICK = 0.1
# Worse than this is no score; a number that JSON has.
LARGEST = sys.float_info.max


@attrs.frozen
class TrainOptions:
    """What a run is. epochs: in all, those before a checkpoint included. log_every: batches."""

    epochs: int = 1
    batch: int = 32
    hyper: Hyper = DEFAULT
    seed: int = 1
    log_every: int = 10


def shuffled(samples: int, seed: int, epoch: int) -> Ints:
    """The order of the samples in an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(samples).astype(np.int32)


@attrs.define(eq=False)
class Trainer:
    """See the module. save: called with the kind of checkpoint, "last" or "best".

    stop: asked before every batch whether to end here; what was done is saved. tick: told now and
    then how many samples of the epoch are done, and their mean loss.
    """

    session: Session
    data: Encoder
    options: TrainOptions
    report: Callable[[Event], None]
    save: Callable[[str], None]
    dev: Encoder | None = None
    position: Position = Position()
    best: float | None = None
    stop: Callable[[], bool] = lambda: False
    tick: Callable[[int, float], None] = lambda samples, loss: None
    _sum: float = 0.0
    _seen: int = 0
    _ticked: float = 0.0

    def run(self) -> bool:
        """Trains; whether all epochs were done (False: stopped)."""
        samples = self.data.prepared.samples
        self.session.reserve(self.data, min(self.options.batch, samples))
        while self.position.epoch < self.options.epochs:
            if not self._epoch(samples):
                self.save("last")
                return False
        return True

    def _epoch(self, samples: int) -> bool:
        epoch, begin = self.position.epoch, time.perf_counter()
        self._sum, self._seen = 0.0, 0
        stopped = False

        def batches() -> Iterator[Ints]:
            nonlocal stopped
            for numbers in self._batches(samples):
                if self.stop():
                    stopped = True
                    return
                self.position = Position(epoch, self.position.batch + 1, self.position.step + 1)
                yield numbers

        try:
            for result in self.session.steps(self.data, batches(), self.options.hyper):
                self._measure(result)
        except NotFinite:
            with suppress(DiagnosticError):  # weights that an update spoilt are not written
                self.save("last")
            raise
        if stopped:
            return False
        seconds = time.perf_counter() - begin
        self.position = Position(epoch + 1, 0, self.position.step)
        event: Event = {"event": "epoch", "epoch": epoch + 1, "step": self.position.step}
        event |= {"loss": self._sum / max(self._seen, 1), "samples": self._seen}
        event |= {"seconds": round(seconds, 3), "samples_per_second": round(self._seen / seconds, 1)}
        better = False
        if self.dev is not None:
            measured = self.session.evaluate(self.dev)
            event |= evaluation_event("dev", measured)
            score = _score(self.session.plan, measured)
            better = self.best is None or score > self.best
            self.best = score if better else self.best
        self.save("last")
        if better:
            self.save("best")
            event["best"] = True
        self.report(event)
        return True

    def _batches(self, samples: int) -> Iterator[Ints]:
        order, size = shuffled(samples, self.options.seed, self.position.epoch), self.options.batch
        for begin in range(self.position.batch * size, samples, size):
            yield order[begin : begin + size]

    def _measure(self, result: StepResult) -> None:
        self._sum += result.loss * result.samples
        self._seen += result.samples
        if result.step % self.options.log_every == 0:
            event: Event = {"event": "step", "step": result.step, "epoch": self.position.epoch + 1}
            self.report(event | {"loss": result.loss, "norm": result.norm, "samples": result.samples})
        now = time.perf_counter()
        if now - self._ticked >= TICK:
            self._ticked = now
            self.tick(self._seen, self._sum / self._seen)


def evaluation_event(name: str, measured: Evaluation) -> Event:
    """A set's measurements under its name."""
    return {name: {"loss": measured.loss, **measured.metrics, "samples": measured.samples}}


def _score(plan: Plan, measured: Evaluation) -> float:
    """What "best" means: the first metric of which more, or less, is better, else the smallest loss.

    A mean is such a metric where it counts hits. One that is not defined (NaN) is the worst.
    """
    for stage in plan.program.stages:
        producers = {op.result: op.opcode for op in stage.cell.ops}
        for value, output in zip(stage.cell.results, stage.outputs, strict=True):
            if isinstance(output, MetricOutput):
                better = MEASURES[output.measure].better or producers.get(value) == "equal"
                score = better * measured.metrics[output.metric]
                if better:
                    return score if math.isfinite(score) else -LARGEST
    return -measured.loss
