"""Transposed products on CUDA's tensor cores with weights of 16 bits in registers.

In: a tile whose deltas are staged, and the registers of a slice. Out: the partial sums over the worker's
rows, in the pool. A register is a lane's part of 8 x 8 weights, which `movmatrix` turns inside the warp: two
bands of a strip are a block of 16 columns x 16 rows, turned once for up to 32 vertices.
"""

from __future__ import annotations

from functools import partial

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_resident import BAND, STRIP, Resident
from dnc.codegen.bodies.cuda_staging import Plane, UnitTile
from dnc.codegen.bodies.cuda_stores import store_columns
from dnc.codegen.bodies.cuda_tensor import ACROSS, Terms, cores_of, pair_at
from dnc.codegen.emit import Expr, either, lane4, let, local, smaller, stride_loop, when
from dnc.ir.plan import TransposedProduct

MOST_BLOCKS = (4, 2, 1)  # of 8 vertices, for which a weight is turned once
MOST_SUMS = 32  # of a lane, where there is a choice


def transposed_packed(tile: UnitTile, product: TransposedProduct, held: Resident) -> None:
    """Partial sums over the worker's rows for all vertices of the tile."""

    def fits(blocks: int) -> bool:
        return blocks * ACROSS <= tile.staging.tile and blocks * held.strips * 4 <= MOST_SUMS

    most = next(filter(fits, MOST_BLOCKS), 1)
    by_eight = partial(_blocks, tile, product, held, 1)
    if most == 1:
        by_eight()
    else:
        either(tile.count <= ACROSS, by_eight, partial(_blocks, tile, product, held, most))


def _blocks(tile: UnitTile, product: TransposedProduct, held: Resident, across: int) -> None:
    """`across` times 8 vertices at a time."""
    cores, plane = cores_of(tile.worker.plan), tile.staging.deltas[product.delta]
    with stride_loop("first", 0, tile.count, across * ACROSS) as first:
        sums = local("sums", "float32", T.float32(0.0), held.strips * across * 4)
        for band in range(0, held.bands, 2):
            two = [band, band + 1]
            deltas = [
                [_deltas(held, plane, each, first + number * ACROSS) for each in two]
                for number in range(across)
            ]
            for strip in range(held.strips):
                weights = [_turned(held, each, strip, high) for each in two for high in range(2)]
                for number in range(across):
                    # Sum i of a vertex belongs to the i-th of two neighbouring columns.
                    places = [(strip * across + number) * 4 + i % 2 * 2 + i // 2 for i in range(4)]
                    cores.multiply([sums[place] for place in places], weights, deltas[number])
        for number in range(across):
            for i in range(2):
                vertex = let("vertex", first + number * ACROSS + 2 * held.own + i)
                with when(vertex < tile.count):
                    for strip in range(held.strips):
                        column = let("column", (held.warp * held.strips + strip) * STRIP + 2 * held.group)
                        value = sums[pair_at((strip * across + number) * 4 + 2 * i)]
                        store_columns(tile.worker, product, tile.first + vertex, column, value, pair_at)


def _turned(held: Resident, band: int, strip: int, high: int) -> Terms:
    """Columns 2 g + `high` of a strip, rows 2 t and 2 t + 1 of a band; zero behind the last one."""
    cores = cores_of(held.worker.plan)
    if band >= held.bands:
        return cores.nothing()
    return cores.terms(let("turned", cuda.TURN_BF16_HERE(held.word(band, strip, high))))


def _deltas(held: Resident, plane: Plane, band: int, vertex: Expr) -> Terms:
    """What tensor cores read of the deltas of 8 vertices: rows 2 t and 2 t + 1 of a band."""
    cores = cores_of(held.worker.plan)
    if band >= held.bands:
        return cores.nothing()
    memory, row, now = held.worker.staging, band * BAND + 2 * held.own, vertex + held.group
    if plane.row == 1 and held.rows % 2 == 0:
        near = row if (band + 1) * BAND <= held.rows else smaller(row, held.rows - 2)
        both = let("delta", memory[pair_at(plane.place(near, now))])
        numbers = [lane4(both, i) for i in range(2)]
    else:
        numbers = [let("delta", memory[plane.place(held.near(row + i), now)]) for i in range(2)]
    return cores.terms(cores.keep(numbers))
