"""Polls on CUDA: levels of a replica that is no cluster, which wait for what they read, not for all workers.

In: a level with few rows, which polls states that are its operands, or partial sums that its cells add up.
Out: statements that read them until all are there. What is "not yet" is minus zero (`ir.sent.NOT_YET`); the
kernel writes it before the recursion, in front of the barrier that ends what stands there, and neither
states nor sums are ever written as such. See `passes/plan_polls.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen import sync
from dnc.codegen.bodies.cuda_ahead import LOOKING
from dnc.codegen.bodies.cuda_operands import StagedRows, quad_places
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, any_of, both, fixed, let, local, put, quad_at, stride_loop, when, wide
from dnc.codegen.quads import QUAD
from dnc.ir import isa
from dnc.ir.machine import LANES, THREADS
from dnc.ir.plan import ChildrenAddress, GatherAddress, Plan, Polled, Segment, unit_share
from dnc.ir.sent import NOT_YET, most_sums

# Quads of operands of a level that polls, a thread, and how many of these are under way together. Whoever
# polls is in the way of stores: with five, launches of an RNN of 1,152 units took 1,284 us, and 1,116 with
# barriers and copies.
MOST_QUADS, TOGETHER = 3, 2
MOST_BUSY = 3  # warps that have cells while others poll


def polled_of(plan: Plan, segment: Segment) -> tuple[Polled, ...]:
    """What the levels of a segment poll: states of a buffer, or partial sums of some."""
    return tuple(polled for polled in plan.polled if polled.segment == segment.name)


def busy_warps(worker: Worker, segment: Segment) -> int:
    """Warps that have the cells of a row of a segment, while others poll operands of the next level; 0 where
    all wait for each other, as what cells read through lists other threads wrote in the level before."""
    polls_operands = not polled_of(worker.plan, segment)[0].partial
    ends_with_cells = not (segment.repeated or segment.transposed)
    alone = not any(isinstance(load.address, GatherAddress | ChildrenAddress) for load in segment.loads)
    busy = -(-unit_share(segment.units, worker.workers) // LANES)
    return busy if polls_operands and ends_with_cells and alone and busy <= MOST_BUSY else 0


def most_polled(worker: Worker, segment: Segment) -> int:
    """Rows of a level that polls, at most, for what its operands are, or how many runs it adds up."""
    if polled_of(worker.plan, segment)[0].partial:
        return most_sums(unit_share(segment.units, worker.workers), worker.workers)
    return MOST_QUADS * THREADS * QUAD // sum(piece.width for piece in segment.products[0].pieces)


def unset(worker: Worker) -> None:
    """At the beginning of a launch, by the workers of every replica: nothing that is polled has come."""
    access, workers = worker.access, worker.workers
    for polled in worker.plan.polled:
        with when(access.header(_awaited(polled)) > 0):
            runs = workers if polled.partial else 1
            quads, width = polled.width * runs // QUAD, worker.plan.buffer(polled.buffer).width * runs
            records = access.header(isa.AWAITED_FROM) + worker.number // workers
            low, end = (let(name, worker.words[records + i]) for i, name in enumerate(("low", "end")))
            first = access.base(polled.buffer) + polled.offset + wide(low) * width
            first = fixed("unset_from", first, "int64")
            not_yet = local("not_yet", "float32", T.reinterpret("float32", T.uint32(NOT_YET)), QUAD)
            total = let("unset", (end - low) * quads)
            with stride_loop("quad", worker.rank * THREADS + worker.thread, total, workers * THREADS) as item:
                record = fixed("record", item // quads)
                at = first + wide(record) * width + (item - record * quads) * QUAD
                T.buffer_store(worker.pool, not_yet[quad_at(0)], [quad_at(at)])


@attrs.frozen(eq=False)
class Awaited:
    """What a level polls, of `most` rows at most. waiter: who waits. give_up: what a thread says that waited
    in vain. busy: `busy_warps`."""

    worker: Worker
    polled: tuple[Polled, ...]
    most: int
    waiter: Callable[[], sync.Waiter]
    give_up: Callable[[], None]
    busy: int

    def by_data(self, rows: Expr) -> Expr:
        """Whether a level of so many rows polls: the same for all workers."""
        return both(self._records > 0, rows <= self.most)

    @property
    def sums(self) -> bool:
        """Whether cells poll partial sums, and not products their operands."""
        return self.polled[0].partial

    @property
    def _records(self) -> Expr:
        return self.worker.access.header(_awaited(self.polled[0]))

    def _are_awaited(self, at: Expr) -> Expr:
        """Whether what stands at a position of the pool is waited for."""
        found = []
        for polled in self.polled:
            width = self.worker.plan.buffer(polled.buffer).width
            low = fixed("polled_from", self.worker.access.base(polled.buffer), "int64")
            words = wide(self._records) * (width * self.worker.workers if self.sums else width)
            found.append(both(at >= low, at < low + words))
        return reduce(any_of, found)

    def stage(self, worker: Worker, staged: StagedRows) -> None:
        """Reads operands as `start_quads` copies them."""
        failed = local("failed", "int32", 0)
        total = let("quads", staged.rows * staged.quads)
        begin, threads = worker.thread, THREADS
        if self.busy:  # warps that neither have cells of the level before nor look ahead
            own, threads = worker.thread - self.busy * LANES, (LOOKING - self.busy) * LANES
            begin = T.Select(both(own >= 0, own < threads), own, total)
        with stride_loop("item", begin, total, threads * TOGETHER) as item:
            places = quad_places(worker, staged, item, TOGETHER, threads)
            read = local("read", "float32", T.float32(0.0), QUAD * TOGETHER)
            parts = [[read[QUAD * part + i] for i in range(QUAD)] for part in range(TOGETHER)]
            for part, (place, values) in enumerate(zip(places, parts, strict=True)):
                with when(item + part * threads < total):
                    T.evaluate(cuda.LOAD4_RELAXED(T.address_of(worker.pool[place.source]), *values))
            for part, (place, values) in enumerate(zip(places, parts, strict=True)):
                with when(item + part * threads < total):
                    source, waits = T.address_of(worker.pool[place.source]), self._are_awaited(place.source)
                    vain = sync.arrived(source, T.cast(waits, "int32"), values, self.waiter())
                    put(failed, 0, T.bitwise_or(failed[0], vain))
                    T.buffer_store(worker.staging, read[quad_at(QUAD * part)], [quad_at(place.to)])
        with when(failed[0] != 0):
            self.give_up()

    def polling(self, worker: Worker, rows: Expr) -> Worker:
        """A worker of a level of so many rows, whose cells wait for the runs of polled sums."""

        def poll(at: Expr, stride: int, count: int, last: Expr) -> list[Expr]:
            values = local("runs", "float32", T.float32(0.0), count)
            waits = T.cast(both(self.by_data(rows), self._are_awaited(at)), "int32")
            source, first = T.address_of(worker.pool[at]), T.address_of(values[0])
            vain = sync.runs_arrived(source, stride, last, waits, self.waiter(), first, count)
            with when(vain != 0):
                self.give_up()
            return [values[i] for i in range(count)]

        return attrs.evolve(worker, access=attrs.evolve(worker.access, polls=poll))


def _awaited(polled: Polled) -> str:
    """The word of the header that says how many records are awaited."""
    return isa.AWAITED_SUMS if polled.partial else isa.AWAITED
