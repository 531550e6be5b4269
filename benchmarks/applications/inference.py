"""Inference of the Tree-LSTM: sentences a second of calls, one after another, and of whole passes.

Every call waits for its values. `calls` has the structures read before and encodes what is of a new shape;
`pass` predicts the data set with one call, which goes chunk by chunk; `evaluate` makes losses and metrics
in place of values, and encodes a chunk while another one runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dnc
from benchmarks.applications.data import DataSets
from benchmarks.applications.measure import Effort
from benchmarks.applications.points import INFERENCE
from benchmarks.models import shuffled
from benchmarks.treelstm import TimedDevice, attached
from dnc.api import Model
from dnc.runtime.predictor import MOST_SAMPLES, Predictor

TITLE = f"{'model':16}{'batch':>6}{'calls/s':>11}{'known/s':>11}{'kernel us':>11}{'by kernel/s':>13}  bar"
MOST = 200
"""Batches whose launches are looked at, and whose shapes are known."""


def measure(builds: Path, data: DataSets, device: str, effort: Effort) -> Iterator[dict[str, Any]]:
    """Every batch size, then whole passes."""
    yield {"title": TITLE}
    for point in INFERENCE:
        model = dnc.load(builds / point.build, device)
        samples = data.attach(model, point.data)
        for size in point.batches:
            if size > len(samples):
                continue
            found: dict[str, Any] = {"model": point.build, "batch": size, "device": model.device}
            found |= speeds(model, samples, size, effort, device == "cuda")
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


def speeds(model: Model, samples: list[Any], size: int, effort: Effort, on_gpu: bool) -> dict[str, Any]:
    """Calls with batches of one size."""
    batches = shuffled(len(samples), size)
    repeat(lambda: model.session.predict(attached(model), next(batches)), effort.seconds / 2, size)
    rates = [
        repeat(lambda: model.session.predict(attached(model), next(batches)), effort.seconds, size)
        for _ in range(effort.repeats)
    ]
    found: dict[str, Any] = {"rate": statistics.median(rates), "runs": rates}
    if size <= MOST_SAMPLES:
        short = Predictor(model.session)
        chosen = [next(batches) for _ in range(MOST)]
        read = [model.read([samples[n] for n in each], labels_required=False).forest for each in chosen]
        for forest in read:
            short.predict(forest)
        turn = iter(read * 10_000)
        found["known"] = repeat(lambda: short.predict(next(turn)), effort.seconds, size)
    if on_gpu:
        found["kernel_us"] = kernel_us(model, [next(batches) for _ in range(MOST)])
    return found


def repeat(call: Callable[[], Any], seconds: float, size: int) -> float:
    """Samples a second of calls with `size` of them."""
    done, begin = 0, time.perf_counter()
    while not done or time.perf_counter() - begin < seconds:
        call()
        done += size
    return done / (time.perf_counter() - begin)


def kernel_us(model: Model, batches: list[list[int]]) -> float:
    """The median time of a launch."""
    backend: Any = model.backend
    device = backend.device
    backend.device = timed = TimedDevice(device, 2 * len(batches))
    backend.forget_calls()
    try:
        for batch in batches:
            model.session.predict(attached(model), batch)
    finally:
        backend.device = device
        backend.forget_calls()
    events = timed.events[: timed.used]
    return statistics.median(after.microseconds_since(before) for before, after in events)


def line(found: dict[str, Any], wanted: float | None) -> str:
    """A row of the table."""
    kernel = found.get("kernel_us")
    by_kernel = f"{found['batch'] / kernel * 1e6:,.0f}" if kernel else "-"
    known = f"{found['known']:,.0f}" if "known" in found else "-"
    row = f"{found['model']:16}{found['batch']:6}{found['rate']:11,.0f}{known:>11}"
    row += f"{f'{kernel:,.0f}' if kernel else '-':>11}{by_kernel:>13}"
    if wanted is not None:
        row += f"  {wanted:,.0f} {'reached' if found['rate'] >= wanted else 'MISSED'}"
    return row
