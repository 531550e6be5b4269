"""Behind the gradients on CUDA: norm, reduction of results, and the optimizers' steps.

In: the fields of the instructions. Out: instruction bodies, which the whole grid shares. Chunks and
tokens are dealt out to workers; every sum has one order. Guaranteed: nothing is changed where the norm
is not finite.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.bodies.optimizers import each_optimizer
from dnc.codegen.emit import (  # fmt: skip
    Expr,
    both,
    divided,
    fixed,
    lane4,
    let,
    local,
    loop,
    put,
    quad_at,
    room,
    smaller,
    stride_loop,
    when,
    wide,
)
from dnc.ir import isa
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.optimizers import Optimizer
from dnc.ir.plan import TableGradient, padded

# Words of shared memory for the norm of the whole gradient and the factor that clips it; the norm before the
# first update.
SCALE_WORDS, UNKNOWN = 2, -1.0
SCRATCH = 16  # words in front of what updates stage, for sums over a worker
COPIED = 2  # arrays that come into shared memory: parameters, gradients
QUAD_WORDS = 4 * THREADS  # of an array, 16 bytes for every thread
MOST_QUADS = 16  # of a thread and an array in one of two halves: an update waits for memory
PARTS_TOGETHER = 8  # parts of touched rows that a warp updates at a time
RESULTS_TOGETHER = 8  # loads of a thread under way
NORMS_TOGETHER = 2  # loads of 16 bytes of a thread under way


def norm(worker: Worker, first: Expr, count: Expr, chunks: Expr, first_norm: Expr) -> None:
    """Adds up the arenas of a run of the dense gradients, and the squares of what comes out.

    Workers take turns with those of the runs before it. The loads of a thread's quads are under way together.
    """
    gradients = let("gradients", worker.access.base(isa.GRADIENTS) + wide(first))
    others = let("others", worker.access.base(isa.CHUNKS) + wide(first))
    norms = let("norms", worker.access.base(isa.NORMS) + first_norm)
    size, arena = isa.NORM_CHUNK, isa.gradient_floats(worker.plan)
    worker.stage(WARPS)
    number, grid = _place(worker)
    begin = let("begin", (number + grid - first_norm % grid) % grid)
    with stride_loop("span", begin, (count + size - 1) // size, grid) as span:
        length = let("length", smaller(count - span * size, size))
        own = [worker.thread * 4 + part * THREADS * 4 for part in range(size // (THREADS * 4))]
        # Behind the end the last quad is read, and dropped.
        at = [fixed("at", wide(span) * size + smaller(quad, length - 4), "int64") for quad in own]
        totals = room("totals", 4 * len(own))
        for part, place in enumerate(at):
            T.buffer_store(totals, worker.pool[quad_at(gradients + place)], [quad_at(4 * part)])
        with when(chunks > 1), loop("chunk", chunks - 1, unroll=2) as chunk:
            shift = let("shift", others + wide(chunk) * arena)
            values = [let("value", worker.pool[quad_at(shift + place)]) for place in at]
            for part, value in enumerate(values):
                for i in range(4):
                    put(totals, 4 * part + i, totals[4 * part + i] + lane4(value, i))
        square = local("square", "float32", T.float32(0.0))
        for part, quad in enumerate(own):
            with when(quad < length):
                with when(chunks > 1):
                    place = quad_at(gradients + at[part])
                    T.buffer_store(worker.pool, totals[quad_at(4 * part)], [place])
                for i in range(4):
                    put(square, 0, square[0] + totals[4 * part + i] * totals[4 * part + i])
        total = worker.block_sum(square[0])
        with when(worker.thread == 0):
            put(worker.pool, norms + span, total)


def reduce(worker: Worker, base: Expr, rows: Expr, stride: Expr, result: Expr) -> None:
    """The last worker, who has the least else to do, sums a column of records into a word of the results."""
    with when(fixed("number_here", cuda.NUMBER_HERE(worker.number)) + 1 == worker.grid):
        at = let("column", wide(base) * 4)
        total = worker.strided_sum(rows, lambda i: worker.pool[at + wide(i) * stride], RESULTS_TOGETHER)
        with when(worker.thread == 0):
            put(worker.pool, worker.access.base(isa.RESULTS) + result, total)


def _scale(worker: Worker, norms: Expr) -> tuple[Expr, Expr]:
    """The norm of the whole gradient, added up by the first update of a launch; the factor that clips it."""
    kept = worker.scale
    with when(kept[0] == UNKNOWN):
        at = let("norms", worker.access.base(isa.NORMS))
        found = local("square", "float32", T.float32(0.0))
        with stride_loop("quad", worker.thread * 4, norms, NORMS_TOGETHER * THREADS * 4) as first:
            quads = [
                fixed("at", at + smaller(first + k * THREADS * 4, norms - 1), "int64")
                for k in range(NORMS_TOGETHER)
            ]
            loads = [let("norms", worker.pool[quad_at(place)]) for place in quads]
            for k, quad in enumerate(loads):
                for i in range(4):
                    there = first + (k * THREADS * 4 + i) < norms
                    put(found, 0, found[0] + T.Select(there, lane4(quad, i), T.float32(0.0)))
        total = let("norm", T.sqrt(worker.block_sum(found[0])))
        with when(worker.thread == 0):
            clip = let("clip", worker.access.header_float("clip_norm"))
            put(kept, 1, T.Select(total > clip, clip / total, T.float32(1.0)))
            put(kept, 0, total)
        worker.synchronize()
    return let("norm", kept[0]), let("scale", kept[1])


def _place(worker: Worker) -> tuple[Expr, Expr]:
    """The number of the worker, and how many there are, read in this place: the compiler works nothing out
    before the loop of the interpreter that follows from them."""
    number, grid = (cuda.NUMBER_HERE(each) for each in (worker.number, worker.grid))
    return fixed("number_here", number), fixed("grid_here", grid)


def _finite(value: Expr) -> Expr:
    return both(value == value, value <= T.float32(3.4028234663852886e38))


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

    Parameters and gradients come into shared memory in two halves: one is on its way while the other is used.
    """
    number, grid = _place(worker)
    begin = let("update_first", (number * THREADS + worker.thread) * 4)
    apart = let("apart", grid * (THREADS * 4))
    places = (isa.PARAMETERS, isa.GRADIENTS, *isa.STATES)
    bases = [fixed("from", worker.access.base(place) + wide(first), "int64") for place in places]
    quads = min(MOST_QUADS, (worker.staging_words - SCRATCH) // (2 * COPIED * QUAD_WORDS))
    half = quads * COPIED * QUAD_WORDS
    together = let("together", apart * quads)
    own = fixed("own", worker.stage(2 * half, SCRATCH) + worker.thread * 4)

    def each(element: Expr, side: Expr, body: Callable[[Expr, Expr], None]) -> None:
        """The body for the elements of a half, with the first word of each."""
        word = local("word", "int32", own + side)
        end = fixed("end", smaller(element + together, count))
        with stride_loop("at", element, end, apart) as at:
            body(at, word[0])
            put(word, 0, word[0] + COPIED * QUAD_WORDS)

    def copy(element: Expr, side: Expr) -> None:
        def start(at: Expr, word: Expr) -> None:
            for number, base in enumerate(bases[:COPIED]):
                source = fixed("copied", base + at, "int64")
                worker.start_copy(word + number * QUAD_WORDS, source, always=True)

        each(element, side, start)
        cuda.copy_commit()

    with stride_loop("side", 0, 2 * half, half) as side:  # while the norm is added up
        copy(begin + T.Select(side == 0, 0, together), side)
    total, scale = _scale(worker, norms)
    _report(worker, total)

    def change(at: Expr, word: Expr) -> None:
        copied = [let("old", worker.staging[quad_at(word + i * QUAD_WORDS)]) for i in range(COPIED)]

        def step(optimizer: Optimizer) -> None:
            changed = (bases[0], *bases[COPIED:][: len(optimizer.states)])
            positions = [fixed("position", base + at, "int64") for base in changed]
            _step(worker, optimizer, rate, positions, copied, scale, 4, keeps_zeros)

        each_optimizer(worker.plan, _opcode_here(opcode), "", step)

    with when(_finite(total)):
        side = local("side", "int32", 0)
        with stride_loop("element", begin, count, together) as element:
            cuda.copy_wait(1)
            each(element, side[0], change)
            copy(element + 2 * together, side[0])
            put(side, 0, half - side[0])
    cuda.copy_wait(0)


def _opcode_here(opcode: Expr) -> Expr:
    """The opcode, read where it decides: the compiler makes no loop for each of them."""
    return fixed("optimizer_here", cuda.NUMBER_HERE(opcode))


def _report(worker: Worker, norm: Expr) -> None:
    """The norm, and whether there is an update, among the results."""
    results = worker.access.base(isa.RESULTS)
    with when(both(worker.number == 0, worker.thread == 0)):
        put(worker.pool, results + isa.RESULT_NORM, norm)
        done = T.Select(_finite(norm), T.float32(1.0), T.float32(0.0))
        put(worker.pool, results + isa.RESULT_UPDATED, done)


def follow(worker: Worker, first: Expr, count: Expr, norms: Expr, chunks: Expr) -> None:
    """Adds what the chunks of rows gave to the running parameters; nothing where the norm is not finite."""
    total, _ = _scale(worker, norms)
    begin = let("begin", worker.number * THREADS + worker.thread)
    with when(_finite(total)), stride_loop("element", begin, count, worker.grid * THREADS) as element:
        at = let("at", worker.access.base(isa.PARAMETERS) + wide(first) + element)
        value = local("value", "float32", worker.pool[at])
        with loop("chunk", chunks) as chunk:
            put(value, 0, value[0] + worker.pool[worker.access.arena(chunk) + wide(first) + element])
        put(worker.pool, at, value[0])


def update_table(
    worker: Worker, opcode: Expr, table: TableGradient, tokens: Expr, norms: Expr, rate: Expr
) -> None:
    """The touched rows of a table, in parts that a warp has an access for; a warp makes several at a time.

    First their places are looked up, a lane each, then all is copied into shared memory that comes in whole
    quads, then the steps are taken.
    """
    total, scale = _scale(worker, norms)
    rows = let("rows", worker.access.list_at(isa.table_lists(table.parameter)[0]))
    base = let("compact", worker.access.base(isa.table_base(table.parameter)))
    lanes = 4 if table.width % 4 == 0 else 1
    wide_part = LANES * lanes
    parts = -(-table.width // wide_part)
    number, grid = _place(worker)
    count, apart = let("parts", tokens * parts), let("apart", grid * WARPS)
    begin = let("first_part", worker.warp * grid + number)
    own = worker.stage(WARPS * PARTS_TOGETHER * COPIED * wide_part, SCRATCH)
    own = fixed("own", own + worker.warp * (PARTS_TOGETHER * COPIED * wide_part) + worker.lane * lanes)

    def each(part: Expr, heads: Expr, body: Callable[[Expr, Expr, Expr], None]) -> None:
        """The body for the parts of a round: a position in the table, one in the gradient, the first word."""
        number = local("number", "int32", 0)
        end = fixed("end", smaller(part + apart * PARTS_TOGETHER, count))
        with stride_loop("each", part, end, apart) as item:
            token = fixed("token", divided(item, parts))
            column = fixed("column", (item - token * parts) * wide_part + worker.lane * lanes)
            row = let("table_row", wide(cuda.shuffle(heads, number[0])) * 4)
            word = fixed("word", own + number[0] * (COPIED * wide_part))
            with when(column < table.width):
                body(row + column, base + wide(token) * padded(table.width) + column, word)
            put(number, 0, number[0] + 1)

    def copy(row: Expr, gradient: Expr, word: Expr) -> None:
        for number, source in enumerate((row, gradient)):
            at = fixed("copied", source, "int64")
            worker.start_copy(word + number * wide_part, at, always=True)

    def change(row: Expr, gradient: Expr, word: Expr) -> None:
        at = fixed("at", row, "int64")
        if lanes == 1:
            copied = _load(worker, [at, fixed("at", gradient, "int64")], 1)
        else:
            copied = [let("old", worker.staging[quad_at(word + i * wide_part)]) for i in range(COPIED)]

        def step(optimizer: Optimizer) -> None:
            parameters, states = worker.access.base(isa.PARAMETERS), isa.STATES[: len(optimizer.states)]
            shifts = [let("shift", worker.access.base(state) - parameters) for state in states]
            positions = [at, *(fixed("at", row + shift, "int64") for shift in shifts)]
            _step(worker, optimizer, rate, positions, copied, scale, lanes)

        each_optimizer(worker.plan, _opcode_here(opcode), table.parameter, step)

    with when(_finite(total)), stride_loop("part", begin, count, apart * PARTS_TOGETHER) as part:
        near = smaller(part + smaller(worker.lane, PARTS_TOGETHER - 1) * apart, count - 1)
        heads = let("heads", worker.words[rows + divided(near, parts)])
        if lanes == 4:
            each(part, heads, copy)
            cuda.copy_commit()
            cuda.copy_wait(0)
        each(part, heads, change)


class _Coefficients(dict[str, Expr]):
    """The coefficients of the header, read where they are first asked for; the learning rate with the
    parameters' own factor."""

    def __init__(self, worker: Worker, rate: Expr) -> None:
        super().__init__()
        self.worker, self.rate = worker, rate

    def __missing__(self, name: str) -> Expr:
        value = self.worker.access.header_float(name)
        if name == "learning_rate":
            value = value * T.reinterpret("float32", self.rate)
        self[name] = let(name, value)
        return self[name]


def _index(at: list[Expr], lanes: int) -> list[Expr]:
    return [quad_at(place) if lanes == 4 else place for place in at]


def _load(worker: Worker, at: list[Expr], lanes: int) -> list[Expr]:
    """What lies at the places, an element or four neighbours each."""
    return [let("old", worker.pool[each]) for each in _index(at, lanes)]


def _step(
    worker: Worker,
    optimizer: Optimizer,
    rate: Expr,
    at: list[Expr],
    copied: list[Expr],
    scale: Expr,
    lanes: int,
    keeps_zeros: Expr | None = None,
) -> None:
    """New values of one element, or of four neighbours; at: where the parameter is, and its state; copied:
    the parameter and its gradient. keeps_zeros: as in `update`."""
    coefficients = _Coefficients(worker, rate)
    old, gradient, *state = *copied, *_load(worker, at[1:], lanes)
    new = [room("new", 4) for _ in at]
    for i in range(lanes):
        p, g, *s = (lane4(each, i) if lanes == 4 else each for each in (old, gradient, *state))
        values = [*optimizer.step(worker.math, coefficients, p, let("g", g * scale), *s)]
        if keeps_zeros is not None:
            values[0] = T.Select(both(keeps_zeros != 0, p == T.float32(0.0)), p, values[0])
        for into, value in zip(new, values, strict=True):
            put(into, i, value)
    for into, target in zip(new, _index(at, lanes), strict=True):
        T.buffer_store(worker.pool, into[quad_at(0)] if lanes == 4 else into[0], [target])
