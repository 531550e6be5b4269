"""Synchronisation of CPU workers: atomics that TIRx lacks, and a bounded wait.

In: an int32 buffer of synchronisation words shared by the workers of a group. Out: TIRx emitted into the
function that the caller's `IRBuilder` is building. Guaranteed: what a worker stored before it added to a
word is seen by every worker that waits for the sum; no wait is unbounded, and every wait ends where the
abort word is set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tvm import tirx
from tvm.tirx.script.builder import ir as T

Expr: TypeAlias = Any

SPINS_BEFORE_YIELD = 64

_LLVM_IR = """
declare i32 @sched_yield()

define i32 @dnc_load_acquire(ptr %p) alwaysinline nounwind {
  %v = load atomic i32, ptr %p acquire, align 4
  ret i32 %v
}
define i32 @dnc_store_release(ptr %p, i32 %v) alwaysinline nounwind {
  store atomic i32 %v, ptr %p release, align 4
  ret i32 0
}
define i32 @dnc_fetch_add(ptr %p, i32 %v) alwaysinline nounwind {
  %o = atomicrmw add ptr %p, i32 %v acq_rel, align 4
  ret i32 %o
}
define i32 @dnc_yield() noinline nounwind {
  %r = call i32 @sched_yield()
  ret i32 %r
}
"""


def primitives(others: str = "") -> Any:
    """The frame inside which the functions of this module may be used, and those of another text of LLVM IR.

    Enter it once a function: of two frames, one in the other, TVM's text keeps the inner one alone.
    """
    return T.attr(0, "pragma_import_llvm", _LLVM_IR + others)


def load_acquire(words: Expr, at: Expr) -> Expr:
    """The word at `at`; later reads see what was released with it."""
    return T.Bind(T.call_extern("int32", "dnc_load_acquire", T.address_of(words[at])))


def store_release(words: Expr, at: Expr, value: Expr) -> None:
    """Publish `value` and everything stored before."""
    T.evaluate(T.call_extern("int32", "dnc_store_release", T.address_of(words[at]), value))


def fetch_add(words: Expr, at: Expr, value: Expr) -> Expr:
    """Add, acquiring and releasing; returns the word from before."""
    return T.Bind(T.call_extern("int32", "dnc_fetch_add", T.address_of(words[at]), value))


def emit_wait(
    words: Expr,
    *,
    until: Callable[[], Expr],
    abort_at: Expr,
    yield_limit: Expr,
    on_timeout: Callable[[], None],
) -> None:
    """Poll `until()` (emits loads, returns a condition), yielding, until it holds or the group aborts.

    `on_timeout` emits what sets the abort word when the limit is reached.
    """
    waiting = _counter(1)
    spins = _counter(0)
    yields = _counter(0)
    with T.While(waiting[0] != 0), T.If(tirx.any(until(), load_acquire(words, abort_at) != 0)):
        with T.Then():
            T.buffer_store(waiting, 0, [0])
        with T.Else():
            T.buffer_store(spins, spins[0] + 1, [0])
            with T.If(spins[0] >= SPINS_BEFORE_YIELD), T.Then():
                T.buffer_store(spins, 0, [0])
                T.evaluate(T.call_extern("int32", "dnc_yield"))
                T.buffer_store(yields, yields[0] + 1, [0])
                with T.If(yields[0] >= yield_limit), T.Then():
                    on_timeout()


def _counter(value: int) -> Expr:
    counter = T.alloc_buffer((1,), "int32", scope="global")
    T.buffer_store(counter, value, [0])
    return counter
