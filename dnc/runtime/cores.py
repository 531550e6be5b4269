"""What this machine has for this process: cores, by which CPU kernels and encoding processes are divided, and
memory."""

from __future__ import annotations

import os


def cores() -> int:
    """How many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory() -> int:
    """Bytes of the machine's memory; 4 GiB where it does not say."""
    if not hasattr(os, "sysconf"):
        return 1 << 32
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
