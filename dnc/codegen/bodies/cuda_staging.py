"""The staging area of UNIT segments on CUDA: where operands, sums and deltas of a tile of vertices lie.

In: a segment and how many vertices a tile has. Out: a `Staging`, and the `UnitTile` that products and
cells share. Guaranteed: products of one operand stage it once, and cells start behind a barrier.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, smaller
from dnc.ir.cell import Value
from dnc.ir.plan import Piece, Placement, Product, Segment, TransposedProduct, unit_share


@attrs.frozen
class Plane:
    """Where a staged value of a worker's rows lies, for every vertex of a tile.

    row, vertex: words from one to the next. words: of the whole plane.
    """

    at: int
    row: int
    vertex: int
    words: int

    def place(self, row: Expr, vertex: Expr) -> Expr:
        """The word of a local row and a vertex of the tile."""
        return self.at + row * self.row + vertex * self.vertex


@attrs.frozen
class Staging:
    """The parts of the staging area, for tiles of `tile` vertices and `units` units: sums, deltas.

    From 0 on lie the operands, and later the scratch of transposed products; from `scratch` on that of
    products with weights in registers. operand_words: of one operand. block: vertices whose sums
    are added up together. box: where that begins which others send to be added up. buffers: of either
    scratch, one is filled while another is added up; or steps under way. weights: of a step of a transposed
    product on threads, at most. repeated: the same for what is repeated, whose deltas are values that stay.
    """

    tile: int
    units: int
    sums: dict[Value, Plane]
    deltas: dict[Value, Plane]
    words: int
    scratch: int = 0
    operand_words: int = 0
    block: int = 1
    buffers: int = 1
    box: int = 0
    weights: int = 0
    repeated: Staging | None = None

    @property
    def front(self) -> int:
        """Words before the sums and deltas."""
        return min((plane.at for plane in (*self.sums.values(), *self.deltas.values())), default=self.words)


@attrs.frozen(eq=False)
class UnitTile:
    """The vertices that a UNIT segment works on together: rows first .. first + count of its space.

    Of the worker's units it has all, or a block: `staging.units` of them from `own` on, the last of which may
    be others' or none.
    """

    worker: Worker
    segment: Segment
    staging: Staging
    first: Expr
    count: Expr
    own: Expr = 0

    @property
    def units(self) -> int:
        """Units of the tile, at most."""
        return self.staging.units

    @property
    def share(self) -> int:
        """Units of a worker, at most."""
        return unit_share(self.segment.units, self.worker.workers)

    @property
    def first_unit(self) -> Expr:
        """The number of its first unit among those of the segment."""
        return self.worker.rank * self.share + self.own

    @property
    def units_end(self) -> Expr | None:
        """The number of the first unit behind those that are the worker's; None if the tile has only such."""
        units, share = self.segment.units, self.share
        if share % self.units:
            end = self.worker.rank * share + share
            return end if share * self.worker.workers == units else smaller(end, units)
        return None if share * self.worker.workers == units else units

    def placement(self, product: Product | TransposedProduct) -> Placement:
        """Where the worker's slice of a product's weight lives."""
        return self.worker.placement(product.parameter, self.segment.units)

    def weights_at(self, product: Product | TransposedProduct) -> Expr:
        """Position of a product's whole weight in the pool, from which STREAMED ones are read."""
        return self.worker.access.weights(product.parameter, product.select, self.first)


def by_rows(tile: int, rows: int, spare: int = 4) -> Plane:
    """A plane with the vertices of a row side by side; neighbouring rows are in different banks."""
    row = tile + spare if tile % 4 == 0 else tile
    return Plane(0, row, 1, rows * row)


def by_vertices(tile: int, rows: int) -> Plane:
    """A plane with the rows of a vertex side by side: see `vertex_words`."""
    return Plane(0, 1, vertex_words(rows), tile * vertex_words(rows))


def vertex_words(rows: int) -> int:
    """Words between vertices: 8 of them, and 4 neighbouring rows of each, are in different banks."""
    return -(-rows // 8) * 8 + 4


def operand_columns(product: Product) -> int:
    """Columns of a product's operand."""
    return sum(piece.width for piece in product.pieces)


def rows_of(value: Value, segment: Segment, units: int) -> int:
    """Rows of a value that belong to `units` units, gate by gate."""
    return value.tensor.size // segment.units * units


def lay_out(
    segment: Segment,
    units: int,
    tile: int,
    front: int,
    plane: Callable[[int, int, Product | TransposedProduct], Plane],
) -> Staging:
    """Staging with `front` words before the sums and deltas; `plane(tile, rows, product)` shapes them."""
    at, sums, deltas = front, {}, {}
    for product in segment.products:
        made = plane(tile, rows_of(product.result, segment, units), product)
        sums[product.result] = attrs.evolve(made, at=at)
        at += -(-made.words // 4) * 4
    for turned in segment.transposed:
        if turned.delta not in deltas:
            made = plane(tile, rows_of(turned.delta, segment, units), turned)
            deltas[turned.delta] = attrs.evolve(made, at=at)
            at += made.words
    return Staging(tile, units, sums, deltas, at)


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
