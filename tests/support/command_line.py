"""The command line in this process, and a small build for it (without kernels: the VM needs none)."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

import dnc.kernel_cache
from dnc.cli import execute
from dnc.compiler import compile_model
from tests.support.models import EXAMPLES, without_kernels

TREE = EXAMPLES / "treelstm.dn"
SIZES = {"embed": 4, "hidden": 4}


@attrs.frozen
class Outcome:
    """What a command did."""

    code: int
    out: str
    error: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of JSON on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Outcome]


def tree(size: int, choice: random.Random) -> dict[str, Any]:
    """A random tree with `size` leaves; its label follows from its first word."""
    if size == 1:
        word = choice.choice(["good", "bad", "film"])
        return {"word": word, "label": {"good": 4, "bad": 0, "film": 2}[word]}
    cut = choice.randint(1, size - 1)
    left, right = tree(cut, choice), tree(size - cut, choice)
    return {"left": left, "right": right, "label": left["label"]}


def write_data(path: Path, samples: int, seed: int) -> None:
    """Writes trees as JSONL."""
    choice = random.Random(seed)
    trees = (tree(choice.randint(1, 4), choice) for _ in range(samples))
    path.write_text("".join(json.dumps(each) + "\n" for each in trees))


@pytest.fixture(scope="session")
def finished_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of the small Tree-LSTM."""
    folder = tmp_path_factory.mktemp("build") / "build"
    with without_kernels(folder.parent / "cache"):
        compile_model(TREE, folder, ("cpu", "cuda:sm_90a"), SIZES)
    return folder


@pytest.fixture
def workplace(tmp_path: Path, finished_build: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with `build`, `train.jsonl` (12 trees) and `dev.jsonl` (5)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / ".cache"))
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setattr("dnc.api.runs.draw_curves", lambda events, path: None)  # half a second every time
    shutil.copytree(finished_build, tmp_path / "build")
    write_data(tmp_path / "train.jsonl", 12, 1)
    write_data(tmp_path / "dev.jsonl", 5, 2)
    return tmp_path


@pytest.fixture
def command(workplace: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line in the workplace; arguments are split at blanks."""

    def run(text: str, *more: str) -> Outcome:
        code = execute([*text.split(), *more])
        out, error = capsys.readouterr()
        return Outcome(code, out, error)

    return run
