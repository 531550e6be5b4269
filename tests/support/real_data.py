"""Where the real data sets are, and reasons to skip without them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]


def data_folder() -> Path:
    """`$DNC_DATA`, else ../shared/data from the project's root."""
    chosen = os.environ.get("DNC_DATA")
    return Path(chosen) if chosen else ROOT.parent / "shared" / "data"


def real_file(name: str) -> Path | None:
    """A file of the real data, None if it is not there."""
    path = data_folder() / name
    return path if path.is_file() else None
