"""docs/inside.md: its commands and its Python run, in order, in one folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dnc.cli import execute

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "inside.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after all of the page."""
    folder = tmp_path_factory.mktemp("inside")
    (folder / "examples").symlink_to(ROOT / "examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for language, text in BLOCKS:
            if language == "python":
                exec(compile(text, "docs/inside.md", "exec"), {})
                continue
            for line in text.splitlines():
                program, *arguments = line.split("#")[0].replace("'", "").split()
                assert program == "dnc", line
                assert execute(arguments) == 0, line
    return folder


def test_commands_run(done: Path) -> None:
    assert len(BLOCKS) >= 3
    for name in ("trace.json", "steps.json"):
        trace = json.loads((done / name).read_text())
        assert trace["otherData"]["model"] == "TreeLSTM"


def test_named_files_exist() -> None:
    named = set(re.findall(r"`((?:dnc|docs|tests|examples|benchmarks)/[\w./-]+)`", PAGE))
    assert named and not [path for path in sorted(named) if not (ROOT / path).exists()]
