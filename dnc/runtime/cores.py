"""What this machine has for this process: cores, by which CPU kernels and encoding processes are divided, and
memory."""

from __future__ import annotations

import os


def cores() -> int:
    """How many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory() -> int:
    """Bytes of the machine's memory; 4 GiB where it does not say."""
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 20
    return pages * (os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 12)
