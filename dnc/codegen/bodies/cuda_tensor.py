"""Products of a warp on tensor cores: float32 sums of operands in tf32 or bf16.

In: functions that read elements of two matrices. Out: statements that add their product, and where each
sum lies. A warp multiplies blocks of 16 x 8 and 8 x 8 words (`mma.sync`); lane 4 g + t holds words of rows g
and g + 8, columns t and t + 4 of the first, and rows t and t + 4, column g of the second. What a word is
depends on the precision, and nothing but the classes of `Cores` knows of it:

- tf32: a number, rounded to 10 bits of mantissa;
- tf32x3: the same twice, as a number is the sum of two such ones; what is left out is the product of the two
  small ones, so sums are about as in float32 (Ootomo and Yokota 2022);
- bf16: two numbers of neighbouring columns, rounded to 7 bits of mantissa. Which columns are neighbours is
  free as long as both matrices agree: where they come in blocks of 8, t and t + 4 are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, both, fixed, lane4, let, local, loop, when
from dnc.ir.plan import BF16, TF32, TF32X3, Plan, weights_of_register

HIGH, ACROSS, DEPTH = 16, 8, 8  # of the blocks of numbers that are read together
MOST_TOGETHER = 4  # blocks that stand behind each other, not in a loop
Element = Callable[[Expr, Expr], Expr]
Terms = list[Expr]  # of which a word is the sum, the largest first


class Cores(Protocol):
    """Tensor cores at a precision.

    packed: numbers of a word, and of a register that holds weights. bands: of weights in registers that a
    warp sums at a time for two blocks of vertices. product: vertices from which on one with weights in
    registers is faster than FMAs, of which there are none if it is 1.
    """

    packed: int
    bands: int
    product: int

    def keep(self, numbers: Sequence[Expr]) -> Expr:
        """`packed` numbers in 4 bytes."""

    def terms(self, kept: Expr) -> Terms:
        """What tensor cores read for them."""

    def held(self, kept: Expr) -> Terms:
        """The same for a register of weights: made in this place every time, as there is none to keep it."""

    def nothing(self) -> Terms:
        """The same for numbers that are zero."""

    def multiply(self, into: list[Expr], left: list[Terms], right: list[Terms]) -> None:
        """into += left right for blocks of 16 x 8 and 8 x 8 words; or of half as many columns and rows."""


class Tf32:
    """A number is one of 10 bits."""

    packed, bands, product = 1, 10, 2

    def keep(self, numbers: Sequence[Expr]) -> Expr:
        """As it is."""
        return numbers[0]

    def terms(self, kept: Expr) -> Terms:
        """The nearest one."""
        return [let("tf32", cuda.ROUND_TF32(kept))]

    def held(self, kept: Expr) -> Terms:
        """The same."""
        return [let("tf32", cuda.ROUND_TF32_HERE(kept))]

    def nothing(self) -> Terms:
        """Zero."""
        return [T.float32(0.0)]

    def multiply(self, into: list[Expr], left: list[Terms], right: list[Terms]) -> None:
        """One product."""
        T.evaluate(cuda.MMA_TF32(*into, *(a[0] for a in left), *(b[0] for b in right)))


class Tf32x3(Tf32):
    """A number is the sum of two of 10 bits."""

    packed, bands, product = 1, 6, 5

    def terms(self, kept: Expr) -> Terms:
        """The nearest one, and the nearest to the rest."""
        return self._split(cuda.SPLIT_TF32, kept)

    def held(self, kept: Expr) -> Terms:
        """The same."""
        return self._split(cuda.SPLIT_TF32_HERE, kept)

    @staticmethod
    def _split(primitive: cuda.Primitive, number: Expr) -> Terms:
        made = local("terms", "float32", T.float32(0.0), 2)
        T.evaluate(primitive(number, made[0], made[1]))
        return [made[0], made[1]]

    def nothing(self) -> Terms:
        """Zero and zero."""
        return [T.float32(0.0)] * 2

    def multiply(self, into: list[Expr], left: list[Terms], right: list[Terms]) -> None:
        """Products of small terms first."""
        for i, j in ((1, 0), (0, 1), (0, 0)):
            T.evaluate(cuda.MMA_TF32(*into, *(a[i] for a in left), *(b[j] for b in right)))


class Bf16:
    """Two numbers of 7 bits are one word."""

    packed, bands, product = weights_of_register(BF16), 10, 1

    def keep(self, numbers: Sequence[Expr]) -> Expr:
        """The nearest ones."""
        return let("bf16", cuda.PACK_BF16(*numbers))

    def terms(self, kept: Expr) -> Terms:
        """As they are."""
        return [kept]

    def held(self, kept: Expr) -> Terms:
        """As they are."""
        return [kept]

    def nothing(self) -> Terms:
        """Zero and zero."""
        return [T.float32(0.0)]

    def multiply(self, into: list[Expr], left: list[Terms], right: list[Terms]) -> None:
        """One product."""
        mma = cuda.MMA_BF16 if len(right) == 2 else cuda.MMA_BF16_HALF
        T.evaluate(mma(*into, *(a[0] for a in left), *(b[0] for b in right)))


_CORES: dict[str, Cores] = {TF32: Tf32(), TF32X3: Tf32x3(), BF16: Bf16()}


def uses_cores(plan: Plan) -> bool:
    """Whether products may run on tensor cores."""
    return plan.precision in _CORES


def cores_of(plan: Plan) -> Cores:
    """Tensor cores at the precision of a plan; KeyError where it does not use them."""
    return _CORES[plan.precision]


def packs(cores: Cores, numbers: Sequence[Expr]) -> list[Sequence[Expr]]:
    """The numbers of every word that they need: of four in two words the first and third are one."""
    size = len(numbers) // cores.packed
    return [numbers[i::size] for i in range(size)]


def words(cores: Cores, numbers: Sequence[Expr]) -> list[Terms]:
    """What tensor cores read for a lane's numbers: those of k = t, then as many of k = t + 4."""
    return [cores.terms(cores.keep(own)) for own in packs(cores, numbers)]


def join(parts: Iterable[list[Terms]]) -> list[Terms]:
    """The words of blocks that are multiplied together."""
    return [word for part in parts for word in part]


@attrs.frozen(eq=False)
class Sums:
    """The sums of a warp: high x across blocks of 16 x 8, four sums of each a lane; whose they are depends on
    how a lane reads its words."""

    high: int
    across: int
    sums: Any
    group: Expr
    own: Expr
    cores: Cores

    def _loop(self, name: str, count: Expr, together: int, add: Callable[[Expr, int], None]) -> None:
        """add(first block, how many that are multiplied together) for `count` blocks of 8 values of k, in a
        loop called `name`.

        `together` stand behind each other, or all of a few, so that the words of one are read during products
        of another.
        """
        packed = self.cores.packed
        whole = count // packed
        few = isinstance(whole, int) and whole * packed <= MOST_TOGETHER

        def unit(number: Expr) -> None:
            add(number if packed == 1 else number * packed, packed)

        if few:
            for number in range(whole):
                unit(number)
        elif together == 1:
            with loop(name, whole, unroll=1) as number:
                unit(number)
        else:  # the compiler cannot: all threads of a warp have to take part
            turns = whole // together
            with loop(name, turns, unroll=1) as turn:
                for number in range(together):
                    unit(turn * together + number)
            with loop(f"{name}_left", whole - turns * together, unroll=1) as left_over:
                unit(turns * together + left_over)
        if packed == 1 or (isinstance(count, int) and count % packed == 0):
            return
        # A part of a sum that is left over has fewer than no blocks.
        with when(both(count > 0, count % packed != 0)) if not isinstance(count, int) else nullcontext():
            add(count - 1, 1)

    def _multiply(
        self, blocks: int, left: Callable[[int, int, int], Expr], right: Callable[[int, int], Expr]
    ) -> None:
        """Adds the products of so many blocks of k, in one word or alone. left(block, half, number): of
        the lane's row in that half of a block of rows, one of its two values for every block of k;
        right(block, number): of its column."""
        parts = range(blocks)
        rows = [
            join(
                words(self.cores, [left(block, i % 2, 2 * part + i // 2) for i in range(4)]) for part in parts
            )
            for block in range(self.high)
        ]
        for block in range(self.across):
            columns = join(
                words(self.cores, [right(block, 2 * part + i) for i in range(2)]) for part in parts
            )
            for number, own in enumerate(rows):
                first = (number * self.across + block) * 4
                self.cores.multiply([self.sums[first + i] for i in range(4)], own, columns)


@attrs.frozen(eq=False)
class WarpSums(Sums):
    """Those of a lane are in rows and columns 8 apart, two columns side by side."""

    def add(
        self,
        name: str,
        count: Expr,
        first: Callable[[Expr], Expr],
        left: Element,
        right: Element,
    ) -> None:
        """Adds left(row, k) * right(k, column) for `count` blocks of 8 values of k, in a loop called `name`.

        first: of the number of a block its first k.
        """
        self._loop(name, count, 1, lambda block, blocks: self._add(first(block), blocks, left, right))

    def _add(self, depth: Expr, blocks: int, left: Element, right: Element) -> None:
        """For so many blocks that are multiplied together."""
        k = let("k", depth + self.own)
        self._multiply(
            blocks,
            lambda block, half, number: left(HIGH * block + 8 * half + self.group, k + 4 * number),
            lambda block, number: right(k + 4 * number, ACROSS * block + self.group),
        )

    def pairs(self) -> Iterator[tuple[Expr, Expr, int]]:
        """(row, column, index) of every two sums side by side: at index and index + 1."""
        for block, half, number in itertools.product(range(self.high), range(2), range(self.across)):
            index = (block * self.across + number) * 4 + 2 * half
            row = let("row", HIGH * block + 8 * half + self.group)
            yield row, let("column", ACROSS * number + 2 * self.own), index

    def pair(self, index: int) -> Expr:
        """Two sums side by side."""
        return self.sums[tirx.Ramp(index, 1, 2)]


@attrs.frozen(eq=False)
class QuadSums(Sums):
    """Those of a lane are in `rows` rows side by side, up to four, and twice in four columns of every 32: for
    matrices whose rows and columns, not values of k, are neighbours in memory.

    Its first row is `rows` * group, its first column 4 * own: lanes of a row write 64 bytes at a time.
    """

    @property
    def rows(self) -> int:
        """Rows of a lane."""
        return 2 * self.high

    @property
    def column(self) -> Expr:
        """The first of the four columns of every 32 that a lane reads."""
        return self.group // 2 * 4 + self.group % 2 * 16

    def add(
        self,
        name: str,
        count: Expr,
        left: Callable[[Expr], Expr],
        right: Callable[[Expr, int], Expr],
        together: int = 1,
    ) -> None:
        """Adds products for `count` blocks of 8 values of k, in a loop called `name`; together: see `_loop`.

        left(k): a vector of the lane's rows; right(k, part): the four columns from `column` on of 32.
        """
        self._loop(name, count, together, lambda block, blocks: self._add(block, blocks, left, right))

    def _add(
        self, block: Expr, blocks: int, left: Callable[[Expr], Expr], right: Callable[[Expr, int], Expr]
    ) -> None:
        k = let("k", block * DEPTH + self.own)
        rows = [let("left", left(k + 4 * number)) for number in range(2 * blocks)]
        columns: dict[tuple[int, int], Expr] = {}

        def column(block: int, number: int) -> Expr:
            part, own = divmod(block, 4)
            if (part, number) not in columns:
                columns[part, number] = let("right", right(k + 4 * number, part))
            return lane4(columns[part, number], own)

        self._multiply(blocks, lambda block, half, number: lane4(rows[number], 2 * block + half), column)

    def quads(self) -> Iterator[tuple[int, int, list[int]]]:
        """(row, column, indices) of every four sums side by side, from the lane's first row and column on."""
        for row, part, second in itertools.product(range(self.rows), range(self.across // 4), range(2)):
            first = (row // 2 * self.across + 4 * part) * 4 + 2 * (row % 2) + second
            yield row, 4 * ACROSS * part + 16 * second, [first + 4 * i for i in range(4)]


def warp_sums(worker: Worker, high: int, across: int) -> WarpSums:
    """Sums that are zero."""
    return WarpSums(*_zeros(worker, high, across))


def quad_sums(worker: Worker, high: int, across: int) -> QuadSums:
    """Sums that are zero; across: a multiple of 4."""
    return QuadSums(*_zeros(worker, high, across))


def _zeros(worker: Worker, high: int, across: int) -> tuple[int, int, Any, Expr, Expr, Cores]:
    sums = local("sums", "float32", T.float32(0.0), high * across * 4)
    return high, across, sums, *lane_place(worker), cores_of(worker.plan)


def lane_place(worker: Worker) -> tuple[Expr, Expr]:
    """Where a lane stands in blocks: g and t."""
    return fixed("group", worker.lane // 4), fixed("own", worker.lane % 4)


def pair_at(at: Expr) -> Expr:
    """The two elements from `at` on, an even number: one access of 8 bytes (see `quad_at`)."""
    return tirx.Ramp(at if isinstance(at, int) else T.shift_right(at, 1) * 2, 1, 2)
