"""One-mistake programs (`*.dn`) and the exact messages they must give (`*.txt`).

The first line of a program may be `# set: name=value` for dimensions set from outside. Run with
`DNC_UPDATE_GOLDEN=1` to write the messages anew; read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program

HERE = Path(__file__).parent
PROGRAMS = sorted(HERE.glob("*.dn"))


def messages(path: Path) -> str:
    text = path.read_bytes().decode("utf-8")
    first = text.split("\n")[0]
    settings = {}
    if first.startswith("# set:"):
        name, value = first.removeprefix("# set:").strip().split("=")
        settings[name] = int(value)
    try:
        _, warnings = load_program(Source(path.name, text), settings)
    except DiagnosticError as error:
        return f"{error}\n"
    return "".join(f"{warning}\n" for warning in warnings)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_message(path: Path) -> None:
    golden = path.with_suffix(".txt")
    found = messages(path)
    if os.environ.get("DNC_UPDATE_GOLDEN"):
        golden.write_text(found, encoding="utf-8")
    assert found, "the program has no mistake"
    assert found == golden.read_text(encoding="utf-8")


def test_there_are_enough() -> None:
    assert len(PROGRAMS) >= 60
