"""Fixtures for all tests."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.command_line import command, finished_build, workplace

__all__ = ["command", "finished_build", "workplace"]

os.environ.setdefault("DNC_VERIFY", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.set_threshold(20_000, 20)  # else the garbage collector takes a twentieth of a run

LONGEST = ("test_cuda_source.py", "test_kernels.py", "test_peers.py", "test_pages.py")
"""Files of tests of many seconds each."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first: at the end of a run its processes have short ones to share."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_collection_finish() -> None:
    """What all tests share is not looked at again and again by the garbage collector."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def nothing_to_collect() -> None:
    """For what calls the garbage collector often: what the tests before have left is no work for it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def hangs_up() -> Iterator[None]:
    """SIGHUP ends this process: nohup, under which tests may run, has it ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
