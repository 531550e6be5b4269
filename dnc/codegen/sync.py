"""The one place that signals and waits on a GPU.

In come addresses and counts, out go call nodes. Producer: the stores of all threads, a
block barrier, one release; consumer: one acquire, a block barrier. Guaranteed: a wait on
global memory ends within its time limit. It then claims the abort record (the first
worker to give up wins), every other wait polls that record, and each returns nonzero; the
interpreter skips what follows except cluster barriers (whose count must stay the same in
a cluster) and leaves through END. Cluster barriers are hardware and unbounded: they stand
only where the schedule verifier has proved the path uniform.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen.primitives import Primitive

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

_WAIT = Primitive(
    "dnc_wait",
    """
__device__ __forceinline__ int dnc_wait(
    unsigned* counter, unsigned target, unsigned* abort, unsigned limit_us,
    int worker, int instruction, int exchange) {
  int failed = 0;
  if (threadIdx.x == 0) {
    unsigned value, seen;
    unsigned long long now, start = 0;
    for (unsigned polls = 1;; ++polls) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
      if ((int)(value - target) >= 0) break;
      if (polls & 127u) continue;
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(abort) : "memory");
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
      if (start == 0) start = now;
      failed = seen != 0 || now - start > 1000ull * limit_us;
      if (!failed) continue;
      if (seen == 0 && atomicCAS(abort, 0u, (unsigned)worker + 1u) == 0u) {
        abort[1] = instruction, abort[2] = exchange, abort[3] = target - value;
      }
      break;
    }
  }
  return __syncthreads_or(failed);
}
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

_CLUSTER_WAIT = Primitive(
    "dnc_cluster_wait",
    """
__device__ __forceinline__ void dnc_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
""",
)


def signal(counter: Any) -> None:
    """Publish all stores of this worker so far: one arrival at ``counter`` (a uint32 address)."""
    T.evaluate(_SIGNAL(counter))


def wait(
    counter: Any,
    target: Any,
    *,
    abort: Any,
    limit_us: Any,
    worker: Any,
    instruction: Any,
    exchange: Any,
) -> Any:
    """Wait until ``counter`` has reached ``target`` (modulo 2**32); nonzero: aborted.

    ``abort`` is the address of the abort record, ``exchange`` what the host will name.
    """
    return _WAIT(counter, target, abort, limit_us, worker, instruction, exchange)


def cluster_arrive() -> None:
    """Release this thread's stores (global and distributed shared memory) to its cluster."""
    T.evaluate(_CLUSTER_ARRIVE())


def cluster_wait() -> None:
    """Wait for all threads of the cluster and acquire what they released."""
    T.evaluate(_CLUSTER_WAIT())


def cluster_barrier() -> None:
    """Arrive and wait: also a block barrier."""
    cluster_arrive()
    cluster_wait()
