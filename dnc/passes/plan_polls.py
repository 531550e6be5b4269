"""Plan polls: levels of a replica that is no cluster, which wait for states by looking at them.

In: a plan with a tiling and placements. Out: the plan with what is `polled`, if anything is. At a barrier
through the L2 cache a level waits until all stores are known to have arrived, then for the last worker, and
only then reads what it needs. Data that is recognised as new needs none of that (Zhu et al., Sparse
Persistent RNNs, 2018, section 4.2): the states of a level are set to minus zero before the recursion, and
whoever needs one reads it until it is something else. Barriers stay in the schedule, and are kept where
levels have many rows (`MOST_QUADS` in `codegen/bodies/cuda_polls.py`).

It is done for states that are operands of the segment's own products, if the segment is alone in its levels,
has its weights on the chip, and reads nothing else that other workers made a level before. And, on the same
terms, for the partial sums that the recursion's way back adds up; these are as many as there are workers, so
whether it pays to set them to minus zero is decided batch by batch (`runtime/encoder/awaited.py`).
"""

from __future__ import annotations

import attrs

from dnc.ir.plan import STREAMED, UNIT, Plan, Polled, Segment, levels_of
from dnc.ir.program import EARLY, FORWARD, ORDER
from dnc.ir.uses import product_parameters, shared_out
from dnc.passes.plan_mailboxes import NotEnough, asked_of


@attrs.frozen
class PlanPolls:
    """What levels of replicas without clusters may poll."""

    name: str = attrs.field(default="polls", init=False)
    optional: bool = attrs.field(default=True, init=False)

    def __call__(self, plan: Plan) -> Plan:
        """The plan with what is polled."""
        tiling = plan.tiling
        assert tiling is not None
        if tiling.cluster > 1 or tiling.workers == 1 or not _begins_early(plan):
            return plan
        found = [polled for segment in plan.segments for polled in _of(plan, segment)]
        # A schedule says of one space which rows are awaited: of several recursions that of the last one.
        states = [polled for polled in found if not polled.partial][-1:]
        spaces = {plan.buffer(polled.buffer).space for polled in states}
        sums = [each for each in found if each.partial and plan.buffer(each.buffer).space in spaces]
        own = [each for each in sums if each.segment == sums[0].segment]
        return attrs.evolve(plan, polled=(*states, *own))


def _begins_early(plan: Plan) -> bool:
    """Whether something stands before all recursions: states are cleared before the barrier behind it."""
    return any((s.turn, s.direction) == (ORDER[EARLY], FORWARD) for s in plan.program.stages)


def _of(plan: Plan, segment: Segment) -> list[Polled]:
    if segment.mapping != UNIT or levels_of(plan, segment) != [segment] or segment.repeated:
        return []
    forward = plan.program.stage(segment.stage).direction == FORWARD
    if forward and len(segment.products) != 1:
        return []
    placed = shared_out(plan, segment, product_parameters(segment))
    if any(place.residency == STREAMED for place in placed):
        return []
    try:
        asked = list(asked_of(plan, segment, all_sums=False))
    except NotEnough:
        return []
    asked = list(dict.fromkeys(asked))
    if not forward and all(value is None for *_, value in asked):
        return [Polled(segment.name, name, 0, plan.buffer(name).width, partial=True) for name, *_ in asked]
    return [
        Polled(segment.name, buffer, offset, value.tensor.size)
        for buffer, offset, value in (asked if forward and len(asked) == 1 else ())
        if value is not None
    ]
