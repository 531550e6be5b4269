"""Runs of partial sums on CUDA: added up by several threads together, where cells are few.

In: a tile of a segment that reads partial sums of more workers than a thread loads at once. A replica that is
no cluster leaves as many runs as it has workers, and to each of them some units: with a thread a unit, most
threads would wait for the few that load one run behind another. Out, for tiles of a few vertices:
`StagedParts`, the sums of parts of the runs, which all threads of a worker make in front of the cells. For
wide ones: which lanes share a vertex, and `Sharing.sum`, which all of these call. Guaranteed: the runs of a
slot are added up in the order of `Access.add_in_parts`, however many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.access import Runs
from dnc.codegen.bodies.cuda_operands import NARROW
from dnc.codegen.bodies.cuda_staging import UnitTile
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, fixed, let, local, put, smaller, stride_loop, wide
from dnc.codegen.slots import FEW_PARTS, MOST_RUNS, each_slot, part_size, parts_of
from dnc.ir.machine import LANES, THREADS, machine
from dnc.ir.plan import Address, BufferAddress, Plan, Segment, SlotsAddress, unit_share

MOST_STAGED = 1024  # sums of parts that are staged together


def shares_runs(worker: Worker, segment: Segment) -> bool:
    """Whether lanes add up together what a segment's cells read. A worker then has all its units, or none."""
    units = unit_share(segment.units, worker.workers)
    if worker.workers <= MOST_RUNS or units > LANES or segment.units % units:
        return False
    return any(is_partial(worker.plan, load.address) for load in segment.loads)


def slots_of_runs(worker: Worker, segment: Segment) -> tuple[SlotsAddress, ...]:
    """The slots of which a segment's cells add up many runs, an element for every unit: none where cells read
    partial sums in any other way as well."""
    partial = [load for load in segment.loads if is_partial(worker.plan, load.address)]
    addresses = tuple(load.address for load in partial if isinstance(load.address, SlotsAddress))
    one_each = all(load.value.tensor.size == segment.units for load in partial)
    return tuple(dict.fromkeys(addresses)) if one_each and len(addresses) == len(partial) else ()


def is_partial(plan: Plan, address: Address) -> bool:
    """Whether an address is one of partial sums."""
    if isinstance(address, BufferAddress):
        return plan.buffer(address.buffer).partial
    return isinstance(address, SlotsAddress) and address.partial is not None


def vertices_together(worker: Worker, segment: Segment, tile: int) -> int:
    """Vertices of a tile whose parts are staged together: a few; 0 if a thread has all runs of a unit."""
    addresses, parts = slots_of_runs(worker, segment), parts_of(worker.workers)
    if parts == 1 or not addresses or (parts <= FEW_PARTS and not worker.crowded):
        return 0
    return min(tile, max(NARROW, MOST_STAGED // _words(worker, segment)))


def staged_words(worker: Worker, segment: Segment, tile: int) -> int:
    """Staging that the parts take, from 0 on."""
    return vertices_together(worker, segment, tile) * _words(worker, segment)


def _words(worker: Worker, segment: Segment) -> int:
    """The same for a vertex."""
    addresses = len(slots_of_runs(worker, segment))
    return addresses * parts_of(worker.workers) * unit_share(segment.units, worker.workers)


@attrs.frozen(eq=False)
class StagedParts:
    """The sums of all parts of the runs that some vertices of a tile read, in staging:
    [address][vertex][part][unit]. Where products have operands, these are done with."""

    tile: UnitTile
    vertices: int

    def add_up(self, begin: Expr, count: Expr) -> None:
        """For the vertices from `begin` on: a thread has a part of a unit's runs, one slot after another."""
        tile, worker = self.tile, self.tile.worker.here()
        units, parts, last = tile.units, parts_of(worker.workers), tile.segment.units - 1
        for number, address in enumerate(slots_of_runs(worker, tile.segment)):
            assert address.partial is not None
            with stride_loop("item", worker.thread, count * (units * parts), THREADS) as item:
                group = fixed("group", item // units)
                unit = fixed("unit", smaller(tile.first_unit + (item - group * units), last))
                vertex = fixed("vertex", group // parts)
                head = let("head", worker.access.row_word(address.partial, tile.first + begin + vertex))
                part = let("part", group - vertex * parts)
                total = local("part_sum", "float32", T.float32(0.0))
                each_slot(worker.words, head, partial(self._add_slot, total, address, unit, part))
                put(worker.staging, self._first(number) + item, total[0])

    def _add_slot(self, total: Any, address: SlotsAddress, unit: Expr, part: Expr, place: Expr) -> None:
        """Adds the runs of a part; all are under way before the first one is added."""
        access = self.tile.worker.access
        runs = Runs(access, let("at", wide(place) * 4 + address.offset), unit, address.width)
        put(total, 0, total[0] + runs.part_sums(part, 1)[0])

    def reader(self, vertex: Expr, own: Expr) -> Callable[[SlotsAddress], Expr]:
        """What adds up the parts of a unit of the worker, and a vertex of those that are staged."""
        tile, parts = self.tile, parts_of(self.tile.worker.workers)
        addresses = slots_of_runs(tile.worker, tile.segment)

        def gathered(address: SlotsAddress) -> Expr:
            first = self._first(addresses.index(address)) + vertex * (parts * tile.units) + own
            total = local("gathered", "float32", T.float32(0.0))
            for part in range(parts):
                put(total, 0, total[0] + tile.worker.staging[first + part * tile.units])
            return total[0]

        return gathered

    def _first(self, number: int) -> int:
        """The first word of an address."""
        return number * self.vertices * parts_of(self.tile.worker.workers) * self.tile.units


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
        """The sum of all runs, on every lane. A group adds up some parts at a time."""
        total = local("runs", "float32", T.float32(0.0))
        with stride_loop("first_part", 0, parts_of(self.runs), self.groups * self.together) as begin:
            first = let("own_part", begin + self.group * self.together)
            own = [let("own_sum", found) for found in runs.part_sums(first, self.together)]
            for group in range(self.most):
                for part in own:
                    self._add(total, group, part)
        return let("summed", total[0])

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
    return max(1, min(wanted, spare // part_size(worker.workers)))


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
