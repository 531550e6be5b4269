"""Weights in registers on CUDA: when they are loaded, and in which order.

In: a kernel under construction. Out: statements that load what a region multiplies by in front of its loop,
and within the loop what gradients read in another order (`bodies/cuda_turned.py`), once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_resident import Resident
from dnc.codegen.bodies.cuda_turned import Turned
from dnc.codegen.emit import put, when
from dnc.ir.plan import REGISTER, Placement, Plan, Segment
from dnc.ir.regions import uses_registers

if TYPE_CHECKING:
    from dnc.codegen.cuda_kernel import Kernel


def load_for(kernel: Kernel, region: int) -> None:
    """Loads what the segments of a region multiply by, in the order in which the first of them read it."""
    segments = [each for each in kernel.plan.segments if kernel.regions.of_segment(each) == region]
    forward = [segment for segment in segments if segment.products]
    for placement in _in_registers(kernel.plan):
        if _is_used(placement, segments):
            held = Resident if _is_used(placement, forward) else Turned
            held.of(kernel.worker.holding(placement), placement).load()


def turn(kernel: Kernel, segment: Segment) -> None:
    """Loads what transposed products read in their order, in front of the first of them, where other segments
    of the loop have read it in another one until now."""
    region, plan = kernel.regions.of_segment(segment), kernel.plan
    segments = [each for each in plan.segments if kernel.regions.of_segment(each) == region]
    both_ways = [[s for s in segments if s.products], [s for s in segments if s.transposed]]
    turning = [p for p in _in_registers(plan) if all(_is_used(p, some) for some in both_ways)]
    if segment.transposed and any(_is_used(placement, [segment]) for placement in turning):
        with when(kernel.turned[0] == 0):
            for placement in turning:
                Turned.of(kernel.worker.holding(placement), placement).load()
            T.evaluate(T.cuda.cta_sync())  # all threads have read whether to
            with when(kernel.worker.here().thread == 0):
                put(kernel.turned, 0, 1)


def _is_used(placement: Placement, segments: Sequence[Segment]) -> bool:
    """Whether any of the segments multiplies by a slice in registers."""
    return any(uses_registers(segment, {(placement.parameter, placement.units)}) for segment in segments)


def _in_registers(plan: Plan) -> list[Placement]:
    return [p for p in plan.placements if p.residency == REGISTER]
