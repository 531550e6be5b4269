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
    """The pool with a log of who touched each word last, and in which epoch, if there are several workers."""

    def __init__(self, words: Array, static: int, workers: int) -> None:
        self.words, self.alone = words, workers == 1
        self.written = np.zeros(len(words), bool)
        self.written[:static] = True
        size = 0 if self.alone else len(words)
        self.writer = np.full(size, -1, np.int32)
        self.write_epoch = np.zeros((2, size), np.int32)
        self.reader = np.full(size, -1, np.int32)
        self.read_epoch = np.zeros((2, size), np.int32)

    def _check(self, at: Array, machine: ReferenceVM, worker: Worker, write: bool) -> None:
        if len(at) == 0:
            return
        lowest, highest = int(np.minimum.reduce(at)), int(np.maximum.reduce(at))
        if lowest < 0 or highest >= len(self.words):
            raise machine.error(worker, f"address {lowest}..{highest} outside the pool")
        if not write and not np.logical_and.reduce(self.written[at]):
            bad = int(at[~self.written[at]][0])
            raise machine.error(worker, f"word {bad} is read before anything was written there")
        if write and lowest < machine.zero_words:
            raise machine.error(worker, f"word {lowest} of the row of zeros is overwritten")
        if self.alone:
            return
        self._ordered(at, self.writer, self.write_epoch, machine, worker, "written")
        if write:
            self._ordered(at, self.reader, self.read_epoch, machine, worker, "read")

    def _ordered(
        self, at: Array, who: Array, epochs: Array, machine: ReferenceVM, worker: Worker, verb: str
    ) -> None:
        other = who[at]
        foreign = other != worker.number
        foreign &= other >= 0
        if not np.logical_or.reduce(foreign):
            return
        same = other // machine.per_replica == worker.replica
        replica_now, grid_now = machine.epochs(worker)
        raced = foreign & np.where(same, epochs[0, at] == replica_now, epochs[1, at] == grid_now)
        if raced.any():
            bad = int(np.flatnonzero(raced)[0])
            raise machine.error(
                worker, f"race: word {int(at[bad])} was {verb} by worker {int(other[bad])} in the same epoch"
            )

    def read(self, at: Array, machine: ReferenceVM, worker: Worker) -> Array:
        """The words at some places, in float64; MachineError if that is not allowed now."""
        flat = at.ravel()
        self._check(flat, machine, worker, write=False)
        if not self.alone:
            self.reader[flat] = worker.number
            self.read_epoch[0, flat], self.read_epoch[1, flat] = machine.epochs(worker)
        return self.words[at].astype(np.float64)

    def write(self, at: Array, values: Array, machine: ReferenceVM, worker: Worker) -> None:
        """Changes the words at some places; MachineError if that is not allowed now."""
        flat = at.ravel()
        self._check(flat, machine, worker, write=True)
        self.words[flat] = np.broadcast_to(values, at.shape).astype(np.float32).ravel()
        self.written[flat] = True
        if not self.alone:
            self.writer[flat] = worker.number
            self.write_epoch[0, flat], self.write_epoch[1, flat] = machine.epochs(worker)
