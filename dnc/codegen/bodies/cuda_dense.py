"""Weight gradients on CUDA: sums of outer products over the rows of a space, for the whole grid.

In: the number of a gradient of the plan and the fields of its instruction. Out: the instructions' body. Every
tile of every chunk of rows is a piece of work for one worker, summed in the order of the rows without
atomics, so the bits do not depend on timing. All matrices whose rows can be copied share a body a shape of
tiles: they differ in what `cuda_kinds` looks up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_dense_matrix import matrix_tile, write_sum
from dnc.codegen.bodies.cuda_dense_steps import TileWork, is_copied
from dnc.codegen.bodies.cuda_kinds import Fact, Kind
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import (
    Expr,
    any_of,
    both,
    dispatch,
    divided,
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
from dnc.ir.plan import DenseGradient

VECTOR_LOADS = 8  # rows of a vector's gradient that a thread has under way


def dense_gradients(
    worker: Worker, number: Expr, fields: Mapping[str, Expr], unknown: Callable[[], None]
) -> None:
    """The gradient of a number in the plan: tiles of every chunk of rows; without an operand the deltas are
    summed, a vector's block at a time.

    A vector that adds up the same deltas is made along (`cutting.made_along`); an instruction of its own is
    `unknown`. fields: by their names in `isa.DENSE_GRADIENT_FIELDS`.
    """
    along, make = cutting.along_with_others(worker.plan), partial(_gradients, worker, number, fields)
    alike, apart = dict[int, DenseGradient](), dict[int, Callable[[], None]]()
    for at, gradient in enumerate(worker.plan.dense_gradients):
        if gradient.name in along:
            apart[at] = unknown
        elif gradient.pieces and is_copied(worker, gradient):
            alike[at] = gradient
        else:
            apart[at] = partial(make, {at: gradient})
    if not alike:
        dispatch(number, apart)
    elif not apart:
        make(alike)
    else:
        is_apart = reduce(any_of, [number == at for at in apart])
        either(is_apart, partial(dispatch, number, apart), partial(make, alike))


def _gradients(
    worker: Worker, number: Expr, fields: Mapping[str, Expr], gradients: Mapping[int, DenseGradient]
) -> None:
    """The one at hand of these gradients."""
    each = gradients.values()
    every = list(dict.fromkeys(shape for gradient in each for shape in cutting.gradient_tiles(gradient)))

    def shape_of(gradient: DenseGradient) -> Expr:
        many, *few = map(every.index, cutting.gradient_tiles(gradient))
        return T.Select(fields["tile"] == 0, many, few[0]) if few else T.int32(many)

    early = made_early(worker.plan)
    facts = dict[str, Fact]()
    if len(every) > 1:
        facts["shape"] = shape_of
    if early:
        facts["early"] = lambda gradient: T.int32(gradient.name in early)
    kind = Kind(worker, gradients, number, fields["index"], facts, staged=True)
    bodies = {at: partial(_tiles, kind, fields, shape) for at, shape in enumerate(every)}
    if len(every) == 1:
        bodies[0]()
    else:
        dispatch(kind.facts["shape"], bodies)


def _tiles(kind: Kind, fields: Mapping[str, Expr], shape: cutting.GradientTile) -> None:
    """The worker's share of the tiles of one shape."""
    worker = kind.worker
    across = let("across", divided(kind.columns + (shape.columns - 1), shape.columns))
    tiles = let("tiles", divided(kind.rows + (shape.rows - 1), shape.rows) * across)
    first, rows, chunks, adds = (fields[name] for name in ("row", "rows", "chunks", "accumulate"))
    size = let("size", isa.chunk_rows(rows, chunks))
    # Read here: what follows from it is not worked out before the loops, and then kept in a register.
    grid = fixed("grid_here", cuda.NUMBER_HERE(worker.grid))
    begin = let("begin", (worker.number + grid - fields["first_worker"]) % grid)
    with stride_loop("item", begin, chunks * tiles, grid) as item:
        chunk = fixed("chunk", divided(item, tiles))
        tile = fixed("tile", item - chunk * tiles)
        arena = worker.access.arena(chunk)
        accumulate = adds
        if "early" in kind.facts:  # of several chunks the first alone adds to that
            accumulate = fixed("accumulates", T.Select(both(kind.facts["early"] != 0, chunk != 0), 0, adds))
        base = fixed("gradient", arena + wide(kind.offset), "int64")
        along = fixed("along", arena + wide(kind.beside), "int64") if kind.has_beside else None
        start = fixed("start", first + chunk * size)
        end = fixed("end", smaller(first + rows, start + size))
        down = fixed("down", divided(tile, across))
        row = fixed("row", down * shape.rows)
        column = fixed("column", (tile - down * across) * shape.columns)
        with when(both(tile == 0, accumulate == 0)):
            kind.clear_padding(base, along)
        work = TileWork(kind, start, end, row, column, base, accumulate, along)
        if shape == cutting.GRADIENT_BLOCK:
            _vector_tile(work)
        else:
            matrix_tile(work, shape)


def _vector_tile(work: TileWork) -> None:
    """Thread (r, q) sums the rows q, q + 4, ... of element r; then the four sums in order."""
    worker, gradient, row = work.worker, work.kind.alone, work.row
    assert gradient is not None
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
