"""Training on several GPUs: gradients that all of them have made are added up, for all of them.

In: the fields of an `all_reduce`, where the pools of all GPUs are. Out: its body. A span of floats is one
worker's of one GPU, which reads and writes it on all of them, over the links between them: a number crosses
these as often as in a reduce-scatter and an all-gather. Guaranteed: sums have the order of the GPUs.
"""

from __future__ import annotations

from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, fixed, let, local, loop, put, room, smaller, stride_loop, when, wide
from dnc.codegen.primitives import Primitive
from dnc.ir import isa
from dnc.ir.machine import THREADS, WARPS

# `others`: of every GPU two numbers, the first of them the address of its pool (`sync.meet_devices`).
_LOAD4_OF = Primitive(
    "dnc_load4_of",
    """
__device__ __forceinline__ void dnc_load4_of(
    const unsigned long long* others, int device, long long at, float& a, float& b, float& c, float& d) {
  asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "l"((float*)others[2 * device] + at) : "memory");
}
""",
)
_STORE4_OF = Primitive(
    "dnc_store4_of",
    """
__device__ __forceinline__ void dnc_store4_of(
    const unsigned long long* others, int device, long long at, float a, float b, float c, float d) {
  asm volatile("st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
               :: "l"((float*)others[2 * device] + at), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
""",
)
_STORE_OF = Primitive(
    "dnc_store_of",
    """
__device__ __forceinline__ void dnc_store_of(
    const unsigned long long* others, int device, long long at, float value) {
  asm volatile("st.relaxed.sys.global.f32 [%0], %1;"
               :: "l"((float*)others[2 * device] + at), "f"(value) : "memory");
}
""",
)
# What a thread has written is there for all GPUs before anything that it, or its block, signals behind this.
_FENCE_SYSTEM = Primitive(
    "dnc_fence_system",
    """
__device__ __forceinline__ void dnc_fence_system() { __threadfence_system(); }
""",
)


def all_reduce(
    worker: Worker,
    others: Expr,
    base: Expr,
    count: Expr,
    first_norm: Expr,
    width: Expr,
    device: Expr,
    devices: Expr,
) -> None:
    """Adds up what all GPUs have of this worker's spans, and the squares of what comes out, for all."""
    first = let("first", wide(base) * 4)
    norms = let("norms", worker.access.base(isa.NORMS) + first_norm)
    size = isa.NORM_CHUNK
    worker.stage(WARPS)
    begin = let("begin", (worker.number + worker.grid - first_norm % worker.grid) % worker.grid)
    spans = let("spans", (count + size - 1) // size)
    with stride_loop("span", device + begin * devices, spans, worker.grid * devices) as span:
        length = let("length", smaller(count - span * size, size))
        own = [worker.thread * 4 + part * THREADS * 4 for part in range(size // (THREADS * 4))]
        # Behind the end the last quad is read, and dropped.
        at = [fixed("at", first + wide(span) * size + smaller(quad, length - 4), "int64") for quad in own]
        totals = room("totals", 4 * len(own))
        found = room("found", 4 * len(own))
        for number in range(4 * len(own)):
            put(totals, number, T.float32(0.0))
        with loop("each", devices) as each:
            for part, place in enumerate(at):
                T.evaluate(_LOAD4_OF(others, each, place, *(found[4 * part + i] for i in range(4))))
            for number in range(4 * len(own)):
                put(totals, number, totals[number] + found[number])
        with when(width != 0):
            stride = let("stride", (width + 3) // 4 * 4)
            for number in range(4 * len(own)):
                column = (span * size + own[number // 4] + number % 4) % stride
                put(totals, number, T.Select(column < width, totals[number], T.float32(0.0)))
        square = local("square", "float32", T.float32(0.0))
        with loop("to", devices) as each:
            for part, place in enumerate(at):
                with when(own[part] < length):
                    T.evaluate(_STORE4_OF(others, each, place, *(totals[4 * part + i] for i in range(4))))
        for part, quad in enumerate(own):
            with when(quad < length):
                for i in range(4):
                    put(square, 0, square[0] + totals[4 * part + i] * totals[4 * part + i])
        with when(first_norm >= 0):
            total = worker.block_sum(square[0])
            with when(worker.thread == 0), loop("to", devices) as each:
                T.evaluate(_STORE_OF(others, each, norms + span, total))
    T.evaluate(_FENCE_SYSTEM())
