"""What partial sums cost on their way to who adds them up: `python benchmarks/cluster_traffic.py OUT`.

Clusters of 16 workers of 256 threads; of every vertex each worker leaves 512 partial sums, 32 for every
worker. Through memory: stored as a run a worker, and read again, 16 runs. Through distributed shared memory:
stored where they are added up, 16 bytes an access, with a barrier of the cluster or a signal of bytes.
Prints cycles a vertex, of one cluster and of all that the GPU holds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import attrs
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import stamp
from dnc.codegen.nvrtc import compile_cuda
from dnc.runtime.cuda_driver import LaunchShape, open_device

WORKERS, THREADS, VERTICES, ROUNDS = 16, 256, 32, 20
ROADS = (
    "memory: store",
    "memory: store, barrier, read",
    "peers: store",
    "peers: store, barrier, read",
    "peers: store with a signal, read",
    "peers: 512 bytes a warp with a signal, read",
    "peers: copy 4 KiB with a signal, read",
)
SHARED = 200 * 1024  # so that a worker has an SM
SOURCE = """
#define WORKERS 16
#define VERTICES 32
__device__ __forceinline__ unsigned peer(unsigned at, int rank) {
  unsigned to;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at), "r"(rank));
  return to;
}
__device__ __forceinline__ void barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void add(float4& sum, float4 found) {
  sum.x += found.x, sum.y += found.y, sum.z += found.z, sum.w += found.w;
}
enum { STORE, READ, PEERS, PEERS_READ, SIGNAL, WHOLE, BULK };
extern "C" __global__ __launch_bounds__(256) void traffic(
    float4* pool, long long* cycles, int road, int rounds) {
  // [run][vertex][8 quads], and what is sent, [owner][vertex][8].
  extern __shared__ __align__(128) float4 box[];
  float4* sent = box + WORKERS * VERTICES * 8;
  __shared__ __align__(8) unsigned long long signal;
  int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  int rank = blockIdx.x % WORKERS, replica = blockIdx.x / WORKERS;
  unsigned at = (unsigned)__cvta_generic_to_shared(box), by = (unsigned)__cvta_generic_to_shared(&signal);
  if (thread == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;"
                 :: "r"(by) : "memory");
  float4 value = make_float4(thread, rank, 1.f, 2.f), sum = make_float4(0.f, 0.f, 0.f, 0.f);
  // A warp has 64 columns: 4 strips of 16, each another worker's; lanes are 2 vertices x 4 strips x 4 quads.
  int strip = lane / 4 % 4, half = lane / 16, quad = lane % 4;
  int column = (warp * 4 + strip) * 4 + quad, owner = column % 64 / 4, own = column / 64 * 4 + quad;
  barrier();
  long long begin = clock64();
  for (int round = 0; round < rounds; ++round) {
    bool signals = road == SIGNAL || road == WHOLE || road == BULK;
    if (signals && thread == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                   :: "r"(by), "r"(WORKERS * VERTICES * 128) : "memory");
    long long first = (long long)(replica * rounds + round) * VERTICES * WORKERS;
#pragma unroll 1
    for (int v = 0; v < VERTICES; v += 2) {
      int vertex = v + half;
      if (road <= READ) {
        pool[(first + (long long)vertex * WORKERS + rank) * 128 + column] = value;
      } else if (road <= PEERS_READ) {
        unsigned to = at + (unsigned)(((rank * VERTICES + vertex) * 8 + own) * 16);
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
                     :: "r"(peer(to, owner)), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
                     : "memory");
      } else if (road == BULK) {
        sent[(owner * VERTICES + vertex) * 8 + own] = value;
      } else {
        int whose = road == SIGNAL ? owner : (v / 2 + warp) % WORKERS;
        int place = rank * VERTICES * 8 + (road == SIGNAL ? vertex * 8 + own : warp * 32 + lane);
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                     "[%0], {%1, %2, %3, %4}, [%5];"
                     :: "r"(peer(at + place * 16, whose)), "r"(__float_as_int(value.x)),
                        "r"(__float_as_int(value.y)), "r"(__float_as_int(value.z)),
                        "r"(__float_as_int(value.w)), "r"(peer(by, whose)) : "memory");
      }
    }
    if (road == BULK) {
      __syncthreads();
      if (thread < WORKERS) {
        int whose = (rank + thread) % WORKERS;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                     "[%0], [%1], %2, [%3];"
                     :: "r"(peer(at + rank * VERTICES * 128, whose)),
                        "r"((unsigned)__cvta_generic_to_shared(sent + whose * VERTICES * 8)),
                        "r"(VERTICES * 128), "r"(peer(by, whose)) : "memory");
      }
    }
    if (road == READ || road == PEERS_READ) barrier();
    if (signals)
      asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
                   " @!done bra again; }" :: "r"(by), "r"(round & 1) : "memory");
    if (road == READ) {
      int vertex = thread / 8, part = thread % 8 / 4 * 64 + rank * 4 + thread % 4;
#pragma unroll
      for (int run = 0; run < WORKERS; ++run)
        add(sum, __ldcg(&pool[(first + (long long)vertex * WORKERS + run) * 128 + part]));
    } else if (road != STORE && road != PEERS) {
#pragma unroll
      for (int run = 0; run < WORKERS; ++run) add(sum, box[run * VERTICES * 8 + thread]);
      pool[first + thread] = sum;
      barrier();
    }
    value.x += sum.x * 1e-9f;
  }
  if (road == STORE || road == PEERS) barrier();
  if (thread == 0) cycles[blockIdx.x] = clock64() - begin;
  if (sum.x == 12345.f) pool[0] = sum;
  barrier();
}
"""


def main() -> None:
    """Measures and writes."""
    out = Path(sys.argv[1])
    known = sys.argv[2] if len(sys.argv) > 2 else None
    binary = compile_cuda(SOURCE, "sm_90a")
    device = open_device()
    device.enter()
    parameters = [("pool", "pointer"), ("cycles", "pointer"), ("road", "int32"), ("rounds", "int32")]
    kernel = device.load(binary.cubin, "traffic", parameters)
    whole = LaunchShape(WORKERS, THREADS, SHARED, cluster=WORKERS)
    kernel.prepare(whole)
    most = kernel.resident_clusters(whole)
    pool = device.allocate(most * ROUNDS * VERTICES * WORKERS * 2048)
    cycles = device.allocate(8 * WORKERS * most)
    found = {}
    for number, road in enumerate(ROADS):
        for replicas in (1, most):
            shape = attrs.evolve(whole, workers=replicas * WORKERS)
            arguments = {"pool": pool, "cycles": cycles, "road": number, "rounds": ROUNDS}
            times = []
            for _ in range(7):
                device.launch(kernel, shape, arguments)
                device.stream.synchronize()
                host = np.zeros(WORKERS * replicas, np.int64)
                device.copy_from(host, cycles.address)
                times.append(float(host.max()) / (ROUNDS * VERTICES))
            found[f"{road}; clusters: {replicas}"] = float(np.median(times))
            print(f"{road:45}{replicas} clusters: {np.median(times):7.1f} cycles a vertex", flush=True)
    out.write_text(json.dumps(stamp(device.name, known) | {"cycles a vertex and worker": found}, indent=1))


if __name__ == "__main__":
    main()
