"""Where compiled things are kept: `DNC_CACHE_DIR`, else the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder; it need not exist."""
    import platformdirs  # only where something is compiled

    chosen = os.environ.get("DNC_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("dnc"))
