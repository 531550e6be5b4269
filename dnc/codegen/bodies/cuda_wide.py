"""UNIT segments on CUDA whose weights are not in registers: many vertices at a time, registers to spare.

In: a segment whose weights are in shared memory or streamed, and the fields of its instruction.
Out: the instruction's body. Products are tiled like products of two matrices: operands and weights come into
shared memory in steps, the sums stay in registers (`cuda_wide_products.py`, `cuda_wide_transposed.py`).
The cell runs with a thread per vertex and four units.
"""

from __future__ import annotations

import attrs

from dnc.codegen.bodies import cuda_wide_products, cuda_wide_transposed
from dnc.codegen.bodies.cuda_cells import quad_cells
from dnc.codegen.bodies.cuda_operands import all_aligned
from dnc.codegen.bodies.cuda_staging import (
    Plane,
    Staging,
    UnitTile,
    by_rows,
    lay_out,
    operand_columns,
    rows_of,
)
from dnc.codegen.bodies.cuda_tensor import DEPTH, uses_cores
from dnc.codegen.bodies.cuda_wide_products import block_rows, most_vertices
from dnc.codegen.bodies.cuda_wide_steps import step_words
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, let, smaller, stride_loop
from dnc.codegen.quads import fits_quads
from dnc.ir.plan import (
    REGISTER,
    STREAMED,
    Plan,
    Product,
    Segment,
    TransposedProduct,
    padded,
    product_parameters,
    unit_share,
)

# Vertices of a tile and steps under way: the first that fit into the staging area.
SIZES = tuple(
    (tile, steps) for least in (3, 2) for tile in (128, 64, 32) for steps in range(4, least - 1, -1)
)


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
    if any(worker.placement(name, segment.units).residency == REGISTER for name in used):
        return None
    if not all(all_aligned(worker, product.pieces) for product in segment.products):
        return None
    if any(turned.columns % 4 for turned in segment.transposed):
        return None
    layouts = (_lay_out(worker, segment, units, *size) for size in SIZES)
    return next((found for found in layouts if found and found.words <= worker.staging_words), None)


def _lay_out(worker: Worker, segment: Segment, units: int, tile: int, steps: int) -> Staging | None:
    """Staging for tiles of so many vertices; None if a product has too many rows for them."""
    tensor = on_tensor_cores(worker.plan, segment)

    def streamed(product: Product | TransposedProduct) -> bool:
        return worker.placement(product.parameter, segment.units).residency == STREAMED

    def plane(tile: int, rows: int, product: Product | TransposedProduct) -> Plane:
        spare = (2 if tensor else 1) if isinstance(product, Product) else (8 if tensor else 4)
        return by_rows(tile, rows, spare)

    front = 0
    for product in segment.products:
        rows = rows_of(product.result, segment, units)
        if most_vertices(rows, tensor) < tile:
            return None
        words = step_words(tile, block_rows(rows) if streamed(product) else 0)
        front = max(front, steps * words)
    for turned in segment.transposed:
        if streamed(turned):
            front = max(front, steps * cuda_wide_transposed.step_words(tile, turned.columns))
    return attrs.evolve(lay_out(segment, units, tile, front, plane), buffers=steps)


def wide_segment(worker: Worker, segment: Segment, staging: Staging, row: Expr, rows: Expr) -> None:
    """The body of the segment's instruction."""
    worker.stage(staging.words)
    tensor = on_tensor_cores(worker.plan, segment)
    with stride_loop("tile", 0, rows, staging.tile) as begin:
        first = let("first", row + begin)
        count = let("count", smaller(rows - begin, staging.tile))
        tile = UnitTile(worker, segment, staging, first, count)
        for product in segment.products:
            cuda_wide_products.forward(tile, product, tensor)
        if segment.products:
            worker.synchronize()
        quad_cells(tile)
        for turned in segment.transposed:
            cuda_wide_transposed.transposed(tile, turned, tensor)
        if segment.transposed:
            worker.synchronize()
