"""Ctrl-C while training: the first one asks for a clean end, the second one ends at once.

In: SIGINT, or SIGTERM (as batch systems send before they take a machine away), while the context is
open. Out: whether one came. Guaranteed: the handlers before are put back.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context in which interrupts are noted. `code`: the exit code of a shell for the last one."""

    def __init__(self) -> None:
        self.code = 0
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}

    def asked(self) -> bool:
        """Whether an interrupt came."""
        return self._count > 0

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        self.code = 128 + number
        if self._count > 1:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        self._before = {each: signal.signal(each, self._note) for each in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
