"""Parts of a recursion that do not read each other, each on replicas of its own.

In: a plan, the steps of a mode, samples. Out: a replica for every sample and part. The two directions of a
bidirectional net are two recursions over the same samples; a replica that runs both has two instructions in
every level, and what a level costs is paid for each. Apart they are levels of other replicas at the same time
(VPPS's concurrent levels; Khorasani et al. 2018), and where results of several parts come together, all
replicas meet: these phases are the grid's (`scopes.py`). It is done where that is predicted to end earlier.
Guaranteed: it follows from the batch, the plan and the grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.forest import Ints
from dnc.ir.phases import Phases
from dnc.ir.plan import Plan
from dnc.ir.program import LEVEL, Program
from dnc.ir.reads import parts_of_recursions, stage_producers
from dnc.runtime.encoder.assign import Assignment, Burdens, Price, assign, assigned, joined, owners, times
from dnc.runtime.encoder.scopes import Sharing
from dnc.runtime.encoder.words import Numbers
from dnc.runtime.phases import FORWARD_ONLY, Step, sequence
from dnc.runtime.prepared import SpaceRows


@attrs.frozen
class Parts:
    """The parts of a mode. of_space: the part that a space of the recursion belongs to. count: how many.

    meets: the phases that the grid shares out where parts are apart. overhead: what that costs, in ns.
    """

    of_space: dict[str, int]
    count: int
    meets: tuple[int, ...]
    overhead: float


def parts_of(plan: Plan, launches: Sequence[Sequence[Step]], sharing: Sharing) -> Parts | None:
    """The parts of a mode; None where there is but one, or where replicas cannot meet between two.

    launches: the steps of all that a schedule is for; replicas meet at phases in which that launch runs any.
    """
    stages = {step.segment.stage for launch in launches for step in launch}
    every = [plan.program.stage(name) for name in stages]
    of_space = _of_space(plan.program, {stage.space for stage in every if stage.placement == LEVEL})
    count = 1 + max(of_space.values(), default=0)
    if count < 2 or not sharing.on_gpu:
        return None
    # What stands behind all recursions is everybody's; what stands before or between them, if need be.
    phases = Phases.of(plan.program)
    meets = {phase for phase in sharing.phases if phase in (phases.behind, phases.starts)}
    for launch in launches:
        used = {step.phase for step in launch}
        for end, begin in _crossings(plan.program, launch, of_space):
            there = [phase for phase in sharing.phases if end <= phase <= begin and phase in used]
            if not there:
                return None
            if not meets.intersection(there):
                meets.add(there[-1])
    return Parts(of_space, count, tuple(sorted(meets)), sharing.overhead(sorted(meets)))


def _crossings(
    program: Program, launch: Sequence[Step], of_space: Mapping[str, int]
) -> list[tuple[int, int]]:
    """Where stages read those of other parts: the last phase of what is read, the first of who reads it."""
    begins, ends = dict[str, int](), dict[str, int]()
    for step in launch:
        name = step.segment.stage
        begins[name] = min(step.phase, begins.get(name, step.phase))
        ends[name] = max(step.phase, ends.get(name, 0))
    stages = {name: program.stage(name) for name in begins}
    found = [
        (ends[name], begins[stage.name])
        for stage in stages.values()
        for name in stage_producers(program, stage)
        if name in stages
        and (stages[name].space not in of_space or of_space[stages[name].space] != of_space.get(stage.space))
    ]
    return sorted(found, key=lambda each: each[1])


def _of_space(program: Program, spaces: set[str]) -> dict[str, int]:
    """The parts of some spaces. Those of one number, of whatever strata, are on the same replicas."""
    found: dict[str, int] = {}
    for known in parts_of_recursions(program):
        numbers = sorted({part for space, part in known.items() if space in spaces})
        found |= {space: numbers.index(part) for space, part in known.items() if space in spaces}
    return found


def replicas_of_sample(plan: Plan) -> int:
    """How many replicas a sample can be on at once, forwards."""
    steps = sequence(plan, FORWARD_ONLY)
    parts = parts_of(plan, (steps,), Sharing(plan, steps))
    return 1 if parts is None else parts.count


class PartBurdens:
    """What samples cost in every part of the recursion; by it every part has some of the replicas."""

    def __init__(self, parts: Parts, prices: Mapping[str, Price], spaces: Mapping[str, SpaceRows]) -> None:
        known = [
            {name: price for name, price in prices.items() if parts.of_space.get(name) == part}
            for part in range(parts.count)
        ]
        self.parts, self._own = parts, [Burdens.of(each, spaces) for each in known]
        weights = np.array([sum(each.row + each.level for each in own.values()) for own in known])
        self._bounds = np.append(0.0, weights.cumsum() / weights.sum())

    def assign(self, batches: Sequence[Ints], whole: Burdens, replicas: int) -> Assignment:
        """As `assign`, with parts apart in batches that are predicted to end earlier so."""
        samples, spread = joined(batches)
        shares = np.minimum(np.diff((self._bounds * replicas).round().astype(np.intp)), spread.most)
        used, most = int(shares.sum()), min(replicas, spread.most)
        if shares.min() == 0:
            return assign(batches, whole, replicas)
        batch = spread.batch if spread.batches > 1 else np.zeros(len(samples), np.intp)
        plain = owners(samples, spread, whole, most)
        apart, first = np.empty((len(shares), len(samples)), np.intp), 0
        for part, (burdens, share) in enumerate(zip(self._own, shares.tolist(), strict=True)):
            apart[part] = owners(samples, spread, burdens, share) + batch * (used - share) + first
            first += share
        same = np.broadcast_to(plain + batch * (used - most), apart.shape)
        wins = self.wins(*(self._ends(each, samples, spread.batches, used) for each in (same, apart)))
        if not wins.any():
            return assigned(samples, spread, plain, most)
        owner = np.where(wins[batch], apart, same)
        order = owner[0].argsort(kind="stable")
        samples, owner = samples[order], owner[:, order]
        return Assignment(samples, owner[0], spread, used, owner, self.parts.of_space, wins)

    def wins(self, together: Numbers, apart: Numbers) -> NDArray[np.bool_]:
        """Whether batches end earlier with parts apart, by when they end either way."""
        found: NDArray[np.bool_] = apart + self.parts.overhead < together
        return found

    def _ends(self, owner: Numbers, samples: Ints, batches: int, replicas: int) -> Numbers:
        """When the last replica of every batch has ended, in ns."""
        total: Numbers = np.zeros(batches * replicas, np.int64)
        for of_part, burdens in zip(owner, self._own, strict=True):
            total = total + times(of_part, samples, burdens, len(total))
        found: Numbers = total.reshape(batches, replicas).max(axis=1)
        return found
