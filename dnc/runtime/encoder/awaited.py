"""What is awaited: which rows' records of polled buffers every replica sets to "not yet", a batch.

In: a plan, the steps of a mode and what all its launches run of them, the rows of its spaces. Out: words of
the header, and the list that they lead to. No level polls where a replica begins with the recursion, as no
barrier would part setting and writing; nor where its records do not lie side by side. Partial sums, as many
as workers, are awaited where narrow levels gain more than setting all of them costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dnc.ir import isa
from dnc.ir.phases import FIRST
from dnc.ir.plan import Plan, unit_share
from dnc.ir.sent import most_sums
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Numbers, Words
from dnc.runtime.phases import Step

# Floats of partial sums that are set to "not yet" in the time that a narrow level gains, about 1 us.
FLOATS_A_LEVEL = 500_000

Flags = NDArray[np.bool_]


def encode_awaited(
    plan: Plan,
    steps: Sequence[Step],
    common: Sequence[Step],
    rows: Mapping[str, Rows],
    replicas: int,
    workers: int,
    body: Words,
) -> dict[str, int | Numbers]:
    """Appends the list; the header's words that say so, by name. common: steps that all launches run."""
    records = awaited_of(plan, common, rows)
    if records is None:
        return {}
    sums = records.sum(axis=1) * _awaits_sums(plan, steps, rows, workers)
    firsts = np.zeros((len(records), replicas + 1), np.int32)
    ends = records.cumsum(axis=1)
    firsts[:, 1 : ends.shape[1] + 1] = ends
    firsts[:, ends.shape[1] + 1 :] = ends[:, -1:]
    found: dict[str, int | Numbers] = {isa.AWAITED: ends[:, -1], isa.AWAITED_FROM: body.add(firsts)}
    return found | ({isa.AWAITED_SUMS: sums} if any(each.partial for each in plan.polled) else {})


def awaited_of(plan: Plan, steps: Sequence[Step], rows: Mapping[str, Rows]) -> Numbers | None:
    """Records of the polled buffer, [batches, replicas that have samples]; None if no batch awaits any."""
    runs = {step.segment.name for step in steps}
    states = [polled for polled in plan.polled if polled.segment in runs and not polled.partial]
    spaces = [plan.buffer(polled.buffer).space for polled in states]
    early = {step.segment.space for step in steps if step.phase == FIRST}
    if not early or not spaces or spaces[0] not in rows:
        return None
    found, own = rows[spaces[0]].counts, rows[spaces[0]].by_replica
    before = np.sum([rows[space].by_replica for space in early], axis=0)
    waits = ((before > 0) | (own == 0)).all(axis=1)
    if found.shape[1] > 1 and found.shape[2] > 1:  # rows that select from stacks lie together
        waits[:] = False
    return own * waits[:, None] if waits.any() else None


def _awaits_sums(plan: Plan, steps: Sequence[Step], rows: Mapping[str, Rows], workers: int) -> Flags:
    """Of every batch whether it awaits partial sums."""
    segments = {step.segment.name: step.segment for step in steps}
    polled = [each for each in plan.polled if each.partial and each.segment in segments]
    if not polled:
        return np.zeros(1, np.bool_)
    counts = rows[plan.buffer(polled[0].buffer).space].by_level
    most = most_sums(unit_share(segments[polled[0].segment].units, workers), workers)
    narrow = ((counts > 0) & (counts <= most)).sum(axis=2)
    floats = counts.sum(axis=(1, 2)) * workers * sum(each.width for each in polled)
    return np.asarray(floats <= narrow.max(axis=1) * FLOATS_A_LEVEL)
