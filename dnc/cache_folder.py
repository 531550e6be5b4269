"""Where compiled things are kept: `DNC_CACHE_DIR`, else the user's cache folder.

Guaranteed: each folder in it stays within `LIMIT`; what was used longest ago goes first.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

LIMIT = 1 << 30  # bytes


def cache_folder() -> Path:
    """The folder; it need not exist."""
    chosen = os.environ.get("DNC_CACHE_DIR")
    if chosen:
        return Path(chosen)
    import platformdirs  # only where something is compiled or kept

    return Path(platformdirs.user_cache_dir("dnc"))


def mark_used(entry: Path) -> None:
    """An entry of a folder, a file or a folder itself, is of use now."""
    with suppress(OSError):  # where the cache can only be read
        os.utime(entry)


def trim(folder: Path, limit: int = LIMIT) -> None:
    """Removes entries of a folder that were used longest ago, until the others have `limit` bytes at most."""
    found = []
    for entry in folder.iterdir():
        with suppress(OSError):  # another process was faster
            found.append((entry.stat().st_mtime, _bytes(entry), entry))
    room = limit
    for _, size, entry in sorted(found, reverse=True):
        room -= size
        if room < 0:
            _remove(entry)


def _bytes(entry: Path) -> int:
    files = entry.iterdir() if entry.is_dir() else [entry]
    return sum(file.stat().st_size for file in files)


def _remove(entry: Path) -> None:
    if entry.is_dir():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        with suppress(OSError):
            entry.unlink()
