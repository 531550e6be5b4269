"""The lean kernel of a plan: a second one for GPUs, without the code that only many rows need.

In: a plan. Out: what that kernel leaves out, and up to how many rows a batch runs on it. A launch of a few
samples goes through most of its code once, and waits for instructions more than for data; what a kernel could
do besides takes registers and caches from what it does. Encoder and emitter ask here, so that no schedule has
an instruction that its kernel lacks.
"""

from __future__ import annotations

from collections.abc import Container

import attrs

from dnc.ir import cutting
from dnc.ir.isa import NORM
from dnc.ir.machine import machine
from dnc.ir.plan import UNIT, Plan
from dnc.ir.program import LEVEL

NAME = "lean"
"""Its files in a build, beside those of `kernel`."""
MOST_ROWS = 64
"""Of a replica's instruction that is a product. On an H200 products of a tree's 60 leaves take as long with a
warp on a row of the weights as in tiles, those of 100 longer."""
TILE = 16
"""Vertices worked on at a time: more than levels of few samples have."""


def has_lean(plan: Plan) -> bool:
    """Whether a plan has a lean kernel: what other plans do is the same for few rows and many."""
    return machine(plan.target).is_gpu and bool(product_spaces(plan))


def product_spaces(plan: Plan, names: Container[str] | None = None) -> tuple[tuple[str, bool], ...]:
    """The spaces of products that workers share out by units, and whether they run level by level; names: of
    the segments that count, None for all."""
    found = [
        (segment.space, plan.program.stage(segment.stage).placement == LEVEL)
        for segment in plan.segments
        if segment.mapping == UNIT
        and (segment.products or segment.transposed)
        and (names is None or segment.name in names)
    ]
    return tuple(dict.fromkeys(found))


def left_out(plan: Plan) -> frozenset[str]:
    """The instructions that a lean kernel lacks: weight gradients in chunks, and what adds these up."""
    if not cutting.has_outer(plan):
        return frozenset()
    return frozenset({NORM, *(gradient.name for gradient in plan.dense_gradients)})


def lean_plan(plan: Plan) -> Plan:
    """The plan as a lean kernel is made for it: runs of partial sums are never added up in the cluster."""
    assert plan.tiling is not None
    return attrs.evolve(plan, tiling=attrs.evolve(plan.tiling, tile=min(plan.tiling.tile, TILE)), reduced=())
