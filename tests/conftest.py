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


@pytest.fixture
def nothing_to_collect() -> Iterator[None]:
    """For what calls the garbage collector often: what the tests before have left is no work for it."""
    gc.freeze()
    yield
    gc.unfreeze()
