"""Memory that goes while launches that wait for each other are being started."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from dnc.runtime.alone import alone, when_alone


class Owner:
    """What a finalizer hangs on."""


def test_a_call_is_made_at_once_if_nobody_is_alone() -> None:
    made = list[int]()
    when_alone(lambda: made.append(1))
    assert made == [1]


def test_a_call_comes_behind_who_is_alone_whatever_thread_it_is_from() -> None:
    made = list[int]()
    with ThreadPoolExecutor(1) as threads, alone():
        when_alone(lambda: made.append(1))
        threads.submit(when_alone, lambda: made.append(2)).result(10)
        assert made == []
    assert made == [1, 2]


def test_a_call_comes_also_behind_an_error() -> None:
    made = list[int]()
    with pytest.raises(KeyError), alone():
        when_alone(lambda: made.append(1))
        raise KeyError
    assert made == [1]


def test_a_call_that_makes_others_go() -> None:
    """A collection of garbage may begin within a finalizer."""
    made = list[int]()

    def first() -> None:
        when_alone(lambda: made.append(2))
        made.append(1)

    when_alone(first)
    assert made == [1, 2]


def test_one_at_a_time() -> None:
    order, inside, leave = list[str](), Event(), Event()

    def one() -> None:
        with alone():
            inside.set()
            assert leave.wait(10)
            order.append("one")

    def other() -> None:
        with alone():
            order.append("other")

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(one)
        assert inside.wait(10)
        second = threads.submit(other)
        leave.set()
        first.result(10)
        second.result(10)
    assert order == ["one", "other"]


def test_nothing_is_left_over_of_many_threads() -> None:
    """Calls that come just as somebody has looked for the last time."""
    made = list[int]()

    def many(first: int) -> None:
        for number in range(first, first + 500):
            owner = Owner()
            weakref.finalize(owner, when_alone, lambda number=number: made.append(number))
            with alone():
                del owner

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(many, first) for first in range(0, 4000, 500)]:
            done.result(30)
    gc.collect()
    assert sorted(made) == list(range(4000))
