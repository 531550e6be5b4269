"""The one place that signals and waits on a GPU.

In come addresses and counts, out go call nodes. Producer: the stores of all threads, a
block barrier, one release; consumer: one acquire, a block barrier. Guaranteed: a wait on
global memory ends within its time limit. It then claims the abort record (the first
worker to give up wins), every other wait polls that record, and each returns nonzero; the
interpreter skips what follows except cluster barriers (whose count must stay the same in
a cluster) and leaves through END. Cluster barriers are hardware and unbounded: they stand
only where the schedule verifier has proved the path uniform. So are signals of pushes into the
shared memory of other workers of a cluster, which a level waits for that all of them run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm.tirx.script.builder import ir as T

from dnc.codegen.primitives import Primitive
from dnc.ir.sent import NOT_YET

_SIGNAL = Primitive(
    "dnc_signal",
    """
__device__ __forceinline__ void dnc_signal(unsigned* counter) {
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(counter) : "memory");
}
""",
)


def _give_up(missing: str) -> str:
    """Ends a loop that counts its `polls`, if time is over or another has given up; the first to do so claims
    the abort record. missing: arrivals that have not come."""
    return f"""      if (polls & 127u) continue;
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(abort) : "memory");
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
      if (start == 0) start = now;
      failed = seen != 0 || (now - start) >> 10 > limit_us;
      if (!failed) continue;
      if (seen == 0 && atomicCAS(abort, 0u, (unsigned)worker + 1u) == 0u) {{
        abort[1] = instruction, abort[2] = exchange, abort[3] = {missing};
      }}
      break;
"""


_WAIT = Primitive(
    "dnc_wait",
    f"""
__device__ __forceinline__ int dnc_wait(
    unsigned* counter, unsigned target, unsigned* abort, unsigned limit_us,
    int worker, int instruction, int exchange) {{
  int failed = 0;
  if (threadIdx.x == 0) {{
    unsigned value, seen;
    unsigned long long now, start = 0;
    for (unsigned polls = 1;; ++polls) {{
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
      if ((int)(value - target) >= 0) break;
{_give_up("target - value")}    }}
  }}
  return __syncthreads_or(failed);
}}
""",
    "int32",
)

# The same of several GPUs, of which this is number `device`. Of each `others` says where its pool lies, and
# its signals: one of every GPU, 32 words apart, with the turn to which that one has come. The host counts
# turns over all launches, so that one that has failed leaves nothing behind. Who waits for other GPUs gives
# up sooner than those who wait for him, and says so.
_MEET_DEVICES = Primitive(
    "dnc_meet_devices",
    f"""
__device__ __forceinline__ int dnc_meet_devices(
    const unsigned long long* others, unsigned turn, int device, int devices, unsigned* abort,
    unsigned limit_us, int worker, int instruction, int exchange) {{
  int failed = 0;
  if (threadIdx.x == 0) {{
    unsigned* own = (unsigned*)others[2 * device + 1];
    unsigned value, seen;
    unsigned long long now, start = 0;
    limit_us -= limit_us >> 3;
    for (int each = 0; each < devices; ++each) {{
      unsigned* to = (unsigned*)others[2 * each + 1] + 32 * device;
      asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(to), "r"(turn) : "memory");
    }}
    for (int each = 0; each < devices && !failed; ++each) for (unsigned polls = 1;; ++polls) {{
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(own + 32 * each) : "memory");
      if ((int)(value - turn) >= 0) break;
{_give_up("1")}    }}
  }}
  return __syncthreads_or(failed);
}}
""",
    "int32",
)

_ARRIVE = Primitive(
    "dnc_arrive",
    """
__device__ __forceinline__ void dnc_arrive(unsigned* counter) {
  if (threadIdx.x == 0) asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" :: "l"(counter) : "memory");
}
""",
)

# Data that polls itself (Sparse Persistent RNNs, section 4.2): minus zero is "not yet", and is never written.
# `__fadd_rn` is never joined with a product in front of it, whose sum with zero could be minus zero.
_PUBLISH = Primitive(
    "dnc_publish",
    """
__device__ __forceinline__ void dnc_publish(float* to, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" :: "l"(to), "f"(__fadd_rn(value, 0.0f)) : "memory");
}
""",
)

_PUBLISH4 = Primitive(
    "dnc_publish4",
    """
__device__ __forceinline__ void dnc_publish4(float* to, float a, float b, float c, float d) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};"
               :: "l"(to), "f"(__fadd_rn(a, 0.0f)), "f"(__fadd_rn(b, 0.0f)), "f"(__fadd_rn(c, 0.0f)),
                  "f"(__fadd_rn(d, 0.0f)) : "memory");
}
""",
)

_ARRIVED = Primitive(
    "dnc_arrived",
    f"""
__device__ __forceinline__ bool dnc_not_yet(float x) {{ return __float_as_uint(x) == {NOT_YET:#x}u; }}
__device__ __forceinline__ int dnc_arrived(
    const float* from, int waits, unsigned* abort, unsigned limit_us, int worker, int instruction,
    int exchange, float& a, float& b, float& c, float& d) {{
  int failed = 0;
  unsigned seen;
  unsigned long long now, start = 0;
  if (waits) {{
    for (unsigned polls = 1; dnc_not_yet(a) || dnc_not_yet(b) || dnc_not_yet(c) || dnc_not_yet(d); ++polls) {{
      asm volatile("ld.relaxed.gpu.global.v4.f32 {{%0, %1, %2, %3}}, [%4];"
                   : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "l"(from) : "memory");
{_give_up("1")}    }}
  }}
  return failed;
}}
""",
    "int32",
)

_RUNS_ARRIVED = Primitive(
    "dnc_runs_arrived",
    f"""
__device__ __forceinline__ int dnc_runs_arrived(
    const float* from, int stride, int last, int waits, unsigned* abort, unsigned limit_us, int worker,
    int instruction, int exchange, int count, float* values) {{
  int failed = 0;
  unsigned seen;
  unsigned long long now, start = 0;
  for (unsigned polls = 1;; ++polls) {{
    bool missing = false;
#pragma unroll
    for (int i = 0; i < count; ++i) {{
      asm volatile("{{.reg .pred p; setp.le.s32 p, %2, %3; @p ld.relaxed.gpu.global.f32 %0, [%1];}}"
                   : "+f"(values[i]) : "l"(from + (long long)i * stride), "r"(i), "r"(last) : "memory");
    }}
#pragma unroll
    for (int i = 0; i < count; ++i) missing |= __float_as_uint(values[i]) == {NOT_YET:#x}u;
    if (!waits || !missing) break;
{_give_up("1")}  }}
  return failed;
}}
""",
    "int32",
)

_CLUSTER_ARRIVE = Primitive(
    "dnc_cluster_arrive",
    """
__device__ __forceinline__ void dnc_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
""",
)

_CLUSTER_ARRIVE_RELAXED = Primitive(
    "dnc_cluster_arrive_relaxed",
    """
__device__ __forceinline__ void dnc_cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
""",
)

_CLUSTER_WAIT = Primitive(
    "dnc_cluster_wait",
    """
__device__ __forceinline__ void dnc_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
""",
)


# A signal of pushes (an mbarrier, two words of shared memory): one arrival a phase, and all bytes it says.
_SIGNALS_OPEN = Primitive(
    "dnc_signals_open",
    """
__device__ __forceinline__ void dnc_signals_open(int* first, int count) {
  for (int i = 0; i < count; ++i) {
    unsigned at = (unsigned)__cvta_generic_to_shared(first + 2 * i);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
""",
)

_SIGNAL_EXPECT = Primitive(
    "dnc_signal_expect",
    """
__device__ __forceinline__ void dnc_signal_expect(int* signal, int bytes) {
  unsigned at = (unsigned)__cvta_generic_to_shared(signal);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
}
""",
)

_SIGNAL_WAIT = Primitive(
    "dnc_signal_wait",
    """
__device__ __forceinline__ void dnc_signal_wait(int* signal, int parity) {
  unsigned at = (unsigned)__cvta_generic_to_shared(signal);
  asm volatile(
      "{ .reg .pred done; again: "
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again; }"
      :: "r"(at), "r"(parity) : "memory");
}
""",
)

_PUSH_TO_ALL = Primitive(
    "dnc_push_to_all",
    """
__device__ __forceinline__ void dnc_push_to_all(float* to, int* signal, float value, int workers) {
  unsigned at = (unsigned)__cvta_generic_to_shared(to), by = (unsigned)__cvta_generic_to_shared(signal);
#pragma unroll
  for (int rank = 0; rank < workers; ++rank) {
    asm volatile("{ .reg .b32 peer, done; mapa.shared::cluster.u32 peer, %0, %3; "
                 "mapa.shared::cluster.u32 done, %1, %3; "
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [peer], %2, [done]; }"
                 :: "r"(at), "r"(by), "r"(__float_as_int(value)), "r"(rank) : "memory");
  }
}
""",
)


def _push_to(count: int) -> Primitive:
    values = ["a", "b", "c", "d"][:count]
    vector = {1: "", 2: ".v2", 4: ".v4"}[count]
    places = ", ".join(f"%{i + 3}" for i in range(count))
    operand = places if count == 1 else f"{{{places}}}"
    return Primitive(
        f"dnc_push{count}",
        f"""
__device__ __forceinline__ void dnc_push{count}(
    float* to, int* signal, int rank, {", ".join(f"float {value}" for value in values)}) {{
  unsigned at = (unsigned)__cvta_generic_to_shared(to), by = (unsigned)__cvta_generic_to_shared(signal);
  asm volatile("{{ .reg .b32 peer, done; mapa.shared::cluster.u32 peer, %0, %2; "
               "mapa.shared::cluster.u32 done, %1, %2; "
               "st.async.shared::cluster.mbarrier::complete_tx::bytes{vector}.b32 "
               "[peer], {operand}, [done]; }}"
               :: "r"(at), "r"(by), "r"(rank), {", ".join(f'"r"(__float_as_int({v}))' for v in values)}
               : "memory");
}}
""",
    )


class Waiter(NamedTuple):
    """Who waits, and for how long at most: the address of the abort record, microseconds (of 1,024 ns), and
    what the host will name."""

    abort: Any
    limit_us: Any
    worker: Any
    instruction: Any
    exchange: Any


def signal(counter: Any) -> None:
    """Publish all stores of this worker so far: one arrival at ``counter`` (a uint32 address)."""
    T.evaluate(_SIGNAL(counter))


def arrive(counter: Any) -> None:
    """One arrival at ``counter``, which publishes nothing."""
    T.evaluate(_ARRIVE(counter))


def publish(to: Any, values: Sequence[Any]) -> None:
    """Write a float that others poll, or four neighbouring ones; minus zero becomes zero."""
    T.evaluate((_PUBLISH if len(values) == 1 else _PUBLISH4)(to, *values))


def arrived(
    source: Any,
    waits: Any,
    values: Sequence[Any],
    waiter: Waiter,
) -> Any:
    """Read four floats again, which were read into ``values``, until all are there, if it ``waits`` for them;
    nonzero: aborted."""
    return _ARRIVED(source, waits, *waiter, *values)


def runs_arrived(
    source: Any, stride: int, last: Any, waits: Any, waiter: Waiter, values: Any, count: int
) -> Any:
    """Read ``count`` floats, ``stride`` apart, into ``values``, of those behind number ``last`` none; if it
    ``waits`` for them until all are there; nonzero: aborted. What is not read stays: it is not minus zero."""
    return _RUNS_ARRIVED(source, stride, last, waits, *waiter, count, values)


def wait(counter: Any, target: Any, waiter: Waiter) -> Any:
    """Wait until ``counter`` has reached ``target`` (modulo 2**32); nonzero: aborted."""
    return _WAIT(counter, target, *waiter)


def meet_devices(others: Any, turn: Any, device: Any, devices: Any, waiter: Waiter) -> Any:
    """Wait until so many GPUs, of which this is number ``device``, have come to a turn; nonzero: aborted. One
    worker of each does, between two barriers of its grid. ``others``: of each GPU the address (uint64) of its
    pool and of its signals.
    """
    return _MEET_DEVICES(others, turn, device, devices, *waiter)


def cluster_arrive() -> None:
    """Release this thread's stores (global and distributed shared memory) to its cluster."""
    T.evaluate(_CLUSTER_ARRIVE())


def cluster_arrive_relaxed() -> None:
    """Arrive and release nothing: what this thread read of its own shared memory may be overwritten."""
    T.evaluate(_CLUSTER_ARRIVE_RELAXED())


def cluster_wait() -> None:
    """Wait for all threads of the cluster and acquire what they released."""
    T.evaluate(_CLUSTER_WAIT())


def cluster_barrier() -> None:
    """Arrive and wait: also a block barrier."""
    cluster_arrive()
    cluster_wait()


def open_signals(first: Any, count: int) -> None:
    """One thread makes signals of pushes: usable in the whole cluster behind a cluster barrier."""
    T.evaluate(_SIGNALS_OPEN(first, count))


def expect(signal: Any, count: Any) -> None:
    """One thread of this worker: the phase ends when so many bytes were pushed. Releases to the others."""
    T.evaluate(_SIGNAL_EXPECT(signal, count))


def wait_for_pushes(signal: Any, parity: Any) -> None:
    """Wait for the end of a phase of this worker's signal (its number modulo 2) and acquire. Unbounded."""
    T.evaluate(_SIGNAL_WAIT(signal, parity))


def push_to_all(to: Any, signal: Any, value: Any, workers: int) -> None:
    """Send a number to the place that `to` is here in the shared memory of every worker of the cluster."""
    T.evaluate(_PUSH_TO_ALL(to, signal, value, workers))


def push_to(to: Any, signal: Any, rank: Any, values: Sequence[Any]) -> None:
    """The same with 1, 2 or 4 neighbouring numbers, for one worker."""
    T.evaluate(_push_to(len(values))(to, signal, rank, *values))
