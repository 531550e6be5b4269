"""Plan reductions: partial sums that the workers of a cluster add up before they are written.

In: a plan with placements and pushes. Out: the plan with the partial buffers that may be `reduced`. What a
transposed product of a level leaves is read by the levels below, by leaves and by whoever else has a part in
a vertex's gradient: a run per worker each time. Where wavefronts are wide it is less to do to add up the
runs once, in the shared memory of the workers (a reduce-scatter: each adds up its share of the columns), and
to write one. Whether they do is the schedule's to say, for a batch, by how many rows its levels have.

Guaranteed: whoever reads such a buffer does so through lists of slots that lead to reduced buffers alone; the
segment that writes it is alone in its levels, so that what others send never meets another segment's staging.
"""

from __future__ import annotations

import attrs

from dnc.ir.plan import REGISTER, UNIT, BufferAddress, Plan, Segment, SlotList, levels_of, unit_share
from dnc.ir.uses import product_parameters, shared_out

QUAD = 4  # floats of an access


@attrs.frozen
class PlanReductions:
    """What may be added up in a cluster."""

    name: str = attrs.field(default="reductions", init=False)
    optional: bool = attrs.field(default=True, init=False)

    def __call__(self, plan: Plan) -> Plan:
        """The plan with its reduced buffers."""
        assert plan.tiling is not None
        if plan.tiling.cluster == 1:
            return plan
        segments = [segment for segment in plan.segments if _fits(plan, segment)]
        read_otherwise = _read_otherwise(plan)
        found: set[str] = set()
        while True:
            before = found
            found = {name for segment in segments for name in segment.summed}
            segments = [each for each in segments if _is_closed(plan, each.summed, found - read_otherwise)]
            if found == before:
                return attrs.evolve(plan, reduced=tuple(sorted(found)))


def _fits(plan: Plan, segment: Segment) -> bool:
    """Whether a segment multiplies in registers, alone in its levels, and workers share columns evenly."""
    assert plan.tiling is not None
    if segment.mapping != UNIT or not segment.transposed or levels_of(plan, segment) != [segment]:
        return False
    if any(pushed.segment == segment.name for pushed in plan.pushes):
        return False
    if (plan.tiling.workers - 1) * unit_share(segment.units, plan.tiling.workers) >= segment.units:
        return False
    placed = shared_out(plan, segment, product_parameters(segment))
    if any(place.residency != REGISTER for place in placed):
        return False
    return all(
        (high - low) % (QUAD * plan.tiling.workers) == low % QUAD == offset % QUAD == 0
        for turned in segment.transposed
        for _, offset, low, high in turned.stores
    )


def _read_otherwise(plan: Plan) -> set[str]:
    """Buffers that are not read through lists of slots alone, or that are a table's."""
    loads = [load.address for segment in plan.segments for load in segment.loads]
    pieces = [p.address for s in plan.segments for product in s.products for p in product.pieces]
    pieces += [piece.address for gradient in plan.dense_gradients for piece in gradient.pieces]
    found = {address.buffer for address in (*loads, *pieces) if isinstance(address, BufferAddress)}
    found |= {gradient.delta.buffer for gradient in plan.dense_gradients}
    found |= {result.buffer for result in plan.results}
    return found | {source.buffer for table in plan.table_gradients for source in table.sources}


def _is_closed(plan: Plan, buffers: set[str], reduced: set[str]) -> bool:
    """Whether all that lists lead to beside some buffers is reduced, and these are."""
    lists = [item for item in plan.lists if isinstance(item, SlotList) and item.partial]
    beside = [{source.buffer for source in item.sources} for item in lists]
    return all(met <= reduced for met in (buffers, *(each for each in beside if each & buffers)))
