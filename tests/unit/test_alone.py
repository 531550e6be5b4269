"""Memory that goes while launches that wait for each other are being started."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dnc.runtime import alone
from dnc.runtime.alone import ALONE, make_calls, watch, when_alone
from tests.support.waiting import wait_for


class Owner:
    """What a finalizer hangs on."""


@pytest.fixture(autouse=True)
def watched() -> Iterator[None]:
    watch()
    yield
    assert not ALONE.locked()


def test_a_call_is_made_if_nobody_is_alone() -> None:
    made = list[int]()
    when_alone(lambda: made.append(1))
    wait_for(lambda: made == [1])


def test_a_call_comes_behind_who_is_alone_whatever_thread_it_is_from() -> None:
    made = list[int]()
    with ThreadPoolExecutor(1) as threads, ALONE:
        when_alone(lambda: made.append(1))
        threads.submit(when_alone, lambda: made.append(2)).result(10)
        time.sleep(0.05)
        assert made == []
    wait_for(lambda: made == [1, 2])


def test_who_is_alone_makes_calls_before_what_he_wants() -> None:
    made = list[int]()
    with ALONE:
        when_alone(lambda: made.append(1))
        when_alone(lambda: made.append(2))
        make_calls()
        assert made == [1, 2]


def test_a_call_that_makes_others_go() -> None:
    """A collection of garbage may begin within a finalizer."""
    made = list[int]()

    def first() -> None:
        when_alone(lambda: made.append(2))
        made.append(1)

    when_alone(first)
    wait_for(lambda: made == [1, 2])


def test_a_call_that_fails_is_told_and_keeps_none_from_being_made(capsys: pytest.CaptureFixture[str]) -> None:
    made = list[int]()

    def failing() -> None:
        raise KeyError("a call")

    when_alone(failing)
    when_alone(lambda: made.append(1))
    wait_for(lambda: made == [1])
    with ALONE:
        make_calls()
    assert "KeyError: 'a call'" in capsys.readouterr().err


def test_nothing_is_left_over_of_many_threads() -> None:
    made = list[int]()

    def many(first: int) -> None:
        for number in range(first, first + 500):
            owner = Owner()
            weakref.finalize(owner, when_alone, lambda number=number: made.append(number))
            with ALONE:
                del owner
                if number % 3 == 0:
                    make_calls()

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(many, first) for first in range(0, 4000, 500)]:
            done.result(30)
    gc.collect()
    wait_for(lambda: len(made) == 4000)
    assert sorted(made) == list(range(4000)) and not alone._WAITING
