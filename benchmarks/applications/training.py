"""Parts that train: a line for every build and batch size, with a peer where there is one."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dnc
from benchmarks import common
from benchmarks.applications.data import DataSets, for_peers
from benchmarks.applications.measure import LEARNING_RATE, Effort, PeerRun, checked, dnc_speed
from benchmarks.applications.points import Point
from dnc.api import Model
from dnc.diagnostics import DiagnosticError
from dnc.ir.plan import TF32

CHECKED = 8
"""Samples that a peer's losses are compared on."""
TITLE = f"{'model':16}{'batch':>6}{'samples/s':>11}{'kernel us':>11}{'idle':>6}"
TITLE += f"{'PyTorch':>10}{'times':>7}  bar"


def measure(
    points: tuple[Point, ...], builds: Path, data: DataSets, device: str, effort: Effort, graphs: bool = False
) -> Iterator[dict[str, Any]]:
    """Every point in turn; one that fails says why, and the next one follows.

    graphs: PyTorch also replays a CUDA graph of one batch.
    """
    yield {"title": TITLE}
    for point in points:
        if not (builds / point.build).is_dir():
            yield {"line": f"{point.build}: no build in {builds}"}
            continue
        try:
            yield from _sizes(point, builds / point.build, data, device, effort, graphs)
        except (DiagnosticError, RuntimeError, ValueError) as error:
            yield {"line": f"{point.build}: {error}"}
        gc.collect()  # what the model held on the device


def _sizes(
    point: Point, build: Path, data: DataSets, device: str, effort: Effort, graphs: bool
) -> Iterator[dict[str, Any]]:
    """A point at its batch sizes."""
    model = dnc.load(build, device)
    samples = data.attach(model, point.data)
    peer = peer_of(point, model, samples, device)
    for size in point.batches:
        if size > len(samples):
            yield {"line": f"{point.build}: {len(samples)} samples are no batch of {size}"}
            continue
        found = {"model": point.build, "data": point.data, "batch": size, "device": model.device}
        found["settings"] = model.build.settings
        if peer is not None and size == point.batches[0]:
            found["check"] = checked(model, peer, list(range(min(CHECKED, len(samples)))))
        found["dnc"] = dnc_speed(model, size, effort, device == "cuda")
        if peer is not None:
            found["peer"] = peer_speed(PeerRun(peer, len(samples), size, effort), effort, graphs)
        yield found | {"line": line(found, point)}


def peer_of(point: Point, model: Model, samples: list[Any], device: str) -> Any:
    """The peer of a point, with the model's weights, data, and precision."""
    if not point.peer:
        return None
    import torch

    from benchmarks.peers import PEERS

    torch.set_num_threads(common.cores())
    tf32 = model.plan.precision == TF32  # the same on both sides
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    kind = "cuda" if device == "cuda" else "cpu"
    peer = PEERS[point.peer](model.parameters(), kind, LEARNING_RATE)
    peer.read(for_peers(model, samples))
    return peer


def peer_speed(runs: PeerRun, effort: Effort, graphs: bool) -> dict[str, Any]:
    """A peer at a batch size."""
    import torch

    rates = [runs.rate() for _ in range(effort.repeats)]
    found: dict[str, Any] = {"rate": statistics.median(rates), "runs": rates, "torch": torch.__version__}
    if graphs and runs.peer.device == "cuda":
        try:
            found["graph rate"] = runs.graph_rate()
        except RuntimeError as error:
            found["graph error"] = str(error)
    return found


def line(found: dict[str, Any], point: Point) -> str:
    """A row of the table; the bar is what is wanted, and whether it is reached."""
    own, size = found["dnc"], found["batch"]
    peer = found.get("peer")
    kernel = f"{own['kernel_us']:,.0f}" if "kernel_us" in own else "-"
    idle = f"{own['idle_of_gpu_time']:.0%}" if "kernel_us" in own else "-"
    best = 0.0 if peer is None else max(peer["rate"], peer.get("graph rate", 0.0))
    times, compared, bars = "-", "-", []
    if peer is not None:
        times, compared = f"{own['rate'] / best:.2f}", f"{best:,.0f}"
        if size in point.times:
            bars.append(_bar(f"{point.times[size]:g} times", own["rate"] >= point.times[size] * best))
    if size in point.rates:
        bars.append(_bar(f"{point.rates[size]:,.0f}", own["rate"] >= point.rates[size]))
    name = point.build if point.data != "trees of 1,000 leaves" else f"{point.build} wide"
    row = f"{name:16}{size:6}{own['rate']:11,.0f}{kernel:>11}{idle:>6}{compared:>10}{times:>7}  "
    row += "; ".join(bars)
    if peer is not None and "graph rate" in peer:
        row += f" (eager {peer['rate']:,.0f}, graph {peer['graph rate']:,.0f})"
    return row.rstrip()


def _bar(wanted: str, reached: bool) -> str:
    return wanted + (" reached" if reached else " MISSED")
