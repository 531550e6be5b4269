"""What must not happen while launches that wait for each other are being started on several devices.

Memory is neither taken nor given back then: a driver that gives memory back waits until nothing runs, and
what runs on one device waits for the launches that have yet to be started on the others. Guaranteed: one
thread at a time has `ALONE`; what finalizers want to do, whatever their thread is in the midst of, waits for
it in a thread of its own, and is done before whoever takes memory looks for some.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue
from threading import Lock, Thread

ALONE = Lock()
"""For `with`, not within itself. No function of Python's stands between, so an interrupt leaves it free."""
_WAITING = deque[Callable[[], object]]()
_NEWS = SimpleQueue[None]()


def when_alone(call: Callable[[], object]) -> None:
    """Has a call made by somebody who is alone: soon, if `watch` was called; the caller never waits."""
    _WAITING.append(call)
    _NEWS.put(None)


def make_calls() -> None:
    """Makes the calls that wait; ALONE is this thread's."""
    while _WAITING:
        try:
            _WAITING.popleft()()
        except Exception:
            traceback.print_exc()  # nobody is there to be told


@cache
def watch() -> None:
    """Starts the thread that makes calls; a process that a fork has made has none, and makes none."""
    Thread(target=_make_them_all, name="dnc-alone", daemon=True).start()


def _make_them_all() -> None:
    while True:
        _NEWS.get()
        with ALONE:
            make_calls()
