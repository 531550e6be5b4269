"""Products of a warp on tensor cores: float32 sums of operands in tf32.

In: functions that read elements of two matrices. Out: statements that add their product, and where each
sum lies. A warp multiplies blocks of 16 x 8 and 8 x 8 elements (`mma.sync.m16n8k8`); lane 4 g + t holds
elements of rows g and g + 8, columns t and t + 4 of the first, and rows t and t + 4, column g of the second.
Operands are rounded to 10 bits of mantissa; or, where sums are to be as in float32, each is the sum of two
such numbers, and what is left out is the product of the two small ones (Ootomo and Yokota 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, fixed, let, local
from dnc.ir.plan import TF32

HIGH, ACROSS, DEPTH = 16, 8, 8  # of the blocks that are multiplied
Element = Callable[[Expr, Expr], Expr]
Terms = list[Expr]  # of which a number is the sum, the largest first


def terms(precision: str, value: Expr, here: bool = False) -> Terms:
    """What tensor cores read for a number; `here`: it is made in this place, and never kept."""
    if precision == TF32:
        return [let("tf32", (cuda.ROUND_TF32_HERE if here else cuda.ROUND_TF32)(value))]
    made = local("terms", "float32", T.float32(0.0), 2)
    T.evaluate((cuda.SPLIT_TF32_HERE if here else cuda.SPLIT_TF32)(value, made[0], made[1]))
    return [made[0], made[1]]


def multiply(into: list[Expr], left: list[Terms], right: list[Terms]) -> None:
    """into += left right for blocks of 16 x 8 and 8 x 8, products of small terms first."""
    for i, j in ((0, 0),) if len(right[0]) == 1 else ((1, 0), (0, 1), (0, 0)):
        T.evaluate(cuda.MMA_TF32(*into, *(a[i] for a in left), *(b[j] for b in right)))


@attrs.frozen(eq=False)
class WarpSums:
    """The sums of a warp: high x across blocks of 16 x 8, four sums of each a lane."""

    high: int
    across: int
    sums: Any
    group: Expr
    own: Expr
    precision: str

    def add(self, depth: Expr, left: Element, right: Element) -> None:
        """Adds left(row, k) * right(k, column) for the 8 values of k from `depth` on."""
        k = let("k", depth + self.own)
        of = partial(terms, self.precision)
        rows = [
            [of(left(HIGH * block + 8 * (i % 2) + self.group, k + 4 * (i // 2))) for i in range(4)]
            for block in range(self.high)
        ]
        for block in range(self.across):
            columns = [of(right(k + 4 * i, ACROSS * block + self.group)) for i in range(2)]
            for number, row in enumerate(rows):
                first = (number * self.across + block) * 4
                multiply([self.sums[first + i] for i in range(4)], row, columns)

    def pairs(self) -> Iterator[tuple[Expr, Expr, int]]:
        """(row, column, index) of every two sums side by side: at index and index + 1."""
        for block in range(self.high):
            for half in range(2):
                row = let("row", HIGH * block + 8 * half + self.group)
                for number in range(self.across):
                    column = let("column", ACROSS * number + 2 * self.own)
                    yield row, column, (block * self.across + number) * 4 + 2 * half

    def pair(self, index: int) -> Expr:
        """Two sums side by side."""
        return self.sums[tirx.Ramp(index, 1, 2)]


def warp_sums(worker: Worker, high: int, across: int) -> WarpSums:
    """Sums that are zero."""
    count = high * across * 4
    sums = local("sums", "float32", T.float32(0.0), count)
    group, own = fixed("group", worker.lane // 4), fixed("own", worker.lane % 4)
    return WarpSums(high, across, sums, group, own, worker.plan.precision)


def pair_at(at: Expr) -> Expr:
    """The two elements from `at` on, an even number: one access of 8 bytes (see `quad_at`)."""
    return tirx.Ramp(at if isinstance(at, int) else T.shift_right(at, 1) * 2, 1, 2)
