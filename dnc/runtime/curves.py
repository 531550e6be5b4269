"""Curves of a run: a picture with matplotlib, events for TensorBoard; both are optional extras.

In: the events of metrics.jsonl. Out: curves.png; event files. Guaranteed: where the library is
missing, `Missing` says in one line what to install.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dnc.diagnostics import Diagnostic, DiagnosticError, fail, reading
from dnc.runtime.data.problems import kind_of
from dnc.runtime.json_text import decode_json

CURVES = "curves.png"


class Missing(DiagnosticError):
    """A library that is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            Diagnostic(f"{what}: {package} is not installed (in dnc's folder: pip install -e '.[{extra}]')")
        )


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a metrics.jsonl, without a last line that was not written whole."""
    with reading(path):
        lines = path.read_bytes().split(b"\n")
    found = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            event = decode_json(line)
        except ValueError:
            raise fail(f"{path}:{number}: not JSON") from None
        if not isinstance(event, dict):
            raise fail(f"{path}:{number}: found {kind_of(event)}, expected an event")
        found.append(event)
    return found


def scalars(event: Mapping[str, Any]) -> dict[str, float]:
    """The curves an event adds a point to: "batch/loss", "train/loss", "dev/accuracy", ..."""
    kind = event.get("event")
    if kind == "step":
        return {f"batch/{name}": event[name] for name in ("loss", "norm", "learning_rate") if name in event}
    if kind == "epoch":
        dev = {f"dev/{name}": value for name, value in event.get("dev", {}).items() if name != "samples"}
        return {"train/loss": event["loss"], **dev}
    return {}


def draw_curves(events: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Loss, metrics and learning rate over the steps, a panel each; nothing without a point."""
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise Missing("no curves", "matplotlib", "plot") from None
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for event in events:
        for name, value in scalars(event).items():
            steps, values = curves.setdefault(name, ([], []))
            steps.append(event["step"])
            values.append(value)
    panels: dict[str, list[str]] = {}
    for name in sorted(curves, key=_place):
        if name != "batch/norm":
            panels.setdefault(name.partition("/")[2], []).append(name)
    if not panels:
        return
    figure = figures.Figure(figsize=(5 * len(panels), 3.5), layout="constrained")
    for axes, (title, names) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        for name in names:
            style = {"linewidth": 0.6} if name.startswith("batch/") else {"linewidth": 1.8, "marker": "."}
            axes.plot(*curves[name], label=name, **style)
        axes.set(title=title.replace("_", " "), xlabel="step")
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _place(name: str) -> tuple[bool, bool, str]:
    """The loss comes first, the learning rate last; what is measured batch by batch lies below the rest."""
    return name.endswith("/learning_rate"), not name.endswith("/loss"), name


def tensorboard_library() -> Any:
    """What writes events for TensorBoard; Missing if it is not installed."""
    try:
        return importlib.import_module("tensorboardX")
    except ImportError:
        raise Missing("no TensorBoard events", "tensorboardX", "tensorboard") from None


class TensorBoard:
    """Writes events for TensorBoard into a folder.

    before: the run's events so far. They are written again, into a new file: of the old one a process that
    was killed has left some out, and others are behind the checkpoint that the run goes on from.
    """

    def __init__(self, folder: Path, before: Iterable[Mapping[str, Any]] = ()) -> None:
        library = tensorboard_library()
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = library.SummaryWriter(str(folder))
        for event in before:
            self.record(event)

    def record(self, event: Mapping[str, Any]) -> None:
        """Adds an event's points."""
        for name, value in scalars(event).items():
            self._writer.add_scalar(name, value, event["step"])

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()
