"""What `dnc tune` found for batches of a size, as a build keeps it, and when it holds.

In: entries of a build, the size of a batch. Out: the grid to launch. Guaranteed: it depends on the
build and the batch alone, so that bits do not depend on timing.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class Tuned:
    """A grid that was the fastest for batches of `batch` samples, in the mode that the build is for.

    replicas: 0 for as many as are resident. microseconds: of a launch. candidates: how many were timed.
    """

    batch: int
    replicas: int
    workers: int
    microseconds: float
    candidates: int
    device: str
    date: str


def tuned_grid(entries: Sequence[Tuned], samples: int) -> tuple[int, int] | None:
    """(replicas, workers) for a batch: of the nearest size that was timed, from half to twice as large.

    None for sizes far from those that were timed.
    """
    near = [each for each in entries if each.batch <= 2 * samples and samples <= 2 * each.batch]
    if not near:
        return None
    found = min(near, key=lambda each: max(each.batch, samples) / min(each.batch, samples))
    return found.replicas, found.workers
