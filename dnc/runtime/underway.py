"""Training steps under way, and where their results go.

In: batches whose launches were started. Out: their results, in order. Guaranteed: whoever started a step
finds its result where it asked for it, also where somebody else had to wait for it meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from dnc.diagnostics import DiagnosticError, fail
from dnc.runtime.launches import Launches
from dnc.runtime.results import BatchSums, NotFinite, StepResult

Results = deque[StepResult]


class Underway:
    """See the module. unclaimed: the result of the last step that is over, until somebody takes it."""

    def __init__(self, launches: Launches) -> None:
        self._launches = launches
        self._waiting = deque[tuple[BatchSums, Results]]()
        self.unclaimed: StepResult | None = None

    def add(self, batches: Sequence[BatchSums], results: Results) -> None:
        """Steps that were started, and where their results go."""
        self._waiting += [(batch, results) for batch in batches]

    def settle(self, keep: int) -> None:
        """Waits for the oldest steps until only `keep` are under way.

        NotFinite if one made no update: it has the results of those behind it, which are waited for. Whoever
        is interrupted as he waits may wait again.
        """
        try:
            while len(self._waiting) > keep:
                batch, results = self._waiting[0]
                found = self._result(batch)
                if found is None:
                    behind = [self._result(each) for each, _ in list(self._waiting)[1:]]
                    made = [result for result in behind if result is not None]
                    raise NotFinite(batch.step, batch.loss(), batch.norm, list(results), made)
                self._waiting.popleft()
                self.unclaimed = found
                results.append(found)
        except DiagnosticError as error:
            if not isinstance(error, NotFinite):  # the device has failed, and nothing comes of what is behind
                self._launches.forget()
            self.unclaimed = None
            self._waiting.clear()
            raise

    def _result(self, batch: BatchSums) -> StepResult | None:
        """What a step gave, once it is over; None if it was not finite."""
        while not batch.is_over:
            if not self._launches.collect_oldest():
                raise fail(f"step {batch.step} was interrupted, and its results are lost")
        loss = batch.loss()
        if not (batch.updated and np.isfinite(loss)):
            return None
        return StepResult(batch.step, batch.samples, loss, batch.norm, batch.parts)

    def claim(self) -> StepResult | None:
        """The result of the last step, for the first one who asks."""
        result, self.unclaimed = self.unclaimed, None
        return result

    def taken(self, results: Results, keep: int) -> Iterator[StepResult]:
        """Waits as `settle` does; the results that have come, which are then no longer there."""
        self.settle(keep)
        while results:
            found = results.popleft()
            if found is self.unclaimed:
                self.unclaimed = None
            yield found
