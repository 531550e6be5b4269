"""Regions on CUDA: loops over the instructions in front of the recursion, within it and behind it.

In: a kernel under construction. Out: statements that run a region's instructions. Mostly the recursion alone
uses weights in registers: then they are loaded in front of its loop, so that the other loops have the
registers for themselves, and while they come a barrier of the cluster waits, if that is what comes first.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen import sync
from dnc.codegen.bodies import cuda_ahead
from dnc.codegen.bodies.cuda_resident import resident
from dnc.codegen.cuda_levels import run_levels
from dnc.codegen.emit import Expr, any_of, both, either, put, when
from dnc.ir import isa
from dnc.ir.machine import weight_registers
from dnc.ir.plan import REGISTER, Placement, Plan, weights_of_register
from dnc.ir.uses import product_parameters

if TYPE_CHECKING:
    from dnc.codegen.cuda_kernel import Kernel


def register_regions(plan: Plan) -> set[int]:
    """The regions whose instructions use weights in registers."""
    held = {(p.parameter, p.units) for p in _in_registers(plan)}
    return {
        isa.segment_region(plan, segment)
        for segment in plan.segments
        for parameter in product_parameters(segment)
        if (parameter, segment.units) in held
    }


def registers(plan: Plan) -> int:
    """How many registers of a thread hold weights."""
    assert plan.tiling is not None
    workers, packed = plan.tiling.workers, weights_of_register(plan.precision)
    return max(
        (
            p.slot + weight_registers(p.gates * p.share(workers), p.columns, packed)
            for p in _in_registers(plan)
        ),
        default=0,
    )


def _in_registers(plan: Plan) -> list[Placement]:
    return [p for p in plan.placements if p.residency == REGISTER]


def load_early(kernel: Kernel) -> None:
    """Loads registers that more than the recursion uses, in front of everything."""
    if register_regions(kernel.plan) - {isa.WITHIN}:
        _load(kernel)


def run_region(kernel: Kernel, region: int) -> None:
    """The loop over the instructions of a region."""
    last = max(opcode.number for opcode in kernel.plan.opcodes if opcode.region <= region)
    if region == isa.REGIONS[-1]:
        last += 1  # an opcode that does not exist
    with when(kernel.opcode[0] <= last):
        if region == isa.WITHIN and _loads_within(kernel):
            _enter(kernel)
        with T.While(_stays(kernel, region, last)):
            level = cuda_ahead.level_segments(kernel.plan, region)
            if level:
                is_level = reduce(any_of, [kernel.opcode[0] == number for number in level])
                either(is_level, partial(run_levels, kernel, level), partial(kernel.instruction, region))
            else:
                kernel.instruction(region)


def _loads_within(kernel: Kernel) -> bool:
    return register_regions(kernel.plan) == {isa.WITHIN}


def _stays(kernel: Kernel, region: int, last: int) -> Expr:
    """Whether the instruction at hand is the region's; a barrier of the cluster that is the last one in front
    of the recursion is not.

    Where the barrier is the last word of the window, what is read behind it is an instruction in front of it,
    so it runs as any other: the load waits behind it.
    """
    inside = kernel.opcode[0] <= last
    if region != isa.BEFORE or not _loads_within(kernel) or kernel.tiling.cluster == 1:
        return inside
    behind = kernel.window[kernel.place_of(kernel.at[0] + 1)]
    crosses = both(kernel.opcode[0] == kernel.number(isa.REPLICA_BARRIER), behind > last)
    return both(inside, tirx.Not(crosses))


def _enter(kernel: Kernel) -> None:
    """Loads registers, between the two halves of a barrier of the cluster if one is at hand."""
    if kernel.tiling.cluster == 1:
        _load(kernel)
        return
    barrier = kernel.number(isa.REPLICA_BARRIER)
    with when(kernel.opcode[0] == barrier):
        sync.cluster_arrive()
    _load(kernel)
    # The opcode is read again: weights leave no register for it.
    with when(kernel.window[kernel.place()] == barrier):
        sync.cluster_wait()
        T.evaluate(T.cuda.cta_sync())  # all threads have read where they are
        kernel.advance(1)
    put(kernel.opcode, 0, kernel.fetch())


def _load(kernel: Kernel) -> None:
    for placement in _in_registers(kernel.plan):
        resident(kernel.worker.holding(placement), placement).load()
