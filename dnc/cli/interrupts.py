"""Ctrl-C while training: the first one asks for a clean end, the second one ends at once.

In: SIGINT, while the context is open. Out: whether one came. Guaranteed: the handler before is put
back.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """A context in which SIGINT is noted."""

    def __init__(self) -> None:
        self._count = 0
        self._before: Any = None

    def asked(self) -> bool:
        """Whether an interrupt came."""
        return self._count > 0

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
