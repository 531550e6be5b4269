"""Transposed products on CUDA's tensor cores with weights in registers: partial sums over the worker's rows.

In: a tile whose deltas are staged. Out: `Turned`, the slice as these products read it, and statements that
store the partial sums. A lane has neighbouring rows of every band, for eight columns of two strips: so
tensor cores find the columns where they look for rows.
"""

from __future__ import annotations

from functools import cached_property, partial

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_resident import (
    BAND,
    STRIP,
    Held,
    loaded,
)
from dnc.codegen.bodies.cuda_staging import Plane, UnitTile
from dnc.codegen.bodies.cuda_stores import store_columns
from dnc.codegen.bodies.cuda_tensor import ACROSS, Terms, cores_of, pair_at, words
from dnc.codegen.bodies.cuda_worker import source_row
from dnc.codegen.emit import (
    Expr,
    either,
    fixed,
    lane4,
    let,
    local,
    quad_at,
    smaller,
    store_four,
    stride_loop,
    when,
)
from dnc.ir.plan import TransposedProduct, padded, unit_share

MOST_SUMS = 32  # of a lane


@attrs.frozen
class _Columns:
    """Neighbouring columns of a lane: four of two strips, or two of the last one where strips are odd.

    strip: the first.
    """

    strip: int
    width: int

    @property
    def strips(self) -> range:
        """Those that they are of."""
        return range(self.strip, self.strip + self.width // 2)

    @property
    def first(self) -> int:
        """Where their sums are among all of the lane."""
        return 2 * self.strip


@attrs.frozen(eq=False)
class Turned(Held):
    """The slice as transposed products read it: a lane holds rows 2 `own` and 2 `own` + 1 of every band, and
    of a block of columns the neighbours from `width` times `group` on."""

    @cached_property
    def blocks(self) -> list[_Columns]:
        """The columns of a lane."""
        return [_Columns(at, min(4, 2 * (self.strips - at))) for at in range(0, self.strips, 2)]

    def column(self, block: _Columns) -> Expr:
        """The first column of a block that the lane holds."""
        return (self.warp * self.strips + block.strip) * STRIP + self.group * block.width

    def weights(self, band: int, block: _Columns) -> list[Expr]:
        """The words of a block of columns in a band, wherever they are; none behind the last band."""
        if band >= self.bands:
            return []
        parts = [(self.near if self.is_near(band, at) else self.rest)(band, at) for at in block.strips]
        found = [own for part in parts for own in part]
        return found if self.is_near(band, block.strip) else self.kept(found)

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
        self.wait()

    def _load(self, band: int, block: _Columns, rows: list[tuple[Expr, Expr]]) -> None:
        """Loads a block of columns of two rows: of each where it begins, and whether it is there."""
        column, sources = self.column(block), []
        for first, valid in rows:
            there = (valid * (column < padded(self.placement.columns))) != 0
            at = first + column if self.is_full else T.Select(there, first + column, T.int64(0))
            sources.append(fixed("from", at, "int64"))
        addresses = [T.address_of(self.worker.pool[at]) for at in sources]
        if block.width == 4 and (self.words == 4 or not self.is_near(band, block.strip)):
            for strip, address in zip(block.strips, addresses, strict=True):
                self.fill(band, strip, address)
            return
        # Of two numbers a word, neighbours are those of one column.
        numbers = [number for address in addresses for number in loaded(address, block.width)]
        if self.is_near(band, block.strip):
            self.keep(band, block.strip, numbers)
        else:
            store_four(self.worker.shared_weights, self.rest_at(band, block.strip), numbers)


def transposed(tile: UnitTile, product: TransposedProduct) -> None:
    """Partial sums over the worker's rows for all vertices of a tile. Ends with a barrier."""
    sums = _Sums(tile, product, Turned.of(tile.worker, tile.placement(product)))
    by_eight = partial(sums.make, 1)
    if tile.staging.tile < 2 * ACROSS or sums.held.crowds:
        by_eight()
    else:
        either(tile.count <= ACROSS, by_eight, partial(sums.make, 2))
    tile.worker.synchronize()


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

    def make(self, across: int) -> None:
        """For `across` times 8 vertices at a time."""
        blocks = self.held.blocks
        some = MOST_SUMS // (8 * across)
        with stride_loop("first", 0, self.tile.count, across * ACROSS) as first:
            for begin in range(0, len(blocks), some):
                self._columns(blocks[begin : begin + some], first, across)

    def _columns(self, blocks: list[_Columns], first: Expr, across: int) -> None:
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
                kept = [held.weights(each, block) for each in bands]
                for i in range(0, block.width, 2):
                    low, high = (
                        [word for own in kept for word in self._terms(own, block, i + k)] for k in range(2)
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
                        self._store(vertex, held.column_here(held.column(block)), sums, at, block.width)

    def _words(self, band: int, vertex: Expr) -> list[Terms]:
        """What tensor cores read of the deltas of a band."""
        cores = cores_of(self.held.worker.plan)
        if band >= self.held.bands:
            return [cores.nothing()] * (2 // cores.packed)
        return words(cores, self.deltas(band, vertex))

    def _terms(self, kept: list[Expr], block: _Columns, i: int) -> list[Terms]:
        """What tensor cores read of column i of a block: of the rows of a band, one after another."""
        cores = cores_of(self.held.worker.plan)
        own = range(i, 2 * block.width // cores.packed, block.width)
        return [cores.held(kept[at]) if kept else cores.nothing() for at in own]

    def _store(self, vertex: Expr, column: Expr, sums: Expr, at: int, width: int) -> None:
        """Stores so many columns of a vertex of the tile."""
        place = {2: pair_at, 4: quad_at}[width]
        row = self.tile.first + vertex
        store_columns(self.tile.worker, self.product, row, column, sums[place(at)], place)
