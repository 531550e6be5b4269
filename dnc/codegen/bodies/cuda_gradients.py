"""Gradients of tables on CUDA: work that the whole grid shares.

In: the gradient of a table and the fields of its instruction. Out: the instruction's body. Tokens are
dealt out to workers; each is summed by one worker in a fixed order, without atomics, so the bits do not
depend on timing.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.access import SlotsReader
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (  # fmt: skip
    Expr,
    fixed,
    floats,
    lane4,
    let,
    local,
    named,
    put,
    quad_at,
    stride_loop,
    when,
    wide,
)
from dnc.ir import isa
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import SlotsAddress, TableGradient, padded

FEW_SLOTS = 8  # of a token of a table


def table_gradient(
    worker: Worker, table: TableGradient, tokens: Expr, norm: Expr, accumulate: Expr, first_worker: Expr
) -> None:
    """The sum of every touched token's slots, and the square of its norm.

    A warp takes a token with few slots; the words that occur in every sentence take a whole worker.
    Workers take tokens in turn, from `first_worker` on.
    """
    turn = let("turn", (worker.number + worker.grid - first_worker) % worker.grid)
    names = isa.table_lists(table.parameter)
    width = padded(table.width)
    base = let("compact", worker.access.base(isa.table_base(table.parameter)))
    norms = let("norms", worker.access.base(isa.NORMS) + norm)
    address = SlotsAddress(names[1], names[2], width)
    several = WARPS * width + WARPS <= worker.staging_words
    first = let("token_first", turn * WARPS + worker.warp)
    with stride_loop("token", first, tokens, worker.grid * WARPS) as token:
        slots = worker.access.slots(address, token)
        with when(slots.count() <= FEW_SLOTS) if several else nullcontext():
            square = local("square", "float32", T.float32(0.0))
            with stride_loop("quad", worker.lane * 4, width, LANES * 4) as quad:
                at = base + wide(token) * width + quad
                _keep_quad(worker, at, slots.sum(quad_at(quad)), accumulate, square, table.width - quad)
            for mask in (16, 8, 4, 2, 1):
                put(square, 0, square[0] + cuda.shuffle_xor(square[0], mask))
            with when(worker.lane == 0):
                put(worker.pool, norms + token, square[0])
    if several:
        with stride_loop("many", turn, tokens, worker.grid) as token:
            slots = worker.access.slots(address, token)
            with when(slots.count() > FEW_SLOTS):
                compact = base + wide(token) * width
                _sum_together(worker, slots, table.width, compact, norms + token, accumulate)


def _sum_together(
    worker: Worker, slots: SlotsReader, width: int, base: Expr, norm: Expr, accumulate: Expr
) -> None:
    """A token of the whole worker: every warp sums every eighth slot, then the warps' sums in order."""
    elements, width = width, padded(width)
    part = worker.stage(WARPS * width, WARPS)
    with stride_loop("quad", worker.lane * 4, width, LANES * 4) as quad:
        to = fixed("to", part + worker.warp * width + quad)
        found = slots.every(worker.warp, WARPS, quad_at(quad))
        T.buffer_store(worker.staging, found, [quad_at(to)])
    worker.synchronize()
    square = local("square", "float32", T.float32(0.0))
    with stride_loop("quad", worker.thread * 4, width, THREADS * 4) as quad:
        total = local("total", *floats(0.0, quad_at(quad)))
        for warp in range(WARPS):
            source = fixed("source", part + warp * width + quad)
            put(total, 0, total[0] + worker.staging[quad_at(source)])
        _keep_quad(worker, base + quad, total[0], accumulate, square, elements - quad)
    whole = worker.block_sum(square[0])
    with when(worker.thread == 0):
        put(worker.pool, norm, whole)


def _keep_quad(worker: Worker, at: Expr, found: Expr, accumulate: Expr, square: Any, left: Expr) -> None:
    """Writes four elements of a token's gradient, and adds up their squares.

    left: elements from here to the end of the row. What stands behind is padding, which nobody wrote.
    """
    at = fixed("at", at, "int64")
    value = named("value", T.alloc_local((4,), "float32"))
    T.buffer_store(value, found, [quad_at(0)])
    with when(accumulate != 0):
        old = let("old", worker.pool[quad_at(at)])
        for i in range(4):
            put(value, i, value[i] + lane4(old, i))
    T.buffer_store(worker.pool, value[quad_at(0)], [quad_at(at)])
    for i in range(4):
        put(square, 0, square[0] + T.Select(left > i, value[i] * value[i], T.float32(0.0)))
