"""Regions on CUDA: a loop over the instructions of each (`dnc/ir/regions.py`).

In: a kernel under construction. Out: statements that run a region's instructions. Weights in registers are
loaded in front of the loops that use them, mostly those of recursions, so that the other loops have the
registers for themselves; while they come a barrier of the cluster waits, if that is what comes first.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen import sync
from dnc.codegen.bodies import cuda_ahead
from dnc.codegen.bodies.cuda_resident import Resident
from dnc.codegen.bodies.cuda_turned import Turned
from dnc.codegen.cuda_levels import run_levels
from dnc.codegen.emit import Expr, any_of, both, either, put, when
from dnc.ir import isa
from dnc.ir.plan import REGISTER, Placement, Plan
from dnc.ir.regions import uses_registers

if TYPE_CHECKING:
    from dnc.codegen.cuda_kernel import Kernel


def _in_registers(plan: Plan) -> list[Placement]:
    return [p for p in plan.placements if p.residency == REGISTER]


def run_region(kernel: Kernel, region: int) -> None:
    """The loop over the instructions of a region."""
    last = max(opcode.number for opcode in kernel.plan.opcodes if opcode.region <= region)
    if region == kernel.regions.behind:
        last += 1  # an opcode that does not exist
    with when(kernel.opcode[0] <= last):
        if region in kernel.regions.with_registers:
            _enter(kernel, region)
        with T.While(_stays(kernel, region, last)):
            level = cuda_ahead.level_segments(kernel.plan, region)
            if level:
                is_level = reduce(any_of, [kernel.opcode[0] == number for number in level])
                either(is_level, partial(run_levels, kernel, level), partial(kernel.instruction, region))
            else:
                kernel.instruction(region)


def _stays(kernel: Kernel, region: int, last: int) -> Expr:
    """Whether the instruction at hand is the region's; a barrier of the cluster that is the last one in front
    of a region that loads registers is not.

    Where the barrier is the last word of the window, what is read behind it is an instruction in front of it,
    so it runs as any other: the load waits behind it.
    """
    inside = kernel.opcode[0] <= last
    if region + 1 not in kernel.regions.with_registers or kernel.tiling.cluster == 1:
        return inside
    behind = kernel.window[kernel.place_of(kernel.at[0] + 1)]
    crosses = both(kernel.opcode[0] == kernel.number(isa.REPLICA_BARRIER), behind > last)
    return both(inside, tirx.Not(crosses))


def _enter(kernel: Kernel, region: int) -> None:
    """Loads registers of a region, between the two halves of a barrier of the cluster if one is at hand."""
    if kernel.tiling.cluster == 1:
        _load_for(kernel, region)
        return
    barrier = kernel.number(isa.REPLICA_BARRIER)
    with when(kernel.opcode[0] == barrier):
        sync.cluster_arrive()
    _load_for(kernel, region)
    # The opcode is read again: weights leave no register for it.
    with when(kernel.window[kernel.place()] == barrier):
        sync.cluster_wait()
        T.evaluate(T.cuda.cta_sync())  # all threads have read where they are
        kernel.advance(1)
    put(kernel.opcode, 0, kernel.fetch())


def _load_for(kernel: Kernel, region: int) -> None:
    """Loads what the segments of a region multiply by."""
    segments = [each for each in kernel.plan.segments if kernel.regions.of_segment(each) == region]
    for placement in _in_registers(kernel.plan):
        if any(uses_registers(segment, {(placement.parameter, placement.units)}) for segment in segments):
            held = Turned if region in kernel.regions.turned else Resident
            held.of(kernel.worker.holding(placement), placement).load()
