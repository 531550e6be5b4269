"""UNIT segments on CUDA whose weights are not in registers: many vertices at a time, registers to spare.

In: a segment whose weights are in shared memory or streamed, and the fields of its instruction.
Out: the instruction's body. Products are tiled like products of two matrices: operands and weights come into
shared memory in steps, the sums stay in registers (`cuda_wide_products.py`, `cuda_wide_transposed.py`).
The cell runs with a thread per vertex and four units (`cuda_wide_cells.py`). Where a worker has many units, a
block of these after another is multiplied and runs its cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies import cuda_wide_products, cuda_wide_transposed
from dnc.codegen.bodies.cuda_cells import EarlyLoads, unit_cells
from dnc.codegen.bodies.cuda_operands import all_aligned
from dnc.codegen.bodies.cuda_runs import shares_runs
from dnc.codegen.bodies.cuda_staging import (
    Plane,
    Staging,
    UnitTile,
    by_rows,
    by_vertices,
    lay_out,
    operand_columns,
    rows_of,
)
from dnc.codegen.bodies.cuda_tensor import DEPTH, uses_cores
from dnc.codegen.bodies.cuda_wide_cells import wide_cells
from dnc.codegen.bodies.cuda_wide_products import (
    ALONG,
    MOST_ROWS,
    MOST_TENSOR_ROWS,
    block_rows,
    most_vertices,
    thread_shape,
)
from dnc.codegen.bodies.cuda_wide_steps import TURNED_WORDS, Layout, step_count, step_words
from dnc.codegen.bodies.cuda_wide_transposed import OnThreads
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, either, fixed, let, smaller, stride_loop
from dnc.codegen.quads import QUAD, fits_quads
from dnc.ir.machine import THREADS
from dnc.ir.plan import (
    REGISTER,
    SHARED,
    SPARSE,
    STREAMED,
    Plan,
    Product,
    Segment,
    TransposedProduct,
    padded,
    unit_share,
)
from dnc.ir.program import LEVEL
from dnc.ir.uses import product_parameters, shared_out

# Vertices of a tile and steps under way on tensor cores: the first that fit into the staging area.
TENSOR_SIZES = tuple(
    (tile, steps) for least in (3, 2) for tile in (128, 64, 32) for steps in range(4, least - 1, -1)
)
# Steps under way on threads, and whether every layout has its scratch; and steps of transposed products with
# half as many weights, where whole ones leave no room.
How = tuple[int, bool, int] | tuple[int, bool]
ORDER: tuple[How, ...] = ((4, True), (3, True), (4, False), (3, False), (3, False, TURNED_WORDS // 2))
LEAST = 24  # vertices of a tile there
LEAST_STEPS, MORE_STEPS, MOST_AHEAD = (
    3,
    (12, 8, 6),
    32,
)  # steps under way where only operands come, vertices of a tile then
WORK = 4096  # multiplications of a vertex: what costs of tiles are counted in
COPIES = 8.0  # of a tile, in the time that a vertex takes


def on_tensor_cores(plan: Plan, segment: Segment) -> bool:
    """Whether a segment's products run on tensor cores: all sums are over whole blocks."""
    assert plan.tiling is not None
    units = unit_share(segment.units, plan.tiling.workers)
    depths = [padded(operand_columns(product)) for product in segment.products]
    depths += [rows_of(turned.delta, segment, units) for turned in segment.transposed]
    return uses_cores(plan) and all(depth % DEPTH == 0 for depth in depths)


def wide_staging(worker: Worker, segment: Segment) -> Staging | None:
    """How a segment is staged; None where it cannot run this way."""
    units = unit_share(segment.units, worker.workers)
    if not fits_quads(segment, units):
        return None
    used = product_parameters(segment)
    if any(worker.placement(name, segment.units).residency in (REGISTER, SPARSE) for name in used):
        return None
    if not all(all_aligned(worker, product.pieces) for product in segment.products):
        return None
    if any(turned.columns % 4 for turned in segment.transposed):
        return None
    tensor = on_tensor_cores(worker.plan, segment)
    if not shares_runs(worker, segment):
        units = tile_units(worker.plan, segment, MOST_TENSOR_ROWS if tensor else MOST_ROWS)
    if tensor:
        found = (_lay_out(worker, segment, units, True, *size) for size in TENSOR_SIZES)
        return next((one for one in found if one and one.words <= worker.staging_words), None)
    return _best_staging(worker, segment, units)


def tile_units(plan: Plan, segment: Segment, most: int) -> int:
    """Units of a tile: all of a worker; or as many as have `most` rows of every product, where these are all
    that the tile is for. Staged sums of more would leave room for few vertices."""
    assert plan.tiling is not None
    units = unit_share(segment.units, plan.tiling.workers)
    kept = shared_out(plan, segment, {product.parameter for product in segment.products})
    if segment.transposed or any(placement.residency != STREAMED for placement in kept):
        return units
    gates = max((rows_of(product.result, segment, 1) for product in segment.products), default=1)
    largest = most // gates // QUAD * QUAD
    if units <= largest or largest == 0:
        return units
    blocks = -(-units // largest)
    return -(-units // (blocks * QUAD)) * QUAD


def _best_staging(worker: Worker, segment: Segment, units: int) -> Staging | None:
    """The staging for threads in which a vertex of a whole tile takes least time."""
    shapes = [thread_shape(rows_of(product.result, segment, units)) for product in segment.products]
    sizes = {along * shape.across * size for shape in shapes for size in shape.sizes for along in ALONG}
    for turned in segment.transposed:
        sizes |= {one.wide for one in cuda_wide_transposed.all_layouts(turned.columns)}
    best, least, order = None, float("inf"), ORDER
    tiles = sorted((size for size in sizes if size >= LEAST), reverse=True)
    if _reads_operands_alone(worker, segment):
        # A step takes less time than its copies: more are under way, for which small tiles have room.
        all_steps = 1 + max(step_count(operand_columns(product)) for product in segment.products)
        all_steps = max(all_steps, LEAST_STEPS)
        order = (*((steps, True) for steps in (all_steps, *MORE_STEPS) if steps <= all_steps), *ORDER)
        tiles = [tile for tile in tiles if tile <= MOST_AHEAD]
    for tile in tiles:
        made = (_lay_out(worker, segment, units, False, tile, *how) for how in order)
        found = next((one for one in made if one and one.words <= worker.staging_words), None)
        cost = _cost(segment, found) if found is not None else None
        if cost is not None and cost < least:
            best, least = found, cost
    return best


def _reads_operands_alone(worker: Worker, segment: Segment) -> bool:
    """Whether products of a level find their weights in shared memory, and wait for operands only."""
    placed = [worker.placement(product.parameter, segment.units) for product in segment.products]
    level = worker.plan.program.stage(segment.stage).placement == LEVEL
    return level and bool(placed) and all(place.residency == SHARED for place in placed)


def _cost(segment: Segment, staging: Staging) -> float | None:
    """About the time that a vertex of a whole tile takes; None where a product has no layout for it."""
    total = 0.0
    for layouts, work in _layouts(segment, staging):
        if not layouts or layouts[-1].wide < staging.tile:
            return None
        total += work * (layouts[-1].cost + COPIES)
    return total / staging.tile


def _layouts(segment: Segment, staging: Staging) -> Iterator[tuple[Sequence[Layout], int]]:
    """Of every product the layouts up to a tile, and its multiplications for a vertex."""
    for product in segment.products:
        rows = rows_of(product.result, segment, staging.units)
        found = cuda_wide_products.layouts(rows, staging.tile, staging.front)
        yield found, rows * operand_columns(product)
    for turned in segment.transposed:
        rows = rows_of(turned.delta, segment, staging.units)
        yield cuda_wide_transposed.layouts(staging.tile, turned.columns), rows * turned.columns


def _lay_out(
    worker: Worker,
    segment: Segment,
    units: int,
    tensor: bool,
    tile: int,
    steps: int,
    scratch: bool = False,
    weights: int = TURNED_WORDS,
) -> Staging | None:
    """Staging for tiles of so many vertices; None if a product has too many rows for them.

    scratch: with as much in front as the parts of any layout take. weights: of a step of transposed products;
    None if these are too few for one.
    """

    def streamed(product: Product | TransposedProduct) -> bool:
        return worker.placement(product.parameter, segment.units).residency == STREAMED

    def plane(tile: int, rows: int, product: Product | TransposedProduct) -> Plane:
        if isinstance(product, Product):
            return by_rows(tile, rows, 2 if tensor else 1)
        if tensor:
            return by_rows(tile, rows, 8)
        turned = (other for other in segment.transposed if other.delta == product.delta)
        widest = (cuda_wide_transposed.layouts(tile, other.columns)[-1].wide for other in turned)
        return by_vertices(max(tile, *widest), rows)

    front = 0
    for product in segment.products:
        rows = rows_of(product.result, segment, units)
        if most_vertices(rows, tensor) < tile:
            return None
        words = step_words(tile, block_rows(rows, tensor) if streamed(product) else 0)
        front = max(front, steps * words)
        if scratch:
            found = cuda_wide_products.layouts(rows, tile)
            front = max(front, 0, *(cuda_wide_products.scratch_words(rows, one) for one in found))
    for turned in segment.transposed:
        if weights < TURNED_WORDS and not cuda_wide_transposed.takes_half(tile, turned.columns):
            return None
        if streamed(turned):
            words = cuda_wide_transposed.step_words(tile, turned.columns, tensor, weights)
            front = max(front, steps * words)
    return attrs.evolve(lay_out(segment, units, tile, front, plane), buffers=steps, weights=weights)


def wide_segment(
    worker: Worker,
    segment: Segment,
    staging: Staging,
    row: Expr,
    rows: Expr,
    prepared: Callable[[UnitTile], UnitTile],
) -> None:
    """The body of the segment's instruction. prepared: makes what the cells of a tile read behind the staging
    area of its products; the tile that reads it."""
    worker.stage(staging.words)
    tensor, tiling = on_tensor_cores(worker.plan, segment), worker.plan.tiling
    assert tiling is not None
    size: Expr = staging.tile
    # What is left of small ones is little, and where tiles are small, weights have taken registers, too.
    if not tensor and staging.tile > LEAST:
        size = _tile_size(worker.plan, segment, staging, rows)
    with stride_loop("tile", 0, rows, size) as begin:
        first = let("first", row + begin)
        count = let("count", smaller(rows - begin, size))
        tile = UnitTile(worker, segment, staging, first, count)
        started = bool(segment.transposed) and not (tensor or segment.products)
        if started:  # nothing is staged where the weights come: they come during the cells
            OnThreads(_here(tile), segment.transposed[0]).start()
        tile = prepared(tile)
        several = tile.units < tile.share
        with stride_loop("block", 0, tile.share, tile.units) if several else nullcontext(0) as own:
            block, early = attrs.evolve(tile, own=own), None
            # Of a cluster operands are there before tensor cores have anything to hide.
            waits = not tensor or tiling.cluster == 1
            if waits and _reads_operands_alone(worker, segment) and tile.units <= THREADS:
                early = EarlyLoads(block, THREADS // tile.units)
                early.start()
            for product in segment.products:
                cuda_wide_products.forward(block, product, tensor)
            if segment.products:
                worker.synchronize()
            if early is not None and early.held:
                either(early.few, partial(unit_cells, block, early), partial(wide_cells, block))
            else:
                wide_cells(block)
        if segment.transposed and not tensor:
            cuda_wide_transposed.clear_behind(tile)
        for number, turned in enumerate(segment.transposed if not tensor else ()):
            OnThreads(_here(tile), turned).run(started and number == 0)
        if tensor:
            for turned in segment.transposed:
                cuda_wide_transposed.transposed(tile, turned)
        if segment.transposed:
            worker.synchronize()


def _tile_size(plan: Plan, segment: Segment, staging: Staging, rows: Expr) -> Expr:
    """Vertices of a tile, for so many: all tiles of about the same size, or, outside the recursion, where
    there are many, all but the last one whole, as layouts do not fit every number."""
    most = staging.tile
    tiles = fixed("tiles", (rows + most - 1) // most)
    even = fixed("even", (rows + tiles - 1) // tiles)
    if plan.program.stage(segment.stage).placement == LEVEL:
        return even
    # Of every product vertices, and what a tile of up to so many costs; ascending.
    costs = [
        [(one.wide, max(1, round(one.cost * work / WORK))) for one in layouts]
        for layouts, work in _layouts(segment, staging)
    ]

    def cost(count: Expr) -> Expr:
        total: Expr = 0
        for steps in costs:
            found: Expr = steps[-1][1]
            for wide, here in reversed(steps[:-1]):
                found = T.Select(count <= wide, here, found)
            total = total + found
        return total

    whole = (tiles - 1) * sum(steps[-1][1] for steps in costs) + cost(rows - (tiles - 1) * most)
    return fixed("tile_size", T.Select(whole < tiles * cost(even), most, even))


def _here(tile: UnitTile) -> UnitTile:
    """The same tile, of which nothing is worked out before this place: the cells need all registers."""
    count = fixed("count_here", cuda.NUMBER_HERE(tile.count))
    return attrs.evolve(tile, worker=tile.worker.here(), count=count)
