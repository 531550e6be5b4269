"""What the schedule verifier asks of `leave` instructions: workers of a replica must decide alike.

In: a schedule and the instructions of its replicas. Out: what is wrong, or None. Guaranteed for what has
nothing wrong: a test goes on at the replica's first barrier of the grid, and reads only words of the
mode's output that its replica has made before the last exchange in front of the test.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnc.ir import isa
from dnc.ir.regions import generates
from dnc.runtime.phases import results_of
from dnc.runtime.schedule import Schedule

Ints = NDArray[Any]


def exit_problem(schedule: Schedule, queues: list[Ints], workers: int) -> str | None:
    """What is wrong with the first bad `leave` of a schedule; None if there is no such."""
    plan = schedule.plan
    if not generates(plan):
        return None
    number = {opcode.name: opcode.number for opcode in plan.opcodes}
    for replica, queue in enumerate(queues):
        behind = int(np.flatnonzero(queue[:, 0] == number[isa.GRID_BARRIER])[0])
        exchange = number[isa.REPLICA_BARRIER] if workers > 1 else number[isa.LEAVE]
        exchanges = np.flatnonzero(queue[:, 0] == exchange)
        for at in np.flatnonzero(queue[:, 0] == number[isa.LEAVE]).tolist():
            before = int(exchanges[exchanges <= at].max(initial=0))
            fields = dict(zip(isa.LEAVE_FIELDS, queue[at, 1:].tolist(), strict=False))
            problem = None
            if not at < fields["to"] == behind:
                problem = f"goes on at instruction {fields['to']}, expected {behind}, the barrier of the grid"
            problem = problem or _problem(schedule, queue[:before], fields)
            if problem:
                return f"replica {replica}, instruction {at} ({isa.LEAVE}): {problem}"
    return None


def _problem(schedule: Schedule, before: Ints, fields: dict[str, int]) -> str | None:
    """before: the instructions whose words are visible."""
    words, plan, lists = schedule.words, schedule.plan, fields["lists"]
    results = results_of(plan, schedule.mode)
    if len(results) != 1 or fields["word"] < 0:
        return f"ends lists of {len(results)} outputs with the word {fields['word']}"
    if lists < 1 or not all(0 < fields[name] <= len(words) - lists for name in ("begins", "ends")):
        return f"{lists} lists from {fields['begins']} and {fields['ends']} on are outside the schedule"
    begins, ends = (words[fields[name] :][:lists].astype(np.int64) for name in ("begins", "ends"))
    if not ((begins > 0) & (begins <= ends) & (ends <= len(words))).all():
        return "a list is outside the schedule"
    result = results[0]
    counts = ends - begins
    at = np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
    row, rest = np.divmod(words[at] - schedule.bases[result.buffer], plan.buffer(result.buffer).width // 4)
    made = np.zeros(schedule.rows[result.space] + 1, np.int64)
    for segment in plan.segments:
        if any(store.buffer == result.buffer for store in segment.stores):
            for first, count in before[before[:, 0] == plan.opcode(segment.name).number, 1:3].tolist():
                made[first] += 1
                made[first + count] -= 1
    there = (rest == 0) & (row >= 0) & (row < len(made) - 1)
    if not (there & (np.cumsum(made)[np.where(there, row, 0)] > 0)).all():
        return f"a word of a list is none of '{result.name}' that is there before it"
    return None
