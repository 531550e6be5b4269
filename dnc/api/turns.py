"""Turns: a model may be called from several threads, and serves one of them at a time.

In: methods of something that has a `turn`. Out: the same methods. Guaranteed: what a thread asks for is not
mixed with what others do; a stream lets them in between two of its values, and while it waits for a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from dnc.api.arguments import batches_of

P = ParamSpec("P")
T = TypeVar("T")


class Turn:
    """A lock that its thread may take again."""

    def __init__(self) -> None:
        self._lock = RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def stream(self, values: Iterator[T]) -> Iterator[T]:
        """The same values, each made in a turn of its own."""
        end, value = object(), None
        try:
            while True:
                with self:
                    value = next(values, end)
                if value is end:
                    return
                yield value  # type: ignore[misc]
        finally:
            with self:
                values.close()  # type: ignore[attr-defined]

    def outside(self, given: Iterable[T]) -> Iterator[T]:
        """What a stream is given, taken while others may have their turn."""
        waiting, end = iter(given), object()
        while True:
            self._lock.release()
            try:
                value = next(waiting, end)
            finally:
                self._lock.acquire()
            if value is end:
                return
            yield value  # type: ignore[misc]


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
        with self.turn:
            return method(self, *arguments, **options)

    return taken


def stream_in_turn(method: Callable[[S, Any], Iterator[T]]) -> Callable[[S, Any], Iterator[T]]:
    """A method that makes a value of every batch it is given."""

    @wraps(method)
    def taken(self: S, batches: Any) -> Iterator[T]:
        def given() -> Iterator[Any]:
            yield from self.turn.outside(batches_of(batches))

        return self.turn.stream(method(self, given()))

    return taken
