"""Tiles of weight gradients on tensor cores: sums of a warp's part of the tile, for rows that are staged.

In: rows of deltas and operands in shared memory. Out: statements that multiply them and write the tile. Which
of the rows and columns of its part a lane has in which block is free: it has neighbours, four of four blocks,
so that it reads and writes 16 bytes at a time; with 8 words to spare the lanes read from different banks.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_dense_steps import Begun, TileWork, tile_of
from dnc.codegen.bodies.cuda_dense_write import Band, write_bands
from dnc.codegen.bodies.cuda_tensor import ACROSS, DEPTH, HIGH, cores_of, join, words
from dnc.codegen.emit import Expr, fixed, local, loop, put, quad_at, room, several, when
from dnc.ir import cutting
from dnc.ir.machine import WARPS

SPARE = 8


@attrs.frozen
class Octets:
    """Rows or columns of a warp in blocks of 8: lane group g has neighbours in `together` blocks."""

    count: int

    @property
    def together(self) -> int:
        """Blocks of which a lane has neighbours: those that it reads at once."""
        return 4 if self.count % 4 == 0 else 2

    def first(self, octet: int) -> int:
        """The first one of the blocks that are read together with this one."""
        return octet // self.together * self.together * ACROSS


@attrs.frozen(eq=False)
class Part:
    """First row and column of a warp's part of the tile; the group of a lane, and its number there."""

    row: Expr
    column: Expr
    group: Expr
    own: Expr


@attrs.frozen(eq=False)
class Ahead:
    """A lane's numbers of `count` blocks, read ahead of the products: rows 4 apart, `depth` in all.

    first: where it reads, in units of what it reads at once. stride: words from row to row.
    """

    memory: Any
    held: Any
    first: Expr
    stride: int
    octets: Octets
    count: int
    depth: int

    def read(self, row: Expr, octet: int) -> None:
        """From a row and a block on."""
        size = self.octets.together
        for below in range(0, self.depth, 4):
            for number in range(0, self.count, size):
                apart = below * self.stride + self.octets.first(octet + number)
                found = self.memory[several(self.first + row * (self.stride // size) + apart // size, size)]
                T.buffer_store(self.held, found, [several(self._index(number, below) // size, size)])

    def at(self, octet: int, below: int) -> Expr:
        """A number of a block, counted from the first one read."""
        return self.held[self._index(octet, below)]

    def _index(self, octet: int, below: int) -> int:
        return below // 4 * self.count + octet


class CoreSums:
    """The sums of a tile: a warp has a part, in blocks of 16 x 8."""

    def __init__(self, work: TileWork, shape: cutting.GradientTile) -> None:
        worker, self.work = work.worker, work
        self.tile = tile_of(work, shape, SPARE)
        self.cores = cores_of(worker.plan)
        high = 2 if shape.rows >= 2 * HIGH else 1
        self.along = WARPS // high
        rows, columns = shape.rows // high, shape.columns // self.along
        self.down, self.across = Octets(rows // ACROSS), Octets(columns // ACROSS)
        self.sums = local("sums", "float32", T.float32(0.0), self.down.count * self.across.count * 2)

    def _part(self) -> Part:
        """Worked out here: addresses that follow from it are many, and the compiler would keep them all."""
        here = self.work.worker.here()
        row, column = here.warp // self.along, here.warp % self.along
        return Part(
            fixed("warp_row", row * (self.down.count * ACROSS)),
            fixed("warp_column", column * (self.across.count * ACROSS)),
            fixed("group", here.lane // 4),
            fixed("own", here.lane % 4),
        )

    def add(self, stage: Expr, copies: Begun) -> None:
        """All rows of a step; a loop goes through those that are multiplied together.

        What is multiplied next is read before: reads of all warps at once take as long as products.
        """
        tile, depth, part = self.tile, DEPTH * self.cores.packed, self._part()
        count = tile.step // depth
        operands = stage + tile.step * tile.rows.stride
        rows = self._ahead(part, stage + part.row, tile.rows.stride, self.down, self.down.count)
        size = self.across.together
        columns = self._ahead(part, operands + part.column, tile.columns.stride, self.across, size)
        # Numbers that are packed or split leave no registers for rows of the next products.
        far = self.cores.packed == len(self.cores.nothing()) == 1
        if far:
            rows.read(0, 0)
        columns.read(0, 0)
        with loop("k", count, unroll=1) as k:
            start = copies.part(k, count)
            if not far:
                rows.read(k * depth, 0)
            blocks = [self._words(rows, (octet, octet + 1)) for octet in range(0, self.down.count, 2)]
            if far:
                with when(k < count - 1):  # what is behind the last one may just be written
                    rows.read((k + 1) * depth, 0)
            for first in range(0, self.across.count, size):
                own = [self._words(columns, (octet,)) for octet in range(size)]
                if first + size < self.across.count:
                    columns.read(k * depth, first + size)
                else:
                    with when(k < count - 1):
                        columns.read((k + 1) * depth, 0)
                for octet in range(size):
                    for block, own_rows in enumerate(blocks):
                        at = self._index(2 * block, first + octet)
                        self.cores.multiply([self.sums[at + i] for i in range(4)], own_rows, own[octet])
                if first == 0:
                    start()

    def _ahead(self, part: Part, at: Expr, stride: int, octets: Octets, count: int) -> Ahead:
        """Numbers of so many blocks; `at`: the first word of the part."""
        depth, size = DEPTH * self.cores.packed, octets.together
        first = fixed("read_at", (at + part.own * stride) // size + part.group)
        held = local("held", "float32", T.float32(0.0), count * depth // 4)
        return Ahead(self.work.worker.staging, held, first, stride, octets, count, depth)

    def _words(self, numbers: Ahead, octets: tuple[int, ...]) -> list[list[Expr]]:
        """What tensor cores read of one block or two."""
        return join(
            words(self.cores, [numbers.at(octet, first + 4 * half) for half in range(2) for octet in octets])
            for first in range(0, DEPTH * self.cores.packed, DEPTH)
        )

    def _index(self, row: int, column: int) -> int:
        """The first sum of blocks: two of the block of rows, two of the next one behind them."""
        return (row // 2 * self.across.count + column) * 4 + row % 2 * 2

    def write(self) -> None:
        """Blocks that lanes have neighbours in at a time: of every warp so many rows."""
        size = self.down.together
        rows, high = size * ACROSS, WARPS // self.along

        def row(first: int, line: Expr) -> Expr:
            return line // rows * (self.down.count * ACROSS) + line % rows + self.down.first(first)

        bands = [
            Band(rows * high, partial(self._stage, first), partial(row, first))
            for first in range(0, self.down.count, size)
        ]
        write_bands(self.work, self.tile.columns.elements, SPARE, bands)

    def _stage(self, first: int, stride: int) -> None:
        """Leaves the sums of the blocks from the first one on in shared memory."""
        part, down, across = self._part(), self.down.together, self.across.together
        # Of blocks read together a lane has 2 * `across` neighbours: of each two columns, `across` apart.
        row = part.row // self.down.count * self.down.together + part.group * down
        at = fixed("stage_at", row * stride + part.column + part.own * (2 * across))
        for octet in range(down):
            for group in range(0, self.across.count, across):
                for begin in range(0, 2 * across, 4):
                    four = room("four", 4)
                    for i in range(4):
                        half, block = divmod(begin + i, across)
                        put(four, i, self.sums[self._index(first + octet, group + block) + half])
                    to = at + octet * stride + (group * ACROSS + begin)
                    T.buffer_store(self.work.worker.staging, four[quad_at(0)], [quad_at(to)])
