"""Behind the gradients on the CPU: norm, reduction of results, and the optimizers' steps.

In: the fields of the instructions. Out: instruction bodies, which the whole grid shares. Chunks and
tokens are dealt out to workers; every sum has one order. Guaranteed: nothing is changed where the norm
is not finite.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cpu_worker import Worker, elements, total
from dnc.codegen.bodies.optimizers import each_optimizer
from dnc.codegen.emit import (
    Expr,
    both,
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
from dnc.ir.plan import TableGradient, padded


def norm(worker: Worker, first: Expr, count: Expr, _chunks: Expr, first_norm: Expr) -> None:
    """The sum of squares of every chunk of the dense gradients."""
    gradients = let("gradients", worker.access.base(isa.GRADIENTS) + wide(first))
    norms = let("norms", worker.access.base(isa.NORMS) + wide(first_norm))
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
    """The last worker sums a column of records, in 64 bits, into a word of the results."""
    with when(worker.number == worker.grid - 1):
        at = let("column", wide(base) * 4)
        found = local("sum", "float64", T.float64(0.0))
        with loop("row", rows) as row:
            put(found, 0, found[0] + T.Cast("float64", worker.pool[at + wide(row) * wide(stride)]))
        put(worker.pool, worker.access.base(isa.RESULTS) + wide(result), T.Cast("float32", found[0]))


def _scale(worker: Worker, norms: Expr) -> tuple[Expr, Expr]:
    """The norm of the whole gradient, and the factor that clips it."""
    at = let("norms", worker.access.base(isa.NORMS))
    found = let("norm", T.sqrt(total(norms, lambda i: worker.pool[shift(at, i)])))
    clip = let("clip", worker.access.header_float("clip_norm"))
    return found, let("scale", T.Select(found > clip, clip / found, T.float32(1.0)))


def _finite(value: Expr) -> Expr:
    return both(value == value, value < T.float32(3.0e38))


def update(
    worker: Worker,
    opcode: Expr,
    first: Expr,
    count: Expr,
    norms: Expr,
    rate: Expr,
    keeps_zeros: Expr | None = None,
) -> None:
    """Dense parameters of one rate; nothing is changed where the norm is not finite. keeps_zeros:
    whether what is zero stays so; None: no parameter has to.

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
        own = let("own", tirx.truncdiv(chunks - worker.number + (worker.grid - 1), worker.grid))
        with loop("turn", own) as turn:  # backwards: of what `norm` has read, the end is in the cache
            chunk = let("chunk", worker.number + (own - 1 - turn) * worker.grid)
            at = [let("at", start + wide(chunk) * size) for start in starts]
            length = let("length", smaller(count - chunk * size, size))
            elements(length, lambda i: _step(worker, optimizer, coefficients, at, i, scale, keeps_zeros))

    with when(_finite(found)):
        each_optimizer(worker.plan, opcode, "", step)


def follow(worker: Worker, first: Expr, count: Expr, norms: Expr, _chunks: Expr) -> None:
    """Adds what the rows gave to the running parameters; nothing where the norm is not finite."""
    found, _ = _scale(worker, norms)
    size = isa.NORM_CHUNK
    places = [worker.access.base(isa.PARAMETERS), worker.access.base(isa.GRADIENTS)]
    starts = [let("start", place + wide(first)) for place in places]
    blocks = stride_loop("chunk", worker.number, tirx.truncdiv(count + (size - 1), size), worker.grid)
    with when(_finite(found)), blocks as chunk:
        into, source = (let("at", start + wide(chunk) * size) for start in starts)
        length = let("length", smaller(count - chunk * size, size))

        def move(i: Expr) -> None:
            at = shift(into, i)
            put(worker.pool, at, worker.pool[at] + worker.pool[shift(source, i)])

        elements(length, move)


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
    keeps_zeros: Expr | None = None,
) -> None:
    """New values of the elements i; at: where parameter, gradient and state begin; keeps_zeros:
    as in `update`."""
    pool, width = worker.pool, lanes(i)
    places = [shift(place, i) for place in at]
    old, found, *state = (let("old", pool[place]) for place in places)
    spread = {n: tirx.Broadcast(c, width) if width > 1 else c for n, c in coefficients.items()}
    new = optimizer.step(worker.math, spread, old, let("g", found * scale), *state)
    values = [let("new", value) for value in new]
    if keeps_zeros is not None:
        share = let("share", T.Select(keeps_zeros != 0, T.float32(0.0), T.float32(1.0)))
        spread_share, zero = (tirx.Broadcast(x, width) if width > 1 else x for x in (share, T.float32(0.0)))
        values[0] = let("kept", T.Select(old == zero, values[0] * spread_share, values[0]))
    for place, value in zip([places[0], *places[2:]], values, strict=True):
        put(pool, place, value)
