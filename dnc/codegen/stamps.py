"""What a traced kernel has beside the plain one: clocks, and where their times go.

In: the run of a worker (`dnc.ir.stamps`) as an int64 buffer of the kernel under construction. Out:
statements that write anchors and stamps. Guaranteed: nothing here is emitted unless a kernel is built
with `traced`, so a plain kernel has no trace of tracing; no stamp is written outside its run.

On a GPU the clock that all multiprocessors share moves in steps, of up to a microsecond on some, so it
is only read at the anchors, where the worker waits for its next step; stamps are cycles of the
multiprocessor. On a CPU both are the operating system's clock, which is the same on all cores.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen.emit import Expr, put, when
from dnc.codegen.primitives import Primitive
from dnc.ir.stamps import ANCHOR_WORDS

# Polls of the shared clock: more than a step takes, so that a clock that stands still ends the wait.
POLLS = 4096

# Where the worker's run begins. The assembler may not keep the address for later: the plain kernel needs
# every register for weights.
_RUN = f"""
  unsigned worker;
  asm volatile("mov.u32 %0, %ctaid.x;" : "=r"(worker) :: "memory");
  long long* run = runs + (long long)worker * (stamps + {ANCHOR_WORDS});"""

_ANCHOR = Primitive(
    "dnc_trace_anchor",
    f"""
__device__ __forceinline__ void dnc_trace_anchor(long long* runs, int at, int stamps) {{
  if (threadIdx.x != 0) return;
  unsigned long long first, now, own;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(first) :: "memory");
  for (int polls = 0; polls < {POLLS}; ++polls) {{
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now) :: "memory");
    if (now != first) break;
  }}
  asm volatile("mov.u64 %0, %clock64;" : "=l"(own) :: "memory");{_RUN}
  run[at] = (long long)now;
  run[at + 1] = (long long)own;
}}
""",
)

_STAMP = Primitive(
    "dnc_trace_stamp",
    f"""
__device__ __forceinline__ void dnc_trace_stamp(long long* runs, int stamp, int stamps) {{
  if (threadIdx.x == 0 && stamp < stamps) {{
    unsigned long long own;
    asm volatile("mov.u64 %0, %clock64;" : "=l"(own) :: "memory");{_RUN}
    run[{ANCHOR_WORDS} + stamp] = (long long)own;
  }}
  if (threadIdx.x < 32) __syncwarp();  // the thread is together with its warp again
}}
""",
)

# `struct timespec` on every system with 64-bit time: seconds, nanoseconds.
CPU_CLOCK = """
declare i32 @clock_gettime(i32, ptr)

define i64 @dnc_now(i32 %clock) alwaysinline nounwind {
  %time = alloca [2 x i64], align 8
  %status = call i32 @clock_gettime(i32 %clock, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %at = getelementptr [2 x i64], ptr %time, i64 0, i64 1
  %rest = load i64, ptr %at, align 8
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}
"""


class CudaStamps:
    """Times of a CUDA worker; `runs` is the kernel's buffer, a run of `stamps` stamps a worker."""

    def __init__(self, runs: Any, stamps: Expr) -> None:
        self.runs, self.stamps = T.address_of(runs[0]), stamps

    def anchor(self, at: int) -> None:
        """Both clocks, at the shared one's next step."""
        T.evaluate(_ANCHOR(self.runs, at, self.stamps))

    def stamp(self, number: Expr) -> None:
        """The own clock."""
        T.evaluate(_STAMP(self.runs, number, self.stamps))


class CpuStamps:
    """Times of a CPU worker; clock: the number of the operating system's clock."""

    def __init__(self, runs: Any, worker: Expr, stamps: Expr, clock: Expr) -> None:
        self.runs, self.stamps, self.clock = runs, stamps, clock
        self.first = T.cast(worker, "int64") * T.cast(stamps + ANCHOR_WORDS, "int64")

    def _now(self) -> Expr:
        return T.Bind(T.call_extern("int64", "dnc_now", self.clock))

    def anchor(self, at: int) -> None:
        """The clock, which is the shared and the own one."""
        now = self._now()
        put(self.runs, self.first + at, now)
        put(self.runs, self.first + at + 1, now)

    def stamp(self, number: Expr) -> None:
        """The clock."""
        with when(number < self.stamps):
            put(self.runs, self.first + ANCHOR_WORDS + T.cast(number, "int64"), self._now())
