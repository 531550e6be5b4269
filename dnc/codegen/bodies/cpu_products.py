"""The three products of a unit on the CPU: forward, transposed, and weight gradient.

In: a packed weight (`PackedLayout`), addresses of gathered rows as Python functions of the vertex,
a number of vertices known only at run time. Out: TIRx emitted into the function that the caller's
`IRBuilder` is building. Guaranteed: every output element is summed in one fixed order that depends
neither on the number of vertices nor on the vertex tile, so results are reproducible bit for bit;
nothing is read or written outside the named rows.

A weight W[R, K] lives in *blocks* of 64 rows, each stored as [K, 64] (the last block is narrower:
R rounded up to 16). One layout serves all three products, and the optimizer, being elementwise,
may update it in place. All positions are in floats, as int64 expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.ir.weight_format import LANES as LANES
from dnc.ir.weight_format import PackedLayout as PackedLayout

Expr: TypeAlias = Any  # a TIRx expression, or a Python number where one is accepted
RowAddress: TypeAlias = Callable[[Expr], Expr]  # vertex (int32) -> position of its row (int64)

BLOCK_ROWS = 64  # rows of a block: four registers
VERTEX_TILE = 6  # 6 vertices x 4 registers = 24 accumulators of the 32 registers
COLUMN_CHUNK = 128  # of a block: 32 KiB that stay in L1 over all vertices
TRANSPOSED_VERTEX_TILE = 3
STRIP_COLUMNS = 8  # columns of a transposed tile: 3 x 8 accumulators
VERTEX_CHUNK = 32  # vertices whose deltas stay in L1 over all columns of a block

_VECTOR = f"float32x{LANES}"


@attrs.frozen
class Piece:
    """`width` neighbouring columns of the input, and where each vertex keeps them."""

    width: int
    row: RowAddress


def gathered(lists: Expr, start: Expr) -> RowAddress:
    """Rows found through an index list: `lists[start + v]`, in units of 4 floats."""
    return lambda v: tirx.Cast("int64", lists[start + v]) * 4


def strided(base: Expr, stride: int) -> RowAddress:
    """Rows side by side, `stride` floats apart."""
    return lambda v: _i64(base) + _i64(v) * stride


# ---------------------------------------------------------------------------------------------
# Forward


def emit_product(
    layout: PackedLayout,
    *,
    weights: Expr,
    weight_at: Expr,
    inputs: Expr,
    pieces: Sequence[Piece],
    n: Expr,
    out: Expr,
    out_row: RowAddress,
    bias_at: Expr | None = None,
    accumulate: bool = False,
    block_range: tuple[Expr, Expr] | None = None,
) -> None:
    """out[v, r] = sum_k W[r, k] * x[v, k] (+ bias[r]) for v < n and the rows of `block_range`.

    `weights`, `inputs`, `out`: float32 buffers (may be one). `pieces`: x is their concatenation.
    Rows of `out` are written up to the padded row count. `bias_at`: position in `weights` of a
    bias padded to `layout.padded_rows`. `accumulate`: add to what stands in `out`.
    `block_range`: half-open, in blocks, the share of one worker; all blocks when left out.
    """
    _check_pieces(layout, pieces)

    def block(index: Expr, width: int) -> None:
        panel = T.Bind(_i64(weight_at) + _i64(index) * layout.block_stride)
        first_row = T.Bind(_i64(index) * BLOCK_ROWS)
        registers = range(0, width, LANES)

        if not accumulate:
            with T.serial(0, n) as v:
                row = T.Bind(out_row(v) + first_row)
                for lane in registers:
                    start = _zeros() if bias_at is None else _load(weights, bias_at + first_row + lane)
                    _store(out, row + lane, start)

        def tile(piece: Piece, v0: Expr, size: int, k0: Expr, k1: Expr, column: int) -> None:
            rows = [T.Bind(out_row(v0 + t) + first_row) for t in range(size)]
            xs = [T.Bind(piece.row(v0 + t)) for t in range(size)]
            sums = [[_register(_load(out, row + lane)) for lane in registers] for row in rows]
            with T.serial(k0, k1) as k:
                at = T.Bind(panel + (_i64(k) + column) * width)
                ws = [T.Bind(_load(weights, at + lane)) for lane in registers]
                for t in range(size):
                    x = T.Bind(tirx.Broadcast(inputs[xs[t] + _i64(k)], LANES))
                    for j, w in enumerate(ws):
                        _multiply_add(sums[t][j], w, x)
            for t in range(size):
                for j, lane in enumerate(registers):
                    _store(out, rows[t] + lane, sums[t][j][0])

        column = 0
        for piece in pieces:
            with T.serial(0, math.ceil(piece.width / COLUMN_CHUNK)) as chunk:
                k0 = T.Bind(chunk * COLUMN_CHUNK)
                k1 = T.Bind(_minimum(k0 + COLUMN_CHUNK, piece.width))
                body = partial(tile, piece, k0=k0, k1=k1, column=column)
                _for_vertex_tiles(n, VERTEX_TILE, body)
            column += piece.width

    _for_blocks(layout, block_range, block)


# ---------------------------------------------------------------------------------------------
# Transposed


def num_strips(pieces: Sequence[Piece]) -> int:
    """Strips of `emit_transposed_product`, what `strip_range` counts."""
    return sum(math.ceil(p.width / STRIP_COLUMNS) for p in pieces)


def emit_transposed_product(
    layout: PackedLayout,
    *,
    weights: Expr,
    weight_at: Expr,
    deltas: Expr,
    delta_row: RowAddress,
    n: Expr,
    out: Expr,
    pieces: Sequence[Piece],
    accumulate: bool = False,
    block_range: tuple[Expr, Expr] | None = None,
    strip_range: tuple[Expr, Expr] | None = None,
) -> None:
    """out[v, k] = sum_r W[r, k] * delta[v, r] for v < n.

    `delta_row`: rows of `layout.padded_rows` floats; the padding must be finite (W is zero there).
    `pieces`: where column ranges of the result go. `block_range` restricts the *sum* to some rows
    (a partial sum); `strip_range` restricts the *result* to some strips of 8 columns, counted
    through all pieces: the share of one worker without partial sums.
    """
    _check_pieces(layout, pieces)

    def strip(piece: Piece, local: Expr, column: Expr, width: int) -> None:
        """Columns [column, column + width), which are [local, local + width) of the piece."""

        def tile(v0: Expr, size: int) -> None:
            ds = [T.Bind(delta_row(v0 + t)) for t in range(size)]
            rows = [T.Bind(piece.row(v0 + t) + local) for t in range(size)]
            sums = [[_register(_zeros()) for _ in range(width)] for _ in ds]

            def block(index: Expr, block_width: int) -> None:
                panel = T.Bind(_i64(weight_at) + _i64(index) * layout.block_stride + column * block_width)
                row = T.Bind(_i64(index) * BLOCK_ROWS)
                with T.serial(0, block_width // LANES) as j:
                    lane = T.Bind(_i64(j) * LANES)
                    held = [T.Bind(_load(deltas, d + row + lane)) for d in ds]
                    for c in range(width):
                        w = T.Bind(_load(weights, panel + lane + c * block_width))
                        for t, delta in enumerate(held):
                            _multiply_add(sums[t][c], w, delta)

            _for_blocks(layout, block_range, block)
            for row, registers in zip(rows, sums, strict=True):
                for c, values in _lane_sums([s[0] for s in registers]):
                    lanes = values.ty.dtype.lanes
                    if accumulate:
                        values = _load(out, row + c, lanes) + values
                    _store(out, row + c, values, lanes)

        _for_vertex_tiles(n, TRANSPOSED_VERTEX_TILE, tile)

    first_strip = 0
    column = 0
    for piece in pieces:
        full, tail = divmod(piece.width, STRIP_COLUMNS)
        lo, hi = strip_range or (0, num_strips(pieces))
        with _clipped(lo, hi, first_strip, full) as s:
            local = T.Bind(_i64(s) * STRIP_COLUMNS)
            strip(piece, local, T.Bind(local + column), STRIP_COLUMNS)
        if tail:
            with _clipped(lo, hi, first_strip + full, 1):
                local = full * STRIP_COLUMNS
                strip(piece, _i64(local), _i64(local + column), tail)
        first_strip += full + (tail > 0)
        column += piece.width


def _lane_sums(vectors: list[Expr]) -> Iterator[tuple[int, Expr]]:
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


# ---------------------------------------------------------------------------------------------
# Weight gradient


def emit_weight_gradient(
    layout: PackedLayout,
    *,
    gradients: Expr,
    gradient_at: Expr,
    deltas: Expr,
    delta_row: RowAddress,
    inputs: Expr,
    pieces: Sequence[Piece],
    n: Expr,
    accumulate: bool = True,
    block_range: tuple[Expr, Expr] | None = None,
) -> None:
    """dW[r, k] (+)= sum_v delta[v, r] * x[v, k], in the order of v; dW is packed like W.

    Rows of `delta_row` hold `layout.padded_rows` floats, zero in the padding (or the padding of
    dW is not zero either). `block_range`: the share of one worker.
    """
    _check_pieces(layout, pieces)

    def block(index: Expr, width: int) -> None:
        panel = T.Bind(_i64(gradient_at) + _i64(index) * layout.block_stride)
        first_row = T.Bind(_i64(index) * BLOCK_ROWS)
        registers = range(0, width, LANES)
        tile_columns = 24 // len(registers)

        def tile(piece: Piece, v0: Expr, v1: Expr, local: Expr, column: Expr, count: int, add: bool) -> None:
            at = T.Bind(panel + column * width)
            places = [[at + (c * width + lane) for lane in registers] for c in range(count)]
            sums = [[_register(_load(gradients, p) if add else _zeros()) for p in row] for row in places]
            with T.serial(v0, v1) as v:
                d = T.Bind(delta_row(v) + first_row)
                x = T.Bind(piece.row(v) + local)
                ds = [T.Bind(_load(deltas, d + lane)) for lane in registers]
                for c in range(count):
                    value = T.Bind(tirx.Broadcast(inputs[x + c], LANES))
                    for j, delta in enumerate(ds):
                        _multiply_add(sums[c][j], delta, value)
            for c in range(count):
                for j in range(len(registers)):
                    _store(gradients, places[c][j], sums[c][j][0])

        def all_columns(v0: Expr, v1: Expr, add: bool) -> None:
            column = 0
            for piece in pieces:
                full, tail = divmod(piece.width, tile_columns)
                with T.serial(0, full) as i:
                    local = T.Bind(_i64(i) * tile_columns)
                    tile(piece, v0, v1, local, T.Bind(local + column), tile_columns, add)
                if tail:
                    rest = piece.width - tail
                    tile(piece, v0, v1, _i64(rest), _i64(column + rest), tail, add)
                column += piece.width

        all_columns(0, T.Bind(tirx.min(n, VERTEX_CHUNK)), accumulate)
        with T.serial(1, tirx.truncdiv(n + (VERTEX_CHUNK - 1), VERTEX_CHUNK)) as chunk:
            v0 = T.Bind(chunk * VERTEX_CHUNK)
            all_columns(v0, T.Bind(tirx.min(v0 + VERTEX_CHUNK, n)), True)

    _for_blocks(layout, block_range, block)


# ---------------------------------------------------------------------------------------------
# Loops and registers


def _for_vertex_tiles(n: Expr, tile: int, body: Callable[[Expr, int], None]) -> None:
    """Full tiles in a loop, then the rest of n by a variant of its own size."""
    with T.serial(0, tirx.truncdiv(n, tile)) as i:
        body(T.Bind(i * tile), tile)
    rest = T.Bind(tirx.truncmod(n, tile))
    first = T.Bind(n - rest)
    for size in range(1, tile):
        with T.If(rest == size), T.Then():
            body(first, size)


def _for_blocks(
    layout: PackedLayout,
    block_range: tuple[Expr, Expr] | None,
    body: Callable[[Expr, int], None],
) -> None:
    """`body(index, width)` over the blocks of a range; the narrow last one is code of its own."""
    lo, hi = block_range or (0, layout.num_blocks)
    full = layout.full_blocks
    if full:
        with T.serial(lo, _minimum(hi, full)) as index:
            body(index, BLOCK_ROWS)
    if layout.tail_width:
        if isinstance(lo, int) and isinstance(hi, int):
            if lo <= full < hi:
                body(tirx.const(full, "int32"), layout.tail_width)
        else:
            with T.If(tirx.all(lo <= full, hi > full)), T.Then():
                body(tirx.const(full, "int32"), layout.tail_width)


@contextmanager
def _clipped(lo: Expr, hi: Expr, first: int, count: int) -> Iterator[Expr]:
    """A loop over [0, count) cut to what [lo, hi) holds of [first, first + count)."""
    with T.serial(_maximum(lo - first, 0), _minimum(hi - first, count)) as i:
        yield i


def _register(value: Expr) -> Expr:
    """A stack slot of one vector, set to `value`; LLVM keeps it in a register."""
    register = T.alloc_buffer((1,), _VECTOR, scope="global")
    T.buffer_store(register, value, [0])
    return register


def _multiply_add(register: Expr, a: Expr, b: Expr) -> None:
    T.buffer_store(register, register[0] + a * b, [0])  # contracted to one FMA


def _zeros() -> Expr:
    return tirx.Broadcast(tirx.const(0.0, "float32"), LANES)


def _position(at: Expr, lanes: int) -> Expr:
    return at if lanes == 1 else tirx.Ramp(at, tirx.const(1, "int64"), lanes)


def _load(buffer: Expr, at: Expr, lanes: int = LANES) -> Expr:
    return buffer[_position(at, lanes)]


def _store(buffer: Expr, at: Expr, value: Expr, lanes: int = LANES) -> None:
    T.buffer_store(buffer, value, [_position(at, lanes)])


def _shuffle(vectors: list[Expr], lanes: list[int]) -> Expr:
    if len(lanes) == 1:
        return tirx.Shuffle(vectors, [tirx.const(lanes[0], "int32")])
    return tirx.Shuffle(vectors, [tirx.const(i, "int32") for i in lanes])


def _i64(value: Expr) -> Expr:
    return tirx.const(value, "int64") if isinstance(value, int) else tirx.Cast("int64", value)


def _minimum(a: Expr, b: int) -> Expr:
    return min(a, b) if isinstance(a, int) else tirx.min(a, tirx.const(b, "int32"))


def _maximum(a: Expr, b: int) -> Expr:
    return max(a, b) if isinstance(a, int) else tirx.max(a, tirx.const(b, "int32"))


def _check_pieces(layout: PackedLayout, pieces: Sequence[Piece]) -> None:
    total = sum(p.width for p in pieces)
    if total != layout.columns:
        raise ValueError(f"pieces hold {total} columns; the weight has {layout.columns}")
