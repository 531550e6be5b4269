"""What a person, or a program, sees of a training run.

In: the trainer's events. Out: on a terminal a bar and a line an epoch; otherwise every event as a
line of JSON on standard output. Guaranteed: a standard output that cannot be written to any more is
noted, not raised, so that training can end with a checkpoint.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from dnc.cli.pipes import put

# Columns of a terminal from which on there is room for a bar.
WIDE = 70


def as_line(values: Mapping[str, Any]) -> str:
    """Measurements in one line: name value, name value."""
    return ", ".join(
        f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value:,}"
        for name, value in values.items()
    )


class Progress:
    """A context that shows a run; `report` and `tick` are for `Model.train`."""

    def __init__(self, samples: int, epochs: int) -> None:
        self.samples, self.epochs = samples, epochs
        self._epoch = 1
        self.problem: OSError | None = None
        self._bar: Bar | None = None
        if sys.stdout.isatty():
            console = Console()
            columns: list[ProgressColumn] = [TextColumn("epoch {task.fields[epoch]}")]
            if console.width >= WIDE:
                columns += [BarColumn(bar_width=None), MofNCompleteColumn()]
            else:
                columns.append(TextColumn("{task.percentage:>3.0f}%"))
            columns += [TextColumn("loss {task.fields[loss]}"), TimeRemainingColumn(compact=True)]
            self._bar = Bar(*columns, console=console, transient=True)
            self._task = self._bar.add_task("", total=samples, epoch=self._epoch, loss="-")

    def report(self, event: Mapping[str, Any]) -> None:
        """Shows an event."""
        if self._bar is None:
            self._print(msgspec.json.encode(event).decode())
            return
        if event["event"] == "start":
            self._epoch = event["first_epoch"]
            if event.get("other_samples"):
                text = f"{event['data']}: other samples than those of the epochs before"
                self._bar.console.print(text, highlight=False, soft_wrap=True)
        if event["event"] == "epoch":
            shown = {"loss": event["loss"], "samples/s": round(event["samples_per_second"])}
            shown |= {
                f"dev {name}": value for name, value in event.get("dev", {}).items() if name != "samples"
            }
            best = " (best so far)" if event.get("best") else ""
            self._bar.console.print(
                f"epoch {event['epoch']}: {as_line(shown)}{best}", highlight=False, soft_wrap=True
            )
            self._epoch = event["epoch"] + 1
        self._bar.update(self._task, epoch=f"{min(self._epoch, self.epochs)}/{self.epochs}")

    def lost(self) -> bool:
        """Whether standard output cannot be written to any more; `problem` says why."""
        return self.problem is not None

    def _print(self, line: str) -> None:
        if self.problem is not None:
            return
        try:
            put(f"{line}\n")  # JSON is UTF-8, whatever a terminal is
        except OSError as problem:
            self.problem = problem
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def tick(self, samples: int, loss: float) -> None:
        """Moves the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=samples, loss=f"{loss:.4f}")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
