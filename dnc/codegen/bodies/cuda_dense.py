"""Weight gradients on CUDA: sums of outer products over the rows of a space, for the whole grid.

In: a gradient of a plan and the fields of its instruction. Out: the instruction's body. Every tile
of every chunk of rows is a piece of work for one worker, summed in the order of the rows without
atomics, so the bits do not depend on timing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_dense_matrix import matrix_tile, write_sum
from dnc.codegen.bodies.cuda_dense_steps import TileWork
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (
    Expr,
    any_of,
    both,
    either,
    fixed,
    let,
    local,
    put,
    smaller,
    stride_loop,
    when,
    wide,
)
from dnc.ir import cutting, isa
from dnc.ir.early import made_early
from dnc.ir.machine import THREADS
from dnc.ir.plan import DenseGradient, padded

VECTOR_LOADS = 8  # rows of a vector's gradient that a thread has under way


def dense_gradient(worker: Worker, gradient: DenseGradient, fields: Mapping[str, Expr]) -> None:
    """Tiles of every chunk of rows; without an operand the deltas are summed, a vector's block at a time.

    A vector that adds up the same deltas is made along (`cutting.made_along`).

    fields: by their names in `isa.DENSE_GRADIENT_FIELDS`.
    """
    bodies = [partial(_tiles, worker, gradient, fields, shape) for shape in cutting.gradient_tiles(gradient)]
    if len(bodies) == 1:
        bodies[0]()
    else:
        either(fields["tile"] == 0, *bodies)


def _tiles(
    worker: Worker, gradient: DenseGradient, fields: Mapping[str, Expr], shape: cutting.GradientTile
) -> None:
    """The worker's share of the tiles of one shape."""
    across = -(-max(gradient.columns, 1) // shape.columns)
    tiles = cutting.tile_count(gradient, shape)
    first, rows, chunks, adds = (fields[name] for name in ("row", "rows", "chunks", "accumulate"))
    size = let("size", isa.chunk_rows(rows, chunks))
    # Read here: what follows from it is not worked out before the loops, and then kept in a register.
    grid = fixed("grid_here", cuda.NUMBER_HERE(worker.grid))
    begin = let("begin", (worker.number + grid - fields["first_worker"]) % grid)
    with stride_loop("item", begin, chunks * tiles, grid) as item:
        chunk = fixed("chunk", item // tiles)
        tile = fixed("tile", item - chunk * tiles)
        arena = worker.access.arena(chunk)
        accumulate = adds
        if gradient.name in made_early(worker.plan):  # of several chunks the first alone adds to that
            accumulate = fixed("accumulates", T.Select(chunk == 0, adds, 0))
        base = fixed("gradient", arena + offset_of(worker, gradient.parameter, fields["index"]), "int64")
        start = fixed("start", first + chunk * size)
        end = fixed("end", smaller(first + rows, start + size))
        row = fixed("row", tile // across * shape.rows)
        beside = cutting.made_along(worker.plan).get(gradient.name)
        along = None
        if beside is not None:
            along = fixed("along", arena + offset_of(worker, beside.parameter, fields["index"]), "int64")
        with when(both(tile == 0, accumulate == 0)):
            clear_padding(worker, gradient, base)
            if beside is not None:
                clear_padding(worker, beside, along)
        if gradient.pieces:
            column = fixed("column", tile % across * shape.columns)
            matrix_tile(TileWork(worker, gradient, start, end, row, column, base, accumulate, along), shape)
        else:
            _vector_tile(TileWork(worker, gradient, start, end, row, 0, base, accumulate))


def clear_padding(worker: Worker, gradient: DenseGradient, base: Expr) -> None:
    """Zeros behind a gradient's elements: arenas are added up whole, and those of chunks are not cleared."""
    shape = worker.plan.program.parameter(gradient.parameter).type.shape
    end, stride = isa.slice_floats(worker.plan, gradient.parameter), padded(shape[-1])
    behind = shape[0] if len(shape) == 1 else shape[0] * stride
    # Products write the padding of their rows themselves.
    first = 0 if len(shape) > 1 and shape[1] % 4 and not gradient.pieces else behind
    if first == end:
        return
    with stride_loop("place", worker.thread + first, end, THREADS) as place:
        if first == behind:
            put(worker.pool, base + wide(place), T.float32(0.0))
        else:
            with when(any_of(place >= behind, place % stride >= shape[1])):
                put(worker.pool, base + wide(place), T.float32(0.0))


def offset_of(worker: Worker, parameter: str, index: Expr) -> Expr:
    """A parameter's place in every arena; `index`: which one of a stack."""
    return worker.access.slice(parameter, index) - worker.access.base(isa.PARAMETERS)


def _vector_tile(work: TileWork) -> None:
    """Thread (r, q) sums the rows q, q + 4, ... of element r; then the four sums in order."""
    worker, gradient, row = work.worker, work.gradient, work.row
    block = cutting.GRADIENT_BLOCK.rows
    parts = THREADS // block
    own, line = let("own", worker.thread % block), let("line", worker.thread // block)
    total = local("sum", "float32", T.float32(0.0))
    rows = stride_loop("vertex", work.start + line, work.end, parts * VECTOR_LOADS)
    with when(row + own < gradient.rows), rows as vertex:
        terms = []
        for ahead in range(VECTOR_LOADS):  # loads under way together
            later = let("later", vertex + ahead * parts)
            term = local("term", "float32", T.float32(0.0))
            with when(later < work.end):
                put(term, 0, worker.access.reader(gradient.delta, later)(row + own))
            terms.append(term)
        for term in terms:
            put(total, 0, total[0] + term[0])
    put(worker.staging, worker.stage(THREADS) + worker.thread, total[0])
    worker.synchronize()
    with when(both(worker.thread < block, row + own < gradient.rows)):
        for part in range(1, parts):
            put(total, 0, total[0] + worker.staging[part * block + own])
        position = worker.access.flat_position(gradient.parameter, row + own)
        write_sum(worker, let("at", work.base + wide(position)), total[0], work.accumulate)
    worker.synchronize()
