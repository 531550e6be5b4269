"""Where compiled things are kept: `DNC_CACHE_DIR`, else the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder; it need not exist."""
    chosen = os.environ.get("DNC_CACHE_DIR")
    if chosen:
        return Path(chosen)
    import platformdirs  # only where something is compiled or kept

    return Path(platformdirs.user_cache_dir("dnc"))
