"""A thread that runs one task after another, and is not harmed by an interrupt.

In: functions. Out: a `Task` for each, in their order. Guaranteed: however often a signal raises something in
the thread that gives tasks, or waits for them, the next task is taken and its end is noticed. The executors
and events of Python promise less: an interrupt that strikes within one of their locks leaves it held. Here
nothing is locked but within calls that are one step of the interpreter.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

PATIENCE = 1.0  # seconds until a waiter looks whether another one has taken the end away


class Task:
    """A function that a thread runs, and how that ended."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run: Callable[[], None] | None = run
        self._error: BaseException | None = None
        self._under_way = Lock()
        self._under_way.acquire()
        self.done = False

    def __call__(self) -> None:
        """Runs it, in the thread that took it."""
        assert self._run is not None
        try:
            self._run()
        except BaseException as error:
            self._error = error
        self._run, self.done = None, True
        self._under_way.release()

    def wait(self) -> None:
        """Until it has ended, however it did."""
        while not self.done:
            if self._under_way.acquire(timeout=PATIENCE):
                self._under_way.release()

    def result(self) -> None:
        """The same; raises what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error


class WorkerThread:
    """The thread. It ends with the last reference to this, and with the process."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        Thread(target=_work, args=(self._tasks,), name=name, daemon=True).start()
        weakref.finalize(self, self._tasks.put, None).atexit = False
        self._process = os.getpid()
        _THREADS.add(self)

    def submit(self, run: Callable[[], None]) -> Task:
        """Runs a function behind all that were given before."""
        task = Task(run)
        self._tasks.put(task)
        return task

    def wait(self) -> None:
        """Until all that were given have ended, also one that an interrupt has kept from the caller. In a
        process that was forked there is no thread to wait for."""
        if os.getpid() == self._process:
            self.submit(_nothing).wait()


_THREADS: weakref.WeakSet[WorkerThread] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """What is under way ends before the libraries that it runs in."""
    for each in list(_THREADS):
        each.wait()


def _nothing() -> None:
    """What there is to do behind everything else."""


def _work(tasks: SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # and what it holds
