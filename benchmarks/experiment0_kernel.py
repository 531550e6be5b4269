"""The kernel of experiment 0: a small interpreter of the final shape, in TIRx.

A cluster of 16 workers (a replica) holds one 1280 x 512 matrix, 80 rows a worker, 160
weights a thread in literal registers. Instructions: a TreeLSTM-like recurrent step for 1,
2, 4 or 8 vertices, a bare exchange of 256 floats, barriers. ``FIELDS`` is the layout of an
instruction, ``SHARED`` that of shared memory; the runner reads both from the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen import sync
from dnc.codegen.bodies.cuda_worker import make_view

WORKERS, THREADS, WARPS = 16, 256, 8
HIDDEN, GATES, INPUTS = 256, 5, 512
UNITS = HIDDEN // WORKERS  # of a worker
ROWS = UNITS // WARPS * GATES  # of a warp: 2 units x 5 gates
CHUNKS = INPUTS // 128  # float4 chunks a lane
VERTICES, SLOTS, WINDOW = 8, 3, 32
WORDS = 16
OPCODES = ("END", "NOP", "LOAD", "CLUSTER", "COUNTER", "EXCHANGE", "STEP1", "STEP2", "STEP4", "STEP8")
FIELDS = ("opcode", "left", "right", "to", "through", "scope", "ordinal")
THROUGH = ("peers", "global", "global_relaxed", "rows", "pull")
SCOPES = ("grid", "replica")
SLOT = VERTICES * HIDDEN
# Shared memory, in floats from the start of the pool.
SHARED = {
    "states": 0,
    "cells": SLOTS * SLOT,
    "sums": SLOTS * SLOT + SLOTS * VERTICES * UNITS,
    "biases": SLOTS * SLOT + SLOTS * VERTICES * UNITS + WARPS * VERTICES * ROWS,
}
WINDOW_AT = SHARED["biases"] + WARPS * ROWS
SHARED_BYTES = 4 * (WINDOW_AT + WINDOW * WORDS)

# Four floats that no other worker writes during the launch, L1 allowed.
LOAD4_WEAK = cuda.load("dnc_load4_weak", "ld.global.v4.f32", 4)

# 1 / (1 + exp(-x)) with no branch and no division; by the error bounds of ex2.approx and
# rcp.approx the absolute error is below 3e-7 (estimated, not swept).
SIGMOID_APPROX = cuda.Primitive(
    "dnc_sigmoid_approx",
    """
__device__ __forceinline__ float dnc_sigmoid_approx(float x) {
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-1.4426950408889634f * x));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
  return r;
}
""",
    "float32",
)


def _peer_store(count: int) -> cuda.Primitive:
    """Words to the address that `local` has in this worker, in worker `rank` of the cluster."""
    values = ["a", "b", "c", "d"][:count]
    vector = f"v{count}." if count > 1 else ""
    operands = ", ".join(f"%{index + 1}" for index in range(count))
    inputs = ", ".join(f'"f"({value})' for value in values)
    name = f"dnc_peer_store{count}"
    return cuda.Primitive(
        name,
        f"""
__device__ __forceinline__ void {name}(
    float* local, int rank, {", ".join(f"float {value}" for value in values)}) {{
  unsigned peer, own = (unsigned)__cvta_generic_to_shared(local);
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(own), "r"(rank));
  asm volatile("st.shared::cluster.{vector}f32 [%0], {{{operands}}};"
               :: "r"(peer), {inputs} : "memory");
}}
""",
    )


PEER_STORE1, PEER_STORE2, PEER_STORE4 = map(_peer_store, (1, 2, 4))
# 16 bytes at the address that `local` has in this worker, from worker `rank` of the cluster.
PEER_LOAD4 = cuda.Primitive(
    "dnc_peer_load4",
    """
__device__ __forceinline__ void dnc_peer_load4(
    const float* local, int rank, float& a, float& b, float& c, float& d) {
  unsigned peer, own = (unsigned)__cvta_generic_to_shared(local);
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(own), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "r"(peer) : "memory");
}
""",
)


def named(name: str, value: Any) -> Any:
    IRBuilder.name(name, value)
    return value


def let(name: str, value: Any) -> Any:
    return named(name, T.Bind(value))


@contextmanager
def when(condition: Any) -> Iterator[None]:
    with T.If(condition), T.Then():
        yield


def dispatch(opcode: Any, cases: Mapping[int, Callable[[], None]]) -> None:
    """Opcodes are dense from 0: a binary tree of branches; an opcode with no body does nothing."""
    codes = sorted(cases)
    if len(codes) == 1:
        with when(opcode == codes[0]):
            cases[codes[0]]()
        return
    middle = codes[len(codes) // 2]
    with T.If(opcode < middle):
        with T.Then():
            dispatch(opcode, {code: cases[code] for code in codes if code < middle})
        with T.Else():
            dispatch(opcode, {code: cases[code] for code in codes if code >= middle})


def sigmoid(x: Any) -> Any:
    return T.float32(1.0) / (T.float32(1.0) + T.exp(-x))


class Kernel:
    """Builds the PrimFunc; attributes are the buffers and variables of its body."""

    def __init__(self, approximate: bool) -> None:
        self.sigmoid = SIGMOID_APPROX if approximate else sigmoid

    def build(self) -> tirx.PrimFunc:
        with IRBuilder() as builder, T.prim_func():
            T.func_name("experiment0")
            self._open()
            with T.While(self.running[0] != 0):
                self._fetch()
                bodies = {
                    "END": lambda: T.buffer_store(self.running, 0, [0]),
                    "LOAD": self._load,
                    "CLUSTER": sync.cluster_barrier,
                    "COUNTER": self._counter_barrier,
                    "EXCHANGE": self._exchange,
                    "STEP1": lambda: self._step(1),
                    "STEP2": lambda: self._step(2),
                    "STEP4": lambda: self._step(4),
                    "STEP8": lambda: self._step(8),
                }
                dispatch(self.opcode, {OPCODES.index(name): body for name, body in bodies.items()})
                T.buffer_store(self.at, self.at[0] + 1, [0])
            self._close()
        return builder.get()

    def _open(self) -> None:
        handles = {
            name: T.arg(name, T.handle(kind, "global"))
            for name, kind in [
                ("queue", "int32"),
                ("weights", "float32"),
                ("pool", "float32"),
                ("dump", "float32"),
                ("counters", "uint32"),
                ("abort", "uint32"),
                ("progress", "int32"),
            ]
        }
        self.workers = T.arg("workers", T.int32())
        stride = T.arg("stride", T.int32())
        self.limit_us = T.arg("limit_us", T.uint32())

        def view(name: str, kind: str) -> Any:
            return named(name, T.decl_buffer((1 << 40,), kind, data=handles[name]))

        self.queue, self.weights = view("queue", "int32"), view("weights", "float32")
        self.pool, self.dump = view("pool", "float32"), view("dump", "float32")
        self.counters, self.abort = view("counters", "uint32"), view("abort", "uint32")
        self.progress = view("progress", "int32")
        T.device_entry()
        self.worker = named("worker", T.cta_id([self.workers]))
        self.thread = named("thread", T.thread_id([THREADS]))
        shared = named("shared", T.alloc_buffer((SHARED_BYTES,), "uint8", scope="shared.dyn", align=128))

        self.states = make_view(shared, "states", SHARED["states"], SLOTS * SLOT)
        self.cells = make_view(shared, "cells", SHARED["cells"], SLOTS * VERTICES * UNITS)
        self.sums = make_view(shared, "sums", SHARED["sums"], WARPS * VERTICES * ROWS)
        self.biases = make_view(shared, "biases", SHARED["biases"], WARPS * ROWS)
        self.window = make_view(shared, "window", WINDOW_AT, WINDOW * WORDS, "int32")
        self.resident = named("resident", T.alloc_local((ROWS * CHUNKS * 4,), "float32"))
        self.at = named("at", T.alloc_local((1,), "int32"))
        self.running = named("running", T.alloc_local((1,), "int32"))
        self.aborted = named("aborted", T.alloc_local((1,), "int32"))
        self.lane = let("lane", self.thread % 32)
        self.warp = let("warp", self.thread // 32)
        self.rank = let("rank", self.worker % WORKERS)
        self.replica = let("replica", self.worker // WORKERS)
        self.base = let("base", self.worker * stride)
        self.home = let("home", self.replica * (SLOTS * SLOT))
        T.buffer_store(self.at, 0, [0])
        T.buffer_store(self.running, 1, [0])
        T.buffer_store(self.aborted, 0, [0])

    def _fetch(self) -> None:
        """Refill the window of instructions when it is used up; decode the opcode."""
        with when(self.at[0] % WINDOW == 0):
            T.evaluate(T.cuda.cta_sync())
            for part in range(WINDOW * WORDS // THREADS):
                index = self.thread + part * THREADS
                T.buffer_store(self.window, self.queue[self.base + self.at[0] * WORDS + index], [index])
            T.evaluate(T.cuda.cta_sync())
        self.entry = let("entry", self.at[0] % WINDOW * WORDS)
        fetched = let("fetched", cuda.uniform(self.window[self.entry]))
        # An aborted worker only keeps its cluster's barrier count: the rest is a NOP.
        skips = tirx.And(
            self.aborted[0] != 0,
            tirx.And(fetched != OPCODES.index("CLUSTER"), fetched != OPCODES.index("END")),
        )
        self.opcode = let("opcode", T.Select(skips, OPCODES.index("NOP"), fetched))

    def field(self, name: str) -> Any:
        return let(name, cuda.uniform(self.window[self.entry + FIELDS.index(name)]))

    def _close(self) -> None:
        """One exit: nobody leaves while a peer may still store into its shared memory."""
        sync.cluster_barrier()
        for part in range(SLOTS * SLOT // THREADS):
            index = self.thread + part * THREADS
            T.buffer_store(self.dump, self.states[index], [self.worker * (SLOTS * SLOT) + index])
        with when(self.thread == 0):
            stuck = T.Select(self.aborted[0] != 0, self.aborted[0], -self.at[0])
            T.buffer_store(self.progress, stuck, [self.worker])

    def _load(self) -> None:
        """Weights into registers, biases and the first states into shared memory."""
        first = let("first", (self.rank * WARPS + self.warp) * (ROWS * CHUNKS * 128) + self.lane * 4)
        for quad in range(ROWS * CHUNKS):
            registers = [self.resident[4 * quad + i] for i in range(4)]
            T.evaluate(cuda.LOAD4_RELAXED(T.address_of(self.weights[first + quad * 128]), *registers))
        with when(self.thread < WARPS * ROWS):
            biases_at = HIDDEN * GATES * INPUTS + self.rank * (WARPS * ROWS)
            T.buffer_store(self.biases, self.weights[biases_at + self.thread], [self.thread])
        for part in range(SLOTS * SLOT // THREADS):
            index = self.thread + part * THREADS
            T.buffer_store(self.states, self.pool[self.home + index], [index])
        for part in range(-(-SLOTS * VERTICES * UNITS // THREADS)):
            index = self.thread + part * THREADS
            with when(index < SLOTS * VERTICES * UNITS):
                T.buffer_store(self.cells, T.float32(0.0), [index])
        T.evaluate(T.cuda.cta_sync())

    def _counter_barrier(self) -> None:
        scope, ordinal = self.field("scope"), self.field("ordinal")
        arrivals = let("arrivals", T.Select(scope == 0, self.workers, WORKERS))
        counter = let("counter", T.Select(scope == 0, 0, 32 * (self.replica + 1)))
        address = T.address_of(self.counters[counter])
        sync.signal(address)
        record = T.address_of(self.abort[0])
        waiter = sync.Waiter(record, self.limit_us, self.worker, self.at[0], scope)
        failed = let("failed", sync.wait(address, T.cast(ordinal * arrivals, "uint32"), waiter))
        with when(failed != 0):
            T.buffer_store(self.aborted, self.at[0] + 1, [0])

    def _stage(self, slot: Any, count: int, through: Any) -> None:
        """``count`` float4 of ``slot`` from the pool to shared memory, when it went that way."""
        staged = named("staged", T.alloc_local((4,), "float32"))
        registers = [staged[i] for i in range(4)]
        for part in range(-(-count // THREADS)):
            quad = self.thread + part * THREADS
            with when(quad < count):
                at = let("at", slot * SLOT + quad * 4)
                address = T.address_of(self.pool[self.home + at])
                with T.If(through == THROUGH.index("global")):
                    with T.Then():
                        T.evaluate(LOAD4_WEAK(address, *registers))
                    with T.Else():
                        T.evaluate(cuda.LOAD4_RELAXED(address, *registers))
                T.buffer_store(self.states, staged[T.ramp(0, 1, 4)], [T.ramp(at, 1, 4)])

    def _pull(self, slot: Any, vertices: int) -> None:
        """The units of all peers, 16 bytes a load, from their shared memory to ours."""
        pulled = named("pulled", T.alloc_local((4,), "float32"))
        for part in range(-(-vertices * HIDDEN // 4 // THREADS)):
            quad = self.thread + part * THREADS
            with when(quad < vertices * HIDDEN // 4):
                at = let("at", slot * SLOT + quad * 4)
                owner = quad % (HIDDEN // 4) // (UNITS // 4)
                address = T.address_of(self.states[at])
                T.evaluate(PEER_LOAD4(address, owner, *[pulled[i] for i in range(4)]))
                T.buffer_store(self.states, pulled[T.ramp(0, 1, 4)], [T.ramp(at, 1, 4)])

    def _send_rows(self, vertices: int, to: Any) -> None:
        """Our 16 units of every vertex to every peer, 16 bytes a store."""
        quads = UNITS // 4
        for part in range(-(-vertices * quads * WORKERS // THREADS)):
            index = self.thread + part * THREADS
            with when(index < vertices * quads * WORKERS):
                peer, quad = index // (vertices * quads), index % (vertices * quads)
                at = to * SLOT + quad // quads * HIDDEN + self.rank * UNITS + quad % quads * 4
                row = let("row", self.states[T.ramp(at, 1, 4)])
                values = [tirx.Shuffle([row], [i]) for i in range(4)]
                T.evaluate(PEER_STORE4(T.address_of(self.states[at]), peer, *values))

    def _exchange(self) -> None:
        """Every worker sends its 16 floats, one more than its right neighbour's, to all."""
        left, to, through = self.field("left"), self.field("to"), self.field("through")
        with when(through != 0):
            self._stage(left, HIDDEN // 4, through)
            T.evaluate(T.cuda.cta_sync())
        unit = let("unit", self.rank * UNITS + self.thread % UNITS)
        source = left * SLOT + (unit + UNITS) % HIDDEN
        value = let("value", self.states[source] + T.float32(1.0))
        with T.If(through == 0):
            with T.Then():
                to_peer = T.address_of(self.states[to * SLOT + unit])
                T.evaluate(PEER_STORE1(to_peer, self.thread // UNITS, value))
            with T.Else(), when(self.thread < UNITS):
                T.buffer_store(self.pool, value, [self.home + to * SLOT + unit])

    def _step(self, vertices: int) -> None:
        """Product of the resident rows with (left, right), cell, send h to the replica."""
        left, right, to = self.field("left"), self.field("right"), self.field("to")
        through = self.field("through")
        with when(tirx.Or(through == 1, through == 2)):
            self._stage(left, vertices * HIDDEN // 4, through)
            self._stage(right, vertices * HIDDEN // 4, through)
            T.evaluate(T.cuda.cta_sync())
        with when(through == THROUGH.index("pull")):
            self._pull(left, vertices)
            T.evaluate(T.cuda.cta_sync())
        own = let("own", self.warp * (VERTICES * ROWS))
        for first in range(0, vertices, 4):
            self._product(left, right, first, min(4, vertices - first), own)
        T.evaluate(T.cuda.warp_sync())
        self._cell(vertices, left, right, to, through, own)

    def _product(self, left: Any, right: Any, first: int, tile: int, own: Any) -> None:
        sums = named("partial", T.alloc_local((tile * ROWS,), "float32"))
        for index in range(tile * ROWS):
            T.buffer_store(sums, T.float32(0.0), [index])
        for chunk in range(CHUNKS):
            slot = left if chunk < CHUNKS // 2 else right
            column = chunk % (CHUNKS // 2) * 128
            for vertex in range(tile):
                at = slot * SLOT + (first + vertex) * HIDDEN + column + self.lane * 4
                x = let("x", self.states[T.ramp(at, 1, 4)])
                for row in range(ROWS):
                    for i in range(4):
                        weight = self.resident[(row * CHUNKS + chunk) * 4 + i]
                        index = vertex * ROWS + row
                        total = cuda.fma(weight, tirx.Shuffle([x], [i]), sums[index])
                        T.buffer_store(sums, total, [index])
        owned = cuda.warp_reduce_scatter(sums, tile * ROWS, self.lane)
        for slot_index in range(owned.slots):
            with when(owned.valid[slot_index]):
                at = own + first * ROWS + owned.first + slot_index
                T.buffer_store(self.sums, sums[slot_index], [at])

    def _cell(self, vertices: int, left: Any, right: Any, to: Any, through: Any, own: Any) -> None:
        """Lane ``2 v + u`` computes unit u of vertex v; then lane r sends to worker r."""
        h = named("h", T.alloc_local((1,), "float32"))
        T.buffer_store(h, T.float32(0.0), [0])
        vertex, unit = let("vertex", self.lane // 2), let("unit", self.lane % 2)
        mine = let("mine", self.rank * UNITS + self.warp * 2)
        with when(self.lane < 2 * vertices):
            at = let("gate", own + vertex * ROWS + unit * GATES)
            bias = let("bias", self.warp * ROWS + unit * GATES)
            i, o, u, fl, fr = (
                let(n, self.sums[at + k] + self.biases[bias + k])
                for k, n in enumerate(["i", "o", "u", "fl", "fr"])
            )
            place = let("place", vertex * UNITS + self.warp * 2 + unit)
            old = [self.cells[slot * (VERTICES * UNITS) + place] for slot in (left, right)]
            c = let("c", self.sigmoid(i) * T.tanh(u) + self.sigmoid(fl) * old[0] + self.sigmoid(fr) * old[1])
            T.buffer_store(self.cells, c, [to * (VERTICES * UNITS) + place])
            T.buffer_store(h, self.sigmoid(o) * T.tanh(c), [0])
            there = let("there", to * SLOT + vertex * HIDDEN + mine + unit)
            with when(tirx.Or(through == 1, through == 2)):
                T.buffer_store(self.pool, h[0], [self.home + there])
            with when(through >= THROUGH.index("rows")):
                T.buffer_store(self.states, h[0], [there])
        with when(through == THROUGH.index("rows")):
            T.evaluate(T.cuda.cta_sync())
            self._send_rows(vertices, to)
        with when(through == 0):
            for sent in range(vertices):
                pair = [let("pair", cuda.shuffle(h[0], 2 * sent + u)) for u in range(2)]
                with when(self.lane < WORKERS):
                    address = T.address_of(self.states[to * SLOT + sent * HIDDEN + mine])
                    T.evaluate(PEER_STORE2(address, self.lane, *pair))
