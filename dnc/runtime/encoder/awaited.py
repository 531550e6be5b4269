"""Awaited states: which records of the polled buffer every replica sets to "not yet", a batch.

In: a plan, the steps of a mode, the rows of its spaces. Out: words of the header, and the list that they lead
to. No level polls where a replica begins with the recursion, as no barrier would part setting and writing;
nor where its records do not lie side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dnc.ir import isa
from dnc.ir.phases import FIRST
from dnc.ir.plan import Plan
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Numbers, Words
from dnc.runtime.phases import Step


def encode_awaited(
    plan: Plan, steps: Sequence[Step], rows: Mapping[str, Rows], replicas: int, body: Words
) -> dict[str, int | Numbers]:
    """Appends the list; the header's words that say so, by name."""
    records = awaited_of(plan, steps, rows)
    if records is None:
        return {}
    firsts = np.zeros((len(records), replicas + 1), np.int32)
    ends = records.cumsum(axis=1)
    firsts[:, 1 : ends.shape[1] + 1] = ends
    firsts[:, ends.shape[1] + 1 :] = ends[:, -1:]
    return {isa.AWAITED: ends[:, -1], isa.AWAITED_FROM: body.add(firsts)}


def awaited_of(plan: Plan, steps: Sequence[Step], rows: Mapping[str, Rows]) -> Numbers | None:
    """Records of the polled buffer, [batches, replicas that have samples]; None if no batch awaits any."""
    runs = {step.segment.name for step in steps}
    spaces = [plan.buffer(polled.buffer).space for polled in plan.polled if polled.segment in runs]
    early = {step.segment.space for step in steps if step.phase == FIRST}
    if not early or not spaces or spaces[0] not in rows:
        return None
    found = rows[spaces[0]].counts
    own = found.sum(axis=(1, 3))
    before = np.sum([rows[space].counts.sum(axis=(1, 3)) for space in early], axis=0)
    waits = ((before > 0) | (own == 0)).all(axis=1)
    if found.shape[1] > 1 and found.shape[2] > 1:  # rows that select from stacks lie together
        waits[:] = False
    return own * waits[:, None] if waits.any() else None
