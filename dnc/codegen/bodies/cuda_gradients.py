"""Gradients of tables on CUDA: work that the whole grid shares.

In: the gradient of a table and the fields of its instruction. Out: the instruction's body. Tokens are
dealt out to workers; each is summed by one worker in a fixed order, without atomics, so the bits do not
depend on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.access import SlotsReader
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (  # fmt: skip
    Expr,
    both,
    fixed,
    floats,
    lane4,
    let,
    local,
    named,
    put,
    quad_at,
    smaller,
    stride_loop,
    when,
    wide,
)
from dnc.ir import isa
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import SlotsAddress, TableGradient, padded

QUADS = 2  # of a slot that a lane adds up at a time
GROUP = isa.PART_COLUMNS // 4  # threads that have the columns of a part
WORDS = 256  # of flags: which tokens have many slots


def table_gradient(
    worker: Worker, table: TableGradient, tokens: Expr, norm: Expr, accumulate: Expr, first_worker: Expr
) -> None:
    """The sum of every touched token's slots, and the square of its norm.

    A warp takes a token with few slots; the words that occur in every sentence are cut into parts, for a
    whole worker each. Workers take turns, from `first_worker` on.
    """
    turn = fixed("turn", (worker.number + worker.grid - first_worker) % worker.grid)
    names = isa.table_lists(table.parameter)
    address = SlotsAddress(names[1], names[2], padded(table.width))
    base = let("compact", worker.access.base(isa.table_base(table.parameter)))
    norms = let("norms", worker.access.base(isa.NORMS) + norm)
    tokens_of = _Tokens(worker, table, address, base, norms, accumulate)
    first = let("token_first", turn * WARPS + worker.warp)
    with stride_loop("token", first, tokens, worker.grid * WARPS) as token:
        tokens_of.few(token)
    _each_with_many(worker, address, tokens, turn, isa.table_norms(table), tokens_of.many)


def _each_with_many(
    worker: Worker,
    address: SlotsAddress,
    tokens: Expr,
    turn: Expr,
    parts: int,
    body: Callable[[Expr, Expr], None],
) -> None:
    """body(token, part) for the worker's parts of the tokens with many slots, which all threads look for at
    once."""
    flags, number = worker.stage(WORDS), local("number", "int32", 0)
    bits = local("bits", "int32", 0)
    with stride_loop("block", 0, tokens, WORDS * LANES) as block:
        last = fixed("last", smaller(tokens, block + WORDS * LANES))
        # The lanes of a warp stay together, up to the first one's last token.
        with stride_loop("thread", worker.thread, last - block + worker.lane, THREADS) as own:
            token = let("token", block + own)
            count = worker.access.slots(address, smaller(token, tokens - 1)).count()
            found = let("found", cuda.ballot(both(token < last, count > isa.FEW_SLOTS)))
            with when(worker.lane == 0):
                put(worker.staging, flags + own // LANES, T.reinterpret("float32", found))
        worker.synchronize()
        with stride_loop("word", 0, (last - block + LANES - 1) // LANES, 1) as word:
            put(bits, 0, T.reinterpret("int32", worker.staging[flags + word]))
            with T.While(bits[0] != 0):
                token = fixed("token", block + word * LANES + cuda.first_bit(bits[0]))
                put(bits, 0, bits[0] & (bits[0] - 1))
                mine = fixed("part_first", T.Select(turn < number[0], worker.grid, 0) + turn - number[0])
                with stride_loop("part", mine, parts, worker.grid) as part:
                    body(token, part)
                put(number, 0, number[0] + parts)
                with T.While(number[0] >= worker.grid):
                    put(number, 0, number[0] - worker.grid)
        worker.synchronize()


@attrs.frozen(eq=False)
class _Tokens:
    """The gradient of a table: its slots, where its rows and their norms lie."""

    worker: Worker
    table: TableGradient
    address: SlotsAddress
    base: Expr
    norms: Expr
    accumulate: Expr

    def few(self, token: Expr) -> None:
        """A token with few slots, by a warp."""
        worker, width, parts = self.worker, padded(self.table.width), isa.table_norms(self.table)
        slots = worker.access.slots(self.address, token)
        with when(slots.count() <= isa.FEW_SLOTS):
            square = local("square", "float32", T.float32(0.0))
            for quad, total in _sums(worker, slots, width):
                with when(quad < width):
                    self._keep_quad(token, quad, total, square)
            for mask in (16, 8, 4, 2, 1):
                put(square, 0, square[0] + cuda.shuffle_xor(square[0], mask))
            with stride_loop("part", worker.lane, parts, LANES) as part:
                value = T.Select(part == 0, square[0], T.float32(0.0))
                put(worker.pool, self.norms + token * parts + part, value)

    def many(self, token: Expr, part: Expr) -> None:
        """Columns of a token, by the whole worker: every group sums every 16th slot, then the groups' sums in
        order."""
        worker, width = self.worker, padded(self.table.width)
        stage = worker.stage(4 * THREADS + WARPS, WORDS)
        own = fixed("own_quad", part * isa.PART_COLUMNS + worker.thread % GROUP * 4)
        near = fixed("near_quad", smaller(own, width - 4))
        total = local("total", *floats(0.0, quad_at(near)))
        slots = worker.access.slots(self.address, token)
        slots.add_every([total], worker.thread // GROUP, THREADS // GROUP, [near])
        T.buffer_store(worker.staging, total[0], [quad_at(stage + worker.thread * 4)])
        worker.synchronize()
        square = local("square", "float32", T.float32(0.0))
        with when(both(worker.thread < GROUP, own < width)):
            found = local("total", *floats(0.0, quad_at(own)))
            for group in range(THREADS // GROUP):
                source = stage + (group * GROUP + worker.thread) * 4
                put(found, 0, found[0] + worker.staging[quad_at(source)])
            self._keep_quad(token, own, found[0], square)
        whole = worker.block_sum(square[0], stage + 4 * THREADS)
        with when(worker.thread == 0):
            put(worker.pool, self.norms + token * isa.table_norms(self.table) + part, whole)

    def _keep_quad(self, token: Expr, column: Expr, found: Expr, square: Any) -> None:
        """Writes four elements of a token's gradient, and adds up their squares.

        What stands behind the last column is padding, which nobody wrote.
        """
        pool = self.worker.pool
        at = fixed("at", self.base + wide(token) * padded(self.table.width) + column, "int64")
        value = named("value", T.alloc_local((4,), "float32"))
        T.buffer_store(value, found, [quad_at(0)])
        with when(self.accumulate != 0):
            old = let("old", pool[quad_at(at)])
            for i in range(4):
                put(value, i, value[i] + lane4(old, i))
        T.buffer_store(pool, value[quad_at(0)], [quad_at(at)])
        for i in range(4):
            there = column + i < self.table.width
            put(square, 0, square[0] + T.Select(there, value[i] * value[i], T.float32(0.0)))


def _sums(worker: Worker, slots: SlotsReader, width: int) -> Iterator[tuple[Expr, Expr]]:
    """(first column, sum of all slots) of the quads of a lane; of those that do not exist, too."""
    columns = range(0, width, LANES * 4)
    for begin in range(0, len(columns), QUADS):
        quads = [let("quad", worker.lane * 4 + column) for column in columns[begin : begin + QUADS]]
        near = [smaller(quad, width - 4) for quad in quads]
        totals = [local("total", *floats(0.0, quad_at(quad))) for quad in near]
        slots.add_every(totals, 0, 1, near)
        for quad, total in zip(quads, totals, strict=True):
            yield quad, total[0]
