"""Products with weights in registers on CUDA.

In: a tile whose operands are staged. Out: the sums in staging. A few vertices, and all of them where sums
are in float32 throughout, run here; the others on tensor cores (`cuda_resident_tensor.py`).
"""

from __future__ import annotations

from functools import partial

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_operands import operand_stride
from dnc.codegen.bodies.cuda_resident import (
    BAND,
    OWN_LANES,
    TOGETHER,
    Block,
    Resident,
    by_count,
    in_turn,
    turns,
)
from dnc.codegen.bodies.cuda_resident_tensor import forward_tensor
from dnc.codegen.bodies.cuda_staging import UnitTile, vertex_words
from dnc.codegen.bodies.cuda_tensor import cores_of, uses_cores
from dnc.codegen.emit import (
    Expr,
    either,
    fixed,
    lane4,
    let,
    local,
    put,
    smaller,
    stride_loop,
    when,
)
from dnc.ir.machine import THREADS, WARPS
from dnc.ir.plan import Product


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
        by_count(tile.count, least, few, partial(forward_tensor, own, block // 8))
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
    turn = turns(worker, vertices)
    ordered = [vertex + v for v in in_turn(worker, vertices)]
    for strip in range(held.strips):
        weights = [held.weights(band, strip) for band in bands]
        for v in range(vertices):
            x = block.operand(ordered[v], strip)
            for number, own in enumerate(weights):
                at = v * len(bands) + number if turn else number * vertices + v
                for i in range(4):
                    put(sums, at, cuda.fma(own[i], lane4(x, i), sums[at]))
    owned = cuda.warp_reduce_scatter(sums, size, worker.lane, OWN_LANES, parted=turn)
    for slot in range(owned.slots):
        with when(owned.valid[slot]):
            index = let("index", owned.first + slot)
            number, v = index // vertices, index % vertices
            if turn:
                number, v = index % len(bands), index // len(bands)
            block.leave((number + bands.start) * BAND + held.group, vertex + v, sums[slot])


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
