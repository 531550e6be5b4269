"""How weight gradients are cut into tiles: the shapes that a kernel has code for, and what they cost.

In: a gradient of a plan. Out: its tiles, in chunks of rows or of few rows (`outer`), and which gradients are
made beside others. Encoder, verifier and kernels ask here, so all cut alike.
"""

from __future__ import annotations

from collections import Counter

import attrs

from dnc.ir.machine import machine
from dnc.ir.plan import (
    BF16,
    TF32,
    TF32X3,
    Address,
    BufferAddress,
    DenseGradient,
    GatherAddress,
    Plan,
)


@attrs.frozen
class GradientTile:
    """A shape of the tiles that a GPU cuts the gradient of a matrix into, with measured costs in cycles.

    row: of one row of the space. fixed: of a tile, to start and to write it. In larger tiles a thread
    reads less for every multiplication; smaller ones keep more workers busy.
    """

    rows: int
    columns: int
    row: int
    fixed: int

    def count(self, rows: int, columns: int) -> int:
        """Tiles of a matrix."""
        return -(-rows // self.rows) * -(-columns // self.columns)


GRADIENT_TILES = (
    GradientTile(128, 256, 315, 16000),
    GradientTile(128, 128, 170, 12000),
    GradientTile(64, 64, 90, 8000),
    GradientTile(16, 256, 88, 10000),
)
OUTER_TILE, OUTER_STRIP = GradientTile(64, 128, 120, 7800), GradientTile(8, 64, 25, 7800)
GRADIENT_BLOCK = GradientTile(64, 1, 8, 3000)  # of the gradient of a vector; on a CPU rows of any gradient
FEW_ROWS, FEW_WORKERS = 32, 128
WORTH = 1.07  # how many times the cost must be without a second shape, whose code is hundreds of lines
# What a row takes on tensor cores, of its time otherwise, as seen on an H200. Tiles of fewer than LARGE rows,
# and those of `outer`, wait for their copies there.
CORES, LARGE, WAITING = {TF32: 0.28, BF16: 0.233, TF32X3: 0.58}, 64, 0.46


def on_cores(tile: GradientTile, precision: str) -> float:
    """What a row takes at a precision, of its time in fp32."""
    if precision not in CORES or tile in (GRADIENT_BLOCK, OUTER_STRIP):
        return 1.0
    return WAITING if tile == OUTER_TILE or tile.rows < LARGE else CORES[precision]


def gradient_tiles(gradient: DenseGradient) -> tuple[GradientTile, ...]:
    """The shapes that a kernel has code for: the cheapest one for many rows, and that for few; or this alone
    where another one would hardly be cheaper."""
    columns = gradient.columns
    if not columns:
        return (GRADIENT_BLOCK,)

    def busy(tile: GradientTile) -> int:
        return tile.count(gradient.rows, columns) * tile.row

    def latency(tile: GradientTile) -> int:
        rounds = -(-tile.count(gradient.rows, columns) // FEW_WORKERS)
        return rounds * (FEW_ROWS * tile.row + tile.fixed)

    many, few = min(GRADIENT_TILES, key=busy), min(GRADIENT_TILES, key=latency)
    return (many, few) if busy(few) > WORTH * busy(many) else (few,)


def tile_count(gradient: DenseGradient, tile: GradientTile) -> int:
    """Tiles of a gradient, the pieces of work of one chunk of rows."""
    return tile.count(gradient.rows, max(1, gradient.columns))


def outer_tile(gradient: DenseGradient) -> GradientTile:
    """The shape of its tiles where rows are few: strips of a matrix that has no more rows."""
    return OUTER_STRIP if gradient.pieces and gradient.rows <= OUTER_STRIP.rows else OUTER_TILE


def outer_tiles(gradient: DenseGradient) -> int:
    """Tiles of a gradient whose rows are few; a vector lies along the columns."""
    matrix = (gradient.rows, gradient.columns) if gradient.pieces else (1, gradient.rows)
    return outer_tile(gradient).count(*matrix)


def outer_beside(plan: Plan) -> dict[str, DenseGradient]:
    """The gradients of trained vectors that others can make beside them, by the others' names.

    They add up the same deltas: most often a bias beside its matrix. They have no instructions of their own.
    """
    times = Counter(gradient.parameter for gradient in plan.dense_gradients)
    trained = {parameter.name for parameter in plan.program.parameters if parameter.trained}
    alone = [g for g in plan.dense_gradients if times[g.parameter] == 1 and g.parameter in trained]
    matrices = {_deltas(gradient): gradient.name for gradient in reversed(alone) if gradient.pieces}
    vectors = {_deltas(gradient): gradient for gradient in reversed(alone) if not gradient.pieces}
    return {matrices[deltas]: vector for deltas, vector in vectors.items() if deltas in matrices}


def made_along(plan: Plan) -> dict[str, DenseGradient]:
    """Gradients of vectors that are made along with others, by the others' names: in plans whose rows can be
    copied, and there always."""
    return outer_beside(plan) if has_outer(plan) else {}


def along_with_others(plan: Plan) -> frozenset[str]:
    """The names of these gradients, for which there are no instructions."""
    return frozenset(gradient.name for gradient in made_along(plan).values())


def _deltas(gradient: DenseGradient) -> tuple[str, BufferAddress, int, str]:
    return gradient.space, gradient.delta, gradient.rows, gradient.field


def has_outer(plan: Plan) -> bool:
    """Whether a plan has `outer` instructions: many workers share its gradients, whose rows can be copied."""
    return (
        bool(plan.dense_gradients)
        and machine(plan.target).splits_gradients
        and all(is_copied(plan, gradient) for gradient in plan.dense_gradients)
    )


def is_copied(plan: Plan, gradient: DenseGradient) -> bool:
    """Whether what a gradient is made of lies in whole addresses, and itself in rows of the parameter."""
    if not gradient.pieces and len(plan.program.parameter(gradient.parameter).type.shape) > 1:
        return False
    addresses = [gradient.delta, *(piece.address for piece in gradient.pieces)]
    whole = all(piece.width % 4 == 0 for piece in gradient.pieces[:-1])
    return whole and all(_is_whole(plan, address) for address in addresses)


def _is_whole(plan: Plan, address: Address) -> bool:
    if isinstance(address, BufferAddress):
        buffer = plan.buffer(address.buffer)
        return not buffer.partial and (buffer.width | address.offset) % 4 == 0
    return isinstance(address, GatherAddress) and address.offset % 4 == 0
