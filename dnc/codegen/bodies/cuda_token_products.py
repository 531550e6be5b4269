"""Products in gradients of tables on CUDA: sums of tokens' deltas times matrices, for the whole grid.

In: the gradient of a table with products, and the fields of its instruction. Out: the instruction's body. A
tile of tokens and 64 columns is a worker's. Its deltas come into shared memory, added up where a token has
several; every warp multiplies rows of the matrix of its own, which come in steps that no other warp waits
for, by threads or on tensor cores; and the warps' sums are added up in their order. How large tiles are
follows from how many tokens there are, and changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_gradients import Records, gradient_records
from dnc.codegen.bodies.cuda_stores import copied_quad
from dnc.codegen.bodies.cuda_tensor import ACROSS, DEPTH, HIGH, uses_cores, warp_sums
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (
    Expr,
    any_of,
    back_and_forth,
    both,
    by_size,
    either,
    fixed,
    floats,
    lane4,
    let,
    local,
    loop,
    put,
    quad_at,
    smaller,
    stride_loop,
    when,
    wide,
)
from dnc.ir import isa
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import SlotsAddress, TableGradient, TableProduct, padded

COLUMNS = isa.PART_COLUMNS  # of a tile
TOKEN_LANES, COLUMN_LANES = 4, 8  # of a warp; a lane has 4 columns, twice
GROUP = isa.TOKEN_GROUP  # tokens: two of a lane
ROWS = 8  # of the matrix that a warp has in a step
STEP = ROWS * WARPS
STAGES, MANY_STAGES = 4, {1: 8, 2: 6}  # steps on their way; by groups: small tiles wait for memory
SPARE = 4  # words behind a token's deltas, and its sums: neighbours are in different banks
SPARE_ON_CORES = 8  # behind a row of the matrix
SUM_LINE = COLUMNS + SPARE
LINE_LANES = COLUMNS // 4  # lanes that copy a row
QUADS = 8  # of a token's deltas that a lane adds up at a time, in tiles of one group


@attrs.frozen
class Shape:
    """A tile of `groups` x 8 tokens. line: words of a row of the matrix. stages: steps of it on their way.
    depth: rows whose deltas are staged together, in as many blocks of one size as needed."""

    groups: int
    line: int
    stages: int
    depth: int

    @property
    def size(self) -> int:
        """Tokens, at most."""
        return self.groups * GROUP

    @property
    def ring(self) -> int:
        """Words of the matrix on their way."""
        return self.stages * STEP * self.line

    @property
    def stride(self) -> int:
        """Words of a token's deltas."""
        return self.depth + SPARE

    @property
    def words(self) -> int:
        """Words of staging; behind the last step the warps' sums lie there."""
        return max(self.ring + self.size * self.stride, WARPS * self.size * SUM_LINE)


def shape_of(worker: Worker, groups: int, rows: int) -> Shape:
    """The tile for matrices of so many rows, as deep as the staging area takes."""
    size, line = groups * GROUP, COLUMNS + (SPARE_ON_CORES if uses_cores(worker.plan) else 0)
    fitting = (worker.staging_words - size * (STEP + SPARE)) // (STEP * line)
    stages = max(2, min(MANY_STAGES.get(groups, STAGES), fitting))
    most = (worker.staging_words - Shape(groups, line, stages, 0).ring) // size - SPARE
    blocks = -(-rows // max(most // STEP * STEP, STEP))
    return Shape(groups, line, stages, -(-rows // (blocks * STEP)) * STEP)


@attrs.frozen(eq=False)
class _Tile:
    """A worker's tile: every `apart`-th token from `first` on, and columns."""

    worker: Worker
    shape: Shape
    tokens: Expr
    first: Expr
    apart: Expr
    column: Expr

    def token(self, number: Expr) -> Expr:
        """A token of the tile."""
        return self.first + number * self.apart


def token_products(worker: Worker, table: TableGradient, fields: Mapping[str, Expr]) -> None:
    """The gradient of every touched token, and the squares of its norm by parts of the row.

    fields: by their names in `isa.TABLE_PRODUCT_FIELDS`. Workers take turns, from the first one on, without
    those that have more to do than others.
    """
    tokens = fields["tokens"]
    records = gradient_records(worker, table, fields["accumulate"])
    norms = let("norms", worker.access.base(isa.NORMS) + fields["first_norm"])
    turn = fixed("turn", (worker.number + worker.grid - fields["first_worker"]) % worker.grid)
    before, left_out = fields["before"], fields["left_out"]
    mine = fixed("mine", turn - T.Select(turn < before, 0, left_out))
    rows, parts = max(product.rows for product in table.products), isa.table_norms(table)

    def tiles(groups: int) -> None:
        shape = shape_of(worker, groups, rows)
        worker.stage(shape.words)
        apart = fixed("apart", (tokens + (shape.size - 1)) // shape.size)
        with stride_loop("item", mine, apart * parts, worker.grid - left_out) as item:
            first = fixed("first", item // parts)
            part = fixed("part", item - first * parts)
            tile = _Tile(worker, shape, tokens, first, apart, part * COLUMNS)
            sums: _Sums = (_CoreSums if uses_cores(worker.plan) else _ThreadSums)(tile)
            for product in table.products:
                _multiply(tile, table, product, sums)
            _keep(tile, table, records, norms + part, sums)

    with when(any_of(turn < before, turn >= before + left_out)):
        by_size(fields["groups"], [(each, partial(tiles, each)) for each in isa.token_groups(worker.plan)])


def _multiply(tile: _Tile, table: TableGradient, product: TableProduct, sums: _Sums) -> None:
    """Adds a product to the sums."""
    worker, steps, ahead = tile.worker, tile.shape.depth // STEP, tile.shape.stages - 1
    with loop("block", -(-product.rows // tile.shape.depth)) as block:
        begin = fixed("begin", block * tile.shape.depth)
        worker.synchronize()  # what is there is read
        heads = _heads(tile, product)
        rows = _Rows.of(tile, table, product, begin)
        rows.copy(0)
        _stage_deltas(tile, product, begin, heads)
        cuda.copy_commit()
        with stride_loop("early", 1, ahead, 1) as step:  # code that runs once is slower to come than to run
            rows.copy(step)
        cuda.copy_wait(ahead - 1)  # for the deltas, and the first step
        worker.synchronize()
        with loop("step", steps) as step:
            cuda.copy_wait(ahead - 1)
            T.evaluate(T.cuda.warp_sync())
            rows.copy(step + ahead)
            own = fixed("own", step % tile.shape.stages * WARPS + worker.warp)
            deltas = fixed("deltas", tile.shape.ring + step * STEP + worker.warp * ROWS)
            sums.add(own * (ROWS * tile.shape.line), deltas)


def _heads(tile: _Tile, product: TableProduct) -> Expr:
    """A lane has what the list says of one of the warp's tokens."""
    worker = tile.worker
    terms = let("terms", worker.access.list_at(product.terms))
    own = worker.warp + smaller(worker.lane, tile.shape.size // WARPS - 1) * WARPS
    near = fixed("near", smaller(tile.token(own), tile.tokens - 1))
    return let("heads", worker.words[terms + near])


def _stage_deltas(tile: _Tile, product: TableProduct, begin: Expr, heads: Expr) -> None:
    """A warp takes a token: starts the copies of its deltas, or adds them up where there are several."""
    worker = tile.worker
    address = SlotsAddress(product.terms, None, padded(product.rows))
    with loop("turn", tile.shape.size // WARPS) as turn:
        own = let("own", turn * WARPS + worker.warp)
        token = let("token", tile.token(own))
        near = fixed("near", smaller(token, tile.tokens - 1))
        head = let("head", cuda.shuffle(heads, turn))
        there = let("there", T.Select(token < tile.tokens, 1, 0))
        to = fixed("to", tile.shape.ring + own * tile.shape.stride + worker.lane * 4)
        columns = [fixed("row", begin + worker.lane * 4 + at) for at in range(0, tile.shape.depth, LANES * 4)]
        last = tile.shape.depth - worker.lane * 4

        def copy() -> None:
            single = both(there != 0, head < 0)
            place = fixed("place", T.Select(single, wide(-1 - head) * 4, T.int64(0)), "int64")
            for number, column in enumerate(columns):
                with when(number * LANES * 4 < last):
                    valid = both(place != 0, column < product.rows)
                    source = fixed("from", T.Select(valid, place + column, T.int64(0)), "int64")
                    worker.start_copy(to + number * LANES * 4, source)

        def add() -> None:
            chunks = -(-len(columns) // (QUADS // tile.shape.groups))  # registers hold sums, too
            with loop("chunk", chunks) as chunk:
                each = -(-len(columns) // chunks)
                numbers = [fixed("number", chunk * each + at) for at in range(each)]
                quads = [fixed("row", begin + (worker.lane + number * LANES) * 4) for number in numbers]
                totals = [local("total", *floats(0.0, quad_at(quad))) for quad in quads]
                nearest = [smaller(quad, product.rows - 4) for quad in quads]
                worker.access.slots(address, near).add_every(totals, 0, 1, nearest)
                for number, quad, total in zip(numbers, quads, totals, strict=True):
                    with when(quad >= product.rows):
                        put(total, 0, floats(0.0, quad_at(quad))[1])
                    with when(number * LANES * 4 < last):
                        T.buffer_store(worker.staging, total[0], [quad_at(to + number * LANES * 4)])

        either(both(there != 0, head > 0), add, copy)


@attrs.frozen(eq=False)
class _Rows:
    """A lane's copies of the warp's rows of the steps of a block: 16 bytes of every second row.

    at: the first of them in the pool; stride: elements of a row. row, column: where that is in the matrix;
    inside: whether a row and the column exist, None for always.
    """

    tile: _Tile
    at: Expr
    stride: int
    row: Expr
    inside: Callable[[Expr], Expr] | None

    @classmethod
    def of(cls, tile: _Tile, table: TableGradient, product: TableProduct, begin: Expr) -> _Rows:
        """Those of a product's matrix, in steps from row `begin` on."""
        worker, depth = tile.worker, tile.shape.depth
        matrix = worker.plan.program.parameter(product.parameter).type.shape
        stride = worker.plan.weight_format.strides(matrix)[0]
        row = fixed("own_row", begin + worker.warp * ROWS + worker.lane // LINE_LANES)
        column = fixed("own_column", tile.column + worker.lane % LINE_LANES * 4)
        at = fixed("own_at", worker.access.base(product.parameter) + wide(row) * stride + column, "int64")
        if product.rows % depth == 0 and table.width % COLUMNS == 0:
            return cls(tile, at, stride, row, None)
        return cls(tile, at, stride, row, lambda row: both(row < product.rows, column < table.width))

    def copy(self, step: Expr) -> None:
        """Starts the copies of a step, zeros where there are no rows; a group of copies."""
        worker, shape = self.tile.worker, self.tile.shape
        with when(step < shape.depth // STEP):
            ring = fixed("ring", (step % shape.stages * WARPS + worker.warp) * (ROWS * shape.line))
            own = ring + worker.lane // LINE_LANES * shape.line + worker.lane % LINE_LANES * 4
            for part in range(0, ROWS, LANES // LINE_LANES):
                source = fixed("from", self.at + wide(step * STEP + part) * self.stride, "int64")
                to = T.address_of(worker.staging[own + part * shape.line])
                there = True if self.inside is None else self.inside(self.row + step * STEP + part)
                cuda.copy4_async(to, T.address_of(worker.pool[source]), there)
        cuda.copy_commit()


class _Sums(Protocol):
    """A warp's sums of a tile."""

    def add(self, ring: Expr, deltas: Expr) -> None:
        """Adds the products of the warp's rows of a step. ring: where the first of them lies; deltas: where
        that of the first token for it does."""

    def stage(self, to: Expr) -> None:
        """Writes the sums of all tokens to the staging area, from `to` on."""


class _ThreadSums:
    """A lane has those of every fourth token, 8 columns each."""

    def __init__(self, tile: _Tile) -> None:
        self.tile, self.mine = tile, tile.shape.size // TOKEN_LANES
        self.sums = local("sums", "float32", T.float32(0.0), self.mine * 8)

    def add(self, ring: Expr, deltas: Expr) -> None:
        """Four rows at a time."""
        staging, lane, shape = self.tile.worker.staging, self.tile.worker.lane, self.tile.shape
        weights_at = let("weights_at", ring + lane % COLUMN_LANES * 4)
        deltas_at = let("deltas_at", deltas + lane // COLUMN_LANES * shape.stride)
        for half in range(0, ROWS, 4):
            delta = [
                let("delta", staging[quad_at(deltas_at + number * (TOKEN_LANES * shape.stride) + half)])
                for number in range(self.mine)
            ]
            for row in range(4):
                at = weights_at + (half + row) * shape.line
                weights = [let("weight", staging[quad_at(at + c)]) for c in (0, COLUMN_LANES * 4)]
                for number in back_and_forth(self.mine, row):
                    for column in back_and_forth(8, number):
                        to = number * 8 + column
                        weight = lane4(weights[column // 4], column % 4)
                        put(self.sums, to, cuda.fma(weight, lane4(delta[number], row), self.sums[to]))

    def stage(self, to: Expr) -> None:
        """Four columns at a time."""
        lane = self.tile.worker.lane
        for number in range(self.mine):
            at = to + (number * TOKEN_LANES + lane // COLUMN_LANES) * SUM_LINE + lane % COLUMN_LANES * 4
            for half in (0, 1):
                value = copied_quad(self.sums, number * 8 + half * 4)
                T.buffer_store(self.tile.worker.staging, value, [quad_at(at + half * (COLUMN_LANES * 4))])


class _CoreSums:
    """Blocks of 16 columns and 8 tokens, on tensor cores."""

    def __init__(self, tile: _Tile) -> None:
        self.tile = tile
        self.warp = warp_sums(tile.worker, COLUMNS // HIGH, tile.shape.size // ACROSS)

    def add(self, ring: Expr, deltas: Expr) -> None:
        """All rows at once."""
        staging, shape = self.tile.worker.staging, self.tile.shape
        self.warp.add(
            "rows",
            ROWS // DEPTH,
            lambda block: block * DEPTH,
            lambda column, row: staging[ring + row * shape.line + column],
            lambda row, token: staging[deltas + token * shape.stride + row],
        )

    def stage(self, to: Expr) -> None:
        """One by one."""
        for column, token, index in self.warp.pairs():
            for number in range(2):
                at = to + (token + number) * SUM_LINE + column
                put(self.tile.worker.staging, at, self.warp.sums[index + number])


def _keep(tile: _Tile, table: TableGradient, records: Records, norms: Expr, sums: _Sums) -> None:
    """Adds up the warps' sums and the slots that are no products, and writes what comes out."""
    worker, slots = tile.worker, isa.table_slots(table)
    worker.synchronize()
    sums.stage(fixed("sums_at", worker.warp * (tile.shape.size * SUM_LINE)))
    worker.synchronize()
    quads = COLUMNS // 4
    with stride_loop("quad", worker.thread, tile.shape.size * quads, THREADS) as quad:
        number, own = fixed("number", quad // quads), fixed("own", quad % quads * 4)
        token, column = fixed("token", tile.token(number)), fixed("column", tile.column + own)
        total = local("total", *floats(0.0, quad_at(own)))
        for warp in range(WARPS):
            at = (warp * tile.shape.size + number) * SUM_LINE + own
            put(total, 0, total[0] + worker.staging[quad_at(at)])
        square = local("square", "float32", T.float32(0.0))
        with when(both(token < tile.tokens, column < records.width)):
            if table.plain or table.partial:
                worker.access.slots(slots, token).add_every([total], 0, 1, [column])
            records.keep(token, column, total[0], square)
        for mask in (8, 4, 2, 1):  # of the threads that have a part of the token's row
            put(square, 0, square[0] + cuda.shuffle_xor(square[0], mask))
        with when(both(own == 0, token < tile.tokens)):
            put(worker.pool, norms + token * isa.table_norms(table), square[0])
