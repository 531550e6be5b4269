"""Launches under way: two groups of them, one in each of the backend's slots.

In: schedules, and the batches that they are parts of. Out: the batches' results, added to them once their
launch is over. Guaranteed: launches run and are collected in the order in which they were started; a slot
is collected before it is used again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dnc.runtime.backend import Backend, Fill
from dnc.runtime.results import BatchSums
from dnc.runtime.schedule import Schedule
from dnc.runtime.trace.timeline import LAUNCH, WAIT, Timeline, now
from dnc.runtime.verifier import verify


class Launches:
    """See the module. slot: the one whose turn it is. timeline: what is told of every launch."""

    def __init__(self, backend: Backend, timeline: Timeline) -> None:
        self.backend, self.timeline = backend, timeline
        self.slot = 0
        self._verifies = os.environ.get("DNC_VERIFY") == "1"  # tests look at every schedule
        self._flying: list[list[tuple[Schedule, BatchSums]]] = [[], []]
        self._asked = [0, 0]  # when the traced launches of a slot were started, 0 for none

    def start(self, launches: list[tuple[Schedule, BatchSums]], fill: Fill | None = None) -> None:
        """Starts launches in the slot whose turn it is, once that slot's last ones are over."""
        self._collect(self.slot)
        schedules = [schedule for schedule, _ in launches]
        for schedule in schedules:
            self._look_at(schedule)
        traced = self.timeline.take(len(schedules))
        self._asked[self.slot] = now() if traced else 0
        with self.timeline.host(LAUNCH, len(schedules)):
            self.backend.launch(schedules, self.slot, traced, fill)
        self._flying[self.slot] = launches
        self.slot = 1 - self.slot

    def run(self, schedule: Schedule, reads: Sequence[tuple[int, int]]) -> list[NDArray[np.float32]]:
        """One launch to its end, with nothing else under way; then words of the pool: (first, count)."""
        self._look_at(schedule)
        return self.backend.run(schedule, reads)

    def _look_at(self, schedule: Schedule) -> None:
        if self._verifies:
            verify(schedule)

    def collect_oldest(self) -> None:
        """Waits for the launches of the slot that was used first, if there are any."""
        self._collect(self.slot if self._flying[self.slot] else 1 - self.slot)

    def drain(self) -> None:
        """Waits for everything that runs; results stay with their batches."""
        self.collect_oldest()
        self.collect_oldest()

    def forget(self) -> None:
        """Nobody waits for what runs any longer."""
        self._flying = [[], []]

    def _collect(self, slot: int) -> None:
        flying, self._flying[slot] = self._flying[slot], []
        if flying:
            with self.timeline.host(WAIT, len(flying)):
                results = self.backend.finish(slot)
            if self._asked[slot]:
                schedules = [schedule for schedule, _ in flying]
                self.timeline.add(schedules, self.backend.times(slot), self._asked[slot])
            for (schedule, batch), words in zip(flying, results, strict=True):
                batch.add(schedule, words)
