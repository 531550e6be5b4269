"""Each optional decision left out in turn, and how workers spend their time.

The Tree-LSTM as in Cavs (Xu et al. 2018, Fig. 10), at several sizes: what the compiler leaves out is in the
builds of `points.VARIANTS`, what the runtime leaves out is said to it here. A variant without a build has
the plan of the plain one. Workers are looked at through the traced kernel, which lies beside its build.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dnc
from benchmarks.applications.data import DataSets
from benchmarks.applications.measure import LEARNING_RATE, Effort, dnc_speed
from benchmarks.applications.points import ABLATED, ABLATION_BATCHES, SST, TRACED, ablated
from benchmarks.models import run, shuffled
from benchmarks.treelstm import attached, batches_of, idle_share, samples_of
from dnc.api import Model, read_summary, write_trace
from dnc.diagnostics import DiagnosticError
from dnc.runtime.encoder import alike
from dnc.runtime.trace.timeline import Timeline

SAMPLES = 2048
TITLE = f"{'hidden':>6}{'batch':>6}  {'left out':34}{'sentences/s':>12}{'kernel us':>11}{'times':>7}"
TRACE_TITLE = f"{'model':12}{'batch':>6}{'launch us':>11}{'work':>7}{'wait':>7}{'weights':>8}{'idle':>6}"
TRACED_LAUNCHES, TRACED_BATCHES = 3, (1, 32, 128, 256)
PARTS = ("work", "wait", "setup", "idle")
PLAIN, ALONE, ONE = "nothing", "batches encoded together", "all replicas but one"
ROWS, NEVER = "rows that leaves share", 1 << 30


def measure(builds: Path, data: DataSets, device: str, effort: Effort) -> Iterator[dict[str, Any]]:
    """All variants of a size, then the next size. times: a launch by the plain one, on the same batches.

    On a GPU only what is said to the host (`PLAIN`, `ALONE`) has a rate too: the others differ in launches.

    A variant that the device cannot run has a line that says why, in place of numbers.
    """
    yield {"title": TITLE}
    for size in ABLATED:
        plain: dict[int, dict[str, Any]] = {}
        variants = {**dict.fromkeys((PLAIN, ALONE, ONE, ROWS), f"tree-{size}"), **ablated(size)}
        for variant, name in variants.items():
            if not (builds / name).is_dir():
                continue
            given = {"encoders": 0} | ({"replicas": 1} if variant == ONE else {})
            found: dict[str, Any] = {"hidden": size, "variant": variant}
            fewest = NEVER if variant == ROWS else alike.FEWEST
            try:
                model = dnc.load(builds / name, device, **given)
                data.attach(model, SST, SAMPLES)
                found["device"] = model.device
                for batch in ABLATION_BATCHES:
                    found["batch"] = batch
                    with patch.object(alike, "FEWEST", fewest):
                        own = speed(variant, model, batch, effort, device == "cuda")
                    if variant == PLAIN:
                        plain[batch] = own
                    yield found | {"dnc": own, "line": line(found, own, plain.get(batch))}
            except DiagnosticError as error:
                problem = str(error.diagnostics[0].message)
                yield found | {"problem": problem, "line": problem_line(found, problem)}
            gc.collect()  # what the model held on the device


def speed(variant: str, model: Model, batch: int, effort: Effort, on_gpu: bool) -> dict[str, Any]:
    """A variant at a batch size: its rate, or its launches, or both."""
    if variant == ALONE:
        return alone(model, batch, effort)
    rates = dnc_speed(model, batch, effort, on_gpu) if variant == PLAIN or not on_gpu else {}
    return rates | (launches(model, batch) if on_gpu else {})


def launches(model: Model, size: int) -> dict[str, float]:
    """Launches of training on the same batches for every build."""
    model.configure("sgd", LEARNING_RATE)
    model.session.reserve(attached(model), size)
    return idle_share(model, size)


def alone(model: Model, size: int, effort: Effort) -> dict[str, Any]:
    """Every batch encoded for itself, in this process."""

    def train(batches: Iterator[list[int]]) -> None:
        for batch in batches:
            model.step(batch)
        model.sync()

    batches = shuffled(samples_of(model), size)
    run(train, batches, effort.seconds / 2, 1)
    return {"rate": run(train, batches, effort.seconds, 1)}


def line(found: dict[str, Any], own: dict[str, Any], plain: dict[str, Any] | None) -> str:
    """A row of the table; where there are no kernel times, `times` is that of the rates."""
    kernel = own.get("kernel_us")
    times = "-"
    if plain is not None:
        both = kernel and plain.get("kernel_us")
        times = f"{kernel / plain['kernel_us'] if both else plain['rate'] / own['rate']:.2f}"
    shown = f"{kernel:,.0f}" if kernel else "-"
    rate = f"{own['rate']:,.0f}" if "rate" in own else "-"
    row = f"{found['hidden']:6}{found['batch']:6}  {found['variant']:34}{rate:>12}"
    return row + f"{shown:>11}{times:>7}"


def problem_line(found: dict[str, Any], problem: str) -> str:
    """A row for a variant that did not run, or that a batch size was too much for."""
    return f"{found['hidden']:6}{found.get('batch', '-'):>6}  {found['variant']:34}{problem}"


def workers(builds: Path, data: DataSets, device: str) -> Iterator[dict[str, Any]]:
    """How workers spend a launch: shares of work, waiting, loading weights, and the rest."""
    yield {"title": TRACE_TITLE}
    for name in TRACED:
        folder = builds / f"{name}.traced"
        if not folder.is_dir() or not (builds / name).is_dir():
            yield {"line": f"{name}: no traced kernel in {builds}"}
            continue
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        model = dnc.load(builds / name, device, encoders=0)
        data.attach(model, SST, SAMPLES)
        for size in TRACED_BATCHES:
            found = {"model": name, "batch": size, "device": model.device} | shares(model, size, files)
            yield found | {"line": trace_line(found)}


def shares(model: Model, size: int, files: dict[str, bytes]) -> dict[str, Any]:
    """Of all workers together, over some launches behind others."""
    model.session.reserve(attached(model), size)
    batches = [batch for batch in batches_of(model, size, 79) if len(batch) == size]
    before = batches[TRACED_LAUNCHES:][:TRACED_LAUNCHES] or batches
    for _ in model.steps(before):
        pass
    backend: Any = model.backend
    timeline = Timeline(model.plan, backend.name, TRACED_LAUNCHES, backend.trace_with(files))
    model.session.timeline = timeline
    for _ in model.steps(batches[:TRACED_LAUNCHES]):
        pass
    with tempfile.TemporaryDirectory() as place:
        write_trace(timeline, Path(place) / "trace.json")
        summary = read_summary(Path(place) / "trace.json")
    total = sum(worker.total for worker in summary.workers)
    shown = {part: sum(getattr(each, part) for each in summary.workers) / total for part in PARTS}
    launches = len(summary.launch_us)
    opcodes = [
        {"name": o.name, "category": o.category, "count": o.count}
        | {"us_a_worker": o.total / len(summary.workers) / launches}
        for o in summary.opcodes
    ]
    return {"launch_us": sum(summary.launch_us) / launches, "shares": shown, "opcodes": opcodes}


def trace_line(found: dict[str, Any]) -> str:
    """A row of the table."""
    part = found["shares"]
    row = f"{found['model']:12}{found['batch']:6}{found['launch_us']:11,.0f}{part['work']:7.0%}"
    return row + f"{part['wait']:7.0%}{part['setup']:8.0%}{part['idle']:6.0%}"
