"""Runs of partial sums on CUDA: added up by lanes of a warp together, where a worker has few units.

In: a tile of a segment that reads partial sums of more workers than a thread loads at once. Out: which lanes
share a vertex, and `Sharing.sum`, which all of these call. A replica over the whole chip leaves as many runs
as it has workers, and to each of them a few units: with a thread a unit, most threads would wait for the few
that load one run behind another. Guaranteed: the runs are added up in the order of `Access.add_in_parts`,
however many lanes there are.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.access import Runs
from dnc.codegen.bodies.cuda_staging import UnitTile
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, fixed, let, local, put, smaller, stride_loop
from dnc.codegen.slots import FEW_PARTS, MOST_RUNS, parts_of
from dnc.ir.machine import LANES, THREADS, machine
from dnc.ir.plan import Address, BufferAddress, Plan, Segment, SlotsAddress, unit_share


def shares_runs(worker: Worker, segment: Segment) -> bool:
    """Whether lanes add up together what a segment's cells read. A worker then has all its units, or none."""
    units = unit_share(segment.units, worker.workers)
    if worker.workers <= MOST_RUNS or units > LANES or segment.units % units:
        return False
    return any(is_partial(worker.plan, load.address) for load in segment.loads)


def is_partial(plan: Plan, address: Address) -> bool:
    """Whether an address is one of partial sums."""
    if isinstance(address, BufferAddress):
        return plan.buffer(address.buffer).partial
    return isinstance(address, SlotsAddress) and address.partial is not None


@attrs.frozen(eq=False)
class Sharing:
    """The lanes of a warp over vertices, groups and units: all lanes of a vertex are neighbours, and a group
    of them has all units.

    vertex, step: of the lane, and from one round to the next. own: its unit. writes: whether its cell is to
    be stored, which others have as well. first: the first lane of the vertex. mask: a bit for each of its
    lanes. group, groups: of the vertex, `most` of them at most. width: lanes of a group. together: parts
    that a group loads before it adds them up.
    """

    runs: int
    vertex: Expr
    step: Expr
    own: Expr
    writes: Expr
    first: Expr
    mask: Expr
    group: Expr
    groups: Expr
    most: int
    width: int
    together: int

    def sum(self, runs: Runs) -> Expr:
        """The sum of all runs, on every lane. A group adds up `MOST_RUNS` at a time."""
        total = local("runs", "float32", T.float32(0.0))
        step, size = self.groups * self.together, self.together * MOST_RUNS
        with stride_loop("first_part", 0, parts_of(self.runs), step) as begin:
            first = let("first_run", (begin + self.group * self.together) * MOST_RUNS)
            found = runs.some(first, size, self.runs - 1)
            if self._may_miss:
                found = [T.Select(first + k < self.runs, run, T.float32(0.0)) for k, run in enumerate(found)]
            parts = [found[k : k + MOST_RUNS] for k in range(0, size, MOST_RUNS)]
            own = [let("own_sum", reduce(add, part)) for part in parts]
            for group in range(self.most):
                for part in own:
                    self._add(total, group, part)
        return let("summed", total[0])

    @property
    def _may_miss(self) -> bool:
        """Whether a group may have fewer runs in a round."""
        return self.runs % MOST_RUNS > 0 or parts_of(self.runs) % self.most > 0 or self.together > 1

    def _add(self, total: Any, group: int, own: Expr) -> None:
        """Adds what a group has of a part, if there is such a one."""
        there = group < self.groups
        lane = self.first + self.own + T.Select(there, group * self.width, 0)
        other = let("other", T.cuda._shfl_sync(self.mask, own, lane, LANES))
        put(total, 0, total[0] + T.Select(there, other, T.float32(0.0)))


def _together(worker: Worker, groups: int) -> int:
    """Parts that are waited for once: all where these are few, else those of one of so many groups, as far as
    there are registers beside those that hold weights."""
    parts = parts_of(worker.workers)
    wanted = parts if parts <= FEW_PARTS else -(-parts // groups)
    spare = machine(worker.plan.target).registers - worker.held_registers
    return max(1, min(wanted, spare // MOST_RUNS))


def sharing(tile: UnitTile) -> Sharing:
    """Emits how the lanes of all warps share the vertices of a tile: the fewer there are, the more lanes each
    has, up to a group for every part of the runs."""
    worker, units = tile.worker, tile.units
    width = 1 << (units - 1).bit_length()
    most = min(LANES // width, 1 << (parts_of(worker.workers) - 1).bit_length())
    widest = width * most
    bits: Expr = T.int32(widest.bit_length() - 1)
    for number in range(most.bit_length() - 1):
        bits = bits - T.Select(tile.count > (THREADS // widest) << number, 1, 0)
    bits = fixed("bits", bits)
    lanes = fixed("lanes", T.shift_left(T.int32(1), bits))
    inner = fixed("inner", T.bitwise_and(worker.lane, lanes - 1))
    first = fixed("first_lane", worker.lane - inner)
    all_lanes = T.shift_right(T.uint32(cuda.FULL_MASK), T.cast(LANES - lanes, "uint32"))
    return Sharing(
        runs=worker.workers,
        vertex=T.shift_right(worker.thread, bits),
        step=T.shift_right(T.int32(THREADS), bits),
        own=fixed("own", smaller(inner % width, units - 1)),
        writes=inner < units,
        first=first,
        mask=fixed("mask", T.shift_left(all_lanes, T.cast(first, "uint32")), "uint32"),
        group=fixed("group", inner // width),
        groups=fixed("groups", lanes // width),
        most=most,
        width=width,
        together=_together(worker, most),
    )
