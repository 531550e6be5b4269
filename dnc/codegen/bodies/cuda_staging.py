"""The staging area of UNIT segments on CUDA: where operands, sums and deltas of a tile of vertices lie.

In: a segment and how many vertices a tile has. Out: a `Staging`, and the `UnitTile` that products and
cells share. Guaranteed: products of one operand stage it once, and cells start behind a barrier.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dnc.codegen.bodies.cuda_worker import Worker, share
from dnc.codegen.cells import tensor
from dnc.codegen.emit import Expr
from dnc.ir.cell import Value
from dnc.ir.plan import Piece, Placement, Product, Segment, TransposedProduct


@attrs.frozen
class Staging:
    """First words of the parts of the staging area, for tiles of `tile` vertices.

    From 0 on lie the operands, and later the scratch of transposed products. A product's sums of local
    row r and vertex v are at sums + (part * rows + r) * pitch + v, in `parts` parts that are to be added
    up; deltas at deltas + r * pitch + v.
    """

    tile: int
    sums: dict[Value, int]
    parts: dict[Value, int]
    deltas: dict[Value, int]
    words: int

    @property
    def pitch(self) -> int:
        """Words from row to row: neighbouring rows are in different banks."""
        return pitch(self.tile)


@attrs.frozen(eq=False)
class UnitTile:
    """The vertices that a UNIT segment works on together: rows first .. first + count of its space."""

    worker: Worker
    segment: Segment
    staging: Staging
    first: Expr
    count: Expr

    @property
    def units(self) -> int:
        """Units of a worker, at most."""
        return share(self.segment.units, self.worker.workers)

    def placement(self, product: Product | TransposedProduct) -> Placement:
        """Where the worker's slice of a product's weight lives."""
        return self.worker.placement(product.parameter, self.segment.units)

    def weights_at(self, product: Product | TransposedProduct) -> Expr:
        """Position of a product's whole weight in the pool, from which STREAMED ones are read."""
        return self.worker.access.weights(product.parameter, product.select, self.first)


def pitch(tile: int) -> int:
    """Words between the rows of staged sums and deltas of a tile: neighbouring rows in different banks."""
    return tile + 4 if tile % 4 == 0 else tile


def operand_columns(product: Product) -> int:
    """Columns of a product's operand."""
    return sum(piece.width for piece in product.pieces)


def rows_of(value: Value, segment: Segment, units: int) -> int:
    """Rows of a value that belong to `units` units, gate by gate."""
    return tensor(value).size // segment.units * units


def lay_out(
    segment: Segment, units: int, tile: int, front: int, parts: Callable[[Product], int] = lambda _: 1
) -> Staging:
    """Staging with `front` words before the sums, and `parts(product)` parts of a product's sums."""
    at, sums, numbers, deltas = front, {}, {}, {}
    for product in segment.products:
        numbers[product.result] = parts(product)
        sums[product.result] = at
        at += numbers[product.result] * rows_of(product.result, segment, units) * pitch(tile)
    for turned in segment.transposed:
        if turned.delta not in deltas:
            deltas[turned.delta] = at
            at += rows_of(turned.delta, segment, units) * pitch(tile)
    return Staging(tile, sums, numbers, deltas, at)


def each_product(
    tile: UnitTile, stage: Callable[[tuple[Piece, ...]], None], multiply: Callable[[Product], None]
) -> None:
    """Every product of a segment; products of one operand share its staging. Ends with a barrier."""
    staged: tuple[Piece, ...] | None = None
    for product in tile.segment.products:
        if product.pieces != staged:
            if staged is not None:
                tile.worker.synchronize()
            stage(product.pieces)
            tile.worker.synchronize()
            staged = product.pieces
        multiply(product)
    if tile.segment.products:
        tile.worker.synchronize()
