"""Products with weights in registers on CUDA's tensor cores.

In: a block or a tile of vertices, and the registers of a slice. Out: as in `cuda_resident.py`. A product
of a warp's blocks of 16 x 8 words of weights with 8 vertices takes two bands and half a strip, or a whole
one of two numbers a word: the registers lie as it wants them. A transposed product wants row t where they
have row g: they go through shared memory, two strips of a warp at a time, once for all vertices of a tile.
Words of two numbers are turned in registers (`cuda_resident_packed.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_resident import BAND, STRIP, Block, Resident
from dnc.codegen.bodies.cuda_staging import Plane, UnitTile
from dnc.codegen.bodies.cuda_stores import store_columns
from dnc.codegen.bodies.cuda_tensor import ACROSS, Terms, cores_of, uses_cores, words
from dnc.codegen.emit import Expr, both, either, lane4, let, local, loop, quad_at, stride_loop, when
from dnc.ir.machine import WARPS
from dnc.ir.plan import Plan, TransposedProduct

# Blocks of 8 vertices for which turned weights are read together, 4 where sums are sent: without, or for both
# ways, they would be spilled.
BLOCKS, BLOCKS_SENT = (1, 2), (1, 2, 4)
READ_AHEAD = 4  # bands whose turned weights are read together, for one block of vertices


def forward_tensor(block: Block, most: int) -> None:
    """The sums of a warp for the vertices of a block: `most` times 8 at most."""
    by_eight = partial(_sums, block, 1)
    if most == 1:
        by_eight()
    else:
        either(block.count <= ACROSS, by_eight, partial(_sums, block, most))


def _sums(block: Block, across: int) -> None:
    held = block.slice
    together = cores_of(held.worker.plan).bands
    for begin in range(0, held.bands, together):
        _sums_of(block, range(begin, min(begin + together, held.bands)), across)


def _sums_of(block: Block, bands: range, across: int) -> None:
    """Sums of some bands, two at a time, for `across` times 8 vertices."""
    held = block.slice
    cores, pairs = cores_of(held.worker.plan), range(0, len(bands), 2)
    sums = local("sums", "float32", T.float32(0.0), len(pairs) * across * 4)
    for strip in range(held.strips):
        operands = []
        for number in range(across):
            x = block.operand(number * ACROSS + held.group, strip)
            operands.append(words(cores, [lane4(x, i) for i in range(4)]))
        for begin in range(0, held.words, 2):
            for pair in pairs:
                weights = [
                    _weight(held, bands.start + pair + high, strip, begin + right, bands.stop)
                    for right in range(2)
                    for high in range(2)
                ]
                for number in range(across):
                    first = (pair // 2 * across + number) * 4
                    into = [sums[first + i] for i in range(4)]
                    cores.multiply(into, weights, operands[number][begin : begin + 2])
    for pair in pairs:
        for high in range(min(2, len(bands) - pair)):
            row = let("row", (bands.start + pair + high) * BAND + held.group)
            for number in range(across):
                for i in range(2):
                    vertex = number * ACROSS + 2 * held.own + i
                    block.leave(row, vertex, sums[(pair // 2 * across + number) * 4 + 2 * high + i])


def _weight(held: Resident, band: int, strip: int, i: int, end: int) -> Terms:
    """What tensor cores read of a register; zero behind the last band.

    Numbers are rounded every time: there is no place to keep both.
    """
    cores = cores_of(held.worker.plan)
    return cores.nothing() if band >= end else cores.terms(held.word(band, strip, i), here=True)


# ---- transposed products -----------------------------------------------------------------------------


def turned_words(rows: int, plan: Plan) -> int:
    """Staging that `transposed_tensor` needs, if the plan uses it: two strips of every warp."""
    if not uses_cores(plan) or cores_of(plan).transposed == 0 or cores_of(plan).packed > 1:
        return 0
    return WARPS * -(-rows // BAND) * BAND * 2 * STRIP


def transposed_tensor(tile: UnitTile, product: TransposedProduct, held: Resident) -> None:
    """Partial sums over the worker's rows for all vertices of the tile, two strips of a warp at a time.

    `turned_words` of staging from 0 on are for the weights of these strips.
    """
    blocks = BLOCKS_SENT if tile.worker.access.added else BLOCKS
    sizes = [size for size in blocks if size * ACROSS <= max(tile.staging.tile, ACROSS)]
    turned = _Turned(held)

    def by(pair: Expr, across: int) -> Callable[[], None]:
        def body() -> None:
            with stride_loop("first", 0, tile.count, across * ACROSS) as first:
                _columns(tile, product, turned, pair, first, across)

        return body

    # A loop, although registers have literal numbers: code that is short stays in the instruction cache.
    with loop("pair", -(-held.strips // 2), unroll=1) as number:
        turned.write(number)
        pair = let("pair_at", number * 2)
        body = by(pair, sizes[-1])
        for size in reversed(sizes[:-1]):
            body = partial(either, tile.count <= size * ACROSS, by(pair, size), body)
        body()


class _Turned:
    """Weights of two strips in shared memory, where a lane reads the rows that it wants.

    Row r of a warp has 8 quads of columns; the order in which they lie depends on r so that neither the
    lanes that write a quad nor those that read one meet in a bank.
    """

    def __init__(self, held: Resident) -> None:
        self.held, self.memory = held, held.worker.staging
        begin = held.warp * (held.bands * BAND * 2 * STRIP)
        self.written = [
            let("written", begin + held.group * 32 + _place(4 * h + held.own, held.group) * 4)
            for h in range(2)
        ]
        self.read_at = let("read", begin + held.own * 32 + _place(held.group, held.own) * 4)

    def write(self, number: Expr) -> None:
        """Writes the lane's registers of the strips of a pair; for the lanes of the warp."""
        T.evaluate(T.cuda.warp_sync())  # what was there has been read
        for pair in range(0, self.held.strips, 2):
            with when(number == pair // 2):
                self._write(range(pair, min(pair + 2, self.held.strips)))
        T.evaluate(T.cuda.warp_sync())

    def _write(self, pair: range) -> None:
        held = self.held
        for band in range(held.bands):
            for h, strip in enumerate(pair):
                quad = held.worker.registers[quad_at(held.slot(band, strip))]
                T.buffer_store(self.memory, quad, [quad_at(self.written[h] + band * (BAND * 32))])

    def read(self, band: Expr) -> list[list[Terms]]:
        """[i][j]: column 4 g + i of the strips, row t + 4 j of a band."""
        rows = []
        for j in range(2):
            quad = let("turned", self.memory[quad_at(self.read_at + band * (BAND * 32) + j * (4 * 32))])
            rows.append(words(cores_of(self.held.worker.plan), [lane4(quad, i) for i in range(4)]))
        return [[row[i] for row in rows] for i in range(4)]


def _place(quad: Expr, row: Expr) -> Expr:
    """Where a quad of a row lies among its 8."""
    return T.bitwise_xor(quad, row % 2 * 4 + T.bitwise_and(row, 2))


def _columns(
    tile: UnitTile, product: TransposedProduct, turned: _Turned, pair: Expr, first: Expr, across: int
) -> None:
    """Sums of the columns of two strips, for `across` times 8 vertices from `first` on."""
    worker, held, plane = tile.worker, turned.held, tile.staging.deltas[product.delta]
    cores = cores_of(worker.plan)
    sums = local("sums", "float32", T.float32(0.0), across * 8)
    # Unrolled for more vertices, more would be read ahead than there is room for.
    with loop("band", held.bands, unroll=max(1, READ_AHEAD // across)) as band:
        deltas = [_deltas(held, plane, band, first + number * ACROSS) for number in range(across)]
        columns = turned.read(band)
        for half in range(2):
            weights = [columns[2 * half + high][right] for right in range(2) for high in range(2)]
            for number in range(across):
                # Sum i of a vertex belongs to the i-th of four neighbouring columns.
                places = [(number * 2 + i % 2) * 4 + 2 * half + i // 2 for i in range(4)]
                cores.multiply([sums[place] for place in places], weights, deltas[number])
    column = let("column", (held.warp * held.strips + pair) * STRIP + 4 * held.group)
    for number in range(across):
        for i in range(2):
            vertex = let("vertex", first + number * ACROSS + 2 * held.own + i)
            there = vertex < tile.count
            if held.strips % 2:
                there = both(there, pair + held.group // 4 < held.strips)
            with when(there):
                value = sums[quad_at((number * 2 + i) * 4)]
                store_columns(worker, product, tile.first + vertex, column, value)


def _deltas(held: Resident, plane: Plane, band: Expr, vertex: Expr) -> list[Terms]:
    """What tensor cores read of the deltas of a band and 8 vertices."""
    found = []
    for i in range(2):
        row = held.near(band * BAND + held.own + 4 * i)
        delta = let("delta", held.worker.staging[plane.place(row, vertex + held.group)])
        found += words(cores_of(held.worker.plan), [delta])
    return found
