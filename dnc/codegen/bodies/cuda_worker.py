"""The CUDA worker: the buffers, indices and shared memory that all instruction bodies use.

In: a plan. Out: `Worker`, made inside the kernel under construction. Shared memory holds, in this
order, the window of the schedule, the SHARED weight slices, and one staging area that every
instruction uses as it likes. The place of slices may be lent to staging between levels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from tvm import tirx
from tvm.tirx.layout import S, TileLayout
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.access import Access
from dnc.codegen.emit import Expr, fixed, let, local, named, put, smaller, stride_loop, when
from dnc.codegen.math import TirMath
from dnc.codegen.slots import FEW_RUNS, MOST_RUNS
from dnc.ir import isa
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import (
    SHARED,
    SPARSE,
    Placement,
    Plan,
    PlanTooLarge,
    padded,
    shared_stride,
    unit_share,
)
from dnc.ir.uses import lends

CHUNK = 4 * LANES  # columns that a warp reads with one 16-byte load a lane


@attrs.frozen(eq=False)
class Worker:
    """What bodies read: the plan, memory, and where this thread stands.

    vectors: first word in `shared_vectors` of the worker's units of a vector parameter, gate by gate, by
    its name, units, and whether these are all. few: an instruction may have few vertices, and then has to be
    fast. crowded: registers hold weights. lean: see `ir.lean`. traced: the kernel keeps times. ahead: see
    `cuda_ahead`; push: see `cuda_push`, None where nothing can be pushed. reductions, reduction: memory of,
    and where partial sums are added up in the cluster: see `cuda_reduce`. scale: see `cuda_update`. repeats:
    it makes all units, as every other worker does, each for itself. awaits: see `cuda_polls`, None where all
    that is read has come. sharing: memory of the first worker that shares out gradients, None for number 0.
    """

    plan: Plan
    access: Access
    math: TirMath
    pool: Any
    words: Any
    staging: Any
    staging_words: int
    shared_weights: Any
    shared_vectors: Any
    registers: Any
    thread: Expr
    lane: Expr
    warp: Expr
    rank: Expr
    number: Expr
    grid: Expr
    ahead: Any
    vectors: dict[tuple[str, int, bool], int] = attrs.field(factory=dict)
    few: bool = False
    crowded: bool = False
    lean: bool = False
    push: Any = None
    traced: bool = False
    reductions: Any = None
    reduction: Any = None
    scale: Any = None
    repeats: bool = False
    awaits: Any = None
    sharing: Any = None

    @property
    def workers(self) -> int:
        """Workers that share the units of a replica: known when the kernel is built."""
        assert self.plan.tiling is not None
        return 1 if self.repeats else self.plan.tiling.workers

    @property
    def held_registers(self) -> int:
        """Registers of a thread that hold weights."""
        return int(self.registers.shape[0]) if self.crowded else 0

    def field(self, name: str, entry: Expr, window: Any, fields: tuple[str, ...]) -> Expr:
        """A field of the current instruction."""
        return let(name, window[entry + 1 + fields.index(name)])

    def placement(self, parameter: str, units: int) -> Placement:
        """Where the worker's slice of a parameter lives."""
        key = parameter, units, self.repeats
        return next(p for p in self.plan.placements if (p.parameter, p.units, p.repeated) == key)

    def repeating(self) -> Worker:
        """The same worker, which makes all units."""
        return attrs.evolve(self, repeats=True, rank=tirx.const(0, "int32"))

    def holding(self, placement: Placement) -> Worker:
        """The worker as it holds a slice."""
        return self.repeating() if placement.repeated else self

    def among_weights(self, crowded: bool) -> Worker:
        """The same worker where registers hold weights, or where loads may take more of them."""
        access = attrs.evolve(self.access, runs_together=FEW_RUNS if crowded else MOST_RUNS)
        return attrs.evolve(self, crowded=crowded, access=access)

    def here(self) -> Worker:
        """The same worker, whose thread is read in this place: the compiler works nothing out before the
        loop of the interpreter that follows from it."""
        thread = fixed("thread_here", cuda.THREAD_HERE())
        lane, warp = let("lane_here", thread % LANES), let("warp_here", thread // LANES)
        return attrs.evolve(self, thread=thread, lane=lane, warp=warp)

    def start_copy(self, to: Expr, source: Expr, always: bool = False) -> None:
        """Starts copying 16 bytes of the pool, zeros where `source` is 0, to a word of staging. always: it
        never is."""
        target = T.address_of(self.staging[to])
        cuda.copy4_async(target, T.address_of(self.pool[source]), True if always else source != 0)

    def synchronize(self) -> None:
        """Block barrier."""
        T.evaluate(T.cuda.cta_sync())

    def stage(self, words: int, at: int = 0) -> int:
        """Checks that [at, at + words) of the staging area exists; the first word."""
        if at + words > self.staging_words:
            raise PlanTooLarge(f"{(at + words) * 4} bytes of staging; {self.staging_words * 4} are there")
        return at

    def block_sum(self, value: Expr, at: int = 0) -> Expr:
        """The sum of `value` over all threads in a fixed order, on every thread; two barriers."""
        total = local("block", "float32", value)
        for mask in (16, 8, 4, 2, 1):
            put(total, 0, total[0] + cuda.shuffle_xor(total[0], mask))
        with when(self.lane == 0):
            put(self.staging, at + self.warp, total[0])
        self.synchronize()
        result = local("block_total", "float32", T.float32(0.0))
        for warp in range(WARPS):
            put(result, 0, result[0] + self.staging[at + warp])
        self.synchronize()
        return let("block_sum", result[0])

    def strided_sum(self, count: Expr, term: Callable[[Expr], Expr], together: int = 1) -> Expr:
        """The sum of term(i) over i < count: threads take every 256th, then `block_sum`.

        together: terms of a thread that are worked out before they are added up, for those that are loaded.
        """
        total = local("strided", "float32", T.float32(0.0))
        with stride_loop("i", self.thread, count, together * THREADS) as i:
            places = [i + k * THREADS for k in range(together)]
            terms = [let("term", term(at if together == 1 else smaller(at, count - 1))) for at in places]
            for at, found in zip(places, terms, strict=True):
                put(
                    total,
                    0,
                    total[0] + (found if together == 1 else T.Select(at < count, found, T.float32(0.0))),
                )
        return self.block_sum(total[0])


def slice_rows(placement: Placement, workers: int) -> int:
    """Rows of a slice, gate by gate; of the last worker some may not exist."""
    return placement.gates * unit_share(placement.units, workers)


def rows_per_warp(placement: Placement, workers: int) -> int:
    """Rows of a slice that one warp works on (the last warps may have padding)."""
    return -(-slice_rows(placement, workers) // WARPS)


def chunks(columns: int) -> int:
    """16-byte loads a lane makes to read a row."""
    return -(-columns // CHUNK)


def source_row(worker: Worker, placement: Placement, index: Expr) -> tuple[Expr, Expr]:
    """Row of the parameter behind local row `index` (gate by gate), and whether there is one."""
    units = unit_share(placement.units, worker.workers)
    return row_of_units(placement, worker.rank * units, units, index)


def row_of_units(placement: Placement, first: Expr, units: int, index: Expr) -> tuple[Expr, Expr]:
    """The same of row `index`, gate by gate, of so many units from `first` on."""
    gate = fixed("gate", index // units)
    unit = fixed("unit", first + (index - gate * units))
    valid = (unit < placement.units) * (gate < placement.gates)
    return gate * placement.units + unit, valid


def start_shared(worker: Worker) -> None:
    """Starts to fill shared memory with the worker's slices and vectors, once a launch; slices whose place is
    lent come with the first level."""
    if not lends(worker.plan):
        _start_slices(worker)
    for (parameter, units, repeated), slot in worker.vectors.items():
        _start_vector(worker.repeating() if repeated else worker, parameter, units, slot)
    cuda.copy_commit()


def finish_shared(worker: Worker) -> None:
    """Waits until they are there, on all threads."""
    cuda.copy_wait(0)
    worker.synchronize()


def hold_slices(worker: Worker, held: Any) -> None:
    """Fills the place that is lent with the worker's slices if something else has been there. held: a word of
    shared memory, whether it has not. Behind a barrier, and ends with one if there is something to do."""
    with when(held[0] == 0):
        _start_slices(worker)
        cuda.copy_commit()
        finish_shared(worker)
        with when(worker.thread == 0):
            put(held, 0, 1)


def _start_slices(worker: Worker) -> None:
    start = {SHARED: _start_slice, SPARSE: _start_packed}
    for placement in worker.plan.placements:
        if placement.in_shared:
            start[placement.residency](worker.holding(placement), placement)


def _start_vector(worker: Worker, parameter: str, units: int, slot: int) -> None:
    own = unit_share(units, worker.workers)
    gates = worker.plan.program.parameter(parameter).type.shape[0] // units
    base = let("vector", worker.access.base(parameter))
    with stride_loop("element", worker.thread, gates * own, THREADS) as element:
        gate = fixed("gate", element // own)
        unit = let("unit", worker.rank * own + (element - gate * own))
        near = T.Select(unit < units, unit, units - 1)
        source = T.address_of(worker.pool[base + gate * units + near])
        cuda.copy1_async(T.address_of(worker.shared_vectors[slot + element]), source)


def _start_slice(worker: Worker, placement: Placement) -> None:
    base = let("weights", worker.access.base(placement.parameter))
    stride = shared_stride(placement.columns)
    _start_rows(worker, placement, base, padded(placement.columns), placement.slot, stride)


def _start_packed(worker: Worker, placement: Placement) -> None:
    """The same of a sparse slice: its numbers, then their columns (`ir.sparse`)."""
    numbers, columns = placement.pairs, placement.pairs // 2
    base = let("packed", worker.access.base(isa.packed_base(placement.parameter)))
    _start_rows(worker, placement, base, numbers, placement.slot, numbers)
    behind = base + placement.gates * placement.units * numbers
    _start_rows(worker, placement, behind, columns, columns_at(worker, placement), columns)


def _start_rows(worker: Worker, placement: Placement, base: Expr, words: int, slot: int, stride: int) -> None:
    """Starts to copy the worker's rows, of so many words each, from `base` to a word of shared memory."""
    rows = slice_rows(placement, worker.workers)
    quads = words // 4
    with stride_loop("quad", worker.thread, rows * quads, THREADS) as quad:
        row = fixed("row", quad // quads)
        source, valid = source_row(worker, placement, row)
        column = (quad - row * quads) * 4
        at = fixed("from", base + source * words + column, "int64")
        target = T.address_of(worker.shared_weights[slot + row * stride + column])
        cuda.copy4_async(target, T.address_of(worker.pool[at]), valid)


def columns_at(worker: Worker, placement: Placement) -> int:
    """The word of shared memory where the columns of a sparse slice begin, two in a word."""
    return placement.slot + slice_rows(placement, worker.workers) * placement.pairs


def make_view(shared: Any, name: str, first_word: int, words: int, dtype: str = "float32") -> Any:
    """A view of dynamic shared memory. Where it begins is a part of its layout, so that no pass adds that to
    every access."""
    count = max(words, 1)
    layout = TileLayout(S[(count,) : (1,)] + first_word)
    made = T.decl_buffer((count,), dtype, data=shared.data, scope="shared.dyn", layout=layout)
    return named(name, made)
