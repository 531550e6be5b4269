"""The three products as functions of a CPU kernel: any weight, any rows, one piece of code each.

In: shapes and positions as arguments; the rows that a product gathers or scatters, and the blocks of
a weight that a sum runs over, as lists in the worker's `places`. Out: private functions in a module.
Guaranteed: every output element is summed in one fixed order that depends neither on the number of
vertices nor on the vertex tile nor on the direction of a pass. A weight lies by columns
(`WeightFormat`), `step` floats apart; a block is BLOCK of its rows.
"""

from __future__ import annotations

from collections.abc import Container

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cpu_vectors import (
    accumulator,
    lane_sums,
    load,
    multiply_add,
    store,
    vertex_tiles,
    zeros,
)
from dnc.codegen.bodies.cpu_worker import Functions, Worker, lane_sum
from dnc.codegen.emit import Expr, either, let, loop, put, when, wide
from dnc.ir.weight_format import BLOCK, LANES

FORWARD, TRANSPOSED, GRADIENT = "dnc_forward", "dnc_transposed", "dnc_gradient"
GRADIENT_COLUMNS = 6  # 6 columns x 4 registers
VERTEX_TILE = 6  # 6 vertices x 4 registers = 24 accumulators of the 32 registers
COLUMN_CHUNK = 512  # of a block: 128 KiB that stay in L2 over all vertices; in L1 columns share sets
TRANSPOSED_VERTEX_TILE = 3
STRIP_COLUMNS = 8  # columns of a transposed tile: 3 x 8 accumulators
I32, I64 = "int32", "int64"


NAMES = (f"{FORWARD}_pool", f"{FORWARD}_scratch", f"{GRADIENT}_pool", f"{GRADIENT}_scratch", TRANSPOSED)


def define_products(functions: Functions, names: Container[str] = NAMES) -> None:
    """Adds the functions of those names to a module."""
    for source in ("pool", "scratch"):
        if f"{FORWARD}_{source}" in names:
            _define_forward(functions, source)
        if f"{GRADIENT}_{source}" in names:
            _define_gradient(functions, source)
    if TRANSPOSED not in names:
        return
    arguments = [("weight", I64), ("rows", I32), ("step", I32), ("blocks", I32), ("first", I32)]
    arguments += [("width", I32), ("count", I32), ("delta", I64), ("stride", I32), ("back", I32)]
    functions.define(TRANSPOSED, tuple(arguments), _transposed)


def _define_forward(functions: Functions, source: str) -> None:
    """scratch[out + v * stride + r] (+)= sum over a piece's columns of W[r, first + k] * x[v, k].

    For the rows r of a block. x[v, 0] is `source`[places[gathered + v]]. `fresh`: start from zero instead
    of adding.
    """

    def forward(
        worker: Worker, weight: Expr, rows: Expr, step: Expr, block: Expr, gathered: Expr, first: Expr,
        width: Expr, count: Expr, out: Expr, stride: Expr, fresh: Expr,
    ) -> None:  # fmt: skip
        inputs = getattr(worker, source)
        scratch, pool, places = worker.scratch, worker.pool, worker.places
        tail = let("tail", tirx.truncmod(rows, BLOCK))

        def columns_of(row: Expr, begin: Expr, registers: int) -> None:
            """All columns for 16 * registers rows, those of the weight from `begin` on."""
            with when(fresh != 0), loop("v", count) as v:
                for j in range(registers):
                    store(scratch, row + wide(v) * stride + j * LANES, zeros())

            def tile(v0: Expr, size: int, k0: Expr, k1: Expr) -> None:
                at = [let("out_row", row + wide(v0 + t) * stride) for t in range(size)]
                xs = [let("x", places[gathered + v0 + t]) for t in range(size)]
                sums = [[accumulator(load(scratch, a + j * LANES)) for j in range(registers)] for a in at]
                with T.serial(k0, k1) as k:
                    w_at = let("w_at", begin + wide(first + k) * step)
                    ws = [let("w", load(pool, w_at + j * LANES)) for j in range(registers)]
                    for t in range(size):
                        x = let("value", tirx.Broadcast(inputs[xs[t] + wide(k)], LANES))
                        for j, w in enumerate(ws):
                            multiply_add(sums[t][j], w, x)
                for t in range(size):
                    for j in range(registers):
                        store(scratch, at[t] + j * LANES, sums[t][j][0])

            with loop("chunk", tirx.truncdiv(width + (COLUMN_CHUNK - 1), COLUMN_CHUNK)) as chunk:
                k0 = let("k0", chunk * COLUMN_CHUNK)
                k1 = let("k1", tirx.min(k0 + COLUMN_CHUNK, width))
                vertex_tiles(count, VERTEX_TILE, lambda v0, size: tile(v0, size, k0, k1))

        begin = let("begin", weight + wide(block) * BLOCK)
        row = let("row", out + wide(block) * BLOCK)

        def narrow() -> None:
            with loop("strip", tirx.truncdiv(tail, LANES)) as strip:
                lane = let("lane", wide(strip) * LANES)
                columns_of(let("at", row + lane), let("strip_at", begin + lane), 1)

        is_full = block < tirx.truncdiv(rows, BLOCK)
        either(is_full, lambda: columns_of(row, begin, 4), narrow)

    arguments = [("weight", I64), ("rows", I32), ("step", I32), ("block", I32), ("gathered", I32)]
    arguments += [("first", I32), ("width", I32), ("count", I32), ("out", I64), ("stride", I32)]
    arguments += [("fresh", I32)]
    functions.define(f"{FORWARD}_{source}", tuple(arguments), forward)


def _transposed(
    worker: Worker, weight: Expr, rows: Expr, step: Expr, blocks: Expr, first: Expr, width: Expr,
    count: Expr, delta: Expr, stride: Expr, back: Expr,
) -> None:  # fmt: skip
    """pool[places[v] + k] = sum over the blocks' rows r of W[r, first + k] * scratch[delta + v * stride + r].

    `back`: begin with the last columns.
    """
    pool, scratch, places = worker.pool, worker.scratch, worker.places
    tail, full_blocks = let("tail", tirx.truncmod(rows, BLOCK)), let("full", tirx.truncdiv(rows, BLOCK))

    def strip(local: Expr, strip_columns: int) -> None:
        def tile(v0: Expr, size: int) -> None:
            ds = [let("delta_row", delta + wide(v0 + t) * stride) for t in range(size)]
            outs = [let("out_row", places[v0 + t] + wide(local)) for t in range(size)]
            sums = [[accumulator(zeros()) for _ in range(strip_columns)] for _ in range(size)]

            with loop("listed", blocks) as listed:
                block = let("block", T.cast(places[worker.functions.blocks_at + listed], I32))
                row = let("row", wide(block) * BLOCK)
                at = let("column_at", weight + row + wide(first + local) * step)
                own = T.Select(block < full_blocks, BLOCK, tail)
                # One loop for all blocks: where its length is known, or its end apart, sums are spilled.
                with loop("j", tirx.truncdiv(own, LANES)) as j:
                    lane = let("lane", wide(j) * LANES)
                    held = [let("held", load(scratch, d + row + lane)) for d in ds]
                    for c in range(strip_columns):
                        w = let("w", load(pool, at + lane + c * wide(step)))
                        for t, value in enumerate(held):
                            multiply_add(sums[t][c], w, value)
            for out, registers in zip(outs, sums, strict=True):
                if strip_columns == 1:
                    put(pool, out, lane_sum(let("sums", registers[0][0])))
                    continue
                for c, values in lane_sums([s[0] for s in registers]):
                    store(pool, out + c, values, values.ty.dtype.lanes)

        vertex_tiles(count, TRANSPOSED_VERTEX_TILE, tile)

    full = let("full_strips", tirx.truncdiv(width, STRIP_COLUMNS))
    with loop("strip", full) as index:
        turned = T.Select(back != 0, full - 1 - index, index)
        strip(let("local", turned * STRIP_COLUMNS), STRIP_COLUMNS)
    with T.serial(full * STRIP_COLUMNS, width) as column:
        strip(column, 1)


def _define_gradient(functions: Functions, source: str) -> None:
    """One block, one piece: pool[at + k * step + r] (+)= sum over v of scratch[v * 64 + r] * x[v, k].

    x[v, 0] is `source`[places[v]]; the block has `rows`, a multiple of 16.
    """

    def gradient(
        worker: Worker, at: Expr, step: Expr, rows: Expr, width: Expr, count: Expr, add: Expr
    ) -> None:
        inputs, pool, scratch = getattr(worker, source), worker.pool, worker.scratch

        def tile(column: Expr, columns: int, place: Expr, row: Expr, registers: int) -> None:
            at = [
                let("at", place + (wide(column) + c) * step + j * LANES)
                for c in range(columns)
                for j in range(registers)
            ]
            sums = [accumulator(zeros()) for _ in at]
            with loop("v", count) as v:
                d = let("d", row + wide(v) * BLOCK)
                x = let("x", worker.places[v] + wide(column))
                deltas = [let("delta", load(scratch, d + j * LANES)) for j in range(registers)]
                for c in range(columns):
                    value = let("value", tirx.Broadcast(inputs[x + c], LANES))
                    for j, delta in enumerate(deltas):
                        multiply_add(sums[c * registers + j], delta, value)
            with when(add != 0):  # at the end: so a sum of many rows loses little
                for register, position in zip(sums, at, strict=True):
                    T.buffer_store(register, register[0] + load(pool, position), [0])
            for register, position in zip(sums, at, strict=True):
                store(pool, position, register[0])

        def columns_of(place: Expr, row: Expr, registers: int) -> None:
            full = let("full", tirx.truncdiv(width, GRADIENT_COLUMNS))
            with loop("group", full) as group:
                column = let("column", group * GRADIENT_COLUMNS)
                tile(column, GRADIENT_COLUMNS, place, row, registers)
            with T.serial(full * GRADIENT_COLUMNS, width) as column:
                tile(column, 1, place, row, registers)

        def narrow() -> None:
            with loop("strip", tirx.truncdiv(rows, LANES)) as strip:
                lane = let("lane", wide(strip) * LANES)
                columns_of(let("strip_at", at + lane), lane, 1)

        def full() -> None:
            columns_of(at, tirx.const(0, I64), 4)

        either(rows == BLOCK, full, narrow)

    arguments = (
        ("at", I64), ("step", I32), ("rows", I32), ("width", I32), ("count", I32), ("add", I32),
    )  # fmt: skip
    functions.define(f"{GRADIENT}_{source}", arguments, gradient)
