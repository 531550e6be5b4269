"""Weight gradients on the CPU: work that the whole grid shares.

In: the gradients of a plan and the fields of their instructions. Out: instruction bodies. Blocks and
tokens are dealt out to workers; each is summed by one worker in the order of the rows, without atomics,
so the bits do not depend on timing.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cpu_products import GRADIENT
from dnc.codegen.bodies.cpu_segments import place_rows, weight_step
from dnc.codegen.bodies.cpu_worker import CHUNK, Worker, alike, elements, ramp, total
from dnc.codegen.emit import Expr, either, let, local, loop, put, shift, smaller, stride_loop, wide
from dnc.ir import isa
from dnc.ir.plan import DenseGradient, SlotsAddress, TableGradient, padded
from dnc.ir.weight_format import BLOCK, LANES, whole_lanes


def dense_gradient(worker: Worker, gradient: DenseGradient, fields: Mapping[str, Expr]) -> None:
    """Blocks of 64 rows, dealt out to the grid; a CPU's schedules have one chunk and one kind of tile.

    A worker takes neighbours: of columns of a multiple of 128 rows, every other block lies in half of the
    sets of a cache.
    fields: by their names in `isa.DENSE_GRADIENT_FIELDS`.
    """
    access = worker.access
    own = access.base(isa.GRADIENTS) + access.slice(gradient.parameter, fields["index"])
    base = let("gradient", own - access.base(isa.PARAMETERS))
    blocks = -(-gradient.rows // BLOCK)
    turn = let("turn", tirx.truncmod(worker.number + worker.grid - fields["first_worker"], worker.grid))
    each, more = tirx.truncdiv(blocks, worker.grid), tirx.truncmod(blocks, worker.grid)
    begin = let("begin", turn * each + T.min(turn, more))
    end = let("end", begin + each + T.Select(turn < more, 1, 0))
    with T.serial(begin, end) as block:
        if gradient.pieces:
            _matrix_block(worker, gradient, fields, block, base)
        else:
            _vector_block(worker, gradient, fields, block, base)


def _matrix_block(
    worker: Worker, gradient: DenseGradient, fields: Mapping[str, Expr], block: Expr, base: Expr
) -> None:
    """Chunks of vertices: their deltas are copied to scratch memory, then every piece is added."""
    rows = fields["rows"]
    step = weight_step(worker, gradient.parameter)
    worker.functions.need(BLOCK * CHUNK)
    begin = let("begin_of_block", base + wide(block) * BLOCK)
    own = let("own_rows", smaller(whole_lanes(gradient.rows) - block * BLOCK, BLOCK))
    chunks = let("chunks", T.max(tirx.truncdiv(rows + (CHUNK - 1), CHUNK), 1))
    with loop("chunk", chunks) as chunk:
        start = let("start", chunk * CHUNK)
        count = let("count", T.max(smaller(rows - start, CHUNK), 0))
        start = let("first_of_chunk", fields["row"] + start)
        _copy_deltas(worker, gradient, start, count, block)
        add = let("add", T.Select(chunk == 0, fields["accumulate"], 1))
        column = 0
        for piece in gradient.pieces:
            assert worker.access.is_plain(piece.address), piece
            place_rows(worker, piece, start, count)
            at = let("at", begin + column * step)
            numbers = tirx.const(step, "int32"), own, tirx.const(piece.width, "int32")
            worker.call(f"{GRADIENT}_pool", at, *numbers, count, add)
            column += piece.width


def _copy_deltas(worker: Worker, gradient: DenseGradient, start: Expr, count: Expr, block: Expr) -> None:
    """The deltas of a block's rows at the start of scratch memory, 64 floats a vertex."""
    first = let("first_row", block * BLOCK)
    own = let("own", smaller(gradient.rows - first, BLOCK))
    with loop("v", count) as v:
        at = let("at", wide(v) * BLOCK)
        read = worker.access.reader(gradient.delta, let("vertex", start + v))
        if gradient.rows % BLOCK:
            for lane in range(0, BLOCK, LANES):
                put(worker.scratch, ramp(at + lane), T.float32(0.0))
        elements(own, lambda i: put(worker.scratch, shift(at, i), read(shift(first, i))))


def _vector_block(
    worker: Worker, gradient: DenseGradient, fields: Mapping[str, Expr], block: Expr, base: Expr
) -> None:
    """Sums the deltas of 64 elements over all rows: those of a chunk, then the chunks, as matrices do."""
    first = let("first_row", block * BLOCK)
    own = let("own", smaller(gradient.rows - first, BLOCK))
    shape = worker.plan.program.parameter(gradient.parameter).type.shape

    def element(i: Expr) -> None:
        index = shift(first, i)
        zero = T.float32(0.0) if index is None else alike(T.float32(0.0), index)[0]
        summed, part = (local(name, _float_type(index), zero) for name in ("summed", "part"))
        with loop("chunk", tirx.truncdiv(fields["rows"] + (CHUNK - 1), CHUNK)) as chunk:
            start = let("start", chunk * CHUNK)
            put(part, 0, zero)
            with loop("vertex", smaller(fields["rows"] - start, CHUNK)) as vertex:
                read = worker.access.reader(gradient.delta, fields["row"] + start + vertex)
                put(part, 0, part[0] + read(index))
            put(summed, 0, summed[0] + part[0])
        place = index if len(shape) < 2 else worker.access.flat_position(gradient.parameter, index)
        _write(worker, shift(base, place), let("total", summed[0]), fields["accumulate"])

    if len(shape) < 2:
        elements(own, element)
    else:
        with loop("element", own) as i:
            element(i)


def _float_type(index: Expr) -> str:
    width = 1 if isinstance(index, int) else int(index.ty.dtype.lanes)
    return "float32" if width == 1 else f"float32x{width}"


def _write(worker: Worker, at: Expr, value: Expr, accumulate: Expr) -> None:
    either(
        accumulate != 0,
        lambda: put(worker.pool, at, worker.pool[at] + value),
        lambda: put(worker.pool, at, value),
    )


def table_gradient(
    worker: Worker, table: TableGradient, tokens: Expr, norm: Expr, accumulate: Expr, first_worker: Expr
) -> None:
    """Per touched token: the sum of its slots, and the square of its norm; workers take turns."""
    turn = let("turn", (worker.number + worker.grid - first_worker) % worker.grid)
    names = isa.table_lists(table.parameter)
    width = padded(table.width)
    base = let("compact", worker.access.base(isa.table_base(table.parameter)))
    norms = let("norms", worker.access.base(isa.NORMS) + wide(norm))
    slots = SlotsAddress(names[1], names[2], width)
    with stride_loop("token", turn, tokens, worker.grid) as token:
        read = worker.access.reader(slots, token)
        at = let("at", base + wide(token) * width)
        elements(table.width, lambda i: _write(worker, shift(at, i), let("sum", read(i)), accumulate))

        def square(i: Expr) -> Expr:
            value = let("value", worker.pool[shift(at, i)])
            return value * value

        parts = isa.table_norms(table)
        first = let("first", norms + wide(token) * parts)
        put(worker.pool, first, total(table.width, square))
        for part in range(1, parts):
            put(worker.pool, first + part, T.float32(0.0))
