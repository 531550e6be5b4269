"""Partial sums of transposed products on CUDA: where the columns of a row belong.

In: neighbouring columns of a row of the result, as a vector. Out: statements that write them to the
buffers of the plan, one access each where the buffers' parts allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, both, lane4, lanes, let, put, quad_at, room, when
from dnc.ir.plan import TransposedProduct

Place = Callable[[Expr], Expr]


def store_columns(
    worker: Worker, product: TransposedProduct, row: Expr, column: Expr, values: Expr, place: Place = quad_at
) -> None:
    """Writes columns of a row of the result, from `column` on, to where they belong.

    A narrow level sends them to the other workers, too; a wide one may send them instead, to who adds them
    up. values: a vector; `place` makes the position of one from that of its first element, a whole one.
    """
    value, width = let("value", values), lanes(values)
    push = worker.push
    for buffer, offset, low, high in product.stores:
        write = partial(_publish if worker.access.is_polled(buffer, offset) else _store, worker, place)
        at = worker.access.record(buffer, row) + (offset - low) + column
        sent = push.sums(buffer) if push is not None else []
        if low % width == high % width == offset % width == 0:
            with when(both(column >= low, column < high)):
                if worker.reduction is not None:
                    worker.reduction.send(buffer, offset, row, column - low, value)
                    continue
                write(at, value)
                for item in sent:
                    with when(push.sends):
                        push.send_sums(item, row, column - low, value)
        else:
            for i in range(width):
                with when(both(column + i >= low, column + i < high)):
                    one = value if width == 1 else lane4(value, i)
                    write(at + i, one)
                    for item in sent:
                        with when(push.sends):
                            push.send_sums(item, row, column + i - low, one)


def _store(worker: Worker, place: Place, at: Expr, value: Expr) -> None:
    """Writes a vector to where `place` says that it is, or an element."""
    T.buffer_store(worker.pool, value, [at if lanes(value) == 1 else place(at)])


def _publish(worker: Worker, _place: Place, at: Expr, value: Expr) -> None:
    """The same of what others poll."""
    assert worker.access.publish is not None
    elements = [value] if lanes(value) == 1 else [lane4(value, i) for i in range(lanes(value))]
    for i, some in enumerate([elements] if len(elements) == 4 else [[one] for one in elements]):
        worker.access.publish(at + i, some)


def copied_quad(sums: Any, first: Expr) -> Expr:
    """Four sums of a thread as a vector, in other registers: those of a vector are in a fixed order, and
    would be in the bank of what is multiplied."""
    four = room("four", 4)
    for i in range(4):
        put(four, i, cuda.COPY_HERE(sums[first + i]))
    return four[quad_at(0)]


def quad_of(sums: Any, indices: Sequence[int]) -> Expr:
    """Four sums of a thread as a vector."""
    four = room("four", 4)
    for i, index in enumerate(indices):
        put(four, i, sums[index])
    return four[quad_at(0)]


def keep_in_banks(sums: Any, count: int, run: int, number: Expr) -> None:
    """Asks for registers of sums, behind a loop that makes them: odd ones for the first `run` of so many,
    even ones for the next, and so on.

    A multiplication reads its sum and the operand that changes in one cycle if they are in different banks,
    that is, if one is even and the other odd; what a vector was loaded into begins with an even one. Left
    alone, the compiler has half of all sums in the wrong one, or all. number: any that is not negative.
    """
    odd, even = ([sums[i] for i in range(count) if i // run % 2 == rest] for rest in (0, 1))
    pairs = list(zip_longest(even, odd, fillvalue=T.float32(0.0)))
    for first, second in zip_longest(pairs[::2], pairs[1::2], fillvalue=pairs[-1]):
        T.evaluate(cuda.KEEP_IN_BANKS(*first, *second, number))
