"""Waiting in a test for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(is_so: Callable[[], bool], what: str = "it did not come", seconds: float = 60.0) -> None:
    """Returns once something is so; AssertionError that says `what` if it is not in so many seconds."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.001)
