"""Awaited states: how many records of the polled buffer a launch sets to "not yet", a batch.

In: a plan, the steps of a mode, the rows of its spaces. Out: the rows of the buffer's space. None, so that no
level polls, where several replicas would set each other's records, and where nothing stands before the
recursion: then no barrier would part setting and writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dnc.ir.plan import Plan
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Numbers
from dnc.runtime.phases import FORWARD_EARLY, Step


def awaited_of(plan: Plan, steps: Sequence[Step], rows: Mapping[str, Rows], replicas: int) -> int | Numbers:
    """Records of the polled buffer; [batches]."""
    runs = {step.segment.name for step in steps}
    spaces = [plan.buffer(polled.buffer).space for polled in plan.polled if polled.segment in runs]
    early = {step.segment.space for step in steps if step.phase == FORWARD_EARLY}
    if replicas > 1 or not early or not spaces or spaces[0] not in rows:
        return 0
    some = np.sum([rows[space].spread.counts for space in early], axis=0) > 0
    return np.where(some, rows[spaces[0]].spread.counts, 0)
