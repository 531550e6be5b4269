"""Polled states on CUDA: levels of a replica that is no cluster, which wait for what they read, not for all.

In: the operands of a level with few rows. Out: statements that read them until all are there, into the
staging area. What is "not yet" is minus zero (`ir.sent.NOT_YET`); the kernel writes it before the recursion,
in front of the barrier that ends what stands there, and no state is ever written as such. See
`passes/plan_polls.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_operands import StagedRows, quad_places
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, both, fixed, let, local, put, quad_at, stride_loop, when, wide
from dnc.codegen.quads import QUAD
from dnc.ir import isa
from dnc.ir.machine import THREADS
from dnc.ir.plan import Plan, Polled, Segment
from dnc.ir.sent import NOT_YET

# Quads of operands of a level that polls, a thread. Whoever polls is in the way of stores: with five,
# launches of an RNN of 1,152 units took 1,284 us, and 1,116 with barriers and copies.
MOST_QUADS = 2

# (position of the four floats, whether they are waited for, their places) -> nonzero where that was given up
Poll = Callable[[Expr, Expr, list[Expr]], Expr]


def polled_of(plan: Plan, segment: Segment) -> Polled | None:
    """What the levels of a segment poll; None if nothing."""
    return next((polled for polled in plan.polled if polled.segment == segment.name), None)


def most_polled(segment: Segment) -> int:
    """Rows of a level that polls, at most, for what its operands are."""
    return MOST_QUADS * THREADS * QUAD // sum(piece.width for piece in segment.products[0].pieces)


def unset(worker: Worker) -> None:
    """At the beginning of a launch, by the workers of every replica: none of its states has come."""
    access, workers = worker.access, worker.workers
    for polled in worker.plan.polled:
        with when(access.header(isa.AWAITED) > 0):
            quads, width = polled.width // QUAD, worker.plan.buffer(polled.buffer).width
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
    """What a level polls, of `most` rows at most. poll: waits for four floats. give_up: what a thread says
    that waited in vain."""

    worker: Worker
    polled: Polled
    most: int
    poll: Poll
    give_up: Callable[[], None]

    def by_data(self, rows: Expr) -> Expr:
        """Whether a level of so many rows polls: the same for all workers."""
        return both(self.worker.access.header(isa.AWAITED) > 0, rows <= self.most)

    def stage(self, staged: StagedRows) -> None:
        """Reads operands as `start_quads` copies them; all that a thread reads is under way together."""
        worker, buffer = self.worker, self.polled.buffer
        low = fixed("polled_from", worker.access.base(buffer), "int64")
        words = wide(worker.access.header(isa.AWAITED)) * worker.plan.buffer(buffer).width
        failed = local("failed", "int32", 0)
        total = let("quads", staged.rows * staged.quads)
        with stride_loop("item", worker.thread, total, THREADS * MOST_QUADS) as item:
            places = quad_places(worker, staged, item, MOST_QUADS)
            read = local("read", "float32", T.float32(0.0), QUAD * MOST_QUADS)
            parts = [[read[QUAD * part + i] for i in range(QUAD)] for part in range(MOST_QUADS)]
            for place, values in zip(places, parts, strict=True):
                T.evaluate(cuda.LOAD4_RELAXED(T.address_of(worker.pool[place.source]), *values))
            for part, (place, values) in enumerate(zip(places, parts, strict=True)):
                waits = both(place.source >= low, place.source < low + words)
                put(failed, 0, T.bitwise_or(failed[0], self.poll(place.source, waits, values)))
                with when(item + part * THREADS < total):
                    T.buffer_store(worker.staging, read[quad_at(QUAD * part)], [quad_at(place.to)])
        with when(failed[0] != 0):
            self.give_up()
