"""Gradients of tables on CUDA, and sums of tokens' deltas: work that the whole grid shares.

In: the gradient of a table and the fields of its instruction. Out: the instruction's body. Tokens are
dealt out to workers; each is summed by one worker in a fixed order, without atomics, so the bits do not
depend on timing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (  # fmt: skip
    Expr,
    both,
    fixed,
    floats,
    lane4,
    let,
    local,
    put,
    quad_at,
    room,
    smaller,
    stride_loop,
    when,
    wide,
)
from dnc.codegen.slots import SlotsReader
from dnc.ir import isa
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import SlotsAddress, TableGradient, TableProduct, padded

QUADS, SUM_QUADS = 4, 6  # of a slot that a lane adds up at a time; of deltas, which are longer
MANY_TOGETHER = 8  # slots of a frequent token that a thread has under way: the longest list is waited for
SUM_COLUMNS = 128  # of a part of a sum of deltas
FEW_DELTAS = 12  # of a token, for which a warp adds them up
WORDS = 256  # of flags: which tokens have many slots
LOOKS = 4  # tokens that a thread looks at together


def table_gradient(
    worker: Worker, table: TableGradient, tokens: Expr, norm: Expr, accumulate: Expr, first_worker: Expr
) -> None:
    """The sum of every touched token's slots, and the square of its norm."""
    records = gradient_records(worker, table, accumulate)
    norms = let("norms", worker.access.base(isa.NORMS) + norm)
    tokens_of = _Tokens(records, isa.table_slots(table), isa.PART_COLUMNS, norms, isa.FEW_SLOTS, QUADS)
    _add_up(tokens_of, tokens, first_worker)


def token_sums(worker: Worker, product: TableProduct, tokens: Expr, first_worker: Expr) -> None:
    """The sum of the deltas of every touched token."""
    base = let("sums", worker.access.base(product.sums))
    address = SlotsAddress(product.deltas, None, padded(product.rows))
    records = Records(worker, base, product.rows, None)
    tokens_of = _Tokens(records, address, SUM_COLUMNS, None, FEW_DELTAS, SUM_QUADS)
    _add_up(tokens_of, tokens, first_worker)


def gradient_records(worker: Worker, table: TableGradient, accumulate: Expr) -> Records:
    """Where the rows of a table's gradient lie."""
    base = let("compact", worker.access.base(isa.table_base(table.parameter)))
    return Records(worker, base, table.width, accumulate)


@attrs.frozen(eq=False)
class Records:
    """A record of `columns` floats a token, from `base` on. accumulate: whether what comes is added to what
    is there, None for never."""

    worker: Worker
    base: Expr
    columns: int
    accumulate: Expr | None

    @property
    def width(self) -> int:
        """Floats from one record to the next."""
        return padded(self.columns)

    def keep(self, token: Expr, column: Expr, found: Expr, square: Any) -> None:
        """Writes four elements of a token's record, and adds up their squares.

        What stands behind the last column is padding, which nobody wrote.
        """
        pool = self.worker.pool
        at = fixed("at", self.base + wide(token) * self.width + column, "int64")
        value = room("value", 4)
        T.buffer_store(value, found, [quad_at(0)])
        if self.accumulate is not None:
            with when(self.accumulate != 0):
                old = let("old", pool[quad_at(at)])
                for i in range(4):
                    put(value, i, value[i] + lane4(old, i))
        T.buffer_store(pool, value[quad_at(0)], [quad_at(at)])
        for i in range(4):
            there = column + i < self.columns
            put(square, 0, square[0] + T.Select(there, value[i] * value[i], T.float32(0.0)))


@attrs.frozen(eq=False)
class _Tokens:
    """Sums of slots. part: columns that a worker adds up of a token with many slots. norms: where the squares
    of every part's elements go, None for nowhere. few_slots: of a token that is a warp's. quads: of a slot
    that a lane adds up at a time."""

    records: Records
    address: SlotsAddress
    part: int
    norms: Expr | None
    few_slots: int
    quads: int

    @property
    def parts(self) -> int:
        """Parts of a record."""
        return -(-self.records.columns // self.part)

    def few(self, token: Expr) -> None:
        """A token with few slots, by a warp."""
        worker, width = self.records.worker, self.records.width
        slots = worker.access.slots(self.address, token)
        with when(slots.count() <= self.few_slots):
            square = local("square", "float32", T.float32(0.0))
            for quad, total in _sums(worker, slots, width, self.quads):
                with when(quad < width):
                    self.records.keep(token, quad, total, square)
            if self.norms is None:
                return
            for mask in (16, 8, 4, 2, 1):
                put(square, 0, square[0] + cuda.shuffle_xor(square[0], mask))
            with stride_loop("part", worker.lane, self.parts, LANES) as part:
                value = T.Select(part == 0, square[0], T.float32(0.0))
                put(worker.pool, self.norms + token * self.parts + part, value)

    def many(self, token: Expr, part: Expr) -> None:
        """Columns of a token, by the whole worker: every group sums slots as many apart as there are groups,
        then the groups' sums in order."""
        worker, width, group = self.records.worker, self.records.width, self.part // 4
        stage = worker.stage(4 * THREADS + WARPS, WORDS)
        own = fixed("own_quad", part * self.part + worker.thread % group * 4)
        near = fixed("near_quad", smaller(own, width - 4))
        total = local("total", *floats(0.0, quad_at(near)))
        slots = worker.access.slots(self.address, token)
        slots.add_every([total], worker.thread // group, THREADS // group, [near], MANY_TOGETHER)
        T.buffer_store(worker.staging, total[0], [quad_at(stage + worker.thread * 4)])
        worker.synchronize()
        square = local("square", "float32", T.float32(0.0))
        with when(both(worker.thread < group, own < width)):
            found = local("total", *floats(0.0, quad_at(own)))
            for other in range(THREADS // group):
                source = stage + (other * group + worker.thread) * 4
                put(found, 0, found[0] + worker.staging[quad_at(source)])
            self.records.keep(token, own, found[0], square)
        if self.norms is None:
            worker.synchronize()
            return
        whole = worker.block_sum(square[0], stage + 4 * THREADS)
        with when(worker.thread == 0):
            put(worker.pool, self.norms + token * self.parts + part, whole)


def _add_up(tokens_of: _Tokens, tokens: Expr, first_worker: Expr) -> None:
    """A warp takes a token with few slots; the words that occur in every sentence are cut into parts, for a
    whole worker each. Workers take turns, from `first_worker` on."""
    worker = tokens_of.records.worker
    turn = fixed("turn", (worker.number + worker.grid - first_worker) % worker.grid)
    first = let("token_first", worker.warp * worker.grid + turn)  # neighbours, often frequent words, apart
    with stride_loop("token", first, tokens, worker.grid * WARPS) as token:
        tokens_of.few(token)
    _each_with_many(tokens_of, tokens, turn)


def _each_with_many(tokens_of: _Tokens, tokens: Expr, turn: Expr) -> None:
    """The worker's parts of the tokens with many slots, which all threads look for at once."""
    worker, parts = tokens_of.records.worker, tokens_of.parts
    flags, number = worker.stage(WORDS), local("number", "int32", 0)
    bits = local("bits", "int32", 0)
    with stride_loop("block", 0, tokens, WORDS * LANES) as block:
        last = fixed("last", smaller(tokens, block + WORDS * LANES))
        # The lanes of a warp stay together, up to the first one's last token.
        size = last - block + worker.lane
        with stride_loop("thread", worker.thread, size, THREADS * LOOKS) as begin:
            owns = [fixed("own", begin + look * THREADS) for look in range(LOOKS)]
            near = [fixed("near", smaller(block + own, tokens - 1)) for own in owns]
            slots = [worker.access.slots(tokens_of.address, token) for token in near]
            counts = [each.count() for each in slots]
            for own, count in zip(owns, counts, strict=True):
                many = both(block + own < last, count > tokens_of.few_slots)
                found = let("found", cuda.ballot(many))
                with when(both(worker.lane == 0, own < WORDS * LANES)):
                    put(worker.staging, flags + own // LANES, T.reinterpret("float32", found))
        worker.synchronize()
        with stride_loop("word", 0, (last - block + LANES - 1) // LANES, 1) as word:
            put(bits, 0, T.reinterpret("int32", worker.staging[flags + word]))
            with T.While(bits[0] != 0):
                token = fixed("token", block + word * LANES + cuda.first_bit(bits[0]))
                put(bits, 0, bits[0] & (bits[0] - 1))
                mine = fixed("part_first", T.Select(turn < number[0], worker.grid, 0) + turn - number[0])
                with stride_loop("part", mine, parts, worker.grid) as part:
                    tokens_of.many(token, part)
                put(number, 0, number[0] + parts)
                with T.While(number[0] >= worker.grid):
                    put(number, 0, number[0] - worker.grid)
        worker.synchronize()


def _sums(worker: Worker, slots: SlotsReader, width: int, together: int) -> Iterator[tuple[Expr, Expr]]:
    """(first column, sum of all slots) of the quads of a lane; of those that do not exist, too."""
    columns = range(0, width, LANES * 4)
    for begin in range(0, len(columns), together):
        quads = [let("quad", worker.lane * 4 + column) for column in columns[begin : begin + together]]
        near = [smaller(quad, width - 4) for quad in quads]
        totals = [local("total", *floats(0.0, quad_at(quad))) for quad in near]
        slots.add_every(totals, 0, 1, near)
        for quad, total in zip(quads, totals, strict=True):
            yield quad, total[0]
