"""Reductions on CUDA: partial sums of a tile, added up by the workers of a cluster before they are written.

In: a tile of a segment that leaves partial sums. Out: a `Reduction`. Every worker sends each of its sums
to the worker whose share of the columns it is in, into a box, a part of the staging area that nothing else of
the segment uses, with a signal that counts bytes; who has got all adds up the runs by rank and writes one
record. Guaranteed: a box is free before anybody sends. For the first tile of an instruction, as all workers
have met since it was read last; for the others, as they meet between the sums of one tile and the products of
the next.
"""

from __future__ import annotations

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen import sync
from dnc.codegen.bodies.cuda_staging import UnitTile
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (
    Expr,
    both,
    fixed,
    lane4,
    lanes,
    let,
    local,
    loop,
    put,
    quad_at,
    stride_loop,
    when,
)
from dnc.codegen.quads import QUAD
from dnc.ir.machine import THREADS
from dnc.ir.plan import Plan, Segment

WORDS = 4  # of shared memory, an even place: a signal, the parity of its phase
PARITY = 2
TOGETHER = 8  # runs that are loaded together


@attrs.frozen
class Share:
    """What every worker has of a part of a product's columns: `columns`, from `at` on in the record that it
    gets; they are written from `offset` on in that of `buffer`, by rank."""

    buffer: str
    offset: int
    columns: int
    at: int


def shares(plan: Plan, segment: Segment) -> tuple[Share, ...]:
    """What is added up of a segment's transposed products, none if that is not done."""
    assert plan.tiling is not None
    found: list[Share] = []
    for turned in segment.transposed:
        for buffer, offset, low, high in turned.stores:
            if buffer not in plan.reduced:
                return ()
            columns = (high - low) // plan.tiling.workers
            found.append(Share(buffer, offset, columns, found[-1].at + found[-1].columns if found else 0))
    return tuple(found)


def box_words(plan: Plan, segment: Segment, tile: int) -> int:
    """Staging for what a worker gets of a tile: a run of its columns from every worker, for every vertex."""
    assert plan.tiling is not None
    return plan.tiling.workers * tile * sum(share.columns for share in shares(plan, segment))


def open_reductions(memory: object, thread: Expr) -> None:
    """At the beginning, by one thread: a signal in its first phase."""
    with when(thread == 0):
        put(memory, PARITY, 0)
        sync.open_signals(T.address_of(memory[0]), 1)  # type: ignore[index]


@attrs.frozen(eq=False)
class Reduction:
    """The sums of a tile. What others send lies from word `at` of staging on,
    [worker that sent][vertex][column].

    begin, rows: of the tile, in the instruction.
    """

    tile: UnitTile
    at: int
    begin: Expr
    rows: Expr

    @property
    def worker(self) -> Worker:
        """The one at hand."""
        return self.tile.worker

    @property
    def shares(self) -> tuple[Share, ...]:
        """What is added up."""
        return shares(self.worker.plan, self.tile.segment)

    @property
    def columns(self) -> int:
        """Of a worker, of every vertex."""
        return sum(share.columns for share in self.shares)

    def open(self) -> None:
        """Before the products, behind a block barrier: says what is to come, waits until all may send."""
        with when(self.worker.thread == 0):
            count = self.tile.count * (self.worker.workers * self.columns * 4)
            sync.expect(self._signal(), count)
        with when(self.begin > 0):
            sync.cluster_wait()

    def send(self, buffer: str, offset: int, row: Expr, element: Expr, value: Expr) -> None:
        """Sends elements of a row of a share, a vector, to the worker that adds them up."""
        share = next(each for each in self.shares if (each.buffer, each.offset) == (buffer, offset))
        element = fixed("element_here", cuda.NUMBER_HERE(element))  # or addresses are kept, and spilled
        owner = let("owner", element // share.columns)
        own = element - owner * share.columns + share.at
        vertex = fixed("vertex_here", cuda.NUMBER_HERE(row - self.tile.first))
        place = let("send_at", self.at + self._run(self.worker.rank) + vertex * self.columns + own)
        width = lanes(value)
        numbers = [value if width == 1 else lane4(value, i) for i in range(width)]
        sync.push_to(T.address_of(self.worker.staging[place]), self._signal(), owner, numbers)

    def close(self) -> None:
        """Behind the products and a block barrier: adds up what came and writes it; then others may send."""
        memory = self.worker.reductions
        sync.wait_for_pushes(self._signal(), memory[PARITY])
        self._add_up()
        self.worker.synchronize()  # all have read the parity, and what came
        with when(self.worker.thread == 0):
            put(memory, PARITY, 1 - memory[PARITY])
        with when(self.begin + self.tile.staging.tile < self.rows):
            sync.cluster_arrive_relaxed()

    def _add_up(self) -> None:
        worker, quads = self.worker, self.columns // QUAD
        with stride_loop("item", worker.thread, self.tile.count * quads, THREADS) as item:
            vertex = fixed("vertex", item // quads)
            column = fixed("column", (item - vertex * quads) * QUAD)
            total = local("total", "float32", T.float32(0.0), QUAD)
            first = let("first_run", self.at + vertex * self.columns + column)
            with loop("run", worker.workers, unroll=TOGETHER) as run:
                found = let("found", worker.staging[quad_at(first + self._run(run))])
                for i in range(QUAD):
                    put(total, i, total[i] + lane4(found, i))
            for share in self.shares:
                width = worker.plan.buffer(share.buffer).width
                record = worker.access.base(share.buffer) + T.cast(self.tile.first + vertex, "int64") * width
                at = record + share.offset + worker.rank * share.columns + (column - share.at)
                with when(both(column >= share.at, column < share.at + share.columns)):
                    T.buffer_store(worker.pool, total[quad_at(0)], [quad_at(at)])

    def _run(self, rank: Expr) -> Expr:
        """Words before the run of a worker."""
        return rank * (self.tile.staging.tile * self.columns)

    def _signal(self) -> Expr:
        return T.address_of(self.worker.reductions[0])
