"""Products with weights in registers on CUDA, and transposed ones from the same registers.

In: a tile whose operands or deltas are staged. Out: the sums in staging, or the partial sums of a
transposed product in the pool. A few vertices, and all of them where sums are in float32 throughout,
run here; the others on tensor cores (`cuda_resident_tensor.py`, and transposed `cuda_turned.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_operands import operand_stride
from dnc.codegen.bodies.cuda_resident import BAND, TOGETHER, Block, Resident
from dnc.codegen.bodies.cuda_resident_tensor import forward_tensor
from dnc.codegen.bodies.cuda_staging import UnitTile, vertex_words
from dnc.codegen.bodies.cuda_stores import store_columns
from dnc.codegen.bodies.cuda_tensor import cores_of, pair_at, uses_cores
from dnc.codegen.bodies.cuda_worker import Worker
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
from dnc.ir.machine import THREADS, WARPS
from dnc.ir.plan import Product, TransposedProduct
from dnc.ir.program import LEVEL

# Bits of a lane's number by which lanes differ that hold the same rows, and the same columns.
OWN_LANES, GROUP_LANES = (2, 1), (16, 8, 4)
STRIPS_TOGETHER = 4  # whose columns a warp sums at a time
FEW_STRIPS = 2  # where registers are short


def forward(tile: UnitTile, product: Product) -> None:
    """Sums of a product for all vertices of a tile. Barriers inside, none at the end."""
    worker, staging = tile.worker, tile.staging
    held = Resident.of(worker, tile.placement(product))
    block, words = staging.block, vertex_words(held.rows)
    stride = operand_stride(held.placement.columns)
    if product is not tile.segment.products[0]:
        worker.synchronize()  # the sums of the one before have been added up
    with stride_loop("block", 0, tile.count, block) as begin:
        count = let("in_block", smaller(tile.count - begin, block))
        scratch = let("scratch", staging.scratch + begin // block % staging.buffers * (WARPS * block * words))
        own = Block(held, begin, count, stride, let("leave", scratch + held.warp * (block * words)))
        one, two = partial(_by, own, 1), partial(_by, own, min(2, staging.tile))
        narrow = partial(either, tile.count == 1, one, two)
        least = cores_of(worker.plan).product if uses_cores(worker.plan) else 0
        few = one if least == 2 else narrow
        many = partial(forward_tensor, own, block // 8)
        if least > 1:
            either(tile.count < least, few, many)
        else:
            (many if least else few)()
        worker.synchronize()
        _add_warps(tile, product, own, scratch, block * words)
        if staging.buffers == 1:
            with when(begin + block < tile.count):
                worker.synchronize()


def _by(block: Block, vertices: int) -> None:
    """The sums of a warp, of `vertices` vertices at a time."""
    held = block.slice
    with stride_loop("vertex", 0, block.count, vertices) as vertex:
        together = TOGETHER // vertices
        for begin in range(0, held.bands, together):
            _sum(block, range(begin, min(begin + together, held.bands)), vertex, vertices)


def _sum(block: Block, bands: range, vertex: Expr, vertices: int) -> None:
    """The sums of a warp, of some bands and vertices."""
    held, size = block.slice, len(bands) * vertices
    worker = held.worker.here() if held.placement.rest else held.worker
    sums = local("sums", "float32", T.float32(0.0), size)
    turns = _turns(worker, vertices)
    turned = [vertex + v for v in _turned(worker, vertices, OWN_LANES)]
    for strip in range(held.strips):
        weights = [held.weights(band, strip) for band in bands]
        for v in range(vertices):
            x = block.operand(turned[v], strip)
            for number, own in enumerate(weights):
                at = v * len(bands) + number if turns else number * vertices + v
                for i in range(4):
                    put(sums, at, cuda.fma(own[i], lane4(x, i), sums[at]))
    owned = cuda.warp_reduce_scatter(sums, size, worker.lane, OWN_LANES, parted=turns)
    for slot in range(owned.slots):
        with when(owned.valid[slot]):
            index = let("index", owned.first + slot)
            number, v = index // vertices, index % vertices
            if turns:
                number, v = index % len(bands), index // len(bands)
            block.leave((number + bands.start) * BAND + held.group, vertex + v, sums[slot])


def _turns(worker: Worker, vertices: int) -> bool:
    """Whether some lanes sum the second of two vertices first. Beside tensor cores, or in a recursion of more
    than one cell and its gradient, it would take registers that are not there."""
    plan = worker.plan
    levels = [segment for segment in plan.segments if plan.program.stage(segment.stage).placement == LEVEL]
    return vertices == 2 and len(levels) <= 2 and not uses_cores(plan)


def _turned(worker: Worker, vertices: int, masks: tuple[int, ...]) -> list[Expr]:
    """The vertices in the order in which a lane sums them: where they turn, those with the first bit begin
    with the second, which they keep when sums are exchanged."""
    if not _turns(worker, vertices):
        return list(range(vertices))
    upper = fixed("upper", worker.lane // masks[0] % 2)
    return [upper, 1 - upper]


def _add_warps(tile: UnitTile, product: Product, block: Block, scratch: Expr, step: int) -> None:
    """Adds up what the warps left of a block, in their order."""
    worker, rows, plane = tile.worker, block.slice.rows, tile.staging.sums[product.result]
    with stride_loop("item", worker.thread, block.count * rows, THREADS) as item:
        vertex = fixed("vertex", item // rows)
        row = fixed("row", item - vertex * rows)
        at = let("at", scratch + vertex * vertex_words(rows) + row)
        total = worker.staging[at]
        for warp in range(1, WARPS):
            total = total + worker.staging[at + warp * step]
        put(worker.staging, plane.place(row, block.begin + vertex), total)


# ---- transposed products -----------------------------------------------------------------------------


def transposed(tile: UnitTile, product: TransposedProduct) -> None:
    """Partial sums over the worker's rows for all vertices of a tile. Ends with a barrier."""
    held = Resident.of(tile.worker, tile.placement(product))
    together = FEW_STRIPS if held.crowds else STRIPS_TOGETHER

    def by(vertices: int) -> Callable[[], None]:
        def body() -> None:
            with stride_loop("first", 0, tile.count, vertices) as first:
                for begin in range(0, held.strips, together):
                    width = min(together, held.strips - begin)
                    _columns(tile, product, held, range(begin, begin + width), first, vertices)

        return body

    either(tile.count == 1, by(1), by(min(2, tile.staging.tile)))
    tile.worker.synchronize()


def _columns(
    tile: UnitTile, product: TransposedProduct, held: Resident, some: range, first: Expr, vertices: int
) -> None:
    """Sums of the columns of some strips, for `vertices` vertices from `first` on."""
    # Where sums go more than one way, what follows from the lane would be kept for all of them, and spilled:
    # beside code for tensor cores, or that keeps times, even where this costs time. Registers are short, too,
    # where they do not hold a whole slice.
    ways = tile.worker.plan.reduced and (tile.worker.traced or uses_cores(tile.worker.plan))
    short = tile.worker.push is not None or ways or held.placement.rest
    worker = tile.worker.here() if short else tile.worker
    plane = tile.staging.deltas[product.delta]
    width = 1 << (len(some) - 1).bit_length()  # so that what a lane has in the end are neighbours
    size = vertices * width * 4
    sums = local("sums", "float32", T.float32(0.0), size)
    turns = _turns(worker, vertices)
    turned = _turned(worker, vertices, GROUP_LANES)
    for band in range(held.bands):
        row = let("row", held.row_near(band * BAND + held.group))
        delta = [let("delta", worker.staging[plane.place(row, first + v)]) for v in turned]
        for number, strip in enumerate(some):
            weights = held.weights(band, strip)
            for v in range(vertices):
                for i in range(4):
                    at = (v * width + number) * 4 + i
                    put(sums, at, cuda.fma(weights[i], delta[v], sums[at]))
    owned = cuda.warp_reduce_scatter(sums, size, worker.lane, GROUP_LANES, parted=turns)
    index = let("index", owned.first)
    vertex = let("vertex", first + index // (4 * width))
    strip = let("strip", index // 4 % width)
    there = both(owned.valid[0], vertex < tile.count)
    if width > len(some):
        there = both(there, strip < len(some))
    column = let("column", held.column_here(held.column(some.start + strip) + index % 4))
    place, value = {
        1: (lambda at: at, sums[0]),
        2: (pair_at, sums[pair_at(0)]),
        4: (quad_at, sums[quad_at(0)]),
    }[owned.slots]
    with when(there):
        store_columns(worker, product, tile.first + vertex, column, value, place)
