"""Turns that an interrupt ends: the lock is held as often as it was, and the interrupt goes on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dnc.api.turns import Turn, in_turn, stream_in_turn


class Interrupted:
    """A lock that an interrupt comes to once: before or behind a call."""

    def __init__(self, call: str = "", behind: bool = False) -> None:
        self.lock, self.call, self.behind = threading.RLock(), call, behind

    def at(self, call: str, behind: bool) -> None:
        if (call, behind) == (self.call, self.behind):
            self.call = ""
            raise KeyboardInterrupt

    def acquire(self) -> None:
        self.at("acquire", False)
        self.lock.acquire()
        self.at("acquire", True)

    def release(self) -> None:
        self.at("release", False)
        self.lock.release()
        self.at("release", True)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    def _is_owned(self) -> bool:
        return self.lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def is_free(self) -> bool:
        """Whether another thread can take it."""
        found: list[bool] = []

        def take() -> None:
            found.append(self.lock.acquire(blocking=False))
            if found[0]:
                self.lock.release()

        other = threading.Thread(target=take)
        other.start()
        other.join()
        return found[0]


class Counter:
    """Something that is called in turns."""

    def __init__(self, lock: Any) -> None:
        self.turn = Turn()
        self.turn.lock = lock

    @in_turn
    def one(self) -> int:
        return 1

    @stream_in_turn
    def doubled(self, batches: Any) -> Any:
        for batch in batches:
            yield 2 * batch

    @in_turn
    def all_doubled(self, batches: Any) -> list[int]:
        return list(self.doubled(batches))


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("call", ["acquire", "release"])
def test_an_interrupt_while_a_stream_takes_its_batch(call: str, behind: bool) -> None:
    lock = Interrupted(call, behind)
    counter = Counter(lock)
    with pytest.raises(KeyboardInterrupt):
        list(counter.doubled([1, 2]))
    assert not lock.call and lock.is_free()
    assert list(counter.doubled([1, 2])) == [2, 4] and lock.is_free()


def test_an_interrupt_behind_a_mistake_of_the_batches() -> None:
    lock = Interrupted("acquire")

    def batches() -> Any:
        yield 1
        lock.call = "acquire"
        raise ValueError("no more")

    lock.call = ""
    with pytest.raises(KeyboardInterrupt) as caught:
        list(Counter(lock).doubled(batches()))
    assert isinstance(caught.value.__context__, ValueError) and lock.is_free()


def test_a_method_takes_the_lock_by_the_with_of_the_lock() -> None:
    """Not by a call behind which an interrupt can come."""
    lock = Interrupted("acquire", behind=True)
    assert Counter(lock).one() == 1
    assert lock.call and lock.is_free()


@pytest.mark.parametrize("call", ["", "acquire", "release"])
def test_a_stream_in_a_turn_lets_none_in(call: str) -> None:
    lock = Interrupted(call)
    counter, free = Counter(lock), list[bool]()

    def batches() -> Any:
        for batch in (1, 2):
            free.append(lock.is_free())
            yield batch

    assert counter.all_doubled(batches()) == [2, 4]
    assert free == [False, False] and lock.is_free()
    lock.call = ""
    assert list(counter.doubled(batches())) == [2, 4]
    assert free == [False, False, True, True] and lock.is_free()


def test_streams_in_streams() -> None:
    """One that the batches of another one come from has its own turns."""
    lock = Interrupted()
    counter = Counter(lock)
    inner = counter.doubled(iter([1, 2, 3]))
    assert list(counter.doubled(each for each in inner if lock.is_free())) == [4, 8, 12]
    assert lock.is_free()
