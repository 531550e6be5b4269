"""Synchronisation of CPU workers: atomics that TIRx lacks, and a bounded barrier.

In: an int32 buffer of synchronisation words shared by the workers of a group, zero before the first
launch. Out: TIRx emitted into the function that the caller's `IRBuilder` is building. Guaranteed:
what a worker stored before a barrier is seen by every worker of the group after it; no wait is
unbounded: a worker that waited too long sets the abort word, and every wait polls that word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tvm import tirx
from tvm.tirx.script.builder import ir as T

Expr: TypeAlias = Any

BARRIER_WORDS = 32  # arrivals and epoch, on cache lines of their own
_EPOCH = 16  # word of the epoch within a barrier
SPINS_BEFORE_YIELD = 64
DEFAULT_YIELD_LIMIT = 1 << 22  # some seconds
ABORT_TIMEOUT = 1

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


def primitives() -> Any:
    """The frame inside which the functions of this module may be used; enter it once a function."""
    return T.attr(0, "pragma_import_llvm", _LLVM_IR)


def load_acquire(words: Expr, at: Expr) -> Expr:
    """The word at `at`; later reads see what was released with it."""
    return T.Bind(T.call_extern("int32", "dnc_load_acquire", T.address_of(words[at])))


def store_release(words: Expr, at: Expr, value: Expr) -> None:
    """Publish `value` and everything stored before."""
    T.evaluate(T.call_extern("int32", "dnc_store_release", T.address_of(words[at]), value))


def fetch_add(words: Expr, at: Expr, value: Expr) -> Expr:
    """Add, acquiring and releasing; returns the word from before."""
    return T.Bind(T.call_extern("int32", "dnc_fetch_add", T.address_of(words[at]), value))


def emit_barrier(
    words: Expr,
    *,
    at: Expr,
    parties: Expr,
    abort_at: Expr,
    yield_limit: int = DEFAULT_YIELD_LIMIT,
) -> None:
    """Wait until `parties` workers have arrived at the barrier whose words start at `at`.

    Leaves early when the abort word is not zero, and sets it to `ABORT_TIMEOUT` after `yield_limit`
    yields; the caller checks it (`load_acquire(words, abort_at)`) and leaves its loop. After an
    abort the host zeroes all words before the next launch.
    """
    epoch_at = T.Bind(at + _EPOCH)
    epoch = load_acquire(words, epoch_at)
    arrived = fetch_add(words, at, 1)
    with T.If(arrived == parties - 1):
        with T.Then():
            T.buffer_store(words, 0, [at])
            store_release(words, epoch_at, epoch + 1)
        with T.Else():
            emit_wait(
                words,
                until=lambda: load_acquire(words, epoch_at) != epoch,
                abort_at=abort_at,
                yield_limit=yield_limit,
            )


def emit_wait(
    words: Expr,
    *,
    until: Any,
    abort_at: Expr,
    yield_limit: Expr = DEFAULT_YIELD_LIMIT,
    on_timeout: Callable[[], None] | None = None,
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
                    if on_timeout is not None:
                        on_timeout()
                    else:
                        store_release(words, abort_at, ABORT_TIMEOUT)


def _counter(value: int) -> Expr:
    counter = T.alloc_buffer((1,), "int32", scope="global")
    T.buffer_store(counter, value, [0])
    return counter
