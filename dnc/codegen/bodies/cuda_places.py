"""Rows for weight gradients on CUDA: where they lie, and their copies into shared memory, a step at a time.

In: the sources of a gradient's deltas and operands. Out: statements that look up the places of a step's rows,
a word a row in shared memory, and copies that need nothing else. A copy takes four instructions so: between
products, which fill all that a warp can issue, each costs as much as one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (  # fmt: skip
    Expr,
    both,
    divided,
    either,
    fixed,
    let,
    local,
    loop,
    put,
    smaller,
    when,
    wide,
)
from dnc.ir.machine import THREADS
from dnc.ir.plan import Address, BufferAddress, DenseGradient, GatherAddress

# A row lies at source + row * stride in units of 16 bytes; where the stride is 0, `source` is a list of such
# places in the schedule.
Source = tuple[Expr, Expr]


def source_of(worker: Worker, address: Address) -> Source:
    """Where the rows of an address lie."""
    if isinstance(address, GatherAddress):
        return worker.access.list_at(address.list), 0
    assert isinstance(address, BufferAddress)
    return worker.access.base_word(address.buffer), worker.plan.buffer(address.buffer).width // 4


def offset_in(address: Address) -> int:
    """Elements from the start of a row."""
    assert isinstance(address, BufferAddress | GatherAddress)
    return address.offset


def find_piece(gradient: DenseGradient, column: Expr, side: Any, shift: Any) -> None:
    """On which piece of the operand a column is, and how far into its rows: the locals `side`, from 1 on, and
    `shift`, which hold what they were where there are no pieces."""
    begin = 0
    for number, piece in enumerate(gradient.pieces, 1):
        with when(column >= begin):
            put(side, 0, number)
            put(shift, 0, column + (offset_in(piece.address) - begin))
        begin += piece.width


class Places:
    """Where the rows of steps lie, in units of 16 bytes: words of shared memory, one a row of a side.

    All threads look them up, each always for the same sides. step: rows; count: of the steps whose places are
    there; first: the first word.
    """

    def __init__(self, worker: Worker, sources: Sequence[Source], step: int, count: int, first: int) -> None:
        self.worker, self.step, self.count, self.sides = worker, step, count, len(sources)
        self._first = worker.stage(words_of(step, count, self.sides), first)
        self._own = [self._side(sources, begin) for begin in range(0, self.sides * step, THREADS)]

    def _side(self, sources: Sequence[Source], first: int) -> Source:
        """Source and stride of this thread's side among the places of a step from the given one on."""
        side = let("place_side", (self.worker.thread + first) // self.step)
        source, stride = local("place_source", "int32", 0), local("place_stride", "int32", 1)
        for number, (each, apart) in enumerate(sources):
            with when(side == number):
                put(source, 0, each)
                put(stride, 0, apart)
        return source[0], stride[0]

    def at(self, side: Expr, stage: Expr) -> Expr:
        """The first word of a side of a stage."""
        return self._first + side * (self.count * self.step) + stage * self.step

    def look_up(self, first: Expr, end: Expr, stage: Expr) -> None:
        """Asks where the rows from `first` on lie, a step of those in front of `end`."""
        step, thread = self.step, self.worker.here().thread
        count = self.sides * step
        for begin, (source, stride) in zip(range(0, count, THREADS), self._own, strict=True):
            item = thread + begin
            with when(item < count):
                vertex = let("vertex", first + item % step)
                to = fixed("place", self.at(item // step, stage) + item % step)
                # Of a row that does not exist nothing is copied, from a place that does.
                near = let("near", T.Select(vertex < end, source + vertex * stride, 0))
                either(
                    both(stride == 0, vertex < end),
                    partial(self._look_up_list, source + vertex, to),
                    partial(put, self.worker.staging, to, T.reinterpret("float32", near)),
                )

    def _look_up_list(self, word: Expr, to: Expr) -> None:
        cuda.copy1_async(T.address_of(self.worker.staging[to]), T.address_of(self.worker.words[word]))


def words_of(step: int, count: int, sides: int) -> int:
    """Words that places take."""
    return step * count * sides


@attrs.frozen(eq=False)
class Copies:
    """A thread's copies of the operand's rows of a step.

    place: where its first row's place is; shift: from there to its element; left: rows that there are from
    its first one on; to: where its first row is copied to. Rows lie `stride` words apart there. rows: how
    many of the step anybody reads, on all threads; None: all.
    """

    worker: Worker
    place: Expr
    shift: Expr
    left: Expr
    to: Expr
    step: int
    stride: int
    rows: Expr | None = None

    def count(self, width: int) -> Expr:
        """How many there are in a tile of so many columns."""
        together = lines(width)
        if self.rows is None:
            return self.step // together
        return let("copies", smaller(divided(self.rows + (together - 1), together), self.step // together))

    def look_up(self, number: Expr, width: int) -> Callable[[], None]:
        """Reads where the row of one of them lies; what starts it."""
        line = number * lines(width)
        word = _word(self.worker, self.place + line)
        to = self.to + line * self.stride
        return lambda: _copy_quad(self.worker, word, self.shift, self.left > line, to)

    def start(self, number: Expr, width: int) -> None:
        """Starts one of them."""
        self.look_up(number, width)()

    def all(self, width: int) -> None:
        """Starts all of them."""
        with loop("copy", self.count(width), unroll=1) as number:
            self.start(number, width)


def lines(width: int) -> int:
    """Rows of so many elements that all threads together copy at a time."""
    return 4 * THREADS // width


def copy_quad(worker: Worker, place: Expr, shift: Expr, there: Expr, to: Expr) -> None:
    """Starts to copy 16 bytes of the row that the word at `place` leads to; zeros where there is none."""
    _copy_quad(worker, _word(worker, place), shift, there, to)


def _word(worker: Worker, place: Expr) -> Expr:
    return let("word", T.reinterpret("int32", worker.staging[place]))


def _copy_quad(worker: Worker, word: Expr, shift: Expr, there: Expr, to: Expr) -> None:
    source = T.address_of(worker.pool[wide(word) * 4 + wide(shift)])
    cuda.copy4_async(T.address_of(worker.staging[to]), source, there)
