"""The Python interface: `dnc.load(build)` gives a `Model` that trains, evaluates and predicts.

In: a build, data as paths, samples or sample numbers. Out: losses, metrics, outputs, arrays.
Guaranteed: what runs, measures and explains builds is here, for the command line too; on the GPU neither
TVM nor the frontend is imported; every mistake of the user is a `DiagnosticError`.
"""

from __future__ import annotations

from pathlib import Path

from dnc.api.arguments import Batch, Data, check_whole
from dnc.api.first_values import start_by_name, unnamed_classes
from dnc.api.model import Model
from dnc.api.outputs import as_json, generate_lines, predict_lines, predict_to_file, write_lines
from dnc.api.passes import Optimized, run_passes
from dnc.api.reports import DataCheck, check_data, explain_build
from dnc.api.runs import draw_run, find_checkpoint, run_of
from dnc.api.tracing import (
    LAUNCHES,
    Summary,
    WorkerTime,
    check_trace_path,
    read_summary,
    summary_of,
    write_trace,
)
from dnc.compiler import build_plan
from dnc.ir.machine import machine_of
from dnc.runtime.atomic import write_text
from dnc.runtime.build import read_build
from dnc.runtime.curves import Missing
from dnc.runtime.data import missing_everywhere
from dnc.runtime.devices import choose, open_backend
from dnc.runtime.importers import import_file
from dnc.runtime.interrupts import Interrupts
from dnc.runtime.rates import rate_schedule
from dnc.runtime.run_config import (
    BEGINNING,
    GONE,
    RunConfig,
    check_options,
    read_config,
    why_not_again,
    with_values,
)
from dnc.runtime.run_folder import CONFIG, check_result

__all__ = [
    "BEGINNING",
    "Batch",
    "CONFIG",
    "Data",
    "DataCheck",
    "GONE",
    "Interrupts",
    "LAUNCHES",
    "Missing",
    "Model",
    "Optimized",
    "RunConfig",
    "Summary",
    "WorkerTime",
    "as_json",
    "check_data",
    "check_options",
    "check_result",
    "check_trace_path",
    "draw_run",
    "explain_build",
    "find_checkpoint",
    "generate_lines",
    "import_file",
    "load",
    "machine_of",
    "missing_everywhere",
    "predict_lines",
    "predict_to_file",
    "rate_schedule",
    "read_config",
    "read_summary",
    "run_of",
    "run_passes",
    "start_by_name",
    "summary_of",
    "unnamed_classes",
    "why_not_again",
    "with_values",
    "write_lines",
    "write_text",
    "write_trace",
]


def load(
    build: str | Path,
    device: str | None = None,
    *,
    checkpoint: str | Path | None = None,
    seed: int = 1,
    replicas: int | None = None,
    workers: int | None = None,
    memory_bytes: int | None = None,
    encoders: int | None = None,
) -> Model:
    """Opens a build on a device: "cpu", "cuda", "vm" (the reference VM); None takes the best there is.

    "cuda:1" is one of several GPUs; "cuda" the one that is current in the thread, else the first. "cuda:0,1"
    are two that train together, each on its share of every batch; whatever else runs on the first.
    checkpoint: weights, optimizer state and vocabulary to start from. seed: of the first weights
    otherwise. replicas, workers: how the device is divided, None for what suits it. memory_bytes:
    the most memory to take; a batch that does not fit is run in parts. encoders: other processes that
    encode batches ahead of a GPU, 0 for none; None for a few, as cores are there.
    """
    check_whole("seed", seed, 0)
    for name, value, least in (("replicas", replicas, 1), ("workers", workers, 1), ("encoders", encoders, 0)):
        check_whole(name, value, least, optional=True)
    check_whole("memory_bytes", memory_bytes, 1, optional=True)
    opened = read_build(build)
    place = choose(opened, device)
    plan = build_plan(opened, place.target)
    model = Model(opened, plan, open_backend(place, plan, opened, replicas, workers), int(seed))
    model.memory_words = None if memory_bytes is None else memory_bytes // 4
    model.grid, model.encoders = (replicas, workers), encoders
    if checkpoint is not None:
        model.restore(checkpoint)
    return model
