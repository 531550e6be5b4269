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
from dnc.runtime.phases import PHASES, Step

FEWEST = 32
"""Rows that an instruction outside the recursion takes as long for as for one: an H200 took 6.6 us for two
leaves of a Tree-LSTM with 256 units, and 7.6 us for twenty."""
TOGETHER = 4000.0
"""What it costs when all replicas go on at once, in ns, beside their meeting: the slowest is waited for, and
all load their weights at the same time. Seen on an H200, for LSTMs and Tree-LSTMs with 256 units."""
Scopes = NDArray[np.bool_]
"""Whether the grid shares a phase out, [batches, PHASES]."""


class Sharing:
    """The choice for a mode of a plan; worked out once is what its steps cost.

    phases: those that may be shared out: no levels, and no stacks, of which an instruction has one parameter.
    On a CPU none is, as a meeting of threads costs more.
    """

    def __init__(self, plan: Plan, steps: tuple[Step, ...]) -> None:
        assert plan.tiling is not None
        leveled = [plan.program.stage(step.segment.stage).placement == LEVEL for step in steps]
        kept = {step.phase for step, is_level in zip(steps, leveled, strict=True) if is_level}
        kept |= {step.phase for step in steps if plan.program.selectors(step.segment.space)}
        chip, costs = machine(plan.target), Costs(plan, 1, plan.tiling.workers)
        constants = chip.constants
        self.phases = sorted({step.phase for step in steps} - kept)
        self._on_gpu = chip.is_gpu
        # By step: what it costs, the fewest rows, whether levels count; its space, and its phase.
        prices = [price_of(costs, step.segment.name, constants) for step in steps]
        self._row, self._fixed = (
            np.array([[[each]] for each in found])
            for found in ([price.row for price in prices], [price.level for price in prices])
        )
        self._fewest = np.array([[[0 if is_level else FEWEST]] for is_level in leveled])
        self._spaces = list(dict.fromkeys(step.segment.space for step in steps))
        self._space = [self._spaces.index(step.segment.space) for step in steps]
        self._phase = np.arange(PHASES)[:, None] == [step.phase for step in steps]
        together = np.zeros_like(costs.exchange())
        together[GRID] = 1
        more = nanoseconds(together, constants) - nanoseconds(costs.exchange(), constants)
        # One behind every place, and one in front of what is not the beginning.
        self._meetings = [
            TOGETHER + more * (len({step.step for step in steps if step.phase == phase}) + int(phase > 0))
            for phase in self.phases
        ]

    def choose(self, rows: Mapping[str, Rows], replicas: int) -> Scopes | None:
        """The phases that are predicted to save time; None if there are none in any batch."""
        if replicas == 1 or not self.phases or not self._on_gpu:
            return None
        counts = [rows[space].counts.sum(axis=1) for space in self._spaces]
        own = np.stack([each.sum(axis=2) for each in counts])[self._space]
        there = own > 0
        levels = np.stack([np.count_nonzero(each, axis=2) for each in counts])[self._space]
        rounds = np.where(self._fewest, there, levels)
        costs = self._row * (np.maximum(own, self._fewest) * there) + self._fixed * rounds
        shared = np.maximum(-(-own.sum(axis=2) // replicas), self._fewest[:, 0])
        even = self._phase @ (self._row[:, 0] * shared + self._fixed[:, 0])
        phases = np.tensordot(self._phase.astype(float), costs, 1)
        total = phases.sum(axis=0)
        found = np.zeros((total.shape[0], PHASES), np.bool_)
        for phase, meetings in zip(self.phases, self._meetings, strict=True):
            less = total - phases[phase]
            saved = total.max(axis=1) - less.max(axis=1) - even[phase] - meetings
            found[:, phase] = saved > 0
            total = np.where(found[:, phase, None], less + even[phase][:, None], total)
        return found if found.any() else None
