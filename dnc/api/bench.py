"""Measures predictions from end to end: structures in, values out on the host.

In: a model with weights, samples, how many and how large calls. Out: a `Latency` or a `Throughput`,
which are numbers and lines for people. Guaranteed: every call is a whole one (reading the
structures unless they are prepared, encoding, copies, the launch, the values back); order and what is
drawn follow from the seed; calls before the measured ones are left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.api.arguments import check_whole
from dnc.diagnostics import fail
from dnc.runtime.data import Dataset
from dnc.runtime.data.lines import EMPTY_FILE, load, objects
from dnc.runtime.data.problems import ProblemList, file_problem
from dnc.runtime.outside import pulled_fields
from dnc.runtime.phases import PREDICT, RESULT_KINDS

if TYPE_CHECKING:
    from dnc.api.model import Model

PERCENTILES = (50, 90, 99)
# Batches before the measured ones, and seconds that processes have to start in meanwhile.
WARM_UP, MOST_WAIT = 8, 10.0
MOST_DRAWN = 2**26  # samples of all calls together: their order is held in memory
Call = Callable[[], Any]


@attrs.frozen
class Times:
    """Microseconds of many calls."""

    p50: float
    p90: float
    p99: float
    mean: float
    least: float


@attrs.frozen
class Latency:
    """How long calls of `batch` samples take.

    call: from structures to values. kernel: the launch alone, None where the device does not say.
    encoded: calls whose shape was new, so that their schedule had to be made. prepared: whether the
    structures had been read before.
    """

    model: str
    device: str
    batch: int
    calls: int
    warmup: int
    seed: int
    prepared: bool
    encoded: int
    call: Times
    kernel: Times | None


@attrs.frozen
class Throughput:
    """Samples a second in passes over attached data, in batches of `batch`."""

    model: str
    device: str
    batch: int
    samples: int
    seconds: float
    seed: int
    samples_per_second: float


def times(seconds: Sequence[float]) -> Times:
    """Percentiles (linear between neighbours), mean and minimum."""
    micro = np.asarray(seconds) * 1e6
    p50, p90, p99 = (round(float(value), 2) for value in np.percentile(micro, PERCENTILES))
    return Times(p50, p90, p99, round(float(micro.mean()), 2), round(float(micro.min()), 2))


def read_structures(path: str | Path) -> list[dict[str, Any]]:
    """The samples of a JSONL file as decoded JSON, as a caller would have them."""
    return [sample for _, sample in read_lines(path)]


def read_lines(path: str | Path) -> list[tuple[int, dict[str, Any]]]:
    """The same, each with its line."""
    problems = ProblemList(str(path))
    found = list(objects(load(path), problems))
    problems.check()
    if not found:
        raise file_problem(str(path), EMPTY_FILE)
    return found


def measure_latency(
    model: Model,
    samples: Sequence[Mapping[str, Any]],
    *,
    batch: int = 1,
    calls: int = 1000,
    warmup: int = 100,
    seed: int = 1,
    prepared: bool = False,
) -> Latency:
    """Calls with `batch` samples each, taken in the order of a shuffle as often as it takes.

    Pulled vectors are drawn from a normal distribution. DiagnosticError if there is nothing to predict, and
    for more than MOST_DRAWN samples in all.
    """
    _check(model, batch=batch, calls=calls)
    check_whole("warmup", warmup, 0)
    if not len(samples):
        raise fail("there are no samples to predict")
    if batch * (calls + warmup) > MOST_DRAWN:
        raise fail(
            f"{calls + warmup} calls with {batch} samples each, expected at most {MOST_DRAWN} samples in all"
        )
    order = _batches(len(samples), batch, calls + warmup, seed)
    made = [_call(model, [samples[at] for at in numbers], seed, prepared) for numbers in order]
    for call in made[:warmup]:
        call()
    encoded, seconds = model.encoded, []
    try:
        kernel = model.backend.time_kernels()
        for call in made[warmup:]:
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        alone = times(kernel) if kernel else None
    finally:
        model.backend.time_kernels(False)
    return Latency(
        model.build.model,
        model.device,
        batch,
        calls,
        warmup,
        seed,
        prepared,
        model.encoded - encoded,
        times(seconds),
        alone,
    )


def measure_throughput(
    model: Model, data: str | Path | Dataset, *, batch: int, seconds: float = 2.0, seed: int = 1
) -> Throughput:
    """Passes over a data set in batches, every one in another order, until `seconds` are over.

    The structures have been read. In the time are encoding, copies, launches and the values of every sample
    on the host, as `Model.predictions` hands them out. A first pass, of at least WARM_UP batches (on a GPU
    as many as it takes until other processes encode, if they do), is not counted. The last batch of a pass
    may be smaller. DiagnosticError for a batch of more samples than there are.
    """
    _check(model, batch=batch)
    if pulled_fields(model.program):
        raise fail("the program pulls vectors from outside: its speed is that of what makes them")
    dataset = model.attach(model.read(data, labels_required=False))
    if batch > dataset.samples:
        raise fail(f"a batch of {batch} samples; the data has {dataset.samples}")
    choice, done, start = np.random.default_rng(seed), 0, 0.0
    ahead, ready = model.session.answers.ahead, time.perf_counter() + MOST_WAIT

    def stream() -> Iterator[NDArray[np.intp]]:
        while True:
            numbers = choice.permutation(dataset.samples)
            yield from (numbers[at : at + batch] for at in range(0, len(numbers), batch))

    for count, found in enumerate(model.predictions(stream()), 1):
        done += len(next(iter(found.values())))
        now = time.perf_counter()
        if not start:
            if done >= dataset.samples and count >= WARM_UP and (not ahead.is_starting or now > ready):
                done, start = 0, now
        elif now - start >= seconds:
            break
    taken = time.perf_counter() - start
    return Throughput(
        model.build.model, model.device, batch, done, round(taken, 4), seed, round(done / taken, 1)
    )


def _check(model: Model, **counts: int) -> None:
    for name, value in counts.items():
        check_whole(name, value, 1)
    if not any(result.kind in RESULT_KINDS[PREDICT] for result in model.plan.results):
        raise fail(f"model {model.build.model} declares no output: there is nothing to predict")
    if model.backend.devices > 1:
        raise fail(f"{model.device}: predictions run on one device: choose one")


def _batches(samples: int, batch: int, calls: int, seed: int) -> Iterator[NDArray[np.intp]]:
    """Numbers of samples for every call: one shuffle after another; a batch may go over its end."""
    choice = np.random.default_rng(seed)
    waiting = np.zeros(0, np.intp)
    for _ in range(calls):
        missing = -(-max(batch - len(waiting), 0) // samples)
        shuffles = choice.permuted(np.tile(np.arange(samples), (missing, 1)), axis=1)
        waiting = np.concatenate((waiting, shuffles.ravel()))
        yield waiting[:batch]
        waiting = waiting[batch:]


def _call(model: Model, samples: list[Mapping[str, Any]], seed: int, prepared: bool) -> Call:
    """A call with everything that is no part of it done before."""
    places = pulled_fields(model.program)
    if not prepared and not places:
        return lambda: model.predict(samples)
    dataset = model.read(samples, labels_required=False)
    given: list[Mapping[str, Any]] | Dataset = dataset if prepared else samples
    if not places:
        return lambda: model.predict(given)
    choice, numbers = np.random.default_rng(seed), np.arange(dataset.samples, dtype=np.int32)
    pulled = {}
    for name, (space, field) in places.items():
        width = dataset.forest.tables[space.struct].data[field].shape[1]
        rows = dataset.order(space).counts(numbers)
        pulled[name] = [choice.normal(size=(count, width)).astype(np.float32) for count in rows]
    return lambda: model.forward(given, pulled)


def as_json(found: Latency | Throughput) -> str:
    """One line of JSON; times in microseconds."""
    return json.dumps(attrs.asdict(found))
