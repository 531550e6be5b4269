"""The persistent interpreter kernel for the CPU: every worker runs its queue until END.

In: a plan. Out: a TIRx module, and `build_cpu`, the files of a build. The kernel is called once a
worker; how many workers and replicas there are stands in the schedule's header. Every instruction is a
function, and stays one in machine code. Guaranteed: waits are bounded and yield; after an abort all
workers leave.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tvm import tirx
from tvm.ir import IRModule
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from dnc import cpu_code, tirx_cpu
from dnc.cache_folder import cache_folder
from dnc.codegen import cpu_sync
from dnc.codegen.access import Access
from dnc.codegen.bodies import cpu_gradients, cpu_segments, cpu_update, cpu_vertices
from dnc.codegen.bodies.cpu_ending import all_ended
from dnc.codegen.bodies.cpu_products import define_products
from dnc.codegen.bodies.cpu_worker import MEMORY, Functions, Worker
from dnc.codegen.emit import Expr, both, dispatch, let, local, locals_in, named, put, when
from dnc.codegen.stamps import CPU_CLOCK, CpuStamps
from dnc.ir import isa
from dnc.ir.plan import UNIT, Plan, TableGradient
from dnc.ir.regions import generates
from dnc.ir.stamps import FIRST_ANCHOR, LAST_ANCHOR

SYMBOL = "dnc"


class Kernel:
    """Builds the TIRx module of a plan.

    functions: those of a module that other kernels are in too, where `symbol` is this one's name.
    """

    def __init__(
        self, plan: Plan, traced: bool = False, functions: Functions | None = None, symbol: str = SYMBOL
    ) -> None:
        self.plan, self.traced, self.symbol = plan, traced, symbol
        self.functions = functions or Functions(plan)
        self.cases: dict[int, Callable[[], None]] = {}

    def build(self) -> IRModule:
        """The kernel and its functions."""
        self._instructions()
        define_products(self.functions, self.functions.called)
        with locals_in("global"), IRBuilder() as builder, T.prim_func(s_tir=True):
            tirx_cpu.begin_function(self.symbol)
            self.memory = [named(n, tirx_cpu.flat_argument(n, dtype)) for n, dtype in MEMORY]
            self.number, self.limit = T.arg("worker", T.int32()), T.arg("limit", T.int32())
            if self.traced:
                runs = named("runs", tirx_cpu.flat_argument("runs", "int64"))
                stamps, clock = T.arg("stamps", T.int32()), T.arg("clock", T.int32())
                with cpu_sync.primitives(CPU_CLOCK):
                    self._interpret(CpuStamps(runs, self.number, stamps, clock))
            else:
                with cpu_sync.primitives():
                    self._interpret()
        return IRModule({**self.functions.made, self.symbol: builder.get()})

    def described(self) -> dict[str, str | int]:
        """What a backend has to know of the module that was built."""
        return {
            "symbol": self.symbol,
            "scratch_floats": self.functions.scratch_floats,
            "places": self.functions.places,
        }

    def _instructions(self) -> None:
        """A function for every instruction; one for all optimizers' of the same parameters."""
        for table in (None, *self.plan.table_gradients):
            parameter = "" if table is None else table.parameter
            names = isa.update_fields(self.plan) if table is None else isa.TABLE_UPDATE_FIELDS
            opcodes = isa.optimizers_of(self.plan, parameter)
            if not opcodes:
                continue
            self._define(min(opcodes), ("opcode", *names), _update(table))
            self.cases |= dict.fromkeys(opcodes, self.cases[min(opcodes)])
        own = (isa.NOP, isa.END, isa.REPLICA_BARRIER, isa.GRID_BARRIER, isa.LEAVE)
        for opcode in self.plan.opcodes:
            if opcode.name not in own and opcode.number not in self.cases:
                self._define(opcode.number, opcode.fields, self._body(opcode.name))

    def _define(self, number: int, fields: tuple[str, ...], body: Callable[..., None]) -> None:
        """The function of an opcode, and its call; fields: words of the instruction, its last ones."""
        name = f"op_{number}"
        self.functions.define(name, tuple((field, "int32") for field in fields), body, separate=True)
        first = 0 if fields[:1] == ("opcode",) else 1

        def call() -> None:
            values = [self.words[self.entry + first + at] for at in range(len(fields))]
            self.functions.call(name, *(m.data for m in self.memory), self.number, *values)

        self.cases[number] = call

    def _body(self, name: str) -> Callable[..., None]:
        plan = self.plan
        segments = {segment.name: segment for segment in plan.segments}
        dense = {gradient.name: gradient for gradient in plan.dense_gradients}
        tables = {f"gradient {table.parameter}": table for table in plan.table_gradients}

        def body(worker: Worker, *fields: Expr) -> None:
            if name in segments:
                unit = segments[name].mapping == UNIT
                emit = cpu_segments.unit_segment if unit else cpu_vertices.vertex_segment
                emit(worker, segments[name], *fields)
            elif name in dense:
                by_name = dict(zip(isa.DENSE_GRADIENT_FIELDS, fields, strict=True))
                cpu_gradients.dense_gradient(worker, dense[name], by_name)
            elif name in tables:
                cpu_gradients.table_gradient(worker, tables[name], *fields)
            elif name == isa.NORM:
                cpu_update.norm(worker, *fields)
            elif name == isa.FOLLOW:
                cpu_update.follow(worker, *fields)
            else:
                assert name == isa.REDUCE, name
                cpu_update.reduce(worker, *fields)

        return body

    # ---- the loop -------------------------------------------------------------------------------

    def _interpret(self, stamps: CpuStamps | None = None) -> None:
        """Runs instructions until END; `stamps`: and keeps the time of each."""
        if stamps is not None:
            stamps.anchor(FIRST_ANCHOR)
        self.words = self.memory[1]
        access = Access(self.plan, self.memory[0], self.words, 1, 0)
        self.workers = let("workers", access.header("workers"))
        self.grid = let("grid", self.workers * access.header("replicas"))
        self.sync = let("sync", access.header("sync"))
        self.abort_at = let("abort_at", self.sync + isa.SYNC_ABORT * isa.SYNC_STRIDE)
        queue = let("queue", self.words[access.layout.queues_at + self.number])
        self.at, self.running = local("at", "int32", 0), local("running", "int32", 1)
        with T.While(self.running[0] != 0):
            if stamps is not None:
                stamps.stamp(self.at[0] * 2)
            self.entry = let("entry", queue + self.at[0] * isa.INSTRUCTION_WORDS)
            opcode, beyond = let("opcode", self.words[self.entry]), len(self.plan.opcodes)
            known = both(opcode >= 0, opcode < beyond)
            case = let("known", T.Select(known, opcode, beyond))
            if stamps is not None:
                stamps.stamp(self.at[0] * 2 + 1)
            dispatch(case, self._cases())
            put(self.at, 0, self.at[0] + 1)
        if stamps is not None:
            stamps.stamp(self.at[0] * 2)
            stamps.anchor(LAST_ANCHOR)

    def _cases(self) -> dict[int, Callable[[], None]]:
        """What runs by opcode; an opcode beyond the set stops the launch."""
        cases = dict(self.cases)
        cases[self.plan.opcode(isa.END).number] = self._end
        cases[self.plan.opcode(isa.REPLICA_BARRIER).number] = self._replica_barrier
        cases[self.plan.opcode(isa.GRID_BARRIER).number] = self._grid_barrier
        if generates(self.plan):
            cases[self.plan.opcode(isa.LEAVE).number] = self._leave
        cases[len(self.plan.opcodes)] = self._unknown
        return cases

    def _leave(self) -> None:
        """Goes on behind the recursion if all lists have ended."""
        to, *fields = (self.words[self.entry + 1 + at] for at in range(len(isa.LEAVE_FIELDS)))
        with when(all_ended(self.memory[0], self.words, *fields) != 0):
            put(self.at, 0, to - 1)

    # ---- barriers -------------------------------------------------------------------------------

    def _replica_barrier(self) -> None:
        replica = tirx.truncdiv(self.number, self.workers)
        counter = self.sync + (isa.SYNC_REPLICAS + replica) * isa.SYNC_STRIDE
        self._barrier(counter, self.workers, isa.REPLICA)

    def _grid_barrier(self) -> None:
        self._barrier(self.sync + isa.SYNC_GRID * isa.SYNC_STRIDE, self.grid, isa.GRID)

    def _end(self) -> None:
        """Nobody leaves before the others, or a worker could start the next launch too early."""
        self._barrier(self.abort_at + isa.SYNC_STRIDE // 2, self.grid, isa.GRID, 1)
        put(self.running, 0, 0)

    def _barrier(self, counter: Expr, arrivals: Expr, exchange: int, ordinal: Expr = None) -> None:
        """Counts this worker and waits until all have come as often as the ordinal says."""
        at = let("counter", counter)
        times = self.words[self.entry + 1] if ordinal is None else ordinal
        wanted = let("wanted", times * arrivals)
        cpu_sync.fetch_add(self.words, at, 1)

        def missing() -> None:
            self._record(exchange, wanted - cpu_sync.load_acquire(self.words, at))

        cpu_sync.emit_wait(
            self.words,
            until=lambda: cpu_sync.load_acquire(self.words, at) >= wanted,
            abort_at=self.abort_at,
            yield_limit=self.limit,
            on_timeout=missing,
        )
        with when(cpu_sync.load_acquire(self.words, self.abort_at) != 0):
            put(self.running, 0, 0)

    def _unknown(self) -> None:
        self._record(isa.UNKNOWN_OPCODE, tirx.const(0, "int32"))
        put(self.running, 0, 0)

    def _record(self, exchange: int, missing: Expr) -> None:
        """The first worker that gives up fills in the abort record; the waiter's word comes last."""
        claimed = cpu_sync.fetch_add(self.words, self.abort_at + len(isa.ABORT_FIELDS), 1)
        with when(claimed == 0):
            fields = {"instruction": self.at[0], "exchange": exchange, "missing": missing}
            for name, value in fields.items():
                put(self.words, self.abort_at + isa.ABORT_FIELDS.index(name), value)
            cpu_sync.store_release(self.words, self.abort_at, self.number + 1)


def _update(table: TableGradient | None) -> Callable[..., None]:
    """The body of the optimizers' instructions, for a table or (None) for the dense parameters."""
    if table is None:
        return cpu_update.update
    return lambda worker, opcode, *fields: cpu_update.update_table(worker, opcode, table, *fields)


def build_cpu(plan: Plan, traced: bool = False) -> dict[str, bytes]:
    """The files of the CPU target: kernel.tirx, kernel.json.

    traced: the kernel that keeps the times of every instruction (`dnc.ir.stamps`).
    What runs is machine code for one CPU, so it is kept in this machine's cache and not in the build.
    """
    kernel = Kernel(plan, traced)
    module = kernel.build()
    text = tirx_cpu.to_text(module)
    folder = cache_folder() / "cpu"
    if not cpu_code.is_kept(folder, text):  # reading the text back takes longer
        tirx_cpu.compile_into(folder, text, module)
    return {"kernel.tirx": text.encode(), "kernel.json": json.dumps(kernel.described(), indent=1).encode()}
