"""Launches under way: two groups of them, one in each of the backend's slots.

In: schedules, and the batches that they are parts of. Out: the batches' results, added to them once their
launch is over, and the values of a group that has a readout. Guaranteed: launches run and are collected in
the order in which they were started; a slot is collected before it is used again, by whomever; once other
launches have the backend, these leave it alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import DiagnosticError, fail
from dnc.runtime.backend import Backend, Fill
from dnc.runtime.results import BatchSums
from dnc.runtime.schedule import Schedule
from dnc.runtime.schedules import results_of
from dnc.runtime.trace.timeline import LAUNCH, WAIT, Timeline, now
from dnc.runtime.verifier import verify

Take = Callable[[NDArray[np.float32]], None]
T = TypeVar("T")


class Launches:
    """See the module. slot: the one whose turn it is. timeline: what is told of every launch."""

    def __init__(self, backend: Backend, timeline: Timeline) -> None:
        self.backend, self.timeline = backend, timeline
        self.slot = 0
        self._verifies = os.environ.get("DNC_VERIFY") == "1"  # tests look at every schedule
        self._flying: list[_Group | None] = [None, None]
        self._asked = [0, 0]  # when the traced launches of a slot were started, 0 for none
        self._is_retired = False

    def start(
        self,
        schedules: Sequence[Schedule],
        batches: Sequence[BatchSums] = (),
        fill: Fill | None = None,
        take: Take | None = None,
    ) -> None:
        """Starts launches in the slot whose turn it is, once that slot's last ones are over.

        batches: what the results are added to, one a launch, or none if nobody asks for them. take: is
        called with the words of their readout once they are; these stay for that call only.
        """
        self.check()
        self._collect(self.slot)
        for schedule in schedules if self._verifies else ():
            verify(schedule)
        traced = self.timeline.take(len(schedules))
        self._asked[self.slot] = now() if traced else 0
        with self.timeline.host(LAUNCH, len(schedules)):
            self.backend.launch(schedules, self.slot, traced, fill)
        self._flying[self.slot] = _Group(schedules, batches, take)
        self.slot = 1 - self.slot

    def turn_to(self, slot: int) -> None:
        """A slot's turn has come, if nothing is under way."""
        if self._flying == [None, None]:
            self.slot = slot

    def run(
        self, schedule: Schedule, reads: Sequence[tuple[int, int]], fill: Fill | None = None
    ) -> list[NDArray[np.float32]]:
        """One launch to its end, behind all that is under way; then words of the pool: (first, count).

        What is under way is collected first: the launch writes where that may have left its results.
        """
        self.check()
        if self._flying != [None, None]:
            self.drain()
        if self._verifies:
            verify(schedule)
        return self.backend.run(schedule, reads, fill)

    def collect_oldest(self) -> bool:
        """Waits for the launches of the slot that was used first; False if nothing is under way."""
        return self._collect(1 - self.slot if self._flying[self.slot] is None else self.slot)

    def drain(self) -> None:
        """Waits for everything that runs; results stay with their batches."""
        self.collect_oldest()
        self.collect_oldest()

    def forget(self) -> None:
        """Nobody waits for what runs any longer."""
        self._flying = [None, None]

    def retire(self) -> None:
        """Waits for what runs, and starts nothing from now on: the backend is for the launches of others."""
        for _ in self._flying:
            with suppress(DiagnosticError):  # the slot is free all the same
                self.collect_oldest()
        self._is_retired = True

    def check(self) -> None:
        """DiagnosticError if these launches are retired."""
        if self._is_retired:
            raise fail(
                "the model was restored, or began with another vocabulary, while this was under way: it ends "
                "here, and what is left has to be asked for again"
            )

    def unless_retired(self, values: Iterator[T]) -> Generator[T, None, None]:
        """The same values, as long as launches may be started; then DiagnosticError instead of the next."""
        for value in values:
            yield value
            self.check()

    def _collect(self, slot: int) -> bool:
        """False if nothing is under way in a slot. Whoever is interrupted as he waits may wait again."""
        group = self._flying[slot]
        if group is None:
            return False
        schedules = group.schedules
        try:
            with self.timeline.host(WAIT, len(schedules)):
                results = self.backend.finish(slot)
        except Exception:
            self._flying[slot] = None
            raise
        self._flying[slot] = None
        if self._asked[slot]:
            self.timeline.add(schedules, self.backend.times(slot), self._asked[slot])
        for at, batch in enumerate(group.batches):
            batch.add(results_of(schedules, at), results[at])
        if group.take is not None:
            group.take(self.backend.values(slot))
        return True


@attrs.frozen(eq=False)
class _Group:
    """Launches under way."""

    schedules: Sequence[Schedule]
    batches: Sequence[BatchSums]
    take: Take | None
