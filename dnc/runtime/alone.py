"""What must not happen while launches that wait for each other are being started on several devices.

Memory is neither taken nor given back then: a driver that gives memory back waits until nothing runs, and
what runs on one device waits for the launches that have yet to be started on the others. Guaranteed: one
thread at a time is `alone`, and what finalizers do, whatever their thread is in the midst of, waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

_LOCK = Lock()
_LATER: deque[Callable[[], object]] = deque()


@contextmanager
def alone() -> Iterator[None]:
    """Within, no other thread is; not to be used within itself."""
    try:
        with _LOCK:
            yield
    finally:
        _catch_up()


def when_alone(call: Callable[[], object]) -> None:
    """Makes a call now, or once nobody is `alone`; the caller never waits."""
    _LATER.append(call)
    _catch_up()


def _catch_up() -> None:
    """Whoever has the lock looks again once it is free, so that nothing is left that came meanwhile."""
    while _LATER and _LOCK.acquire(blocking=False):
        try:
            while _LATER:
                _LATER.popleft()()
        finally:
            _LOCK.release()
