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


# Ends an instruction, given what the workers of the replica have sent, by rank.
Finish = Callable[[list[dict[Any, Array]]], None]


@attrs.define(eq=False)
class Worker:
    """A worker's place in its queue; waiting: the barrier that it has come to. sent: what it has for the
    others of its replica within an instruction; finish: ends that. repeated: values of the row at hand that
    it has made in whole."""

    number: int
    replica: int
    rank: int
    instructions: Array
    counter: int = 0
    waiting: str | None = None
    sent: dict[Any, Array] = attrs.field(factory=dict)
    finish: Finish | None = None
    repeated: dict[Any, Array] = attrs.field(factory=dict)


class CheckedMemory:
    """The pool with a log of who wrote and who read each word last, and when, if there are several workers.

    A stamp is a time and a worker's number; times grow with every barrier. 0: nobody yet.
    """

    def __init__(self, words: Array, static: int, workers: int) -> None:
        self.words, self.alone = words, workers == 1
        self.wrote = np.zeros(len(words), np.int64)
        self.wrote[:static] = 1  # before the first time
        self.has_read = np.zeros(0 if self.alone else len(words), np.int64)

    def _check_inside(self, at: Array, machine: ReferenceVM, worker: Worker) -> int:
        """The lowest address; MachineError if one is outside the pool."""
        lowest, highest = int(np.minimum.reduce(at)), int(np.maximum.reduce(at))
        if lowest < 0 or highest >= len(self.words):
            raise machine.error(worker, f"address {lowest}..{highest} outside the pool")
        return lowest

    def _check_ordered(
        self, at: Array, stamps: Array, machine: ReferenceVM, worker: Worker, verb: str
    ) -> None:
        """MachineError if some stamps are of other workers, and no barrier of both came since."""
        of_replica, of_grid = machine.since[worker.replica], machine.since_grid
        if np.maximum.reduce(stamps) < of_grid:
            return
        other = stamps & (stamp(1) - 1)
        since = np.where(other // machine.per_replica == worker.replica, of_replica, of_grid)
        raced = (stamps >= since) & (other != worker.number)
        if raced.any():
            bad = int(np.flatnonzero(raced)[0])
            raise machine.error(
                worker, f"race: word {int(at[bad])} was {verb} by worker {int(other[bad])} in the same epoch"
            )

    def read(self, at: Array, machine: ReferenceVM, worker: Worker) -> Array:
        """The words at some places, in float64; MachineError if that is not allowed now."""
        flat = at.ravel()
        if len(flat):
            self._check_inside(flat, machine, worker)
            stamps = self.wrote[flat]
            if not np.minimum.reduce(stamps):
                bad = int(flat[stamps == 0][0])
                raise machine.error(worker, f"word {bad} is read before anything was written there")
            if not self.alone:
                self._check_ordered(flat, stamps, machine, worker, "written")
                self.has_read[flat] = machine.now + worker.number
        return self.words[at].astype(np.float64)

    def write(self, at: Array, values: Array, machine: ReferenceVM, worker: Worker) -> None:
        """Changes the words at some places; MachineError if that is not allowed now."""
        flat = at.ravel()
        if not len(flat):
            return
        lowest = self._check_inside(flat, machine, worker)
        if lowest < machine.zero_words:
            raise machine.error(worker, f"word {lowest} of the row of zeros is overwritten")
        if not self.alone:
            self._check_ordered(flat, self.wrote[flat], machine, worker, "written")
            self._check_ordered(flat, self.has_read[flat], machine, worker, "read")
        self.words[flat] = np.broadcast_to(values, at.shape).astype(np.float32).ravel()
        self.wrote[flat] = machine.now + worker.number

    def read_from_outside(self, at: Array, machine: ReferenceVM) -> Array:
        """What a device reads of this one, for which it has waited; MachineError if it was not there then."""
        stamps = self.wrote[at]
        if len(at) and not np.minimum.reduce(stamps):
            raise MachineError(f"word {int(at[0])} or one behind it is added up before anything was written")
        self._check_waited(at, stamps, machine)
        return self.words[at].astype(np.float64)

    def write_from_outside(self, at: Array, values: Array, machine: ReferenceVM) -> None:
        """What a device writes here; no worker of this one may touch it before its next barrier."""
        if not self.alone:
            self._check_waited(at, self.has_read[at], machine)
        self.words[at] = values.astype(np.float32)
        self.wrote[at] = machine.now + OUTSIDE

    def _check_waited(self, at: Array, stamps: Array, machine: ReferenceVM) -> None:
        """MachineError if some stamps are of workers here, and no barrier of them all came since."""
        raced = stamps >= machine.since_grid
        if raced.any():
            bad = int(at[int(np.flatnonzero(raced)[0])])
            raise MachineError(f"race: word {bad} is added up in the epoch in which a worker used it")
