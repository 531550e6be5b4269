"""docs/data.md: what its consoles show is what happens.

A console is a block whose first line begins with `$`. `cat` of a file that is not there makes it;
any other command has to print what stands below it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dnc.cli import execute
from dnc.runtime.importers import FORMATS
from dnc.runtime.importers.structures import STRUCTURES

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
CONSOLES = re.findall(r"^```\n(\$ .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("console", CONSOLES, ids=lambda text: text.split("\n")[0].removeprefix("$ cat "))
def test_console(console, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for step in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, _, shown = step.partition("\n")
        program, *arguments = command.split()
        if program == "cat":
            path = Path(arguments[0])
            if path.exists():
                assert path.read_text(encoding="utf-8") == shown
            else:
                path.parent.mkdir(exist_ok=True)
                path.write_text(shown, encoding="utf-8")
            continue
        assert program == "dnc"
        code = execute(arguments)
        out, error = capsys.readouterr()
        assert (code, out, error) == (0, shown, "")


def test_every_format_has_a_console():
    commands = re.findall(r"\$ dnc import (\S+) .*", PAGE)
    assert set(commands) == set(FORMATS)
    assert all(f"**{name}**" in PAGE for name in STRUCTURES if name != "sequence")
