"""The folder of a run: what training writes.

    metrics.jsonl      an event a line
    vocabulary.json    the numbers of words and labels
    last.safetensors   the checkpoint of the last epoch (or of where it was stopped)
    best.safetensors   the checkpoint with the best score on the dev set

Guaranteed: a new run never writes over another one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import msgspec

from dnc.diagnostics import DiagnosticError, fail
from dnc.runtime.build import check_outside
from dnc.runtime.checkpoint import load_checkpoint
from dnc.runtime.data import Vocabulary, save_vocabularies

RUNS = "runs"
METRICS, VOCABULARY = "metrics.jsonl", "vocabulary.json"
LAST, BEST = "last", "best"


class RunFolder:
    """An open run. `resumed`: the checkpoint that the run goes on from, which may lie in it."""

    def __init__(self, path: str | Path, resumed: str | Path | None = None) -> None:
        self.path = Path(path)
        check_outside(self.path / METRICS, self.path)
        own = resumed is not None and Path(resumed).resolve().parent == self.path.resolve()
        if (self.path / METRICS).exists() and not own:
            raise fail(
                f"{path}: holds a run already",
                f"to go on with it: --checkpoint {self.checkpoint(LAST)}; else choose another --run-dir",
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._metrics: TextIO = (self.path / METRICS).open("a", encoding="utf-8")
        except OSError as error:
            raise fail(f"{path}: cannot be written: {error.strerror}") from None

    def checkpoint(self, kind: str) -> Path:
        """Where the checkpoint "last" or "best" lies."""
        return self.path / f"{kind}.safetensors"

    def record(self, event: Mapping[str, Any]) -> str:
        """Appends an event to the metrics; the line."""
        line = msgspec.json.encode(event).decode()
        self._metrics.write(line + "\n")
        self._metrics.flush()
        return line

    def keep_vocabularies(self, vocabularies: Mapping[str, Vocabulary]) -> None:
        """Writes the vocabularies."""
        save_vocabularies(self.path / VOCABULARY, vocabularies)

    def close(self) -> None:
        """Closes the metrics."""
        self._metrics.close()


def new_run(model: str, folder: str | Path = RUNS) -> Path:
    """A path for a new run: numbered, so that the newest sorts last."""
    taken = [path.name.split("-")[0] for path in Path(folder).glob("[0-9]*-*")]
    number = max((int(each) for each in taken if each.isdigit()), default=0) + 1
    return Path(folder) / f"{number:04}-{model}-{time.strftime('%Y%m%d')}"


def newest_checkpoint(digest: str, folder: str | Path = RUNS) -> Path | None:
    """The best (or else last) checkpoint of the newest run of a model; None if there is none."""
    runs = {path.parent for kind in (BEST, LAST) for path in Path(folder).glob(f"*/{kind}.safetensors")}
    for run in sorted(runs, key=lambda path: (path.stat().st_mtime, path.name), reverse=True):
        path = run_checkpoint(run)
        if path is not None and _is_of(path, digest):
            return path
    return None


def run_checkpoint(run: str | Path) -> Path | None:
    """The best checkpoint of a run, else its last."""
    found = (Path(run) / f"{kind}.safetensors" for kind in (BEST, LAST))
    return next((path for path in found if path.exists()), None)


def _is_of(path: Path, digest: str) -> bool:
    try:
        return load_checkpoint(path).digest == digest
    except DiagnosticError:
        return False
