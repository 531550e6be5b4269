"""The pool of a session: one allocation, which grows by need and keeps what is static.

In: a plan, a backend, the rows of the tables, what batches and optimizers need. Out: a `StaticPool`
and a number of words. Guaranteed: parameters and optimizer state survive growth; nothing is allocated
beyond what the device has or the user allows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import DiagnosticError, fail
from dnc.ir.isa import PARAMETERS, STATES
from dnc.ir.plan import Plan
from dnc.runtime.backend import Backend
from dnc.runtime.pool import MAX_ADDRESS, StaticPool, static_pool

FIRST_SCHEDULE = 4096
# Room beyond what is asked for: the first where that is little. What was encoded ahead is in vain each time
# that memory grows, and a later batch may well need a third more than the first one.
AMPLE, SLACK = 2.0, 1.25
LITTLE = 16  # such a part of the memory that there is
MEGABYTE = 2**20


def too_little(need: int, have: int) -> str:
    """Words that are wanted, and fewer that are there, in MiB, with the digits that tell them apart."""
    for digits in range(1, 7):
        wanted, there = (f"{words * 4 / MEGABYTE:,.{digits}f} MiB" for words in (need, have))
        if wanted != there:
            break
    return f"{wanted}; {there} are there"


class Memory:
    """See the module. `limit`: the most words to take, None for what the device has."""

    def __init__(
        self, plan: Plan, backend: Backend, table_rows: Mapping[str, int], limit: int | None = None
    ) -> None:
        self.plan, self.backend, self.limit = plan, backend, limit
        self.table_rows = dict(table_rows)
        self.pool = static_pool(plan, self.table_rows, FIRST_SCHEDULE)
        self.words = self.pool.words
        have = self.most()
        if self.words > have:
            raise fail(
                f"{backend.name}: the parameters with their gradients need {too_little(self.words, have)}"
            )
        backend.allocate(self.words)

    def most(self) -> int:
        """Words that the pool may have at most: what there is, and what addresses reach."""
        capacity = min(max(self.backend.capacity(), 0), MAX_ADDRESS * 4)
        return capacity if self.limit is None else min(self.limit, capacity)

    def grow(self, schedule_words: int, activations: int, times: float = 1.0) -> bool:
        """Makes room for a schedule and activations of so many words; False if there is none.

        times: schedules become so many times as large, and there is room for them at once if that is little;
        else memory would grow with them, and each time what was encoded ahead would be in vain. All launches
        have to be over: what is not static is lost.
        """
        largest = round(schedule_words * times)
        if times > 1 and largest <= self.most() // LITTLE and self.grow(largest, activations):
            return True
        most = max(self.words, self.most())
        for slack, enough in ((AMPLE, most // LITTLE), (SLACK, most), (1.0, most)):
            pool = self._layout(schedule_words, slack)
            room = round(activations * slack) + 16
            words = pool.words + max(self.words - self.pool.words, room)
            if words > enough and slack < AMPLE:
                words = pool.words + room
            if words <= enough and self._allocate(pool, words):
                return True
        return False

    def add_states(self, states: int) -> None:
        """Makes room for so many arenas of optimizer state, if there is less; what is kept stays.

        All launches have to be over. DiagnosticError if there is no room.
        """
        if states > self.pool.states:
            pool = self._static(states, len(self.pool.gradients))
            if not self._replaced(pool):
                raise fail(
                    f"{self.backend.name}: the parameters with their gradients and what the optimizer keeps "
                    f"need {too_little(pool.words, self.most())}"
                )

    def clear_states(self, states: int) -> None:
        """The same, and fills all with zeros."""
        self.add_states(states)
        if self.pool.states:
            first = self.pool.bases[STATES[0]]
            end = (*self.pool.gradients[1:], *self.pool.schedules)[0]
            zeros = np.zeros((end - first) * 4, np.float32)
            self.backend.write(first * 4, zeros)

    def add_gradients(self, arenas: int) -> bool:
        """Makes room for more arenas of gradients; False if there is none. All launches have to be over."""
        return self._replaced(self._static(self.pool.states, len(self.pool.gradients) + arenas))

    def _static(self, states: int, arenas: int) -> StaticPool:
        return static_pool(self.plan, self.table_rows, self.pool.schedule_words, states, arenas)

    def _replaced(self, pool: StaticPool) -> bool:
        """Lays the static part out anew, in front of as much memory for activations as there can be."""
        words = min(pool.words + self.words - self.pool.words, self.most())
        return pool.words <= words and self._allocate(pool, words)

    def _layout(self, schedule_words: int, slack: float) -> StaticPool:
        if schedule_words <= self.pool.schedule_words:
            return self.pool
        words = round(schedule_words * slack) + 16
        return static_pool(self.plan, self.table_rows, words, self.pool.states, len(self.pool.gradients))

    def _allocate(self, pool: StaticPool, words: int) -> bool:
        """Replaces the allocation; False, with the old one back in place, if the device refuses."""
        before = self.read_static()
        # What was static comes first in every layout.
        static = np.zeros(pool.schedules[0] * 4, np.float32)
        static[: len(before)] = before
        try:
            self.backend.allocate(words)
        except DiagnosticError:
            self.backend.allocate(self.words)
            self.write_static(before)
            return False
        self.pool, self.words = pool, words
        self.write_static(static)
        return True

    def read_static(self) -> NDArray[np.float32]:
        """The words up to the schedules: results, parameters, gradients, optimizer state."""
        return self.backend.read(0, self.pool.schedules[0] * 4)

    def write_static(self, words: NDArray[np.float32]) -> None:
        """Writes what `read_static` returned, behind the row of zeros."""
        first = self.pool.bases[PARAMETERS] * 4
        self.backend.write(first, words[first:])
