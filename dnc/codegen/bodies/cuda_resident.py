"""Weights in registers on CUDA: how a worker's slice is spread over its threads.

In: a placement. Out: `Resident`, which loads the slice and names its registers, and `Block`, the vertices
that are multiplied together. A warp has all rows of some columns: in the forward direction warps add up
what they have, in the other every warp has whole sums of its own columns, and the slice lies otherwise
(`cuda_turned.py`). The registers are also what tensor cores read, without another copy; where they read 16
bits, a register holds two weights.
"""

from __future__ import annotations

from typing import Any, Self

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_staging import vertex_words
from dnc.codegen.bodies.cuda_tensor import cores_of, packs, uses_cores
from dnc.codegen.bodies.cuda_worker import Worker, slice_rows, source_row
from dnc.codegen.emit import Expr, fixed, lane4, let, local, put, quad_at, smaller
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import Placement, padded, unit_share, weights_of_register

BAND, STRIP = 8, 16  # rows and columns that a warp holds with four registers a lane
BLOCK = 16  # vertices whose sums lie side by side before they are added up, or half as many
TOGETHER = 20  # bands and vertices that a warp sums at a time, beside the weights


@attrs.frozen(eq=False)
class Held:
    """The registers of a slice, blocks of 8 rows and 16 columns of a warp after another: four weights of
    each a lane, as words that `Cores.keep` makes. Rows and columns that do not exist are zero. What registers
    have no room for, of the last bands, a thread has as numbers in shared memory, where nobody else reads it.
    A lane is 4 `group` + `own`."""

    worker: Worker
    placement: Placement
    thread: Expr
    warp: Expr
    group: Expr
    own: Expr

    @classmethod
    def of(cls, worker: Worker, placement: Placement) -> Self:
        """The registers of a slice, as this thread sees them."""
        thread = let("thread_here", cuda.THREAD_HERE())
        lane, warp = let("lane_here", thread % LANES), let("warp_here", thread // LANES)
        return cls(worker, placement, thread, warp, let("group", lane // 4), let("own_lane", lane % 4))

    @property
    def rows(self) -> int:
        """Rows of the worker."""
        return slice_rows(self.placement, self.worker.workers)

    @property
    def bands(self) -> int:
        """Blocks of 8 rows."""
        return -(-self.rows // BAND)

    @property
    def strips(self) -> int:
        """Blocks of 16 columns of a warp."""
        return strips(self.placement.columns)

    @property
    def words(self) -> int:
        """Registers of a band and strip."""
        return 4 // weights_of_register(self.worker.plan.precision)

    def word(self, band: int, strip: int, i: int) -> Expr:
        """A register."""
        return self.worker.registers[self.slot(band, strip) + i]

    def slot(self, band: int, strip: int) -> int:
        """The first of the registers."""
        return self.placement.registers.start + (band * self.strips + strip) * self.words

    @property
    def is_full(self) -> bool:
        """All rows and columns that the registers can hold exist, on every worker."""
        share = unit_share(self.placement.units, self.worker.workers) * self.worker.workers
        columns = self.strips * STRIP * WARPS
        return (
            share == self.placement.units
            and self.rows % BAND == 0
            and padded(self.placement.columns) == columns
        )

    def is_near(self, band: int, strip: int) -> bool:
        """Whether registers hold a band and strip."""
        return self.slot(band, strip) < self.placement.registers.stop

    def near(self, band: int, strip: int) -> list[Expr]:
        """The registers of a band and strip."""
        return [self.word(band, strip, i) for i in range(self.words)]

    def rest(self, band: int, strip: int) -> list[Expr]:
        """The four weights of one that shared memory holds."""
        value = let("weight", self.worker.shared_weights[quad_at(self.rest_at(band, strip))])
        return [lane4(value, i) for i in range(4)]

    def rest_at(self, band: int, strip: int) -> Expr:
        """Where shared memory holds one: what a warp reads lies side by side."""
        number = (self.slot(band, strip) - self.placement.registers.stop) // self.words
        return self.placement.rest.start + (number * THREADS + self.thread) * 4

    def kept(self, numbers: list[Expr]) -> list[Expr]:
        """The words of numbers."""
        if self.words == 4:
            return numbers
        cores = cores_of(self.worker.plan)
        return [cores.keep(own) for own in packs(cores, numbers)]

    def fill(self, band: int, strip: int, source: Expr) -> None:
        """Loads four weights side by side to a band and strip."""
        if not self.is_near(band, strip):
            target = T.address_of(self.worker.shared_weights[self.rest_at(band, strip)])
            cuda.copy4_async(target, source, True)
        elif self.words == 4:
            T.evaluate(cuda.LOAD4_RELAXED(source, *self.near(band, strip)))
        else:
            self.keep(band, strip, loaded(source, 4))

    def keep(self, band: int, strip: int, numbers: list[Expr]) -> None:
        """Puts numbers into the registers from a band and strip on."""
        cores = cores_of(self.worker.plan)
        for i, own in enumerate(packs(cores, numbers)):
            put(self.worker.registers, self.slot(band, strip) + i, cores.keep(own))

    @property
    def crowds(self) -> bool:
        """Whether registers are short beside those of the slice: code for tensor cores needs some, and so do
        weights in shared memory."""
        return bool(self.placement.rest) and uses_cores(self.worker.plan)

    def column_here(self, column: Expr) -> Expr:
        """A column; where registers are short no address that follows from it is kept."""
        return fixed("column_here", cuda.NUMBER_HERE(column)) if self.crowds else column

    def wait(self) -> None:
        """All that was filled is there."""
        if self.placement.rest:
            cuda.copy_commit()
            cuda.copy_wait(0)


def loaded(source: Expr, count: int) -> list[Expr]:
    """Two or four numbers from an address of the pool."""
    found = local("loaded", "float32", T.float32(0.0), count)
    numbers = [found[i] for i in range(count)]
    T.evaluate({2: cuda.LOAD2_RELAXED, 4: cuda.LOAD4_RELAXED}[count](source, *numbers))
    return numbers


@attrs.frozen(eq=False)
class Resident(Held):
    """The slice as products read it: a lane holds row `group` of every band, and of every strip of its warp
    four neighbouring columns from 4 `own` on."""

    def column(self, strip: Any) -> Expr:
        """The first column of a strip that the lane holds."""
        return (self.warp * self.strips + strip) * STRIP + self.own * 4

    def weights(self, band: int, strip: int) -> list[Expr]:
        """The words of a band and strip, wherever they are."""
        return self.near(band, strip) if self.is_near(band, strip) else self.kept(self.rest(band, strip))

    def row_near(self, row: Expr) -> Expr:
        """A row of a band, or the last one where there is none: its weights are zero."""
        return row if self.rows % BAND == 0 else smaller(row, self.rows - 1)

    def load(self) -> None:
        """Fills the registers."""
        columns = padded(self.placement.columns)
        base = let("weights", self.worker.access.base(self.placement.parameter))
        for band in range(self.bands):
            source, valid = source_row(self.worker, self.placement, band * BAND + self.group)
            first = base + source * columns + self.column(0)
            if self.is_full:  # one address a band: code that runs once a launch is slow to come
                at = fixed("from", first, "int64")
                for strip in range(self.strips):
                    self.fill(band, strip, T.address_of(self.worker.pool[at + strip * STRIP]))
                continue
            for strip in range(self.strips):
                there = valid * (self.column(strip) < columns)
                at = fixed("from", T.Select(there != 0, first + strip * STRIP, T.int64(0)), "int64")
                self.fill(band, strip, T.address_of(self.worker.pool[at]))
        self.wait()


def strips(columns: int) -> int:
    """Blocks of 16 columns of a warp: the warps share the columns."""
    return -(-columns // (STRIP * WARPS))


def scratch_words(rows: int, block: int) -> int:
    """Staging that `forward` needs for the sums of the warps, for a block of vertices."""
    return WARPS * block * vertex_words(rows)


@attrs.frozen(eq=False)
class Block:
    """Vertices begin .. begin + count of a tile, and where a warp leaves its sums of them."""

    slice: Resident
    begin: Expr
    count: Expr
    stride: int
    first_word: Expr

    def operand(self, vertex: Expr, strip: int) -> Expr:
        """The four elements of the operand of a vertex of the block that the lane's registers meet."""
        at = (self.begin + vertex) * self.stride + self.slice.column(strip)
        return let("x", self.slice.worker.staging[quad_at(at)])

    def leave(self, row: Expr, vertex: Expr, value: Expr) -> None:
        """Writes a sum of the warp's columns, of any row of a band."""
        put(self.slice.worker.staging, self.first_word + vertex * vertex_words(self.slice.rows) + row, value)
