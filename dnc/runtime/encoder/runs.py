"""Runs of partial sums: how many a record has, a batch.

In: a plan and the rows of its spaces. Out: as many as a replica has workers; or one, where the workers of a
cluster add them up before they write (`Plan.reduced`). That costs an instruction some microseconds and saves
those who read the rest: it is done where instructions of the recursion have many rows. It follows from the
batch, the plan and the number of replicas alone. Lean kernels cannot do it, and have no levels of many rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dnc.ir.plan import Plan
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Numbers, chosen

WIDE = 5  # rows of an instruction, on the average, from which on runs are added up


def runs_of(plan: Plan, rows: Mapping[str, Rows], workers: int, is_lean: NDArray[np.bool_]) -> int | Numbers:
    """Runs of the records of reduced buffers; [batches] where batches differ. is_lean: [batches], which of
    them a lean kernel runs."""
    spaces = {buffer.space for buffer in plan.buffers if buffer.name in plan.reduced} & rows.keys()
    if not spaces:
        return workers
    made = fronts = np.zeros(1, np.intp)
    for space in spaces:
        counts = rows[space].counts.reshape(len(rows[space].counts), -1)
        made, fronts = made + rows[space].spread.counts, fronts + np.count_nonzero(counts, axis=1)
    return chosen((made >= WIDE * np.maximum(fronts, 1)) & ~is_lean, 1, workers)
