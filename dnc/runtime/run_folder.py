"""The folder of a run: what training writes.

    run.toml           the configuration; `dnc run --config` with it makes the run again, or it says why not
    metrics.jsonl      an event a line
    vocabulary.json    the numbers of words and labels
    last.safetensors   the checkpoint of the last epoch (or of where it was stopped)
    best.safetensors   the checkpoint with the best score on the dev set
    curves.png         loss and metrics, at the end

Guaranteed: a new run never writes over another one; one that goes on from a checkpoint drops the
events behind it, so that metrics.jsonl is that of a run that never stopped.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import msgspec

from dnc.diagnostics import DiagnosticError, check_noted, check_path, fail
from dnc.runtime.atomic import check_output, write_atomically
from dnc.runtime.build import check_outside
from dnc.runtime.checkpoint import checkpoint_place
from dnc.runtime.data import Vocabulary, save_vocabularies
from dnc.runtime.json_text import decode_json
from dnc.runtime.run_config import RunConfig, files_of, read_config, write_config

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

RUNS = "runs"
METRICS, VOCABULARY, CONFIG = "metrics.jsonl", "vocabulary.json", "run.toml"
LAST, BEST = "last", "best"
OWN = (METRICS, VOCABULARY, CONFIG, f"{LAST}.safetensors", f"{BEST}.safetensors")


def check_result(path: str | Path, *inputs: object) -> None:
    """DiagnosticError if no result can be written to `path`, or if it is an input, lies in a build,
    is what a run goes on from, or what the run of an input was told to read.

    To be called before the work whose result goes there. inputs: only paths count.
    """
    check_output(path, *inputs)
    check_outside(path)
    for each in inputs:
        if isinstance(each, str | Path) and Path(path).exists():
            _check_run_reads(path, Path(each) if Path(each).is_dir() else Path(each).parent)
    folder = Path(path).absolute().parent
    if Path(path).name in OWN and any((folder / name).exists() for name in (CONFIG, METRICS)):
        raise fail(f"{path}: belongs to the run in {folder}; choose another file to write")


def _check_run_reads(path: str | Path, folder: Path) -> None:
    """DiagnosticError if the run in a folder, if there is one, has to read `path` to go on."""
    if not ((folder / CONFIG).exists() and (folder / METRICS).exists()):
        return
    config = RunConfig()
    with suppress(DiagnosticError):  # one that was damaged names nothing
        config = read_config(folder / CONFIG)
    if any(Path(each).exists() and Path(path).samefile(each) for each in files_of(config)):
        raise fail(f"{path}: is read by the run in {folder} and would be lost; choose another file to write")


def check_named(path: str | Path, config: RunConfig | None) -> None:
    """DiagnosticError where no file of a run can name its folder, or what it is trained on."""
    with suppress(OSError):  # the working folder is gone, which is said by what cannot be written there
        check_noted(*map(os.path.abspath, [path, *files_of(config or RunConfig())]))


class RunFolder:
    """An open run.

    resumed: the checkpoint that the run goes on from, which may lie in it. again: the folder may hold a
    run that has no checkpoint yet. step: the steps done. config: what is kept as run.toml; why: it does not
    make the run again, "" where it does.
    """

    def __init__(
        self,
        path: str | Path,
        resumed: str | Path | None = None,
        step: int = 0,
        again: bool = False,
        config: RunConfig | None = None,
        why: str = "",
    ) -> None:
        check_path(path, "a run folder")
        self.path = Path(path)
        check_outside(self.path / METRICS, self.path)
        own = resumed is not None and lies_in(resumed, self.path)
        own = own or (again and not self.checkpoint(LAST).exists())
        if (self.path / METRICS).exists() and not own:
            raise fail(
                f"{path}: holds a run already",
                f"dnc run --resume {path} goes on with it; else choose another --run-dir",
            )
        check_nothing_lost(path, own)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = _locked(self.path)
            self._release = weakref.finalize(self, _close, handle)
            if own:
                self._tidy(step)
            if config is not None:  # first of all: with it, a run that was killed can be gone on with
                write_config(self.path / CONFIG, config, why)
            self._metrics: TextIO = (self.path / METRICS).open("a", encoding="utf-8")
        except OSError as error:
            raise fail(f"{path}: cannot be written: {error.strerror}") from None

    def checkpoint(self, kind: str) -> Path:
        """Where the checkpoint "last" or "best" lies."""
        return self.path / f"{kind}.safetensors"

    def record(self, event: Mapping[str, Any]) -> str:
        """Appends an event to the metrics; the line."""
        line = msgspec.json.encode(event).decode()
        with self._writing(METRICS):
            self._metrics.write(line + "\n")
            self._metrics.flush()
        return line

    def _tidy(self, step: int) -> None:
        """Removes files that were not written whole, and events behind `step`; a last line may be broken."""
        for rest in self.path.glob(".*.part"):
            rest.unlink()
        if not (self.path / METRICS).exists():
            return
        lines = (self.path / METRICS).read_bytes().splitlines(keepends=True)
        events = [(line, event) for line in lines if (event := _event(line)) is not None]
        # An end of before: the run was stopped there and goes on now.
        kept = [
            line for line, event in events if event.get("step", 0) <= step and event.get("event") != "end"
        ]
        write_atomically(self.path / METRICS, kept if step else [])

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Makes one line of what the system says when the disk is full or not to be written."""
        try:
            yield
        except OSError as error:
            raise fail(f"{self.path / name}: cannot be written: {error.strerror}") from None

    def keep_vocabularies(self, vocabularies: Mapping[str, Vocabulary]) -> None:
        """Writes the vocabularies."""
        with self._writing(VOCABULARY):
            save_vocabularies(self.path / VOCABULARY, vocabularies)

    def close(self) -> None:
        """Closes the metrics, and lets others go on with the run."""
        with self._writing(METRICS):
            self._metrics.close()
        self._release()


def lies_in(checkpoint: str | Path, run: str | Path) -> bool:
    """Whether a checkpoint is that of a run, which goes on from it."""
    return Path(checkpoint).resolve().parent == Path(run).resolve()


def _close(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _locked(folder: Path) -> int | None:
    """A handle of a folder that is this process's until it is closed; DiagnosticError if another one has it.

    None where the system or the file system knows no locks: there nobody is kept out.
    """
    if fcntl is None:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise fail(f"{folder}: another process trains in it") from None
        return None
    return handle


def check_free(run: str | Path) -> None:
    """DiagnosticError if another process trains in the folder of a run."""
    with suppress(OSError):  # there is none, or it cannot be opened: then nobody does
        _close(_locked(Path(run)))


def check_folder(run: str | Path) -> None:
    """DiagnosticError where something else than a folder has the place of a run."""
    check_path(run, "a run folder")
    if Path(run).exists() and not Path(run).is_dir():
        raise fail(f"{run}: is a file, expected the folder of a run")


def check_nothing_lost(folder: str | Path, goes_on: bool = False) -> None:
    """DiagnosticError where a folder that holds no run has files of the names that a run writes.

    goes_on: it is one that has its configuration alone, too.
    """
    check_folder(folder)
    taken = [name for name in OWN if (Path(folder) / name).exists()]
    if taken and METRICS not in taken and not (goes_on and CONFIG in taken):
        raise fail(
            f"{folder}: holds {', '.join(taken)}, which a run would write over, and no run",
            "choose another --run-dir",
        )


def new_run(model: str, folder: str | Path = RUNS) -> Path:
    """A folder for a new run, made here, so that nobody else gets it; numbered: the newest sorts last."""
    while True:
        taken = [path.name.split("-")[0] for path in Path(folder).glob("[0-9]*-*")]
        number = max((int(each) for each in taken if each.isdigit()), default=0) + 1
        path = Path(folder) / f"{number:04}-{model}-{time.strftime('%Y%m%d')}"
        check_outside(path / METRICS, path)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise fail(f"{path}: cannot be written: {error.strerror}") from None
        return path


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
    check_folder(run)
    found = (Path(run) / f"{kind}.safetensors" for kind in (BEST, LAST))
    return next((path for path in found if path.exists()), None)


def _event(line: bytes) -> dict[str, Any] | None:
    """A line of the metrics; None if it was not written whole."""
    try:
        value = decode_json(line)
    except ValueError:
        return None
    return value if line.endswith(b"\n") and isinstance(value, dict) else None


def _is_of(path: Path, digest: str) -> bool:
    try:
        return checkpoint_place(path)[0] == digest
    except DiagnosticError:
        return False
