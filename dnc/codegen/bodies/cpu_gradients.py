"""Weight gradients, norm, update and reduction on the CPU: work that the whole grid shares.

In: the gradients of a plan and the fields of their instructions. Out: instruction bodies. Blocks of
rows, tokens and chunks are dealt out to workers; each is summed by one worker in the order of the
rows, without atomics, so the bits do not depend on timing.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cpu_products import BLOCK_ROWS
from dnc.codegen.bodies.cpu_segments import layout_of, place_rows
from dnc.codegen.bodies.cpu_subroutines import GRADIENT
from dnc.codegen.bodies.cpu_worker import CHUNK, TILE, Worker, alike, elements, ramp, total
from dnc.codegen.bodies.optimizers import each_optimizer
from dnc.codegen.emit import (
    Expr,
    both,
    either,
    lanes,
    let,
    local,
    loop,
    put,
    shift,
    smaller,
    stride_loop,
    when,
    wide,
)
from dnc.ir import isa
from dnc.ir.optimizers import COEFFICIENTS, Optimizer
from dnc.ir.plan import DenseGradient, SlotsAddress, TableGradient, padded
from dnc.ir.weight_format import LANES


def dense_gradient(
    worker: Worker, gradient: DenseGradient, rows: Expr, first: Expr, accumulate: Expr, _chunks: Expr
) -> None:
    """Blocks of 64 rows, dealt out to the grid; a CPU's schedules have one chunk."""
    access = worker.access
    base = let(
        "gradient",
        access.base(isa.GRADIENTS) + access.base(gradient.parameter) - access.base(isa.PARAMETERS),
    )
    blocks = -(-gradient.rows // BLOCK_ROWS)
    begin = let("begin", tirx.truncmod(worker.number + worker.grid - first, worker.grid))
    with stride_loop("block", begin, blocks, worker.grid) as block:
        if gradient.pieces:
            _matrix_block(worker, gradient, rows, block, base, accumulate)
        else:
            _vector_block(worker, gradient, rows, block, base, accumulate)


def _matrix_block(
    worker: Worker, gradient: DenseGradient, rows: Expr, block: Expr, base: Expr, accumulate: Expr
) -> None:
    """Chunks of vertices: their deltas are copied to scratch memory, then every piece is added."""
    layout = layout_of(worker, gradient.parameter)
    widths = [-(-piece.width // LANES) * LANES for piece in gradient.pieces]
    staging = max(widths) * TILE  # places_rows may stage operands in front of the deltas
    del staging
    worker.functions.need(BLOCK_ROWS * CHUNK)
    panel = let("panel", base + wide(block) * layout.block_stride)
    width = let("width", smaller(layout.padded_rows - block * BLOCK_ROWS, BLOCK_ROWS))
    chunks = let("chunks", T.max(tirx.truncdiv(rows + (CHUNK - 1), CHUNK), 1))
    with loop("chunk", chunks) as chunk:
        start = let("start", chunk * CHUNK)
        count = let("count", T.max(smaller(rows - start, CHUNK), 0))
        _copy_deltas(worker, gradient, start, count, block)
        add = let("add", T.Select(chunk == 0, accumulate, 1))
        column = 0
        for piece in gradient.pieces:
            assert worker.access.is_plain(piece.address), piece
            place_rows(worker, piece, start, count)
            at = let("at", panel + wide(width) * column)
            worker.call(f"{GRADIENT}_pool", at, width, tirx.const(piece.width, "int32"), count, add)
            column += piece.width


def _copy_deltas(worker: Worker, gradient: DenseGradient, start: Expr, count: Expr, block: Expr) -> None:
    """The deltas of a block's rows at the start of scratch memory, 64 floats a vertex."""
    first = let("first_row", block * BLOCK_ROWS)
    own = let("own", smaller(gradient.rows - first, BLOCK_ROWS))
    with loop("v", count) as v:
        at = let("at", wide(v) * BLOCK_ROWS)
        read = worker.access.reader(gradient.delta, let("vertex", start + v))
        if gradient.rows % BLOCK_ROWS:
            for lane in range(0, BLOCK_ROWS, LANES):
                put(worker.scratch, ramp(at + lane), T.float32(0.0))
        elements(own, lambda i: put(worker.scratch, shift(at, i), read(shift(first, i))))


def _vector_block(
    worker: Worker, gradient: DenseGradient, rows: Expr, block: Expr, base: Expr, accumulate: Expr
) -> None:
    """Sums the deltas of 64 elements over all rows."""
    first = let("first_row", block * BLOCK_ROWS)
    own = let("own", smaller(gradient.rows - first, BLOCK_ROWS))
    shape = worker.plan.program.parameter(gradient.parameter).type.shape

    def element(i: Expr) -> None:
        index = shift(first, i)
        zero = T.float32(0.0) if index is None else alike(T.float32(0.0), index)[0]
        summed = local("summed", _float_type(index), zero)
        with loop("vertex", rows) as vertex:
            put(summed, 0, summed[0] + worker.access.reader(gradient.delta, vertex)(index))
        place = index if len(shape) < 2 else worker.access.flat_position(gradient.parameter, index)
        _write(worker, shift(base, place), let("total", summed[0]), accumulate)

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


def table_gradient(worker: Worker, table: TableGradient, tokens: Expr, norm: Expr, accumulate: Expr) -> None:
    """Per touched token: the sum of its slots, and the square of its norm."""
    names = isa.table_lists(table.parameter)
    width = padded(table.width)
    base = let("compact", worker.access.base(isa.table_base(table.parameter)))
    norms = let("norms", worker.access.base(isa.NORMS) + wide(norm))
    slots = SlotsAddress(names[1], names[2], width)
    with stride_loop("token", worker.number, tokens, worker.grid) as token:
        read = worker.access.reader(slots, token)
        at = let("at", base + wide(token) * width)
        elements(table.width, lambda i: _write(worker, shift(at, i), let("sum", read(i)), accumulate))

        def square(i: Expr) -> Expr:
            value = let("value", worker.pool[shift(at, i)])
            return value * value

        put(worker.pool, norms + wide(token), total(table.width, square))


def norm(worker: Worker, count: Expr, _chunks: Expr) -> None:
    """The sum of squares of every chunk of the dense gradients."""
    gradients = let("gradients", worker.access.base(isa.GRADIENTS))
    norms = let("norms", worker.access.base(isa.NORMS))
    size = isa.NORM_CHUNK
    chunks = tirx.truncdiv(count + (size - 1), size)
    with stride_loop("chunk", worker.number, chunks, worker.grid) as chunk:
        at = let("at", gradients + wide(chunk) * size)
        length = let("length", smaller(count - chunk * size, size))

        def square(i: Expr) -> Expr:
            value = let("value", worker.pool[shift(at, i)])
            return value * value

        put(worker.pool, norms + wide(chunk), total(length, square))


def reduce(worker: Worker, base: Expr, rows: Expr, stride: Expr, result: Expr) -> None:
    """Worker 0 sums a column of records into a word of the results."""
    with when(worker.number == 0):
        at = let("column", wide(base) * 4)
        found = local("sum", "float32", T.float32(0.0))
        with loop("row", rows) as row:
            put(found, 0, found[0] + worker.pool[at + wide(row) * wide(stride)])
        put(worker.pool, worker.access.base(isa.RESULTS) + wide(result), found[0])


def _scale(worker: Worker, norms: Expr) -> tuple[Expr, Expr]:
    """The norm of the whole gradient, and the factor that clips it."""
    at = let("norms", worker.access.base(isa.NORMS))
    found = let("norm", T.sqrt(total(norms, lambda i: worker.pool[shift(at, i)])))
    clip = let("clip", worker.access.header_float("clip_norm"))
    return found, let("scale", T.Select(found > clip, clip / found, T.float32(1.0)))


def _finite(value: Expr) -> Expr:
    return both(value == value, value < T.float32(3.0e38))


def update(worker: Worker, opcode: Expr, first: Expr, count: Expr, norms: Expr, rate: Expr) -> None:
    """Dense parameters of one rate; nothing is changed where the norm is not finite.

    All optimizers share what comes before their own step.
    """
    found, scale = _scale(worker, norms)
    results = let("results", worker.access.base(isa.RESULTS))
    with when(worker.number == 0):
        put(worker.pool, results + isa.RESULT_NORM, found)
        done = T.Select(_finite(found), T.float32(1.0), T.float32(0.0))
        put(worker.pool, results + isa.RESULT_UPDATED, done)
    size = isa.NORM_CHUNK
    chunks = tirx.truncdiv(count + (size - 1), size)

    def step(optimizer: Optimizer) -> None:
        coefficients = _coefficients(worker, rate)
        places = [worker.access.base(isa.PARAMETERS), worker.access.base(isa.GRADIENTS)]
        places += [worker.access.base(isa.STATES[i]) for i in range(len(optimizer.states))]
        starts = [let("start", place + wide(first)) for place in places]
        with stride_loop("chunk", worker.number, chunks, worker.grid) as chunk:
            at = [let("at", start + wide(chunk) * size) for start in starts]
            length = let("length", smaller(count - chunk * size, size))
            elements(length, lambda i: _step(worker, optimizer, coefficients, at, i, scale))

    with when(_finite(found)):
        each_optimizer(worker.plan, opcode, "", step)


def update_table(
    worker: Worker, opcode: Expr, table: TableGradient, tokens: Expr, norms: Expr, rate: Expr
) -> None:
    """The touched rows of a table."""
    found, scale = _scale(worker, norms)
    rows = let("rows", worker.access.list_at(isa.table_lists(table.parameter)[0]))
    base = let("compact", worker.access.base(isa.table_base(table.parameter)))

    def step(optimizer: Optimizer) -> None:
        coefficients = _coefficients(worker, rate)
        parameters = worker.access.base(isa.PARAMETERS)
        shifts = [
            let("shift", worker.access.base(isa.STATES[i]) - parameters) for i in range(len(optimizer.states))
        ]
        with stride_loop("token", worker.number, tokens, worker.grid) as token:
            row = let("table_row", worker.access.entry(rows + token))
            gradients = let("source", base + wide(token) * padded(table.width))
            at = [row, gradients, *(let("at", row + shift) for shift in shifts)]
            elements(table.width, lambda i: _step(worker, optimizer, coefficients, at, i, scale))

    with when(_finite(found)):
        each_optimizer(worker.plan, opcode, table.parameter, step)


def _coefficients(worker: Worker, rate: Expr) -> dict[str, Expr]:
    """The coefficients of the header, the learning rate with the parameters' own factor."""
    found = {name: worker.access.header_float(name) for name in COEFFICIENTS}
    found["learning_rate"] = found["learning_rate"] * T.reinterpret("float32", rate)
    return {name: let(name, value) for name, value in found.items()}


def _step(
    worker: Worker,
    optimizer: Optimizer,
    coefficients: dict[str, Expr],
    at: list[Expr],
    i: Expr,
    scale: Expr,
) -> None:
    """New values of the elements i; at: where parameter, gradient and state begin."""
    pool, width = worker.pool, lanes(i)
    places = [shift(place, i) for place in at]
    old, found, *state = (let("old", pool[place]) for place in places)
    spread = {n: tirx.Broadcast(c, width) if width > 1 else c for n, c in coefficients.items()}
    new = optimizer.step(worker.math, spread, old, let("g", found * scale), *state)
    values = [let("new", value) for value in new]
    for place, value in zip([places[0], *places[2:]], values, strict=True):
        put(pool, place, value)
