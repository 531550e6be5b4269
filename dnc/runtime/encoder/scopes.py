"""Which phases of a batch the whole grid shares out by rows, whatever replica their samples belong to.

In: what the steps of a mode cost, the rows of a group of batches. Out: the phases, by batch. In front of a
recursion, behind it and where gradients start no row waits for another one, so any replica can run any row,
if all replicas meet before and after. That is worth it where few samples leave replicas idle, or where some
have more rows: it is decided by predicted cost. Guaranteed: it follows from the batch, the plan and the grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dnc.ir.costs import GRID, Costs, nanoseconds
from dnc.ir.machine import machine
from dnc.ir.phases import Phases
from dnc.ir.plan import Plan
from dnc.ir.program import LEVEL
from dnc.runtime.encoder.assign import segment_prices
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Numbers
from dnc.runtime.phases import Step

FEWEST = 32
"""Rows that an instruction outside the recursion takes as long for as for one: an H200 took 6.6 us for two
leaves of a tree with 256 units, and 7.6 us for twenty."""
TOGETHER = 4000.0
"""What it costs when all replicas go on at once, in ns, beside their meeting: the slowest is waited for, and
all load their weights at the same time. Seen on an H200, for trees and sequences with 256 units."""
Scopes = NDArray[np.bool_]
"""Whether the grid shares a phase out, [batches, phases]."""


class Sharing:
    """The choice for a mode of a plan; worked out once is what its steps cost.

    phases: those that may be shared out: no levels, and no stacks, of which an instruction has one parameter.
    On a CPU none is, as a meeting of threads costs more. count: of all phases.
    """

    def __init__(self, plan: Plan, steps: tuple[Step, ...]) -> None:
        assert plan.tiling is not None
        leveled = [plan.program.stage(step.segment.stage).placement == LEVEL for step in steps]
        kept = {step.phase for step, is_level in zip(steps, leveled, strict=True) if is_level}
        kept |= {step.phase for step in steps if plan.program.selectors(step.segment.space)}
        chip, costs = machine(plan.target), Costs(plan, 1, plan.tiling.workers)
        constants = chip.constants
        self.phases = sorted({step.phase for step in steps} - kept)
        self.on_gpu, self.count = chip.is_gpu, Phases.of(plan.program).count
        self._spaces = list(dict.fromkeys(step.segment.space for step in steps))
        # What rows of a space cost in a phase, [phases, spaces]: every one, and an instruction or a level.
        self._row, self._fixed = np.zeros((2, self.count, len(self._spaces)))
        known = segment_prices(plan)
        for step in steps:
            price = known[step.segment.name]
            place = step.phase, self._spaces.index(step.segment.space)
            self._row[place] += price.row
            self._fixed[place] += price.level
        self._free = np.isin(np.arange(self.count), self.phases)
        together = np.zeros_like(costs.exchange())
        together[GRID] = 1
        more = nanoseconds(together, constants) - nanoseconds(costs.exchange(), constants)
        # One behind every place, and one in front of what is not the beginning.
        self._meetings = np.zeros((self.count, 1))
        for phase in self.phases:
            places = {step.step for step in steps if step.phase == phase}
            self._meetings[phase] = TOGETHER + more * (len(places) + int(phase > 0))

    def overhead(self, phases: Sequence[int]) -> float:
        """What it costs when the grid shares out phases, whatever rows they have, in ns."""
        return float(self._meetings[list(phases)].sum())

    def choose(self, rows: Mapping[str, Rows], replicas: int) -> Scopes | None:
        """The phases that are predicted to save time; None if there are none in any batch."""
        if replicas == 1 or not self.phases or not self.on_gpu:
            return None
        own = np.array([rows[space].by_replica for space in self._spaces])
        spaces, batches, used = own.shape
        flat = own.reshape(spaces, -1)
        there = flat > 0
        shape = self.count, batches, used
        phases = (self._row @ (np.maximum(flat, FEWEST) * there) + self._fixed @ there).reshape(shape)
        shared = np.maximum(-(-own.sum(axis=2) // replicas), FEWEST)
        even = self._row @ shared + self._fixed.sum(axis=1, keepdims=True)
        least = even + self._meetings
        if not (phases.max(axis=2) > least)[self.phases].any():
            return None  # whatever else the replicas have to do
        levels = np.array([_busy_levels(rows[space]) for space in self._spaces]).reshape(spaces, -1)
        others = (self._row @ flat + self._fixed @ levels).reshape(shape)
        times = np.where(self._free[:, None, None], phases, others)
        found = np.zeros((batches, self.count), np.bool_)
        # What replicas have to do since they last met, and what is still to come. Who has little of the one
        # waits in front of a phase that is shared out, even if there is more of the other.
        since, ahead = np.zeros((batches, used)), times.sum(axis=0)
        for phase, own in enumerate(times):
            ahead -= own
            if phase in self.phases:
                apart = since.max(axis=1) + ahead.max(axis=1) + least[phase]
                found[:, phase] = (since + own + ahead).max(axis=1) > apart
            since = np.where(found[:, phase, None], 0.0, since + own)
        return found if found.any() else None


def _busy_levels(rows: Rows) -> Numbers:
    """How many levels of every replica have rows, [batches, replicas]."""
    busy: Numbers = np.count_nonzero(rows.by_level, axis=2)
    return busy
