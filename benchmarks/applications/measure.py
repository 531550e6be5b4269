"""Training speed of dnc, and of a peer beside it.

In: a model with data attached, a batch size. Out: samples a second with all work of the host, the time of
a launch, and the share of the time in which the GPU waited. Reading the data set is in none of them; for a
peer neither is making the indices. Guaranteed: a peer is measured only after its losses were those of dnc
from the same weights, before and after updates.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from benchmarks.models import Batches, run, shuffled
from benchmarks.treelstm import attached, idle_share, samples_of
from dnc.api import Model

if TYPE_CHECKING:
    from benchmarks.peers import Peer

LEARNING_RATE, CHECKED_STEPS, TOLERANCE = 1e-8, 3, 1e-3
FALL = 0.02
"""By how much an update is to lower a loss that is compared, were it a line."""
WARM_UP_SECONDS, WARM_UP_BATCHES = 0.3, 8
WARM_UP_SAMPLES = 25_000
"""Until groups of batches are as large as they become (`dnc.runtime.batches`), and so is their memory."""
ENCODERS_SECONDS = 4.0
IDLE_BATCHES = 8, 4000
EPOCHS = 5
RUN_OF_EPOCHS = 2, 20
"""The least and the most of its epochs that are timed, about as many samples as in a repeat."""
PREPARED = 2, 200
"""The least and the most batches whose launches are looked at; and that a peer runs in turn."""


@attrs.frozen
class Effort:
    """How long: seconds of a repeat, and repeats."""

    seconds: float = 0.4
    repeats: int = 3


def train(model: Model, batches: Iterable[list[int]]) -> None:
    """Trains, and waits for the last step."""
    deque(model.steps(batches), maxlen=0)


def dnc_speed(model: Model, size: int, effort: Effort, on_gpu: bool) -> dict[str, Any]:
    """A build at a batch size."""
    model.configure("sgd", LEARNING_RATE)
    model.session.reserve(attached(model), size)
    batches = shuffled(samples_of(model), size)
    warm_up(model, size, on_gpu)
    runs = [run(lambda given: train(model, given), batches, effort.seconds, 1) for _ in range(effort.repeats)]
    rate = statistics.median(runs)
    replicas, workers = model.backend.grid(size)
    found: dict[str, Any] = {"rate": rate, "runs": runs, "replicas": replicas, "workers": workers}
    found["epoch_rate"] = epoch_rate(model, batches, size, effort)
    found["run_of_epochs_rate"] = run_of_epochs_rate(model, batches, size, effort.seconds * rate)
    if on_gpu:
        count = int(np.clip(effort.seconds * rate / size, *IDLE_BATCHES))
        chosen = [np.array(each, np.int32) for each in islice(batches, count)]
        found |= idle_share(model, size, chosen)
    return found


def epoch_rate(model: Model, batches: Batches, size: int, effort: Effort) -> float:
    """Samples a second of single epochs: nothing is encoded when one begins, all results are there when it
    ends. Their median, or that of one that lasts as long as a repeat."""
    samples, rates = samples_of(model) // size * size, list[float]()
    while len(rates) < EPOCHS and (not rates or samples / rates[0] < effort.seconds):
        epoch = islice(batches, samples // size)
        rates.append(run(lambda given: train(model, given), epoch, math.inf, 1))
    return statistics.median(rates)


def run_of_epochs_rate(model: Model, batches: Batches, size: int, samples: float) -> float:
    """Samples a second of epochs as training runs them, from the end of one to that of the next, the median.

    All results of one are there before the next one begins, whose first batches are encoded by then.
    samples: about how many to take.
    """
    number = samples_of(model) // size
    count = 1 + int(np.clip(samples / (number * size), *RUN_OF_EPOCHS))
    epochs = (islice(batches, number) for _ in range(count))
    results = model.session.stretches(attached(model), epochs, model.hyper)
    ends = [time.perf_counter() for result in results if result is None]
    model.position = model.position.at(model.session.steps_done)
    return number * size / statistics.median(np.diff(ends))


def warm_up(model: Model, size: int, on_gpu: bool) -> None:
    """Some batches; on a GPU until the processes that encode ahead have read the data."""
    batches, begin = shuffled(samples_of(model), size), time.perf_counter()
    encoders = on_gpu and model.encoders != 0
    least = max(WARM_UP_BATCHES, WARM_UP_SAMPLES // size) if encoders else 1
    while True:
        run(lambda given: train(model, given), batches, WARM_UP_SECONDS if on_gpu else 0, least)
        if not encoders or model.session.ahead.has_room or time.perf_counter() - begin > ENCODERS_SECONDS:
            return


def checked(model: Model, peer: Peer, numbers: Sequence[int]) -> dict[str, float]:
    """Losses of both over updates on one batch; ValueError if they differ.

    error: the largest difference by the first loss. moved: by how much that loss fell, so that the error
    says something about gradients.
    """
    batch = peer.batch(numbers).to(peer.device)
    loss, slope = peer.slope(batch)
    peer.learning_rate = FALL * loss / slope
    model.configure("sgd", peer.learning_rate)
    own = list(model.steps([numbers] * CHECKED_STEPS))
    other = [float(peer.step(batch)) for _ in range(CHECKED_STEPS)]
    peer.learning_rate = LEARNING_RATE
    error = max(abs(a - b) for a, b in zip(own, other, strict=True)) / abs(other[0])
    if not error <= TOLERANCE:
        raise ValueError(f"losses of dnc {own}, of {type(peer).__name__} {other}: not the same model")
    return {"error": error, "moved": (other[0] - other[-1]) / abs(other[0])}


class PeerRun:
    """A peer on batches whose indices were made ahead."""

    def __init__(self, peer: Peer, samples: int, size: int, effort: Effort) -> None:
        self.peer, self.effort = peer, effort
        given = shuffled(samples, size)
        self.batches = [peer.batch(next(given)).to(peer.device) for _ in range(PREPARED[0])]
        self.rate()
        begin = time.perf_counter()
        self._run(self.batches)
        each = (time.perf_counter() - begin) / len(self.batches)
        count = int(np.clip(effort.seconds / each, *PREPARED))
        self.batches = [peer.batch(next(given)).to(peer.device) for _ in range(count)]

    def rate(self) -> float:
        """Samples a second over about the seconds of a repeat."""
        done, begin = 0, time.perf_counter()
        while done == 0 or time.perf_counter() - begin < self.effort.seconds:
            done += self._run(self.batches)
        return done / (time.perf_counter() - begin)

    def _run(self, batches: Sequence[Any]) -> int:
        begin, done = time.perf_counter(), 0
        for batch in batches:
            self.peer.step(batch)
            done += batch.samples
            if time.perf_counter() - begin > self.effort.seconds:
                break
        self.wait()
        return done

    def wait(self) -> None:
        """Waits for the device."""
        if self.peer.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def graph_rate(self) -> float:
        """Replays of a CUDA graph of one batch: what PyTorch reaches where no structure ever changes."""
        from tests.support.torch_treelstm import Graph

        graph, done = Graph(self.peer, self.batches[0]), 0  # type: ignore[arg-type]
        self.wait()
        begin = time.perf_counter()
        while time.perf_counter() - begin < self.effort.seconds:
            for _ in range(10):
                graph.step()
            self.wait()
            done += 10 * self.batches[0].samples
        return done / (time.perf_counter() - begin)
