"""Weight gradients that are made early: of levels that have ended, while the recursion goes on.

In: a plan. Out: which gradients can be made so, and where. On the way back a replica's workers `post` that
levels are behind them; those of replicas without rows wait for such posts, and add up what is complete, where
they would have waited for the end (Cavs's streaming). Guaranteed: behind these levels nothing runs but what
stands behind all recursions, as gradients are summed where weights were. Only sequences have levels enough,
and narrow ones: of a tree's launch 3 % depend on the rows of its gradients (docs/performance.md).
"""

from __future__ import annotations

import attrs

from dnc.ir import cutting
from dnc.ir.index_lists import ChildrenList, GatherList
from dnc.ir.machine import machine
from dnc.ir.phases import Phases
from dnc.ir.plan import FP32, DenseGradient, Plan, Segment
from dnc.ir.program import BACKWARD, LEVEL
from dnc.ir.regions import Regions
from dnc.ir.structure import NEXT, PREVIOUS

POSTS = 2  # of a launch: how often workers say which levels are behind them


@attrs.frozen
class Early:
    """phase: the last one with levels. region: where its segments stand. gradients: those of rows that are
    complete once their level is; spaces: these rows'."""

    phase: int
    region: int
    gradients: tuple[str, ...]
    spaces: tuple[str, ...]


def early(plan: Plan) -> Early | None:
    """What of a plan can be made early; None for nothing."""
    if not machine(plan.target).is_gpu or not plan.trains or plan.polled or not cutting.has_outer(plan):
        return None
    if plan.precision != FP32:  # tensor cores make them in the time that posts take
        return None
    phases, program = Phases.of(plan.program), plan.program
    of_segment = {each.name: phases.of_stage(program.stage(each.stage)) for each in plan.segments}
    back = [
        segment
        for segment in plan.segments
        if (program.stage(segment.stage).placement, program.stage(segment.stage).direction)
        == (LEVEL, BACKWARD)
    ]
    last = max((of_segment[segment.name] for segment in back), default=0)
    back = [segment for segment in back if of_segment[segment.name] == last]
    regions = {Regions.of(plan).of_segment(segment) for segment in back}
    if len(regions) != 1 or max(of_segment.values()) > last or not _is_sequence(plan, back):
        return None
    found = [gradient for gradient in plan.dense_gradients if _is_complete(plan, gradient, back)]
    if not found:
        return None
    names = tuple(gradient.name for gradient in found)
    return Early(last, regions.pop(), names, tuple(dict.fromkeys(each.space for each in found)))


def made_early(plan: Plan) -> tuple[str, ...]:
    """The gradients that can be made early, by name."""
    found = early(plan)
    return () if found is None else found.gradients


def _is_sequence(plan: Plan, segments: list[Segment]) -> bool:
    """Whether a vertex of these levels reads of the levels before only neighbours in its list."""
    spaces = {segment.space for segment in segments}
    functions = {stage.function for stage in plan.program.stages if stage.space in spaces}
    paths = {
        item.path
        for item in plan.lists
        if isinstance(item, GatherList | ChildrenList) and item.space in spaces and item.function in functions
    }
    return paths <= {(), (PREVIOUS,), (NEXT,)}


def _is_complete(plan: Plan, gradient: DenseGradient, back: list[Segment]) -> bool:
    """Whether a row of it is, once the gradients of the row's level are made."""
    made = {store.buffer for each in back if each.space == gradient.space for store in each.stores}
    by_gradients = {
        store.buffer
        for each in plan.segments
        if plan.program.stage(each.stage).direction == BACKWARD
        for store in each.stores
    }
    times = [other.parameter for other in plan.dense_gradients].count(gradient.parameter)
    return (
        times == 1
        and not gradient.table
        and not plan.program.selectors(gradient.space)
        and plan.program.parameter(gradient.parameter).trained
        and gradient.name not in cutting.along_with_others(plan)
        and gradient.delta.buffer in made
        and not any(getattr(p.address, "buffer", "") in by_gradients for p in gradient.pieces)
    )
