"""Vectors of sixteen floats on the CPU: loads, stores, and accumulators that stay in registers.

In: positions in float32 buffers, as int64 expressions. Out: TIRx emitted into the function that the
caller's `IRBuilder` is building. Guaranteed: lanes are added up in one fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen.emit import Expr
from dnc.ir.weight_format import LANES


def vertex_tiles(n: Expr, tile: int, body: Callable[[Expr, int], None]) -> None:
    """Full tiles in a loop, then the rest of n by a variant of its own size."""
    with T.serial(0, tirx.truncdiv(n, tile)) as i:
        body(T.Bind(i * tile), tile)
    rest = T.Bind(tirx.truncmod(n, tile))
    first = T.Bind(n - rest)
    for size in range(1, tile):
        with T.If(rest == size), T.Then():
            body(first, size)


def accumulator(value: Expr) -> Expr:
    """A stack slot of one vector, set to `value`; LLVM keeps it in a register."""
    made = T.alloc_buffer((1,), f"float32x{LANES}", scope="global")
    T.buffer_store(made, value, [0])
    return made


def multiply_add(into: Expr, a: Expr, b: Expr) -> None:
    """Adds a product to an accumulator."""
    T.buffer_store(into, into[0] + a * b, [0])  # contracted to one FMA


def zeros() -> Expr:
    """Sixteen zeros."""
    return tirx.Broadcast(tirx.const(0.0, "float32"), LANES)


def load(buffer: Expr, at: Expr, lanes: int = LANES) -> Expr:
    """Neighbouring floats from `at` on."""
    return buffer[_position(at, lanes)]


def store(buffer: Expr, at: Expr, value: Expr, lanes: int = LANES) -> None:
    """Writes neighbouring floats from `at` on."""
    T.buffer_store(buffer, value, [_position(at, lanes)])


def lane_sums(vectors: list[Expr]) -> Iterator[tuple[int, Expr]]:
    """Sum each vector over its lanes; yields (index of the first, sums of 1 to 16 neighbours).

    A tree of shuffles: pairs of vectors are folded into one until one is left.
    """
    first = 0
    while first < len(vectors):
        count = 1 << int(math.log2(min(len(vectors) - first, LANES)))
        level = vectors[first : first + count]
        segment = LANES
        while segment > 1:
            half = segment // 2
            lanes = LANES * 2 if len(level) > 1 else count * segment
            starts = range(0, lanes, segment)
            low = [s + e for s in starts for e in range(half)]
            high = [i + half for i in low]
            groups = [level[i : i + 2] for i in range(0, len(level), 2)]
            level = [T.Bind(_shuffle(g, low) + _shuffle(g, high)) for g in groups]
            segment = half
        yield first, level[0]
        first += count


def _position(at: Expr, lanes: int) -> Expr:
    return at if lanes == 1 else tirx.Ramp(at, tirx.const(1, "int64"), lanes)


def _shuffle(vectors: list[Expr], lanes: list[int]) -> Expr:
    if len(lanes) == 1:
        return tirx.Shuffle(vectors, [tirx.const(lanes[0], "int32")])
    return tirx.Shuffle(vectors, [tirx.const(i, "int32") for i in lanes])
