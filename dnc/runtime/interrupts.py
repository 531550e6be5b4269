"""Ctrl-C while training: the first one asks for a clean end, the second one ends at once; SIGHUP never does,
as a terminal that is closed may send several, or one beside SIGTERM.

In: SIGINT, SIGTERM (as batch systems send before they take a machine away), or SIGHUP (as a terminal
sends that is closed), while the context is open. Out: whether one came. Guaranteed: the handlers before
are put back; a signal that somebody else handles, or that comes to another thread than the main one, stays
theirs.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

# The signals, and who handles them if nobody asked for them.
SIGNALS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
ENDING = tuple(SIGNALS)  # at once, when it is the second one
if hasattr(signal, "SIGHUP"):  # Windows has none; nohup ignores it, and that stays so
    SIGNALS[signal.SIGHUP] = signal.SIG_DFL


class Interrupts:
    """A context in which interrupts are noted. `code`: the exit code of a shell for the last one."""

    def __init__(self) -> None:
        self.code = 0
        self._count = 0  # without SIGHUP
        self._before: dict[signal.Signals, Any] = {}

    def asked(self) -> bool:
        """Whether an interrupt came."""
        return self.code > 0

    def go_on(self) -> None:
        """Ends as an interrupt would have, had it not been noted: KeyboardInterrupt, or SystemExit."""
        if self.code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        if self.code:
            raise SystemExit(self.code)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._count += number in ENDING
        self.code = 128 + number
        if self._count > 1:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            free = [each for each, nobody in SIGNALS.items() if signal.getsignal(each) == nobody]
            self._before = {each: signal.signal(each, self._note) for each in free}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
