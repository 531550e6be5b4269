"""Cores of this machine that this process may use: what CPU kernels and encoding processes are divided by."""

from __future__ import annotations

import os


def cores() -> int:
    """How many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
