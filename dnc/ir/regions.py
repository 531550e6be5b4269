"""Regions of a kernel: what runs in a loop of its own, with registers as it needs them.

In: a plan with placements. Out: `Regions`, by number. A queue goes through the regions in
order, and opcodes are numbered region by region, so that a kernel has a loop for each. Guaranteed: what
stands in front of and behind all recursions has no weights in its registers, unless it multiplies by them;
nor has what stands between levels, where that streams weights: such products need the registers.
"""

from __future__ import annotations

from itertools import groupby, pairwise

import attrs

from dnc.ir.phases import FIRST, Phases
from dnc.ir.plan import BF16, REGISTER, STREAMED, TF32, UNIT, Plan, Segment
from dnc.ir.program import FORWARD, LEVEL
from dnc.ir.types import INDEX
from dnc.ir.uses import product_parameters

ANYWHERE, FRONT = 0, 1  # exchanges, and the end; in front of all recursions


def generates(plan: Plan) -> bool:
    """Whether a recursion chooses classes: only then may a schedule `leave` it, behind the last word."""
    return any(
        op.result.type == INDEX
        for stage in plan.program.stages
        if stage.placement == LEVEL and stage.direction == FORWARD
        for op in stage.cell.ops
    )


@attrs.frozen
class Regions:
    """of_stage: the region of every stage. behind: the one behind all recursions; the one in front is FRONT.

    apart: whether levels have loops apart from what stands between them. with_registers: those whose
    instructions use weights in registers. turned: those of them that have these in the order of gradients,
    whose products are transposed (see `turns`).
    """

    of_stage: dict[str, int]
    behind: int
    apart: bool
    with_registers: frozenset[int]
    turned: frozenset[int]

    @classmethod
    def of(cls, plan: Plan) -> Regions:
        """Those of a plan."""
        phases, reused, turned = Phases.of(plan.program), are_reused(plan), turns(plan)
        apart = reused or _are_apart(plan)
        last = phases.count - 1
        used = {phases.of_stage(stage) for stage in plan.program.stages}

        def loop(phase: int) -> tuple[int, ...]:
            """The same for phases that share a loop, if they are neighbours."""
            if phase in (FIRST, last):
                return (phase,)
            back = int(turned and phase >= phases.starts)
            if not apart:
                return -2, back
            if not phases.has_levels(phase):
                return (-2,)
            return -1, back, phases.stratum(phase) if reused else 0

        runs = [list(run) for _, run in groupby(sorted({FIRST, last} | used), loop)]
        of_phase = {phase: number for number, run in enumerate(runs, FRONT) for phase in run}
        of_stage = {stage.name: of_phase[phases.of_stage(stage)] for stage in plan.program.stages}
        held = in_registers(plan)
        using = {of_stage[each.stage] for each in plan.segments if uses_registers(each, held)}
        back = {region for phase, region in of_phase.items() if turned and phase >= phases.starts}
        return cls(of_stage, of_phase[last], apart, frozenset(using), frozenset(back & using))

    @property
    def numbers(self) -> range:
        """All of them, in order."""
        return range(FRONT, self.behind + 1)

    def of_segment(self, segment: Segment) -> int:
        """The region that a segment's instructions stand in."""
        return self.of_stage[segment.stage]


def turns(plan: Plan) -> bool:
    """Whether gradients read weights in registers in another order than what they are the gradients of: where
    tensor cores multiply both ways. A region of gradients then loads them anew."""
    return plan.precision in (TF32, BF16)


def in_registers(plan: Plan) -> set[tuple[str, int]]:
    """Parameters and units of weights in registers."""
    return {(p.parameter, p.units) for p in plan.placements if p.residency == REGISTER}


def registers_taken(plan: Plan) -> int:
    """Registers of a thread that hold weights."""
    return max((place.registers.stop for place in plan.placements), default=0)


def uses_registers(segment: Segment, held: set[tuple[str, int]]) -> bool:
    """Whether a segment multiplies by weights in registers."""
    return any((parameter, segment.units) in held for parameter in product_parameters(segment))


def are_reused(plan: Plan) -> bool:
    """Whether recursions have the same registers, each for weights of its own."""
    ranges = [place.registers for place in plan.placements if place.registers]
    ends = sorted(ranges, key=lambda each: each.start)
    return any(one.stop > other.start for one, other in pairwise(ends))


def _are_apart(plan: Plan) -> bool:
    """Whether levels have loops apart from what stands between them.

    Weights are then loaded anew for every one, as they are anyway where gradients read them in another order.
    It is for products between levels that stream their weights, too: with the registers they run in tiles.
    Not where a recursion is left before its end, as what stands behind runs within it.
    """
    held = in_registers(plan)
    if not held or generates(plan):
        return False
    phases = Phases.of(plan.program)
    streamed = {(p.parameter, p.units) for p in plan.placements if p.residency == STREAMED}
    found = False
    for segment in plan.segments:
        stage = plan.program.stage(segment.stage)
        if segment.mapping != UNIT:
            continue
        if stage.placement == LEVEL:
            found |= turns(plan) and bool(segment.transposed) and uses_registers(segment, held)
            continue
        if uses_registers(segment, held):
            return False
        if phases.of_stage(stage) not in (FIRST, phases.count - 1):
            found |= uses_registers(segment, streamed)
    return found
