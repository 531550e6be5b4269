"""Backends: what a session asks of the thing that runs kernels.

In: a pool size, schedules. Out: results of launches. Three of them exist: the reference VM (here),
the CPU kernel (`cpu_backend.py`), CUDA (`cuda_backend.py`). Guaranteed by every backend: a schedule
is one launch; launches run in the order they were made; two groups of them may be under way, one
per slot; a slot's schedule memory may be written again once `finish` of that slot has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Barrier
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import fail
from dnc.ir.isa import RESULT_WORDS, RESULTS
from dnc.ir.plan import Plan
from dnc.ir.stamps import Times
from dnc.runtime.reference_vm import ReferenceVM
from dnc.runtime.schedule import Schedule

Array = NDArray[Any]
Fill = Callable[[], None]


class Backend(Protocol):
    """Runs the schedules of one plan on one device."""

    name: str  # for people: "CPU, 2 workers", "NVIDIA H200, 7 clusters of 16"
    plan: Plan
    leaves_cores: bool  # whether kernels run elsewhere than on the cores of this machine
    devices: int  # how many train on the shares of a batch

    @property
    def launches(self) -> int:
        """Kernels started so far."""

    def grid(self, samples: int, trains: bool = True, lanes: int = 1) -> tuple[int, int]:
        """(replicas, workers of a replica) for a batch of `samples` that is trained on or not.

        lanes: as many such launches are to run at the same time.
        """

    @property
    def lanes(self) -> int:
        """How many launches may run at the same time."""

    def allocate(self, words: int) -> None:
        """Makes the pool, `words` words of zeros; contents of an older pool are lost.

        DiagnosticError in plain words when the device has not that much memory.
        """

    def close(self) -> None:
        """Gives the pool back, and what else it holds of the device; it is not used any more."""

    def capacity(self) -> int:
        """Words that a pool could have at most on this device now."""

    def write(self, at: int, values: Array) -> None:
        """Copies 4-byte words into the pool from word `at` on, after all launches so far."""

    def read(self, at: int, count: int) -> NDArray[np.float32]:
        """Words of the pool after all launches so far (as float32; `view` for integers)."""

    def launch(
        self, schedules: Sequence[Schedule], slot: int, traced: int = 0, fill: Fill | None = None
    ) -> None:
        """Copies schedules into the pool and starts a kernel for each, in order; does not wait.

        They lie side by side, and have the same layout, as `Encoder.encode_group` makes them; those of
        different lanes may run at the same time, also with those of the launch before. traced:
        so many of them, the first, run on the traced kernel. fill: is called between, to write what
        comes from elsewhere. Where they have a readout, its words are copied behind them.
        """

    def pool_array(self) -> Any:
        """The pool as an array of float32 that speaks DLPack; until the next `allocate`."""

    def finish(self, slot: int) -> NDArray[np.float32]:
        """Waits for the slot's last launches; their results, [schedules, RESULT_WORDS].

        DiagnosticError when the kernel gave up (names worker, instruction and exchange).
        """

    def values(self, slot: int) -> NDArray[np.float32]:
        """After `finish`: the words of the readout, until the slot is used again."""

    def trace_with(self, files: dict[str, bytes]) -> bool:
        """Takes the traced kernel's files; whether its times are of the host's clock.

        DiagnosticError if the device has no clock.
        """

    def times(self, slot: int) -> list[Times]:
        """After `finish`: the times of the slot's traced launches, each [workers, words of a run]."""

    def run(
        self, schedule: Schedule, reads: Sequence[tuple[int, int]], fill: Fill | None = None
    ) -> list[NDArray[np.float32]]:
        """One launch to its end, then copies of words of the pool, (first, count) each.

        The shortest way from a schedule to values: nothing else may be under way. fill: as for `launch`.
        Errors as `finish`.
        """

    def time_kernels(self, on: bool = True) -> list[float] | None:
        """From now on `run` appends the seconds of every kernel alone to the list; None where it cannot.

        With False it does so no longer.
        """


class VMBackend:
    """The reference VM as a backend, for tests and for looking closely."""

    leaves_cores, devices = False, 1

    def __init__(self, plan: Plan, replicas: int = 1, workers: int = 1, seed: int = 0) -> None:
        self.plan, self._launches = plan, 0
        self.name = f"reference VM, {replicas} x {workers} workers"
        self._grid = (replicas, workers)
        self.machine = ReferenceVM(plan, seed)
        self.lanes = 1  # more are laid out beside each other, and run one after another
        self.pool = np.zeros(0, np.float32)
        self._results: dict[int, NDArray[np.float32]] = {}
        self._values: dict[int, NDArray[np.float32]] = {}

    @property
    def launches(self) -> int:
        """Schedules executed so far."""
        return self._launches

    def grid(self, samples: int, trains: bool = True, lanes: int = 1) -> tuple[int, int]:
        """The grid asked for, whatever the batch."""
        return self._grid

    def allocate(self, words: int) -> None:
        """Makes the pool."""
        self.pool = np.zeros(words, np.float32)

    def close(self) -> None:
        """Gives the pool back."""
        self.allocate(0)

    def capacity(self) -> int:
        """Words of a small test machine."""
        return 1 << 26

    def write(self, at: int, values: Array) -> None:
        """Copies words into the pool."""
        flat = np.ascontiguousarray(values).ravel()
        self.pool[at : at + len(flat)] = flat.view(np.float32)

    def read(self, at: int, count: int) -> NDArray[np.float32]:
        """Words of the pool."""
        return self.pool[at : at + count].copy()

    def pool_array(self) -> Any:
        """The pool."""
        return self.pool

    def launch(
        self, schedules: Sequence[Schedule], slot: int, traced: int = 0, fill: Fill | None = None
    ) -> None:
        """Runs the schedules at once; activations are poisoned before."""
        for schedule in schedules:
            self.write(schedule.address * 4, schedule.words)
        if fill is not None:
            fill()
        for schedule in schedules:
            self._launches += 1
            self.pool[schedule.static_words :] = np.nan
            at = schedule.address * 4  # `fill` may have changed words
            words = self.pool[at : at + len(schedule.words)].view(np.int32).copy()
            self.machine.run(words, self.pool, schedule.static_words)
        self._results[slot] = np.stack([self.read(s.bases[RESULTS] * 4, RESULT_WORDS) for s in schedules])
        readout = schedules[0].readout
        self._values[slot] = self.read(0, 0) if readout is None else self.read(readout.first, readout.count)

    def finish(self, slot: int) -> NDArray[np.float32]:
        """The results of the slot's last launches."""
        return self._results[slot]

    def values(self, slot: int) -> NDArray[np.float32]:
        """What the slot's last launches left."""
        return self._values[slot]

    def make_room(self, schedules: Sequence[Schedule], slot: int) -> None:
        """Launches need none."""

    def launch_share(self, schedules: Sequence[Schedule], slot: int, turn: int) -> None:
        """Runs launches that meet those of others, in other threads."""
        try:
            self.launch(schedules, slot)
        except BaseException:
            self.machine.meeting.abort()  # nobody waits for this one
            raise

    def meet(self, members: Sequence[VMBackend], number: int) -> None:
        """Launches meet those of these."""
        if number == 0:
            meeting = Barrier(len(members))
            for member in members:
                member.machine.devices, member.machine.meeting = [m.machine for m in members], meeting

    def trace_with(self, files: dict[str, bytes]) -> bool:
        """There is nothing to trace: steps of the VM take no time that means anything."""
        raise fail(f"{self.name}: has no clock; a timeline needs the device cpu or cuda")

    def times(self, slot: int) -> list[Times]:
        """None."""
        return []

    def run(
        self, schedule: Schedule, reads: Sequence[tuple[int, int]], fill: Fill | None = None
    ) -> list[NDArray[np.float32]]:
        """Runs a schedule, and reads."""
        self.launch([schedule], 0, fill=fill)
        return [self.read(at, count) for at, count in reads]

    def time_kernels(self, on: bool = True) -> list[float] | None:
        """The VM is no device to be timed."""
        return None
