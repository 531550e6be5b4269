"""Model-independent CUDA primitives: what TIRx cannot say well.

In come TIRx expressions, out goes a call node whose CUDA text TVM emits once a kernel.
Guaranteed: no primitive knows a model, and none signals or waits (those are in
``sync.py``). Loads are ``asm volatile`` with literal registers, because weights reloaded
by plain C inside one branch of the interpreter spill.
"""

from __future__ import annotations

from typing import Any

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

WARP = 32
FULL_MASK = 0xFFFFFFFF


@attrs.frozen
class Primitive:
    """A CUDA device function that kernels call by name.

    Reference parameters (``float&``) take elements of a local buffer: they are results.
    """

    name: str
    source: str
    returns: str = "void"

    def __call__(self, *arguments: Any) -> Any:
        """The call as an expression (``T.evaluate`` it where nothing is returned)."""
        return T.cuda.func_call(self.name, *arguments, source_code=self.source, return_type=self.returns)


def load(name: str, instruction: str, count: int) -> Primitive:
    """Loads so many neighbouring floats from global memory, by a PTX instruction."""
    into = "abcd"[:count]
    return Primitive(
        name,
        f"""
__device__ __forceinline__ void {name}(
    const float* from, {", ".join(f"float& {one}" for one in into)}) {{
  asm volatile("{instruction} {{{", ".join(f"%{i}" for i in range(count))}}}, [%{count}];"
               : {", ".join(f'"=f"({one})' for one in into)} : "l"(from) : "memory");
}}
""",
    )


# Global memory, 16 bytes: seen at L2, never served by a stale line of L1.
LOAD4_RELAXED = load("dnc_load4_relaxed", "ld.relaxed.gpu.global.v4.f32", 4)
# The same for 8 bytes.
LOAD2_RELAXED = load("dnc_load2_relaxed", "ld.relaxed.gpu.global.v2.f32", 2)

# 1 / (1 + exp(-x)) without a branch: a division has one for numbers near the ends of the range, and no load
# of a cell is moved across it. Here there are none of these, so the step rounds as the division would.
SIGMOID = Primitive(
    "dnc_sigmoid",
    """
__device__ __forceinline__ float dnc_sigmoid(float x) {
  float sum = 1.0f + expf(x < -87.0f ? 87.0f : -x), inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(sum));
  return fmaf(inverse, fmaf(-sum, inverse, 1.0f), inverse);
}
""",
    "float32",
)

# The nearest number with 10 bits of mantissa, as tensor cores read it: they ignore the other bits, which
# are not cleared here. (`cvt.rna` makes six instructions of it.)
ROUND_TF32 = Primitive(
    "dnc_round_tf32",
    """
__device__ __forceinline__ float dnc_round_tf32(float x) {
  return __int_as_float(__float_as_int(x) + 0x1000);
}
""",
    "float32",
)

# A number as the sum of two: the nearest with 10 bits of mantissa, and the rest.
SPLIT_TF32 = Primitive(
    "dnc_split_tf32",
    """
__device__ __forceinline__ void dnc_split_tf32(float x, float& large, float& rest) {
  large = __int_as_float((__float_as_int(x) + 0x1000) & 0xffffe000);
  rest = x - large;
}
""",
)

# The same for weights in registers, worked out where it stands: the compiler would do it once, before the
# loops, and keep the results in registers that there are not.
ROUND_TF32_HERE = Primitive(
    "dnc_round_tf32_here",
    """
__device__ __forceinline__ float dnc_round_tf32_here(float x) {
  int rounded;
  asm volatile("add.s32 %0, %1, 0x1000;" : "=r"(rounded) : "r"(__float_as_int(x)));
  return __int_as_float(rounded);
}
""",
    "float32",
)
SPLIT_TF32_HERE = Primitive(
    "dnc_split_tf32_here",
    """
__device__ __forceinline__ void dnc_split_tf32_here(float x, float& large, float& rest) {
  asm volatile("{ .reg .b32 near; add.s32 near, %2, 0x1000; and.b32 %0, near, 0xffffe000; "
               "sub.f32 %1, %3, %0; }"
               : "=&f"(large), "=f"(rest) : "r"(__float_as_int(x)), "f"(x));
}
""",
)

# The same number in another register, which the compiler may choose anew.
COPY_HERE = Primitive(
    "dnc_copy_here",
    """
__device__ __forceinline__ float dnc_copy_here(float x) {
  float copy;
  asm volatile("add.f32 %0, %1, 0f80000000;" : "=f"(copy) : "f"(x));
  return copy;
}
""",
    "float32",
)

# Where the compiler is to keep numbers: in even and odd registers in turn, as vectors have them. `never` is
# not negative, which it does not know.
KEEP_IN_BANKS = Primitive(
    "dnc_keep_in_banks",
    """
__device__ __forceinline__ void dnc_keep_in_banks(
    float even, float odd, float second_even, float second_odd, int never) {
  asm volatile("{ .reg .pred p; setp.lt.s32 p, %4, 0; @p st.shared.v4.f32 [%4], {%0, %1, %2, %3}; }"
               :: "f"(even), "f"(odd), "f"(second_even), "f"(second_odd), "r"(never) : "memory");
}
""",
)

# Two numbers as bf16 in the bits of one float: the nearest ones with 7 bits of mantissa, ties to even.
PACK_BF16 = Primitive(
    "dnc_pack_bf16",
    """
__device__ __forceinline__ float dnc_pack_bf16(float low, float high) {
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return __uint_as_float(packed);
}
""",
    "float32",
)

# A number, read here: what follows from it is not worked out earlier, and then kept in registers.
NUMBER_HERE = Primitive(
    "dnc_number_here",
    """
__device__ __forceinline__ int dnc_number_here(int number) {
  int same;
  asm volatile("mov.s32 %0, %1;" : "=r"(same) : "r"(number));
  return same;
}
""",
    "int32",
)

# The rank of a worker among so many. A remainder that TVM sees is one of 64 bits wherever an address follows
# from it, and what it is made of stays in registers.
RANK = Primitive(
    "dnc_rank",
    """
__device__ __forceinline__ int dnc_rank(int workers) { return (int)(blockIdx.x % (unsigned)workers); }
""",
    "int32",
)

# The thread, read here: what follows from it is not worked out before the loops.
THREAD_HERE = Primitive(
    "dnc_thread_here",
    """
__device__ __forceinline__ int dnc_thread_here() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
""",
    "int32",
)


def _mma(name: str, shape: str, numbers: str, left: int, right: int) -> Primitive:
    """d += a b of a warp; `left` words of a and `right` of b a lane: which, says `bodies/cuda_tensor.py`."""
    sums, a, b = (
        [f"{matrix}{i}" for i in range(count)] for matrix, count in (("d", 4), ("a", left), ("b", right))
    )
    places = [f"%{i}" for i in range(4 + left + right)]
    into, of_a, of_b = (", ".join(part) for part in (places[:4], places[4 : 4 + left], places[4 + left :]))
    return Primitive(
        name,
        f"""
__device__ __forceinline__ void {name}(
    {", ".join(f"float& {d}" for d in sums)}, {", ".join(f"float {word}" for word in a + b)}) {{
  asm("mma.sync.aligned.{shape}.row.col.f32.{numbers}.{numbers}.f32 "
      "{{{into}}}, {{{of_a}}}, {{{of_b}}}, {{{into}}};"
      : {", ".join(f'"+f"({d})' for d in sums)}
      : {", ".join(f'"r"(__float_as_uint({word}))' for word in a + b)});
}}
""",
    )


MMA_TF32 = _mma("dnc_mma_tf32", "m16n8k8", "tf32", 4, 2)
# Of words of two numbers, and half as much.
MMA_BF16 = _mma("dnc_mma_bf16", "m16n8k16", "bf16", 4, 2)
MMA_BF16_HALF = _mma("dnc_mma_bf16_half", "m16n8k8", "bf16", 2, 1)


# 16 bytes from global to shared memory without a register, past L1; seen after `copy_wait` and a
# block barrier. Zeros where it is not valid, and then nothing is read: reads of one line by all
# workers take their turns in L2.
_COPY4_ASYNC = Primitive(
    "dnc_copy4_async",
    """
__device__ __forceinline__ void dnc_copy4_async(float* to, const float* from, int valid) {
  unsigned at = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(at), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
""",
)
# The same for one word that nobody writes during the launch.
_COPY1_ASYNC = Primitive(
    "dnc_copy1_async",
    """
__device__ __forceinline__ void dnc_copy1_async(void* to, const void* from) {
  unsigned at = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(from) : "memory");
}
""",
)
_COPY_COMMIT = Primitive(
    "dnc_copy_commit",
    """
__device__ __forceinline__ void dnc_copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
""",
)


def _copy_wait(groups: int) -> Primitive:
    return Primitive(
        f"dnc_copy_wait{groups}",
        f"""
__device__ __forceinline__ void dnc_copy_wait{groups}() {{
  asm volatile("cp.async.wait_group {groups};" ::: "memory");
}}
""",
    )


def copy4_async(to: Any, source: Any, valid: Any) -> None:
    """Starts copying 4 words from the global address `source`, or zeros, to the shared address `to`."""
    T.evaluate(_COPY4_ASYNC(to, source, int(valid) if isinstance(valid, bool) else T.cast(valid, "int32")))


def copy1_async(to: Any, source: Any) -> None:
    """Starts copying a word that nobody writes from the global address `source` to the shared one `to`."""
    T.evaluate(_COPY1_ASYNC(to, source))


def copy_commit() -> None:
    """Closes a group of copies of this thread; it may be empty."""
    T.evaluate(_COPY_COMMIT())


def copy_wait(groups: int) -> None:
    """Waits until at most the last `groups` groups of this thread are under way."""
    assert groups >= 0
    T.evaluate(_copy_wait(groups)())


def fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` rounded once (``T.fma`` has no lowering for CUDA)."""
    return T.call_pure_extern("float32", "fmaf", a, b, c)


def shuffle_xor(value: Any, mask: int) -> Any:
    """The value of lane ``lane ^ mask``; the whole warp takes part."""
    return T.cuda._shfl_xor_sync(T.uint32(FULL_MASK), value, mask, WARP)


def shuffle(value: Any, source: Any) -> Any:
    """The value of lane ``source``; the whole warp takes part."""
    return T.cuda._shfl_sync(T.uint32(FULL_MASK), value, source, WARP)


def uniform(value: Any) -> Any:
    """The value of lane 0: tells the compiler that a branch on it does not diverge."""
    return shuffle(value, 0)


_BALLOT = Primitive(
    "dnc_ballot",
    """
__device__ __forceinline__ int dnc_ballot(int flag) { return (int)__ballot_sync(0xffffffffu, flag); }
""",
    "int32",
)
_FIRST_BIT = Primitive(
    "dnc_first_bit",
    """
__device__ __forceinline__ int dnc_first_bit(int bits) { return __ffs(bits) - 1; }
""",
    "int32",
)


def ballot(flag: Any) -> Any:
    """A bit a lane: whether the flag holds there; the whole warp takes part."""
    return _BALLOT(T.cast(flag, "int32"))


def first_bit(bits: Any) -> Any:
    """The number of the lowest bit that is set; -1 where none is."""
    return _FIRST_BIT(bits)


@attrs.frozen
class Scattered:
    """Where a reduce-scatter left its sums.

    Slot ``j < slots`` of a lane holds the sum of value ``first + j``; it is a real value
    where ``valid[j]`` holds (counts that are no multiple of 32 leave holes), and
    ``writes`` tells the one lane of several that hold the same sum.
    """

    slots: int
    first: Any
    valid: tuple[Any, ...]


ALL_LANES = (16, 8, 4, 2, 1)


def warp_reduce_scatter(
    values: Any, count: int, lane: Any, masks: tuple[int, ...] = ALL_LANES, parted: bool = False
) -> Scattered:
    """Sum ``values[0:count]`` (a local buffer) over the 32 lanes; every sum on one lane.

    Each of five exchanges halves what a lane holds: 12 shuffles for 10 values and 40+20+
    10+5+3 for 80, where butterflies would take 5 a value. The order of additions depends
    on ``count`` alone, so the bits do not depend on timing. Overwrites ``values``. Where ``masks``
    are not all, the sum is over the lanes that they lead to, and so are the sums' places.
    parted: lanes with the bit of the first mask hold the second half of the values in front of the first.
    """
    sizes, first = [count], T.int32(0)
    for mask in masks:
        size, half = sizes[-1], (sizes[-1] + 1) // 2
        upper = T.bitwise_and(lane, mask) != 0
        for low in range(half):
            high = low + half
            mine = values[high] if high < size else T.float32(0.0)
            if size == 1:  # nothing left to split: both lanes get the sum
                T.buffer_store(values, values[0] + shuffle_xor(values[0], mask), [0])
                continue
            if parted and mask == masks[0]:
                keep, send = values[low], mine
            else:
                keep = T.Bind(T.Select(upper, mine, values[low]))
                send = T.Bind(T.Select(upper, values[low], mine))
            T.buffer_store(values, keep + shuffle_xor(send, mask), [low])
        first = first + (T.Select(upper, half, 0) if size > 1 else 0)
        sizes.append(half)
    first = T.Bind(first)
    return Scattered(sizes[-1], first, tuple(_valid(sizes, j, lane, masks) for j in range(sizes[-1])))


def _valid(sizes: list[int], slot: int, lane: Any, masks: tuple[int, ...]) -> Any:
    """Whether ``slot`` is a value at every level, and this lane the lowest that holds it."""
    index, valid = T.int32(slot), tirx.const(True, "bool")
    for level, mask in reversed(list(enumerate(masks))):
        size, half = sizes[level], sizes[level + 1]
        upper = T.bitwise_and(lane, mask) != 0
        if size == 1:
            valid = tirx.And(valid, tirx.Not(upper))
            continue
        index = index + T.Select(upper, half, 0)
        if size % 2:
            valid = tirx.And(valid, index < size)
    return valid
