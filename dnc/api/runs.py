"""Runs that are on disk: their checkpoints, configurations and curves.

In: run folders, or a build whose newest run is meant. Out: paths and configurations; `draw_run` writes
a picture. Guaranteed: a folder that holds no such thing is a DiagnosticError.
"""

from __future__ import annotations

from pathlib import Path

from dnc.diagnostics import fail
from dnc.runtime.build import read_build
from dnc.runtime.curves import CURVES, draw_curves, read_events
from dnc.runtime.run_config import RunConfig, read_config
from dnc.runtime.run_folder import (
    CONFIG,
    LAST,
    METRICS,
    RUNS,
    check_folder,
    newest_checkpoint,
    run_checkpoint,
)


def find_checkpoint(build: str | Path, run_dir: str | Path | None = None) -> Path:
    """The checkpoint of a run folder, or of the newest run of a build's model: best, else last."""
    digest = read_build(build).digest
    if run_dir is not None:
        found = run_checkpoint(run_dir)
        if found is None:
            raise fail(f"{run_dir}: holds no checkpoint")
        return found
    found = newest_checkpoint(digest)
    if found is None:
        raise fail(f"{build}: no run of this model in {RUNS}/; train it first, or give --checkpoint")
    return found


def run_of(folder: str | Path) -> tuple[RunConfig, Path | None]:
    """The configuration of a run folder and its last checkpoint, None if there is none yet.

    DiagnosticError where there was one: a run writes it at the end of every epoch.
    """
    check_folder(folder)
    last, metrics = Path(folder) / f"{LAST}.safetensors", Path(folder) / METRICS
    if not (Path(folder) / CONFIG).exists():  # what a run writes first, once its data are read
        lacks = f"holds no {CONFIG}" if Path(folder).exists() else "there is no such run"
        begin = "a run that was killed before it wrote anything is begun again, with its first command"
        go_on = f"to begin another run from its weights: --checkpoint {last}"
        raise fail(f"{folder}: {lacks}", go_on if last.exists() else begin)
    config = read_config(Path(folder) / CONFIG)
    if last.exists():
        return config, last
    epochs = sum(event.get("event") == "epoch" for event in read_events(metrics)) if metrics.exists() else 0
    if epochs > 1:
        raise fail(
            f"{last}: is missing, and {metrics.name} knows of {epochs} epochs",
            "to begin with other weights: --checkpoint FILE and another --run-dir",
        )
    if config == RunConfig(build=config.build):
        raise fail(
            f"{folder}: weights were imported here, and that did not end", "import them here once more"
        )
    return config, None


def draw_run(folder: str | Path) -> Path:
    """Draws the curves of a run folder; the picture. Missing without matplotlib."""
    check_folder(folder)
    path = Path(folder) / CURVES
    try:
        draw_curves(read_events(Path(folder) / METRICS), path)
    except OSError as error:
        raise fail(f"{path}: cannot be written: {error.strerror}") from None
    return path
