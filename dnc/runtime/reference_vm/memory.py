"""The VM's memory: a pool that knows who touched every word last, and when.

In: reads and writes of workers. Out: values, or a `MachineError`. Guaranteed: an access is inside the
pool, reads only what was written, and is ordered by barriers against those of other workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dnc.runtime.reference_vm.machine import ReferenceVM

Array = NDArray[Any]


class MachineError(Exception):
    """An execution that a real machine may not perform: a race, a bad address, a deadlock."""


OUTSIDE = (1 << 20) - 1  # in place of a worker's number


def stamp(time: int) -> int:
    """The stamp of worker 0 at a time; those of the others follow."""
    return time << 20


def _largest(numbers: Array) -> Any:
    """The largest of some 64-bit numbers, among which negative ones are larger than any other."""
    found = numbers.view(np.uint64)
    return found.item(found.argmax())  # a third of the time of `max`, where they are few


# Ends an instruction, given what the workers of the replica have sent, by rank.
Finish = Callable[[list[dict[Any, Array]]], None]


@attrs.define(eq=False)
class Worker:
    """A worker's place in its queue; waiting: the barrier that it has come to. sent: what it has for the
    others of its replica within an instruction; finish: ends that. repeated: values of the row at hand that
    it has made in whole. first: the first worker that shares out gradients with it. knows: up to when it
    waited for what others did, by number."""

    number: int
    replica: int
    rank: int
    instructions: Array
    counter: int = 0
    waiting: str | None = None
    sent: dict[Any, Array] = attrs.field(factory=dict)
    finish: Finish | None = None
    repeated: dict[Any, Array] = attrs.field(factory=dict)
    first: int = 0
    knows: dict[int, int] = attrs.field(factory=dict)


class CheckedMemory:
    """The pool with a log of who wrote and who read each word last, and when, if there are several workers.

    A stamp is a time and a worker's number; times grow with every barrier, and from launch to launch. Nobody
    has touched a word whose stamp is of a launch before, but who made the static words. There are as many
    stamps again of words that are not there, which nobody writes: of those behind the pool, and, counted from
    the end, of those in front of it.
    """

    def __init__(self, words: Array, static: int, workers: int) -> None:
        self.wrote, self.has_read = np.zeros(2 * len(words), np.int64), np.zeros(0, np.int64)
        self.begin(words, static, workers, stamp(1))

    def begin(self, words: Array, static: int, workers: int, first: int) -> None:
        """A launch, on a pool of the same size. first: the first stamp of its first time."""
        self.words, self.static, self.alone, self.first = words, static, workers == 1, first
        if not self.alone and not len(self.has_read):
            self.has_read = np.zeros(len(words), np.int64)

    def _outside(self, at: Array, machine: ReferenceVM, worker: Worker) -> MachineError:
        """What is wrong with addresses of which some are outside the pool, or in front of what is written."""
        lowest, highest = int(at.min()), int(at.max())
        if lowest < 0 or highest >= len(self.words):
            return machine.error(worker, f"address {lowest}..{highest} outside the pool")
        return machine.error(worker, f"word {lowest} of the row of zeros is overwritten")

    def _check_ordered(
        self, at: Array, stamps: Array, machine: ReferenceVM, worker: Worker, verb: str
    ) -> None:
        """MachineError if some stamps, not all of them settled, are of other workers, and no barrier of both
        came since."""
        of_replica, of_grid = machine.since[worker.replica], machine.since_grid
        raced = list[int]()
        for found in set(stamps[stamps >= min(of_replica, of_grid)].tolist()):  # of few times and workers
            other = found & (stamp(1) - 1)
            since = of_replica if other // machine.per_replica == worker.replica else of_grid
            if found >= max(since, worker.knows.get(other, 0)) and other != worker.number:
                raced.append(found)
        if raced:
            bad = int(np.flatnonzero(np.isin(stamps, raced))[0])
            other = int(stamps[bad]) & (stamp(1) - 1)
            raise machine.error(
                worker, f"race: word {int(at[bad])} was {verb} by worker {other} in the same epoch"
            )

    def read(self, at: Array, machine: ReferenceVM, worker: Worker) -> Array:
        """The words at some places, in float64; MachineError if that is not allowed now."""
        try:
            stamps = self.wrote.take(at)
            if not self.alone:
                self.has_read[at] = machine.now + worker.number
            found: Array = self.words.take(at).astype(np.float64)
        except IndexError:
            raise self._outside(at, machine, worker) from None
        # Stamps of launches before are the largest.
        if found.size and _largest(stamps - self.first) >= machine.settled(worker) - self.first:
            self._check_written(at.ravel(), stamps.ravel(), machine, worker)
        return found

    def _check_written(self, at: Array, stamps: Array, machine: ReferenceVM, worker: Worker) -> None:
        """MachineError if words that are read are not there, or were not written, or by workers who were not
        waited for."""
        unwritten = self._unwritten(at, stamps)
        if len(unwritten):
            if _largest(unwritten) >= len(self.words):
                raise self._outside(at, machine, worker)
            bad = int(unwritten[0])
            raise machine.error(worker, f"word {bad} is read before anything was written there")
        if not self.alone and _largest(stamps) >= machine.settled(worker):
            self._check_ordered(at, stamps, machine, worker, "written")

    def _unwritten(self, at: Array, stamps: Array) -> Array:
        """Those of some places behind the static words, or outside the pool, where nobody has written."""
        nobody = at[stamps < self.first]
        return nobody[nobody.view(np.uint64) >= self.static]

    def write(self, at: Array, values: Array, machine: ReferenceVM, worker: Worker) -> None:
        """Changes the words at some places; MachineError if that is not allowed now."""
        flat = at.ravel()
        if not len(flat):
            return
        if _largest(flat - machine.zero_words) >= len(self.words) - machine.zero_words:
            raise self._outside(flat, machine, worker)
        if not self.alone:
            settled = machine.settled(worker)
            for stamps, verb in (self.wrote, "written"), (self.has_read, "read"):
                found = stamps.take(flat)
                if _largest(found) >= settled:
                    self._check_ordered(flat, found, machine, worker, verb)
        if values.shape != at.shape:
            values = np.broadcast_to(values, at.shape)
        self.words[flat] = values.ravel()
        self.wrote[flat] = machine.now + worker.number

    def read_from_outside(self, at: Array, machine: ReferenceVM) -> Array:
        """What a device reads of this one, for which it has waited; MachineError if it was not there then."""
        self._check_inside(at)
        stamps = self.wrote[at]
        if len(self._unwritten(at, stamps)):
            raise MachineError(f"word {int(at[0])} or one behind it is added up before anything was written")
        self._check_waited(at, stamps, machine)
        return self.words[at].astype(np.float64)

    def write_from_outside(self, at: Array, values: Array, machine: ReferenceVM) -> None:
        """What a device writes here; no worker of this one may touch it before its next barrier."""
        self._check_inside(at)
        if not self.alone:
            self._check_waited(at, self.has_read[at], machine)
        self.words[at] = values.astype(np.float32)
        self.wrote[at] = machine.now + OUTSIDE

    def _check_inside(self, at: Array) -> None:
        if len(at) and _largest(at) >= len(self.words):
            raise MachineError(f"address {int(at.min())}..{int(at.max())} of another device outside the pool")

    def _check_waited(self, at: Array, stamps: Array, machine: ReferenceVM) -> None:
        """MachineError if some stamps are of workers here, and no barrier of them all came since."""
        raced = stamps >= machine.since_grid
        if raced.any():
            bad = int(at[int(np.flatnonzero(raced)[0])])
            raise MachineError(f"race: word {bad} is added up in the epoch in which a worker used it")
