"""Turns: a model may be called from several threads, and serves one of them at a time.

In: methods of something that has a `turn`. Out: the same methods. Guaranteed: what a thread asks for is not
mixed with what others do; a stream lets them in between two of its values, and while it waits for a batch.
An interrupt (KeyboardInterrupt) leaves the lock held as often as it was before, and goes on.

Not promised: that several calls are one turn. `step` returns the loss of the step before, whoever made it,
and `sync` that of the last one; these, and `forward` with its `backward`, belong to one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from dnc.api.arguments import batches_of
from dnc.diagnostics import fail

P = ParamSpec("P")
T = TypeVar("T")


class Turn:
    """A lock that its thread may take again: by `with turn.lock`.

    No interrupt comes between the `with` and its lock. In an `__enter__` of ours one could: behind `acquire`
    and before it returns.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self._alone = False  # whether nothing but the stream that makes a value now has taken the lock
        self.moves = False  # whether a method that changes weights is under way
        _TURNS.add(self)

    def begin_anew(self) -> None:
        """In a process that was forked: whoever had the lock has stayed in the other one."""
        self.lock, self._alone, self.moves = RLock(), False, False

    def check_still(self, name: str) -> None:
        """DiagnosticError where a callback of training asks for what changes weights, or how they change."""
        if self.moves:
            raise fail(f"{name}: the model is being trained; what training calls may measure it and predict")

    def stream(self, values: Iterator[T]) -> Iterator[T]:
        """The same values, each made in a turn of its own."""
        end, value = object(), None
        try:
            while True:
                alone = not _is_held(self.lock)
                with self.lock:
                    before, self._alone = self._alone, alone
                    try:
                        value = next(values, end)
                    finally:
                        self._alone = before
                if value is end:
                    return
                yield value  # type: ignore[misc]
        finally:
            with self.lock:
                values.close()  # type: ignore[attr-defined]

    def outside(self, given: Iterable[T]) -> Iterator[T]:
        """What a stream is given, taken while others may have their turn.

        They may not while a method around the stream has its turn. However this ends, the lock is held again.
        """
        waiting, end = iter(given), object()
        while True:
            alone = self._alone
            try:
                if alone:
                    self.lock.release()
                value = next(waiting, end)
            finally:  # an interrupt comes behind any call: whether the lock is released, or taken, it knows
                interrupt: BaseException | None = None
                while alone:
                    try:
                        if not _is_held(self.lock):
                            self.lock.acquire()
                        self._alone = True  # others may have had streams
                        break
                    except BaseException as raised:
                        interrupt = raised
                if interrupt is not None:
                    raise interrupt
            if value is end:
                return
            yield value  # type: ignore[misc]


_TURNS: WeakSet[Turn] = WeakSet()


def _begin_anew() -> None:
    for turn in _TURNS:
        turn.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _is_held(lock: Any) -> bool:
    """Whether the calling thread has taken a lock, as threading.Condition asks."""
    return bool(lock._is_owned())


class Takes(Protocol):
    """What is called in turns."""

    @property
    def turn(self) -> Turn:
        """Whose turn it is."""


S = TypeVar("S", bound=Takes)


def in_turn(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that one thread at a time is in."""

    @wraps(method)
    def taken(self: S, /, *arguments: P.args, **options: P.kwargs) -> T:
        with self.turn.lock:
            return method(self, *arguments, **options)

    return taken


def moves(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that one thread at a time is in, and that changes weights or how steps change them: not from
    within another one."""

    @wraps(method)
    def taken(self: S, /, *arguments: P.args, **options: P.kwargs) -> T:
        with self.turn.lock:
            self.turn.check_still(method.__name__)
            try:
                self.turn.moves = True
                return method(self, *arguments, **options)
            finally:
                self.turn.moves = False

    return taken


def stream_in_turn(method: Callable[[S, Any], Iterator[T]]) -> Callable[[S, Any], Iterator[T]]:
    """A method that makes a value of every batch it is given; DiagnosticError if none can be gone through."""

    @wraps(method)
    def taken(self: S, batches: Any) -> Iterator[T]:
        def given() -> Iterator[Any]:
            yield from self.turn.outside(batches_of(batches))

        return self.turn.stream(method(self, given()))

    return taken
