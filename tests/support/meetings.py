"""Schedules whose replicas do not wait for each other, for tests of who finds that."""

from __future__ import annotations

import numpy as np

from dnc.ir import isa
from dnc.ir.forest import Ints
from dnc.runtime.schedule import Schedule, queue


def without_first_meeting(schedule: Schedule, replicas: int, workers: int) -> Ints:
    """The words, with a no-op in the place of the first barrier of the grid in every replica's queue."""
    words, plan = schedule.words.copy(), schedule.plan
    grid = plan.opcode(isa.GRID_BARRIER).number
    for worker in range(0, replicas * workers, workers):
        at = int(words[isa.layout(plan).queues_at + worker])
        (first, *_) = np.flatnonzero(queue(words, plan, worker)[:, 0] == grid)
        words[at + first * isa.INSTRUCTION_WORDS :][:2] = 0
    return words
