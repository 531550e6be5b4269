"""Inference of the Tree-LSTM: sentences a second of a stream of batches, of single calls, of whole passes.

`stream` hands prepared structures to `Model.predictions` in shuffled order: encoding, copies, launches and
values on the host are in the time, as in `dnc bench --throughput`. `calls` are batches of the same prepared
data, one after another, each waited for; `new` are structures that are read in the call, all of new shapes;
`known` have been seen before. A pass predicts or evaluates the whole set with one call. Before anything is
timed, values are compared with the float64 definition, and those of a stream, to the bit, with single calls.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import dnc
from benchmarks.applications.data import DataSets
from benchmarks.applications.measure import Effort
from benchmarks.applications.points import INFERENCE
from benchmarks.models import shuffled
from benchmarks.treelstm import TimedDevice, attached
from dnc.api import Model
from dnc.api.bench import measure_throughput
from dnc.ir.interpreter import interpret
from dnc.runtime.predictor import MOST_SAMPLES, Predictor

TITLE = f"{'model':16}{'batch':>6}{'stream/s':>11}{'calls/s':>10}{'new/s':>9}{'known/s':>10}"
TITLE += f"{'kernel us':>11}{'at once':>9}{'idle':>6}  bar"
MOST, CHECKED, COMPARED = 200, 8, 40
"""Batches whose launches are looked at, and whose shapes are known; samples and batches that are checked."""
TOLERANCE = 1e-3


def measure(builds: Path, data: DataSets, device: str, effort: Effort) -> Iterator[dict[str, Any]]:
    """Every batch size, then whole passes."""
    yield {"title": TITLE}
    for point in INFERENCE:
        model = dnc.load(builds / point.build, device)
        samples = data.attach(model, point.data)
        error = check_values(model, min(CHECKED, len(samples)))
        for size in point.batches:
            if size > len(samples):
                continue
            found: dict[str, Any] = {"model": point.build, "batch": size, "device": model.device}
            check_stream(model, size, len(samples))
            found |= {"error": error} | speeds(model, samples, size, effort, device == "cuda")
            yield found | {"line": line(found, point.rates.get(size))}
        count = len(samples)
        whole = {"predict": lambda m=model: m.predict(), "evaluate": lambda m=model: m.evaluate()}
        for name, call in whole.items():
            call()
            begin = time.perf_counter()
            call()
            rate = count / (time.perf_counter() - begin)
            shown = f"{point.build:16}{count:6}{rate:11,.0f}  the whole set, {name}"
            yield {"model": point.build, "pass": name, "batch": count, "rate": rate, "line": shown}


def check_values(model: Model, count: int) -> float:
    """The largest difference of an output from the float64 definition; ValueError if it is large."""
    numbers = np.arange(count, dtype=np.int32)
    weights = {name: value.astype(np.float64) for name, value in model.parameters().items()}
    expected = interpret(model.program, attached(model).prepared.forest.select(numbers), weights).outputs
    found = model.predict(numbers)
    error = 0.0
    for name, values in expected.items():
        given = np.array([value for value in found[name] if value is not None], np.float64)
        if given.dtype.kind == "f" and given.shape == values.shape:
            error = max(error, float(np.abs(given - values).max()))
    if not error <= TOLERANCE:
        raise ValueError(f"{model.build.model}: values are off by {error:g}")
    return error


def check_stream(model: Model, size: int, samples: int) -> None:
    """ValueError if a stream gives other bits than each of its batches alone, or other values than calls."""
    batches = list(islice(shuffled(samples, size), COMPARED))
    for batch, streamed in zip(batches, model.predictions(batches), strict=True):
        alone, called = next(model.predictions([batch])), model.session.predict(attached(model), batch)
        for name, values in streamed.items():
            if not all(np.array_equal(a, b) for a, b in zip(values, alone[name], strict=True)):
                raise ValueError(f"in a stream a batch of {size} has other bits of {name} than alone")
            if values[0].dtype.kind == "f" and not np.allclose(values, called[name], atol=TOLERANCE):
                raise ValueError(f"a stream of batches of {size} gives other values of {name} than calls")


def speeds(model: Model, samples: list[Any], size: int, effort: Effort, on_gpu: bool) -> dict[str, Any]:
    """Batches of one size."""
    batches = shuffled(len(samples), size)
    repeat(lambda: model.session.predict(attached(model), next(batches)), effort.seconds / 2, size)
    rates = [
        repeat(lambda: model.session.predict(attached(model), next(batches)), effort.seconds, size)
        for _ in range(effort.repeats)
    ]
    found: dict[str, Any] = {"rate": statistics.median(rates), "runs": rates}
    assert model.attached is not None
    streams = [
        measure_throughput(model, model.attached, batch=size, seconds=effort.seconds, seed=seed)
        for seed in range(effort.repeats)
    ]
    found["streams"] = [each.samples_per_second for each in streams]
    found["stream"] = statistics.median(found["streams"])
    found["encoders"] = model.session.answers.ahead.has_room
    if size <= MOST_SAMPLES:
        found |= small_calls(model, samples, [next(batches) for _ in range(MOST)], effort)
    if on_gpu:
        found |= kernels(
            model, list(islice(batches, max(MOST, int(effort.seconds * found["stream"] / size))))
        )
    return found


def small_calls(
    model: Model, samples: list[Any], chosen: list[list[int]], effort: Effort
) -> dict[str, float]:
    """Calls of few samples: read in the call and of new shapes, and of known ones that were read before."""
    size, given = len(chosen[0]), [[samples[n] for n in each] for each in chosen]
    model.predict(given[-1])
    begin = time.perf_counter()
    for each in given[:-1]:
        model.predict(each)
    new = size * (len(given) - 1) / (time.perf_counter() - begin)
    short = Predictor(model.session)
    read = [model.read(each, labels_required=False).forest for each in given]
    for forest in read:
        short.predict(forest)
    turn = iter(read * 10_000)
    return {"new": new, "known": repeat(lambda: short.predict(next(turn)), effort.seconds, size)}


def repeat(call: Callable[[], Any], seconds: float, size: int) -> float:
    """Samples a second of calls with `size` of them."""
    done, begin = 0, time.perf_counter()
    while not done or time.perf_counter() - begin < seconds:
        call()
        done += size
    return done / (time.perf_counter() - begin)


def kernels(model: Model, batches: list[list[int]]) -> dict[str, float]:
    """Of a stream: the median time of a launch, how many run at once, the share of the time without any."""
    backend: Any = model.backend
    device = backend.device
    backend.device = timed = TimedDevice(device, len(batches))
    backend.forget_calls()
    try:
        for _ in model.predictions(batches):
            pass
    finally:
        backend.device = device
        backend.forget_calls()
    events = timed.events[: timed.used]
    first, busy, end = events[0][0], 0.0, 0.0
    ranges = [[each.microseconds_since(first) for each in pair] for pair in events]
    for begin, until in sorted(ranges):
        busy, end = busy + max(0.0, until - max(begin, end)), max(end, until)
    times = [until - begin for begin, until in ranges]
    return {
        "kernel_us": statistics.median(times),
        "at_once": sum(times) / busy,
        "idle_of_gpu_time": 1 - busy / end,
    }


def line(found: dict[str, Any], wanted: float | None) -> str:
    """A row of the table; the bar is that of a stream."""
    kernel, idle = found.get("kernel_us"), found.get("idle_of_gpu_time")
    new, known = (f"{found[name]:,.0f}" if name in found else "-" for name in ("new", "known"))
    row = f"{found['model']:16}{found['batch']:6}{found['stream']:11,.0f}{found['rate']:10,.0f}{new:>9}"
    row += f"{known:>10}{f'{kernel:,.0f}' if kernel else '-':>11}{found.get('at_once', 1):9.1f}"
    row += f"{'-' if idle is None else f'{idle:.0%}':>6}"
    if wanted is not None:
        row += f"  {wanted:,.0f} {'reached' if found['stream'] >= wanted else 'MISSED'}"
    return row
