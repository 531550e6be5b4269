"""The persistent interpreter kernel for CUDA: one launch runs a whole schedule.

In: a plan with tiling, placements and opcodes. Out: a TIRx function. Every CTA is a worker: it loads its
weight slices, then fetches instructions through a window in shared memory until END. Guaranteed: signals and
waits come from `codegen/sync.py` only; after an abort a worker skips everything but cluster barriers, levels
that send, and END, and all leave by one exit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

import attrs
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from dnc.codegen import cuda_early, sync
from dnc.codegen import primitives as cuda
from dnc.codegen.access import Access
from dnc.codegen.bodies import (
    cuda_ahead,
    cuda_dense,
    cuda_devices,
    cuda_gradients,
    cuda_outer,
    cuda_polls,
    cuda_reduce,
    cuda_token_products,
    cuda_update,
)
from dnc.codegen.bodies.cuda_ending import ALL_ENDED
from dnc.codegen.bodies.cuda_worker import (
    Worker,
    finish_shared,
    hold_slices,
    make_view,
    start_shared,
)
from dnc.codegen.cuda_levels import run_segment
from dnc.codegen.cuda_regions import run_region
from dnc.codegen.emit import Expr, any_of, both, dispatch, let, local, named, put, room, stride_loop, when
from dnc.codegen.math import TirMath
from dnc.codegen.quads import QUAD
from dnc.codegen.stamps import CudaStamps
from dnc.ir import isa, lean
from dnc.ir.early import early
from dnc.ir.machine import LANES, THREADS, machine
from dnc.ir.plan import Plan, Segment
from dnc.ir.program import LEVEL
from dnc.ir.regions import Regions, registers_taken
from dnc.ir.shared_memory import shared_memory
from dnc.ir.stamps import FIRST_ANCHOR, LAST_ANCHOR

STATE_WORDS = 8  # of shared memory, beside those of `cuda_ahead`: five, the scale, and one that some have
FINISHED = 1 << 30  # what stands for an opcode behind END


@attrs.frozen
class KernelShape:
    """What the launcher must know: bytes of dynamic shared memory, threads, CTAs of a cluster."""

    shared_bytes: int
    threads: int
    cluster: int
    workers: int


def kernel_shape(plan: Plan) -> KernelShape:
    """Shared memory is all that the machine gives a worker: weights first, staging behind."""
    assert plan.tiling is not None
    chip = machine(plan.target)
    return KernelShape(chip.shared_bytes, THREADS, plan.tiling.cluster, plan.tiling.workers)


class Kernel:
    """Builds the TIRx function of a plan."""

    def __init__(self, plan: Plan, traced: bool = False, is_lean: bool = False) -> None:
        self.plan, self.traced, self.is_lean = lean.lean_plan(plan) if is_lean else plan, traced, is_lean
        assert self.plan.tiling is not None
        self.tiling, self.regions = self.plan.tiling, Regions.of(self.plan)
        self.shape = kernel_shape(plan)
        self.stamps: CudaStamps | None = None

    def build(self) -> tirx.PrimFunc:
        """The kernel: prologue, interpreter loop, exit."""
        with IRBuilder() as builder, T.prim_func():
            T.func_name("dnc")
            self._open()
            if self._sending():
                sync.cluster_arrive()
            start_shared(self.worker)
            put(self.opcode, 0, self.fetch())
            finish_shared(self.worker)
            if self._sending():
                sync.cluster_wait()  # now others may push
            for region in self.regions.numbers:
                run_region(self, region)
            self._close()
        return builder.get()

    def instruction(self, region: int) -> None:
        """Runs an instruction, and fetches the next one."""
        dispatch(self.opcode[0], self._cases(region))
        T.evaluate(T.cuda.cta_sync())  # a body may have none: all threads have read where they are
        self.advance(1)
        with when(self.opcode[0] != FINISHED):
            put(self.opcode, 0, self.fetch())

    # ---- prologue -------------------------------------------------------------------------------

    def _open(self) -> None:
        pool_pointer = T.arg("pool", T.handle("float32", "global"))
        words_pointer = T.arg("words", T.handle("int32", "global"))
        sync_pointer = T.arg("counters", T.handle("uint32", "global"))
        self.grid = T.arg("grid", T.int32())
        self.limit_us = T.arg("limit_us", T.uint32())
        several = isa.runs_on_several(self.plan)
        others_pointer = T.arg("others", T.handle("uint64", "global")) if several else None
        self.turn = T.arg("turn", T.uint32()) if several else None
        if self.traced:
            runs_pointer = T.arg("runs", T.handle("int64", "global"))
            stamps = T.arg("stamps", T.int32())
            runs = named("runs", T.decl_buffer((1 << 40,), "int64", data=runs_pointer))
        pool = named("pool", T.decl_buffer((1 << 40,), "float32", data=pool_pointer))
        words = named("words", T.decl_buffer((1 << 30,), "int32", data=words_pointer))
        self.counters = named("counters", T.decl_buffer((1 << 20,), "uint32", data=sync_pointer))
        if several:
            self.others = named("others", T.decl_buffer((1 << 10,), "uint64", data=others_pointer))
        T.device_entry()
        number = named("worker", T.cta_id([self.grid]))
        thread = named("thread", T.thread_id([THREADS]))
        if self.traced:
            self.stamps = CudaStamps(runs, stamps)
            self.stamps.anchor(FIRST_ANCHOR)
        shared = named(
            "shared", T.alloc_buffer((self.shape.shared_bytes,), "uint8", scope="shared.dyn", align=128)
        )
        layout, lies = isa.layout(self.plan), shared_memory(self.plan)
        weight_words, fixed_words = lies.weights, lies.weights_at
        ahead_words = cuda_ahead.ahead_words(self.plan)
        reduction_words = cuda_reduce.WORDS if self.plan.reduced else 0
        has_early = early(self.plan) is not None
        state_words = STATE_WORDS + (QUAD if self.plan.polled or has_early else 0)
        behind_words = ahead_words + state_words + reduction_words
        staging_words = self.shape.shared_bytes // 4 - fixed_words - weight_words - behind_words
        self.window = make_view(shared, "window", 0, self.tiling.window, "int32")
        tables = make_view(shared, "tables", self.tiling.window, lies.tables, "int32")
        weights = vectors = make_view(shared, "weights", fixed_words, weight_words)
        # Where the place of weights is lent, they lie behind the vectors; what borrows it has staging, too.
        self.lent, self.lent_words = None, lies.lent + staging_words
        if lies.lent:
            first = fixed_words + lies.lent_at
            weights = make_view(shared, "lent_weights", first, lies.lent)
            self.lent = make_view(shared, "lent", first, self.lent_words)
        staging = make_view(shared, "staging", fixed_words + weight_words, staging_words)
        self.behind_words = weight_words + staging_words
        self.behind = make_view(shared, "behind", fixed_words, self.behind_words)
        # Registers are for weights: the abort flag, the queue's place and that of the instruction at hand in
        # it live in shared memory. So does a zero, of which the compiler does not know that it is one, and
        # the place of the abort record.
        state = fixed_words + weight_words + staging_words
        self.aborted = make_view(shared, "aborted", state, 1, "int32")
        self.queue = make_view(shared, "queue", state + 1, 1, "int32")
        self.zero = make_view(shared, "zero", state + 2, 1, "int32")
        self.at = make_view(shared, "at", state + 3, 1, "int32")
        self.record = make_view(shared, "record", state + 4, 1, "int32")
        scale = make_view(shared, "scale", state + 5, cuda_update.SCALE_WORDS)
        if self.lent is not None:
            self.held = make_view(shared, "held", state + 5 + cuda_update.SCALE_WORDS, 1, "int32")
        if self.plan.polled:
            self.given_up = make_view(shared, "given_up", state + STATE_WORDS, 2, "int32")
        sharing = make_view(shared, "sharing", state + STATE_WORDS, 1, "int32") if has_early else None
        ahead = make_view(shared, "ahead", state + state_words, ahead_words, "int32")
        total = self.shape.shared_bytes // 4
        reductions = None
        if reduction_words:
            reductions = make_view(shared, "reductions", total - reduction_words, reduction_words, "int32")
        held = room("resident", max(registers_taken(self.plan), 1))
        self.opcode, self.entry = local("opcode", "int32", 0), local("entry", "int32", 0)
        workers = self.tiling.workers
        rank, self.replica = let("rank", number % workers), let("replica", number // workers)
        if self.tiling.cluster == 1 and workers > 1:
            rank = cuda.RANK(workers)
        access = Access(self.plan, pool, words, workers, rank, tables, eager=True)
        access = attrs.evolve(access, publish=lambda at, value: sync.publish(T.address_of(pool[at]), value))
        self.worker = Worker(
            plan=self.plan, access=access, math=TirMath(), pool=pool, words=words, staging=staging,
            staging_words=staging_words, shared_weights=weights, shared_vectors=vectors, registers=held,
            thread=thread,
            lane=let("lane", thread % LANES), warp=let("warp", thread // LANES), rank=rank, number=number,
            grid=self.grid, ahead=cuda_ahead.Ahead(ahead, self.at),
            vectors={vector: at for vector, (at, _) in lies.vectors.items()}, reductions=reductions,
            lean=self.is_lean, traced=self.traced, scale=scale, sharing=sharing,
        )  # fmt: skip
        with when(thread == 0):
            put(self.aborted, 0, 0)
            put(self.zero, 0, 0)
            put(self.record, 0, isa.SYNC_ABORT * isa.SYNC_STRIDE)
            put(self.at, 0, 0)
            if self.lent is not None:
                put(self.held, 0, 0)
            for turn in range(2 if self.plan.polled else 0):
                put(self.given_up, turn, 0)
            if sharing is not None:
                put(sharing, 0, 0)
            put(scale, 0, T.float32(cuda_update.UNKNOWN))
            cuda_ahead.clear(self.worker)
            put(self.queue, 0, words[layout.queues_at + number])
        if reductions is not None:
            cuda_reduce.open_reductions(reductions, thread)
        with stride_loop("word", thread, layout.queues_at, THREADS) as word:
            put(tables, word, words[word])
        T.evaluate(T.cuda.cta_sync())
        cuda_polls.unset(self.worker)

    # ---- the loop -------------------------------------------------------------------------------

    def advance(self, count: int) -> None:
        """Another instruction is at hand, for all threads behind a barrier."""
        with when(self.worker.thread == 0):
            put(self.at, 0, self.at[0] + count)

    def fetch(self) -> Expr:
        """Refills the window when it is used up; the opcode, after a block barrier."""
        per_window = self.tiling.window // isa.INSTRUCTION_WORDS
        self.note_given_up()
        T.evaluate(T.cuda.cta_sync())
        self.stamp(0)
        with when(self.at[0] % per_window == 0):
            self._fill_window(self.at[0])
            T.evaluate(T.cuda.cta_sync())
        put(self.entry, 0, self.place())
        fetched = let("fetched", cuda.uniform(self.window[self.entry[0]]))
        meetings = [fetched == number for number in self._sending()]  # of workers that have to be complete
        keeps = reduce(any_of, meetings, fetched == self.number(isa.END))
        keeps = any_of(keeps, self._is_cluster_barrier(fetched))
        skips = both(self.aborted[0] != 0, tirx.Not(keeps))
        opcode = let("opcode", T.Select(skips, self.number(isa.NOP), fetched))
        self.stamp(1)
        return opcode

    def _sending(self) -> list[int]:
        """The opcodes of segments that send to other workers' shared memory."""
        names = [each.segment for each in self.plan.pushes]
        names += [each.name for each in self.plan.segments if cuda_reduce.shares(self.plan, each)]
        return [self.number(name) for name in dict.fromkeys(names)]

    def place(self) -> Expr:
        """The word of the window at which the instruction at hand stands."""
        return self.place_of(self.at[0])

    def place_of(self, number: Expr) -> Expr:
        """The word of the window at which an instruction stands, if it is in the window."""
        size = isa.INSTRUCTION_WORDS
        return number % (self.tiling.window // size) * size

    def _fill_window(self, first: Expr) -> None:
        """Reads the instructions from `first` on into the window; seen after a block barrier."""
        thread = self.worker.here().thread
        for part in range(-(-self.tiling.window // THREADS)):
            index = thread + part * THREADS
            with when(index < self.tiling.window):
                word = self.worker.words[self.queue[0] + first * isa.INSTRUCTION_WORDS + index]
                put(self.window, index, word)

    def _leave(self) -> None:
        """Goes on behind the recursion if all lists have ended, which is the same on all threads."""
        T.evaluate(T.cuda.cta_sync())  # all threads have read where they are
        target = self.worker.field("to", self.entry[0], self.window, isa.LEAVE_FIELDS)
        to = local("leave_to", "int32", target)  # the window is filled again
        pool, words = (T.address_of(buffer[0]) for buffer in (self.worker.pool, self.worker.words))
        ended = ALL_ENDED(pool, words, *self.values(isa.LEAVE_FIELDS)[1:])
        with when(let("ended", ended) != 0):
            per_window = self.tiling.window // isa.INSTRUCTION_WORDS
            with when(self.worker.thread == 0):
                put(self.at, 0, to[0] - 1)
            self._fill_window(to[0] - to[0] % per_window)

    def stamp(self, place: int) -> None:
        """In a traced kernel the time, as stamp `place` of the instruction at hand."""
        if self.stamps is not None:
            self.stamps.stamp(self.at[0] * 2 + place)

    def number(self, name: str) -> int:
        """That of an opcode."""
        return self.plan.opcode(name).number

    def _is_cluster_barrier(self, opcode: Expr) -> Expr:
        return both(opcode == self.number(isa.REPLICA_BARRIER), self.tiling.cluster > 1)

    def _cases(self, region: int) -> dict[int, Callable[[], None]]:
        """The bodies of a region by opcode, without levels that look ahead; the last one stops for others."""
        cases: dict[int, Callable[[], None]] = {
            self.number(isa.END): lambda: put(self.opcode, 0, FINISHED),
            self.number(isa.REPLICA_BARRIER): self._replica_barrier,
            self.number(isa.GRID_BARRIER): self._grid_barrier,
        }
        level = cuda_ahead.level_segments(self.plan, region)
        if region == self.regions.behind:
            for table in ("", *(table.parameter for table in self.plan.table_gradients)):
                opcodes = isa.optimizers_of(self.plan, table)
                if opcodes:
                    cases |= dict.fromkeys(opcodes, self._update(table))
            cases |= self._dense_gradients()
            missing = [*map(self.number, self._left_out()), len(self.plan.opcodes)]
            cases |= dict.fromkeys(missing, self._unknown)
        for opcode in self.plan.opcodes:
            if opcode.region == region and opcode.number not in cases | level:
                cases[opcode.number] = self._body(opcode.name, opcode.fields)
        return cases

    def _left_out(self) -> frozenset[str]:
        """Opcodes that no schedule for this kernel has."""
        return lean.left_out(self.plan) if self.is_lean else frozenset()

    def _unknown(self) -> None:
        """An opcode that no schedule for this kernel has, or none of the set."""
        self._abort(isa.UNKNOWN_OPCODE)

    def _dense_gradients(self) -> dict[int, Callable[[], None]]:
        """One body for all weight gradients in chunks, whose opcodes follow one another."""
        named = [each.name for each in self.plan.dense_gradients if each.name not in self._left_out()]
        numbers = [self.number(name) for name in named]

        def body() -> None:
            number, fields = self.window[self.entry[0]] - numbers[0], self._fields(isa.DENSE_GRADIENT_FIELDS)
            cuda_dense.dense_gradients(self._tail_worker(), number, fields, self._unknown)

        return dict.fromkeys(numbers, body)

    def _body(self, name: str, fields: tuple[str, ...]) -> Callable[[], None]:
        plan = self.plan

        def values() -> list[Expr]:
            return self.values(fields)

        segments = {segment.name: segment for segment in plan.segments}
        tables = {table.parameter: table for table in plan.table_gradients}
        sums = isa.sum_opcodes(plan)
        if name == isa.LEAVE:
            return self._leave
        if name in (isa.POST, isa.EARLY):
            return partial(cuda_early.post if name == isa.POST else cuda_early.wait, self)
        if name in segments:
            return partial(self._run_segment, segments[name], fields)
        if name.startswith("gradient "):
            table = tables[name.removeprefix("gradient ")]
            if table.products:
                return lambda: cuda_token_products.token_products(
                    self._tail_worker(), table, self._fields(fields)
                )
            return lambda: cuda_gradients.table_gradient(self.worker.here(), table, *values())
        if name in sums:
            return lambda: cuda_gradients.token_sums(self.worker.here(), sums[name], *values())
        if name == isa.OUTER:
            return lambda: cuda_outer.outer(self._tail_worker(), self._fields(fields))
        if name == isa.NORM:
            return lambda: cuda_update.norm(self.worker.here(), *values())
        if name == isa.FOLLOW:
            return lambda: cuda_update.follow(self.worker.here(), *values())
        if name == isa.DEVICE_BARRIER:
            return self._device_barrier
        if name == isa.ALL_REDUCE:
            return lambda: cuda_devices.all_reduce(
                self.worker.here(), T.address_of(self.others[0]), *values()
            )
        assert name == isa.REDUCE, name
        return lambda: cuda_update.reduce(self.worker.here(), *values())

    def _run_segment(self, segment: Segment, fields: tuple[str, ...]) -> None:
        """The instruction of a segment that does not look ahead."""
        if self.plan.program.stage(segment.stage).placement == LEVEL:
            self.hold()
        elif self.lent is not None:
            with when(self.worker.here().thread == 0):
                put(self.held, 0, 0)
        run_segment(self.worker_of(segment), segment, *self.values(fields))

    def hold(self) -> None:
        """Weights of levels are in shared memory, if their place is lent to others."""
        if self.lent is not None:
            hold_slices(self.worker.here(), self.held)

    def _tail_worker(self) -> Worker:
        """The worker of instructions behind the last product: weights in shared memory are staging, too."""
        return attrs.evolve(self.worker.here(), staging=self.behind, staging_words=self.behind_words)

    def worker_of(self, segment: Segment) -> Worker:
        """The worker for a segment: what it knows of the wavefronts and of the registers."""
        crowded = self.regions.of_segment(segment) in self.regions.with_registers
        worker = self.worker.among_weights(crowded)
        if self.plan.program.stage(segment.stage).placement == LEVEL:
            return attrs.evolve(worker, few=True)
        worker = worker.here()
        if self.lent is None:
            return worker
        return attrs.evolve(worker, staging=self.lent, staging_words=self.lent_words)

    def values(self, fields: tuple[str, ...]) -> list[Expr]:
        """The fields of the current instruction."""
        return [self.worker.field(field, self.entry[0], self.window, fields) for field in fields]

    def _fields(self, fields: tuple[str, ...]) -> dict[str, Expr]:
        """The same by name, read where they are used: registers are for sums."""
        first = self.entry[0] + 1
        return {field: self.window[first + at] for at, field in enumerate(fields)}

    def _update(self, parameter: str) -> Callable[[], None]:
        """All optimizers' instructions for the dense parameters, or for a table."""
        if not parameter:
            return lambda: cuda_update.update(
                self._tail_worker(), self.window[self.entry[0]], *self.values(isa.update_fields(self.plan))
            )
        table = next(table for table in self.plan.table_gradients if table.parameter == parameter)
        return lambda: cuda_update.update_table(
            self._tail_worker(), self.window[self.entry[0]], table, *self.values(isa.TABLE_UPDATE_FIELDS)
        )

    # ---- barriers -------------------------------------------------------------------------------

    def _replica_barrier(self) -> None:
        """The cluster's hardware barrier, or a counter."""
        self.meet(self.at[0])

    def meet(self, at: Expr) -> Expr | None:
        """Passes the replica's barrier, instruction `at`. Where it is a counter, nonzero: aborted."""
        if self.tiling.cluster > 1:
            sync.cluster_barrier()
            return None
        return self._counter_barrier(self._replica_counter(), self.tiling.workers, isa.REPLICA, at)

    def _replica_counter(self) -> Expr:
        return (isa.SYNC_REPLICAS + self.replica) * isa.SYNC_STRIDE

    def pass_by(self, level: Expr) -> Expr:
        """Counts as passing the replica's barrier, a counter, and waits for nobody: who reads what others
        write polls it. Nonzero: a thread gave up in the level, which a block barrier ended."""
        sync.arrive(T.address_of(self.counters[self._replica_counter() + self.zero[0]]))
        return self.given_up[T.bitwise_and(level, 1)]

    def waiter(self, at: Expr, exchange: int = isa.REPLICA) -> sync.Waiter:
        """This worker, at an instruction."""
        record = T.address_of(self.counters[self.record[0]])
        return sync.Waiter(record, self.limit_us, self.worker.number, at, exchange)

    def give_up(self, level: Expr) -> None:
        """What is polled has not come in time, says any thread: the launch ends behind the next barrier.
        level: its number; threads may be in two levels that follow each other."""
        put(self.given_up, T.bitwise_and(level, 1), 1)

    def note_given_up(self) -> None:
        """In front of a block barrier, so that all threads see the same."""
        if self.plan.polled:
            gave_up = T.bitwise_or(self.given_up[0], self.given_up[1])
            with when(both(self.worker.thread == 0, gave_up != 0)):
                put(self.aborted, 0, self.at[0] + 1)

    def _grid_barrier(self) -> None:
        self._counter_barrier(isa.SYNC_GRID * isa.SYNC_STRIDE, self.grid, isa.GRID, self.at[0])

    def _device_barrier(self) -> None:
        """The first worker waits for those of other GPUs, the others for it, at the next barrier."""
        with when(self.worker.here().number == 0):
            ordinal, device, devices = self.values(isa.DEVICE_BARRIER_FIELDS)
            waiter = self.waiter(self.at[0], isa.GPUS)
            turn, others = self.turn + T.cast(ordinal, "uint32"), T.address_of(self.others[0])
            failed = let("failed", sync.meet_devices(others, turn, device, devices, waiter))
            with when(both(failed != 0, self.worker.thread == 0)):
                put(self.aborted, 0, self.at[0] + 1)

    def _counter_barrier(self, counter: Expr, arrivals: Expr, exchange: int, at: Expr) -> Expr:
        address = T.address_of(self.counters[counter + self.zero[0]])  # not kept in registers
        sync.signal(address)
        ordinal = self.worker.field("ordinal", self.place_of(at), self.window, isa.BARRIER_FIELDS)
        target = T.cast(ordinal * arrivals, "uint32")
        failed = let("failed", sync.wait(address, target, self.waiter(at, exchange)))
        with when(both(failed != 0, self.worker.thread == 0)):
            put(self.aborted, 0, at + 1)
        return failed

    def _abort(self, exchange: int) -> None:
        """An unknown opcode: claims the abort record and stops."""
        base = isa.SYNC_ABORT * isa.SYNC_STRIDE
        with when(self.worker.thread == 0):
            put(self.counters, base + 1, T.cast(self.at[0], "uint32"))
            put(self.counters, base + 2, T.uint32(exchange))
            put(self.counters, base, T.cast(self.worker.number + 1, "uint32"))
        put(self.opcode, 0, FINISHED)

    def _close(self) -> None:
        """One exit for all; nobody of a cluster leaves before the others."""
        if self.tiling.cluster > 1:
            sync.cluster_barrier()
        if self.stamps is not None:
            T.evaluate(T.cuda.cta_sync())
            self.stamp(0)
            self.stamps.anchor(LAST_ANCHOR)
