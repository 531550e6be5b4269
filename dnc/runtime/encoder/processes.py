"""Encoding in other processes, while this one feeds the device: Python's threads would share one lock.

In: jobs, in order. Out: their schedules, in the same order. Guaranteed: the same words as `Job.encode`
makes here; a process that is lost, or does not start, costs time and nothing else; all of them end with
this one, whatever ends it.

A process is a fresh interpreter that reads the data set once, from memory that all of them share, and
writes the words of a job into memory that it shares with us. It has two jobs, and memory for the words of
each: one waits while it encodes the other, so that it goes on whatever this process is doing. What is
handed over may be written again from the next `submit` on; by then its words are on their way to the device.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from threading import Thread

import attrs
import numpy as np

from dnc.runtime.cores import cores
from dnc.runtime.encoder import DoesNotFit, Encoder
from dnc.runtime.encoder.job import Job
from dnc.runtime.prepared import Prepared
from dnc.runtime.schedule import Words
from dnc.runtime.schedules import Schedules
from dnc.runtime.sharing import Sharing

# More processes than this, for each GPU, do not make any that we know wait less. Tensor cores run 256
# sentences in a ninth of the time that one process takes to encode them.
MOST = 12
JOBS = 2  # of a process: one that it encodes, and the next one
READY = "ready"


def default_count(leaves_cores: bool, devices: int = 1) -> int:
    """How many processes to encode in for so many devices: none beside kernels that do not leave the cores
    alone.

    This process keeps a core; one process alone is slower than none.
    """
    count = min(MOST * devices, cores() - 1) if leaves_cores and hasattr(os, "memfd_create") else 0
    return count if count > 1 else 0


class Lost(Exception):
    """A process has ended, or could not be started."""


class Processes:
    """Encodes jobs of one data set in `count` processes."""

    def __init__(self, prepared: Prepared, count: int, sharing: Sharing | None = None) -> None:
        """Starts them, and does not wait for them. sharing: for jobs whose batches share something."""
        data = os.memfd_create("dnc-data")
        try:
            with os.fdopen(os.dup(data), "wb") as file:
                pickle.dump((prepared, sharing), file, pickle.HIGHEST_PROTOCOL)
            self._all = [_Process(data, prepared) for _ in range(count)]
        finally:
            os.close(data)
        self._free = deque[_Process]()
        self._busy = deque[tuple[_Process, Job]]()

    @property
    def ready(self) -> bool:
        """Whether all of them have read the data; Lost if one of them never will."""
        starting = [each for each in self._all if not each.is_ready]
        for each in starting:
            if each.connection.poll():
                each.receive()
                each.is_ready = True
        if starting and all(each.is_ready for each in starting):
            self._free.extend(self._all * JOBS)  # each has one before the first one has two
        return len(self._free) + len(self._busy) == len(self._all) * JOBS

    @property
    def has_room(self) -> bool:
        """Whether a process can take a job."""
        return bool(self._free)

    def submit(self, job: Job) -> None:
        """Gives a process a job."""
        process = self._free.popleft()  # an interrupt behind this leaves it out, with a job or without
        process.send(job)
        self._busy.append((process, job))

    def receive(self, job: Job) -> Schedules:
        """The schedules of the oldest job, to be copied before the next `submit`; DoesNotFit as there.

        Lost if it is another one, because an interrupt came between a job and the note of it.
        """
        if not self._busy or self._busy[0][1] is not job:
            raise Lost("another job is the oldest")
        process = self._busy[0][0]
        if process.is_torn:
            raise Lost("somebody was interrupted as he took a reply")
        process.is_torn = True
        reply = process.reply()
        self._busy.popleft()
        self._free.append(process)
        process.is_torn = False
        if isinstance(reply, _TooLarge):
            raise DoesNotFit(reply.message, reply.schedule_words, reply.activations)
        return reply

    def close(self) -> None:
        """Ends the processes."""
        for each in self._all:
            each.close()


@attrs.frozen(eq=False)
class _Encoded:
    """What comes back of a job: its schedules, without their words, and the shape of all words.

    The words come through shared memory.
    """

    schedules: Schedules
    shape: tuple[int, int]


@attrs.frozen
class _TooLarge:
    """What comes back of a job that does not fit."""

    message: str
    schedule_words: int
    activations: int


class _Process:
    """One process, seen from here."""

    def __init__(self, data: int, prepared: Prepared) -> None:
        self.plan = prepared.plan
        self.is_ready = self.is_torn = False  # torn: perhaps within a reply, or one behind
        self.connection, theirs = Pipe()
        words = [os.memfd_create("dnc-words") for _ in range(JOBS)]
        self._words = deque(_Received(file) for file in words)
        running: list[subprocess.Popen[bytes]] = []
        self.close = weakref.finalize(self, _end, running, self.connection, words)
        command = [sys.executable, "-P", "-c", f"import {__name__} as it; it.main()"]
        handed = [theirs.fileno(), data, *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
        try:
            self._running = subprocess.Popen(
                [*command, *map(str, handed)], pass_fds=handed, env=environment, stdin=subprocess.DEVNULL
            )
            running.append(self._running)
        except OSError as error:
            self.close()
            raise Lost(str(error)) from error
        finally:
            theirs.close()

    def send(self, job: Job) -> None:
        try:
            self.connection.send(job)
        except OSError as error:
            raise Lost(str(error)) from error

    def receive(self) -> object:
        try:
            return self.connection.recv()
        except (OSError, EOFError) as error:
            raise Lost(str(error)) from error

    def reply(self) -> Schedules | _TooLarge:
        """What came of the oldest job; the words of its schedules lie in shared memory."""
        found = self.receive()
        here = self._words[0]
        self._words.rotate(-1)
        if isinstance(found, _TooLarge):
            return found
        assert isinstance(found, _Encoded)
        return attrs.evolve(found.schedules, plan=self.plan, words=here.read(found.shape))


class _Received:
    """Memory that a process writes the words of every other job into, seen from here."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._memory: mmap.mmap | None = None

    def read(self, shape: tuple[int, int]) -> Words:
        """The words of a group."""
        batches, length = shape
        if self._memory is None or len(self._memory) < batches * length * 4:
            self._memory = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return np.frombuffer(self._memory, np.int32, batches * length).reshape(shape)


def _end(running: list[subprocess.Popen[bytes]], connection: Connection, words: list[int]) -> None:
    """Ends a process, if there is one; it has nothing to lose, and without us would end when its connection
    does."""
    connection.close()
    for file in words:
        os.close(file)
    for process in running:
        process.kill()
        process.wait()


# ---- the other side -----------------------------------------------------------------------------


def main() -> None:
    """A process: reads the data, then encodes a job at a time until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that trains
    ours, data, *words = map(int, sys.argv[1:])
    connection, memories = Connection(ours), cycle([_Shared(file) for file in words])
    prepared, sharing = pickle.loads(mmap.mmap(data, 0, prot=mmap.PROT_READ))
    os.close(data)
    encoder: Encoder | None = None
    with suppress(OSError):
        connection.send(READY)
        for job in _jobs(connection):
            encoder = encoder or Encoder(prepared, job.pool)
            connection.send(_encode(job, encoder, sharing, next(memories)))


def _jobs(connection: Connection) -> Iterator[Job]:
    """Those that come, until the connection ends.

    They are read in a thread: with large jobs and large replies each side would wait for the other to read.
    """
    came = SimpleQueue[Job | None]()

    def read() -> None:
        try:
            with suppress(EOFError, OSError):
                while True:
                    came.put(connection.recv())
        finally:
            came.put(None)

    reader = Thread(target=read, daemon=True)
    reader.start()
    while (job := came.get()) is not None:
        yield job
    reader.join()  # it may be saying why it has ended, and an interpreter that ends meanwhile aborts


def _encode(job: Job, encoder: Encoder, sharing: Sharing | None, shared: _Shared) -> _Encoded | _TooLarge:
    try:
        found = job.encode(encoder, sharing)
    except DoesNotFit as problem:
        return _TooLarge(problem.diagnostics[0].message, problem.schedule_words, problem.activations)
    return _Encoded(found.bare(), shared.write(found.words))


class _Shared:
    """Memory for words that grows by need."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._memory: mmap.mmap | None = None

    def write(self, words: Words) -> tuple[int, int]:
        """Writes the words of a group; their shape."""
        batches, length = words.shape
        size = batches * length * 4
        if self._memory is None or len(self._memory) < size:
            os.ftruncate(self._file, size * 2)
            self._memory = mmap.mmap(self._file, size * 2)
        np.frombuffer(self._memory, np.int32, size // 4).reshape(batches, length)[:] = words
        return batches, length
