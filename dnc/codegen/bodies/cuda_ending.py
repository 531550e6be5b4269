"""The `leave` instruction on a GPU: whether every list has the word that ends it.

In: addresses and the instruction's fields. Out: a call node that is nonzero on all threads or on none.
Guaranteed: nothing is written, and only what the instruction's lists name is read, at L2, so all workers
of a replica find the same; the call is also a block barrier.
"""

from __future__ import annotations

from dnc.codegen.primitives import Primitive

# A warp takes every eighth list, a lane every 32nd word of it.
ALL_ENDED = Primitive(
    "dnc_all_ended",
    """
__device__ __forceinline__ int dnc_all_ended(
    const float* pool, const int* words, int lists, int begins, int ends, int word) {
  int all = 1;
  for (int list = threadIdx.x >> 5; list < lists && all; list += blockDim.x >> 5) {
    int end = words[ends + list], found = 0;
    for (int first = words[begins + list]; first < end && !found; first += 32) {
      int at = first + (threadIdx.x & 31);
      float value = -1.0f;
      if (at < end)
        asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];"
                     : "=f"(value) : "l"(pool + 4ll * words[at]) : "memory");
      found = __any_sync(0xffffffffu, value == (float)word);
    }
    all = found;
  }
  return __syncthreads_and(all);
}
""",
    "int32",
)
