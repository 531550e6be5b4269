"""Transposed products on CUDA with weights in registers: partial sums over the worker's rows.

In: a tile whose deltas are staged. Out: `Turned`, the slice as these products read it, and statements that
store the partial sums. A lane has neighbouring rows of every band, for 8 columns of two strips, so that
sums go over the four lanes of a group, and tensor cores find the columns where they look for rows. A few
vertices, and all of them where sums are in float32 throughout, run on FMAs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_resident import (
    BAND,
    OWN_LANES,
    STRIP,
    Held,
    by_count,
    in_turn,
    loaded4,
    turns,
)
from dnc.codegen.bodies.cuda_staging import Plane, UnitTile
from dnc.codegen.bodies.cuda_stores import store_columns
from dnc.codegen.bodies.cuda_tensor import ACROSS, Terms, cores_of, pair_at, uses_cores, words
from dnc.codegen.bodies.cuda_worker import source_row
from dnc.codegen.emit import (
    Expr,
    both,
    either,
    fixed,
    lane4,
    let,
    local,
    put,
    quad_at,
    smaller,
    stride_loop,
    when,
)
from dnc.ir.plan import TransposedProduct, padded, unit_share

TOGETHER = 4  # blocks of columns that a warp sums at a time
MOST_SUMS = 32  # of a lane on tensor cores


@attrs.frozen
class _Columns:
    """Neighbouring columns of a lane: four of two strips, or two of the last one where strips are odd.

    strip: the first; first: where their sums are among all of the lane.
    """

    strip: int
    width: int
    first: int


@attrs.frozen(eq=False)
class Turned(Held):
    """The slice as transposed products read it: a lane holds rows 2 `own` and 2 `own` + 1 of every band, and
    of a block of columns the neighbours from `width` times `group` on."""

    @cached_property
    def blocks(self) -> list[_Columns]:
        """The columns of a lane."""
        return [_Columns(at, min(4, 2 * (self.strips - at)), 2 * at) for at in range(0, self.strips, 2)]

    def column(self, block: _Columns) -> Expr:
        """The first column of a block that the lane holds."""
        return (self.warp * self.strips + block.strip) * STRIP + self.group * block.width

    def terms(self, band: int, block: _Columns, i: int) -> list[Terms]:
        """What tensor cores read of column i of a block: of the rows of a band, one after another."""
        cores = cores_of(self.worker.plan)
        if band >= self.bands:
            return [cores.nothing()] * (2 // cores.packed)
        start = self.slot(band, block.strip)
        at = range(start + i, start + 2 * block.width // cores.packed, block.width)
        return [cores.held(self.worker.registers[slot]) for slot in at]

    def numbers(self, band: int, block: _Columns) -> list[list[Expr]]:
        """[j][i]: the weight of row j and column i, in float32."""
        strips = range(block.strip, block.strip + block.width // 2)
        found = [weight for strip in strips for weight in self.weights(band, strip)]
        return [found[: block.width], found[block.width :]]

    def load(self) -> None:
        """Fills the registers."""
        columns = padded(self.placement.columns)
        base = let("weights", self.worker.access.base(self.placement.parameter))
        share = unit_share(self.placement.units, self.worker.workers)
        side_by_side = share % 2 == self.placement.units % 2 == 0
        for band in range(self.bands):
            rows: list[tuple[Expr, Expr]] = []
            for j in range(2):
                if j and side_by_side:
                    rows.append((rows[0][0] + columns, rows[0][1]))
                    continue
                source, valid = source_row(self.worker, self.placement, band * BAND + 2 * self.own + j)
                rows.append((fixed("from", base + source * columns, "int64"), valid))
            for block in self.blocks:
                self._load(band, block, rows)
        self.close()

    def _load(self, band: int, block: _Columns, rows: list[tuple[Expr, Expr]]) -> None:
        """Loads a block of columns of two rows: of each where it begins, and whether it is there."""
        column, sources = self.column(block), []
        for first, valid in rows:
            there = (valid * (column < padded(self.placement.columns))) != 0
            at = first + column if self.is_full else T.Select(there, first + column, T.int64(0))
            sources.append(fixed("from", at, "int64"))
        pool, packed = self.worker.pool, self.words < 4
        if block.width == 4 and not packed:
            for j, at in enumerate(sources):
                self.fill(band, block.strip + j, T.address_of(pool[at]))
        elif self.is_near(band, block.strip):
            found = [self._loaded(T.address_of(pool[at]), block.width) for at in sources]
            # Of two numbers a word, neighbours are those of one column.
            self.keep(self.slot(band, block.strip), [number for row in found for number in row])
        else:
            rest = self.rest(band, block.strip)
            for j, at in enumerate(sources):
                for i in range(block.width):
                    target = T.address_of(self.worker.shared_weights[rest + 2 * j + i])
                    cuda.copy1_async(target, T.address_of(pool[at + i]))

    def _loaded(self, source: Expr, count: int) -> list[Expr]:
        """Two or four numbers."""
        if count == 4:
            return loaded4(source)
        loaded = local("loaded", "float32", T.float32(0.0), 2)
        T.evaluate(cuda.LOAD2_RELAXED(source, loaded[0], loaded[1]))
        return [loaded[0], loaded[1]]


def transposed(tile: UnitTile, product: TransposedProduct) -> None:
    """Partial sums over the worker's rows for all vertices of a tile. Ends with a barrier."""
    worker = tile.worker
    # Where sums go more than one way, what follows from the lane would be kept for all of them, and spilled:
    # beside code for tensor cores, or that keeps times, even where this costs time. Registers are short, too,
    # where they do not hold a whole slice.
    placement = tile.placement(product)
    ways = worker.plan.reduced and (worker.traced or uses_cores(worker.plan))
    short = worker.push is not None or ways or placement.rest
    held = Turned.of(worker.here() if short else worker, placement)
    own = _Sums(tile, product, held)
    two = partial(own.few, min(2, tile.staging.tile))
    narrow = partial(either, tile.count == 1, partial(own.few, 1), two)
    if uses_cores(worker.plan) and cores_of(worker.plan).transposed:
        by_count(tile.count, cores_of(worker.plan).transposed, narrow, own.many)
    else:
        narrow()
    worker.synchronize()


@attrs.frozen(eq=False)
class _Sums:
    """The partial sums of a tile: those of `product`, with weights that are held."""

    tile: UnitTile
    product: TransposedProduct
    held: Turned

    @property
    def plane(self) -> Plane:
        """Where the deltas are staged."""
        return self.tile.staging.deltas[self.product.delta]

    def deltas(self, band: int, vertex: Expr) -> list[Expr]:
        """Those of a vertex and the lane's rows of a band; where there are none, of the last ones: their
        weights are zero."""
        held, plane, memory = self.held, self.plane, self.held.worker.staging
        row, is_whole = band * BAND + 2 * held.own, (band + 1) * BAND <= held.rows
        if plane.row == 1 and held.rows % 2 == 0:
            near = row if is_whole else smaller(row, held.rows - 2)
            two = let("delta", memory[pair_at(plane.place(near, vertex))])
            return [lane4(two, i) for i in range(2)]
        rows = [row + i if is_whole else smaller(row + i, held.rows - 1) for i in range(2)]
        return [let("delta", memory[plane.place(near, vertex)]) for near in rows]

    # ---- FMAs -----------------------------------------------------------------------------------

    def few(self, vertices: int) -> None:
        """For so many vertices at a time."""
        whole = [block for block in self.held.blocks if block.width == 4]
        some = [whole[begin : begin + TOGETHER] for begin in range(0, len(whole), TOGETHER)]
        some += [[block] for block in self.held.blocks if block.width < 4]
        with stride_loop("first", 0, self.tile.count, vertices) as first:
            for blocks in some:
                self._few_columns(blocks, first, vertices)

    def _few_columns(self, blocks: list[_Columns], first: Expr, vertices: int) -> None:
        """For some blocks of columns, all of one width, and `vertices` vertices from `first` on."""
        held, first = self.held, fixed("first_here", cuda.NUMBER_HERE(first))
        # So many that what a lane ends with are neighbours.
        count, width = 1 << (len(blocks) - 1).bit_length(), blocks[0].width
        size = vertices * count * width
        sums = local("sums", "float32", T.float32(0.0), size)
        turn = turns(held.worker, vertices)
        order = in_turn(held.worker, vertices)
        for band in range(held.bands):
            deltas = [self.deltas(band, first + v) for v in order]
            for number, block in enumerate(blocks):
                weights = held.numbers(band, block)
                for v in range(vertices):
                    for j in range(2):
                        for i in range(width):
                            at = (v * count + number) * width + i
                            put(sums, at, cuda.fma(weights[j][i], deltas[v][j], sums[at]))
        owned = cuda.warp_reduce_scatter(sums, size, held.worker.lane, OWN_LANES, parted=turn)
        step = min(owned.slots, width)
        for slot in range(0, owned.slots, step):
            index = let("index", owned.first + slot)
            vertex = let("vertex", first + index // (count * width))
            number = let("number", index // width % count)
            there = both(owned.valid[slot], vertex < self.tile.count)
            if count > len(blocks):
                there = both(there, number < len(blocks))
            column = let("column", held.column(blocks[0]) + number * (2 * STRIP) + index % width)
            with when(there):
                self._store(vertex, column, sums, slot, step)

    # ---- tensor cores ---------------------------------------------------------------------------

    def many(self) -> None:
        """For 8 vertices at a time, or twice as many."""
        by_eight = partial(self._many, 1)
        if self.tile.staging.tile < 2 * ACROSS:
            by_eight()
        else:
            either(self.tile.count <= ACROSS, by_eight, partial(self._many, 2))

    def _many(self, across: int) -> None:
        blocks = self.held.blocks
        some = MOST_SUMS // (8 * across)
        with stride_loop("first", 0, self.tile.count, across * ACROSS) as first:
            for begin in range(0, len(blocks), some):
                self._many_columns(blocks[begin : begin + some], first, across)

    def _many_columns(self, blocks: list[_Columns], first: Expr, across: int) -> None:
        """For some blocks of columns, and `across` times 8 vertices from `first` on."""
        held, tile = self.held, self.tile
        cores = cores_of(held.worker.plan)
        start, width = blocks[0].first, sum(block.width for block in blocks)
        sums = local("sums", "float32", T.float32(0.0), across * 2 * width)
        for band in range(0, held.bands, cores.packed):
            bands = range(band, band + cores.packed)
            vertices = [first + number * ACROSS + held.group for number in range(across)]
            deltas = [[word for each in bands for word in self._words(each, v)] for v in vertices]
            for block in blocks:
                for i in range(0, block.width, 2):
                    low, high = (
                        [word for each in bands for word in held.terms(each, block, i + k)] for k in range(2)
                    )
                    weights = [low[0], high[0], low[1], high[1]]
                    for number in range(across):
                        # Sum k of a vertex belongs to the k-th of two neighbouring columns.
                        places = [
                            (number * 2 + k % 2) * width + block.first - start + i + k // 2 for k in range(4)
                        ]
                        cores.multiply([sums[place] for place in places], weights, deltas[number])
        for number in range(across):
            for k in range(2):
                begin = fixed("begin_here", cuda.NUMBER_HERE(first))
                vertex = let("vertex", begin + number * ACROSS + 2 * held.own + k)
                with when(vertex < tile.count):
                    for block in blocks:
                        at = (number * 2 + k) * width + block.first - start
                        self._store(vertex, held.column(block), sums, at, block.width)

    def _words(self, band: int, vertex: Expr) -> list[Terms]:
        """What tensor cores read of the deltas of a band."""
        cores = cores_of(self.held.worker.plan)
        if band >= self.held.bands:
            return [cores.nothing()] * (2 // cores.packed)
        return words(cores, self.deltas(band, vertex))

    def _store(self, vertex: Expr, column: Expr, sums: Expr, at: int, width: int) -> None:
        """Stores so many columns of a vertex of the tile."""
        whole: dict[int, Callable[[Expr], Expr]] = {1: lambda at: at, 2: pair_at, 4: quad_at}
        value = sums[at] if width == 1 else sums[tirx.Ramp(at, 1, width)]
        row = self.tile.first + vertex
        store_columns(self.tile.worker, self.product, row, column, value, whole[width])
