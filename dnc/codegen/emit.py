"""Small words for emitting TIRx with the builder; shared by all targets.

In: Python values and TIRx expressions. Out: statements in the function under construction. The
bodies of instructions are written with these, so that they read like the code they emit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

Expr = Any

# Where mutable locals live: registers of a GPU thread ("local"), the stack of a CPU thread ("global").
_SCOPE: ContextVar[str] = ContextVar("scope", default="local")


@contextmanager
def locals_in(scope: str) -> Iterator[None]:
    """Functions built in the block keep their mutable locals in `scope`."""
    token = _SCOPE.set(scope)
    try:
        yield
    finally:
        _SCOPE.reset(token)


def named(name: str, value: Any) -> Any:
    """Names a variable or buffer, so that the emitted text can be read."""
    IRBuilder.name(name, value)
    return value


def let(name: str, value: Expr) -> Expr:
    """An immutable local: `value` is evaluated once, here.

    On the CPU floats are kept in stack slots, which LLVM turns into registers: TVM would carry the
    definitions of bound variables along, and take exponential time on a chain of them.
    """
    if _SCOPE.get() == "global" and not isinstance(value, int | float) and "float" in _dtype(value):
        return held(value)[0]
    return named(name, T.Bind(value))


def let_of(name: str, value: Expr) -> Expr:
    """A `let` of what a program, or a pass, calls so: any name, and so one that no function and no type of C
    has, which it would hide."""
    return let(f"{name}_", value)


def held(value: Expr) -> Any:
    """A stack slot that holds `value`, a scalar or a vector; read with [0]."""
    slot = T.alloc_buffer((1,), _dtype(value), scope="global")
    T.buffer_store(slot, value, [0])
    return slot


def _dtype(value: Expr) -> str:
    return str(value.ty.dtype)


def room(name: str, size: int, dtype: str = "float32") -> Any:
    """A mutable local of `size` elements, which are written before they are read."""
    # Without a layout TVM would look one up, which takes a third of the time that all statements do.
    return named(name, T.alloc_buffer((size,), dtype, scope=_SCOPE.get(), layout=None))


def local(name: str, dtype: str, value: Expr, size: int = 1) -> Any:
    """A mutable local of `size` elements, all starting as `value`; read with [0]."""
    made = room(name, size, dtype)
    for index in range(size):
        T.buffer_store(made, value, [index])
    return made


def fixed(name: str, value: Expr, dtype: str = "int32") -> Expr:
    """An immutable local that TVM does not substitute into its uses, as it does with the index
    arithmetic of `let`: for positions of vectors, and for divisions that are used often."""
    return local(name, dtype, value)[0]


def put(buffer: Any, index: Expr, value: Expr) -> None:
    """buffer[index] = value; a scalar fills all places of a vector index."""
    width = lanes(index)
    fill = width > 1 and lanes(value) == 1
    T.buffer_store(buffer, tirx.Broadcast(value, width) if fill else value, [index])


def lanes(value: Expr) -> int:
    """Elements of a vector expression; 1 for scalars and Python numbers."""
    return 1 if isinstance(value, int | float) else int(value.ty.dtype.lanes)


def quad_at(at: Expr) -> Expr:
    """The four elements from `at` on, a multiple of 4: one access of 16 bytes.

    TVM splits a vector into four accesses where it cannot see that it is aligned: so it is told.
    """
    return tirx.Ramp(at if isinstance(at, int) else T.shift_right(at, 2) * 4, 1, 4)


def back_and_forth(count: int, number: int) -> Iterable[int]:
    """0 .. count - 1, backwards for every second number: the last operand of one turn is the first of the
    next, and a register that two instructions in a row read is read once."""
    return range(count) if number % 2 == 0 else range(count - 1, -1, -1)


def whole_quad(number: Expr) -> Expr:
    """The elements 4 * number .. + 3: one access of 16 bytes."""
    return tirx.Ramp(number * 4, 1, 4)


def several(number: Expr, size: int) -> Expr:
    """The elements size * number .. + size - 1: one access of 4, 8 or 16 bytes."""
    return tirx.Ramp(number * size, 1, size)


def shift(at: Expr, index: Expr) -> Expr:
    """at + index, where `index` may be a ramp (neighbouring elements, read and written as one).

    Ramps of four are whole addresses, as those of `quad_at`.
    """
    if lanes(index) == 1:
        return at + index
    base = wide(at) + index.base if not isinstance(at, int) else index.base + at
    return quad_at(base) if lanes(index) == 4 else tirx.Ramp(base, index.stride, lanes(index))


def floats(value: float, like: Expr) -> tuple[str, Expr]:
    """A constant with as many lanes as `like`, and its type."""
    width = lanes(like)
    if width == 1:
        return "float32", T.float32(value)
    return f"float32x{width}", tirx.Broadcast(tirx.FloatImm("float32", value), width)


@contextmanager
def when(condition: Expr) -> Iterator[None]:
    """The block runs where the condition holds."""
    with T.If(condition), T.Then():
        yield


def either(condition: Expr, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """Two branches."""
    with T.If(condition):
        with T.Then():
            then()
        with T.Else():
            otherwise()


def by_size(count: Expr, bodies: Sequence[tuple[int, Callable[[], None]]]) -> None:
    """The body of the first size that is not below `count`, else that of the last; sizes ascend."""
    (size, body), *larger = bodies
    if larger:
        either(count <= size, body, lambda: by_size(count, larger))
    else:
        body()


@contextmanager
def loop(name: str, extent: Expr, unroll: bool | int | None = False) -> Iterator[Expr]:
    """for name in 0..extent, in order; `unroll` None leaves it to the target's compiler,
    a number asks for so many at a time."""
    with T.serial(0, extent, unroll=unroll) as index:
        yield named(name, index)


@contextmanager
def stride_loop(name: str, begin: Expr, end: Expr, step: Expr) -> Iterator[Expr]:
    """for (name = begin; name < end; name += step)."""
    counter = local(name, "int32", begin)
    with T.While(counter[0] < end):
        yield let(f"{name}_now", counter[0])
        put(counter, 0, counter[0] + step)


def dispatch(opcode: Expr, cases: Mapping[int, Callable[[], None]]) -> None:
    """A binary tree of branches; an opcode that is not in `cases` does nothing.

    Neighbours that share a body (the same object) share a branch.
    """
    runs: list[tuple[int, int, Callable[[], None]]] = []
    for code in sorted(cases):
        if runs and runs[-1][1] == code - 1 and runs[-1][2] is cases[code]:
            runs[-1] = (runs[-1][0], code, cases[code])
        else:
            runs.append((code, code, cases[code]))
    _branch(opcode, runs)


def _branch(opcode: Expr, runs: list[tuple[int, int, Callable[[], None]]]) -> None:
    if len(runs) == 1:
        ((first, last, body),) = runs
        with when(opcode == first if first == last else both(opcode >= first, opcode <= last)):
            body()
        return
    half = len(runs) // 2
    either(
        opcode < runs[half][0],
        lambda: _branch(opcode, runs[:half]),
        lambda: _branch(opcode, runs[half:]),
    )


def wide(value: Expr) -> Expr:
    """An index as int64: positions in the pool need more than 31 bits."""
    return T.cast(value, "int64")


def both(a: Expr, b: Expr) -> Expr:
    """a and b."""
    return tirx.And(a, b)


def divided(a: Expr, b: Expr) -> Expr:
    """a // b of integers that are not negative, without the code for those that are."""
    return tirx.truncdiv(a, b)


def any_of(a: Expr, b: Expr) -> Expr:
    """a or b."""
    return tirx.Or(a, b)


def smaller(a: Expr, b: Expr) -> Expr:
    """The smaller of two integers."""
    return T.Select(a < b, a, b)


def lane4(vector: Expr, element: int) -> Expr:
    """One element of a vector value."""
    return tirx.Shuffle([vector], [element])


def elements4(vector: Expr) -> list[Expr]:
    """The elements of a vector of four, which is read once."""
    found = let("four", vector)
    return [lane4(found, i) for i in range(4)]


def store_four(buffer: Any, at: Expr, values: Sequence[Expr]) -> None:
    """Writes four neighbouring elements from `at` on, a multiple of 4, with one access."""
    four = room("four", 4)
    for i, value in enumerate(values):
        put(four, i, value)
    T.buffer_store(buffer, four[quad_at(0)], [quad_at(at)])
