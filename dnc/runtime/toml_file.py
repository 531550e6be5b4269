"""TOML files of a user: the configuration of a run, a map of weights.

In: a path. Out: the file's table. Guaranteed: whatever is wrong with the file is a DiagnosticError that
names it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from dnc.diagnostics import fail, reading


def read_toml(path: str | Path) -> dict[str, Any]:
    """What a TOML file holds."""
    try:
        with reading(path):
            return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except ValueError as error:  # of its text, of its syntax, of numbers with too many digits
        raise fail(f"{path}: not TOML: {error}") from None
    except RecursionError:
        raise fail(f"{path}: nested too deeply") from None
