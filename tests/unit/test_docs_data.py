"""docs/data.md names every format and every structure (what its consoles show is run by tests/docs)."""

from __future__ import annotations

import re
from pathlib import Path

from dnc.runtime.importers import FORMATS
from dnc.runtime.importers.structures import STRUCTURES

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def test_every_format_has_a_console():
    commands = re.findall(r"\$ dnc import (\S+) .*", PAGE)
    assert set(commands) == set(FORMATS)
    assert all(f"**{name}**" in PAGE for name in STRUCTURES if name != "sequence")
