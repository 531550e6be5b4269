"""Which weights the segments of a plan multiply by, and where their slices are.

In: a plan, a segment. Out: parameters and placements. Planner, cost model and emitters ask here.
"""

from __future__ import annotations

from collections.abc import Container

from dnc.ir.plan import REGISTER, SHARED, SPARSE, STREAMED, UNIT, Placement, Plan, Segment
from dnc.ir.program import LEVEL


def uses_of(segment: Segment) -> list[tuple[str, bool]]:
    """The parameters that a segment multiplies by, once per product; and whether that is repeated, for which
    every worker has all units."""
    products = [(product.parameter, product.result in segment.repeated) for product in segment.products]
    return products + [(product.parameter, False) for product in segment.transposed]


def product_parameters(segment: Segment) -> list[str]:
    """The parameters alone."""
    return [parameter for parameter, _ in uses_of(segment)]


def shared_out(plan: Plan, segment: Segment, parameters: Container[str]) -> list[Placement]:
    """Where slices of some parameters are of which every worker has its own units of a segment."""
    return [
        place
        for place in plan.placements
        if place.parameter in parameters and place.units == segment.units and not place.repeated
    ]


def lends(plan: Plan) -> bool:
    """Whether slices in shared memory, whole or sparse, are there during levels only, and staging of all else
    takes their place in between: where levels alone multiply by them, and others stream weights.

    Not where registers hold weights of levels, too: larger tiles elsewhere leave fewer registers to these.
    """
    held = {(p.parameter, p.units, p.repeated): p.residency for p in plan.placements}
    inside, outside = set[str](), set[str]()
    for segment in plan.segments:
        if segment.mapping == UNIT:
            is_level = plan.program.stage(segment.stage).placement == LEVEL
            used = {held[name, segment.units, repeated] for name, repeated in uses_of(segment)}
            (inside if is_level else outside).update(used)
    near = {SHARED, SPARSE}
    return bool(near & inside) and REGISTER not in inside and not near & outside and STREAMED in outside


def keeps_weights(plan: Plan) -> bool:
    """Whether no product of the recursion streams its weights."""
    streamed = {(p.parameter, p.units, p.repeated) for p in plan.placements if p.residency == STREAMED}
    return not any(
        (name, segment.units, repeated) in streamed
        for segment in plan.segments
        if plan.program.stage(segment.stage).placement == LEVEL
        for name, repeated in uses_of(segment)
    )
