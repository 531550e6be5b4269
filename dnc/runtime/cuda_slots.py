"""Memory of the host that a GPU reads and writes: page-locked, for launches under way.

In: buffers of a device. Out: `Slot`, of a group of launches, `Direct`, of launches that are waited for at
once, and `Runs`, what a traced launch keeps on the GPU.
"""

from __future__ import annotations

import attrs
import numpy as np

from dnc.ir import isa
from dnc.runtime.cuda_driver import DeviceBuffer, Event, PinnedBuffer

# What comes back of a launch: its results, and behind them the words up to the abort record.
RECORD = isa.RESULT_WORDS + (isa.SYNC_ABORT + 1) * isa.SYNC_STRIDE
NOTHING = np.zeros(0, np.float32)


@attrs.frozen
class Runs:
    """Memory on the GPU for a traced launch: a run of `words` int64 words for every worker."""

    buffer: DeviceBuffer
    workers: int
    words: int


class Slot:
    """Pinned memory of one of the two groups of launches that may be under way."""

    def __init__(self, pinned: PinnedBuffer, back: PinnedBuffer, done: Event) -> None:
        self.pinned, self.back, self.done = pinned, back, done
        self.words, self.room = pinned.view(np.int32), back.view(np.int32)
        self.results = self.room[:0].reshape(0, RECORD)
        self.times: list[Runs] = []
        self.fetched: PinnedBuffer | None = None
        self.values = NOTHING

    def free(self) -> None:
        """Gives it back, once nothing is under way."""
        for each in (self.pinned, self.back, self.fetched):
            if each is not None:
                each.free()


class Direct:
    """Pinned memory of launches that are waited for at once."""

    def __init__(self, pinned: PinnedBuffer, back: PinnedBuffer, before: Event, after: Event) -> None:
        self.pinned, self.back, self.before, self.after = pinned, back, before, after
        self.words, self.back_words = pinned.view(np.int32), back.view(np.int32)

    def free(self) -> None:
        """Gives it back."""
        self.pinned.free()
        self.back.free()
