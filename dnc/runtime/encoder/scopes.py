"""Which phases of a batch the whole grid shares out by rows, whatever replica their samples belong to.

In: what the steps of a mode cost, the rows of a group of batches. Out: the phases, by batch. In front of the
recursion, behind it and where gradients start no row waits for another one, so any replica can run any row,
if all replicas meet before and after. That is worth it where few samples leave replicas idle, or where some
have more rows: it is decided by predicted cost. Guaranteed: it follows from the batch, the plan and the grid.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dnc.ir.costs import GRID, Costs, nanoseconds
from dnc.ir.machine import machine
from dnc.ir.plan import Plan
from dnc.ir.program import LEVEL
from dnc.runtime.encoder.assign import price_of
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Numbers
from dnc.runtime.phases import PHASES, Step

Scopes = NDArray[np.bool_]
"""Whether the grid shares a phase out, [batches, PHASES]."""


class Sharing:
    """The choice for a mode of a plan; worked out once is what its steps cost.

    phases: those that may be shared out: no levels, and no stacks, of which an instruction has one parameter.
    On a CPU none is, as a meeting of threads costs more.
    """

    def __init__(self, plan: Plan, steps: tuple[Step, ...]) -> None:
        assert plan.tiling is not None
        self.steps = steps
        stages = [plan.program.stage(step.segment.stage) for step in steps]
        kept = {step.phase for step, stage in zip(steps, stages, strict=True) if stage.placement == LEVEL}
        kept |= {step.phase for step in steps if plan.program.selectors(step.segment.space)}
        chip, costs = machine(plan.target), Costs(plan, 1, plan.tiling.workers)
        self.phases = sorted({step.phase for step in steps} - kept)
        self._on_gpu, constants = chip.is_gpu, chip.constants
        self._prices = [price_of(costs, step.segment.name, constants) for step in steps]
        together = np.zeros_like(costs.exchange())
        together[GRID] = 1
        more = nanoseconds(together, constants) - nanoseconds(costs.exchange(), constants)
        # One behind every place, and one in front of what is not the beginning.
        self._meetings = [
            more * (len({step.step for step in steps if step.phase == phase}) + int(phase > 0))
            for phase in self.phases
        ]

    def choose(self, rows: Mapping[str, Rows], replicas: int) -> Scopes | None:
        """The phases that are predicted to save time; None if there are none in any batch."""
        if replicas == 1 or not self.phases or not self._on_gpu:
            return None
        counts = {name: (own.counts.sum(axis=(1, 3)), _busy_levels(own)) for name, own in rows.items()}
        batches, used = next(iter(counts.values()))[0].shape
        costs = np.zeros((PHASES, batches, used))
        even = np.zeros((PHASES, batches))
        for step, price in zip(self.steps, self._prices, strict=True):
            own, levels = counts[step.segment.space]
            leveled = step.phase not in self.phases
            costs[step.phase] += price.row * own + price.level * (levels if leveled else own > 0)
            even[step.phase] += price.row * -(-own.sum(axis=1) // replicas) + price.level
        total = costs.sum(axis=0)
        found = np.zeros((batches, PHASES), np.bool_)
        for phase, meetings in zip(self.phases, self._meetings, strict=True):
            less = total - costs[phase]
            saved = total.max(axis=1) - less.max(axis=1) - even[phase] - meetings
            found[:, phase] = saved > 0
            total = np.where(found[:, phase, None], less + even[phase][:, None], total)
        return found if found.any() else None


def _busy_levels(rows: Rows) -> Numbers:
    """How many levels of every replica have rows, [batches, replicas]."""
    busy: Numbers = (rows.counts.sum(axis=1) > 0).sum(axis=2)
    return busy
