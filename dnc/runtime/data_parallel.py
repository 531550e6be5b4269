"""Data parallelism: several devices that train on the shares of a batch, as one backend.

In: backends of one plan, one a device. Out: a `Backend`. Guaranteed: parameters, optimizer state and what
else is written are the same bits on all of them, because each makes the same update; what is not training
runs on the first one alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import fail
from dnc.ir.isa import ABORT_EXCHANGES, GPUS, MEETINGS, runs_on_several
from dnc.ir.stamps import Times
from dnc.runtime.alone import ALONE
from dnc.runtime.backend import Array, Backend, Fill
from dnc.runtime.reference_vm.machine import DID_NOT_COME
from dnc.runtime.schedule import Schedule
from dnc.runtime.schedules import Schedules

T = TypeVar("T")

MANY = 1 << 20  # samples: more than any device has replicas
ECHOES = (ABORT_EXCHANGES[GPUS], DID_NOT_COME)
"""What an error says of who has waited in vain for another device."""


class Member(Backend, Protocol):
    """A backend whose launches can meet those of other devices."""

    def meet(self, members: Sequence[Any], number: int) -> None:
        """Launches from now on meet those of these, of which this is the one with the number; all pools have
        been allocated. DiagnosticError where a device does not reach the memory of another."""

    def make_room(self, schedules: Sequence[Schedule], slot: int) -> None:
        """Takes what memory their launches in a slot need."""

    def launch_share(self, schedules: Sequence[Schedule], slot: int, turn: int) -> None:
        """As `launch`, and takes no memory: there is room; turn: how often devices have met before, as all of
        them have to agree on."""


class DataParallelBackend:
    """See the module."""

    def __init__(self, members: Sequence[Member]) -> None:
        first = members[0]
        if not runs_on_several(first.plan):
            what = first.plan.target if first.plan.trains else "inference"
            raise fail(f"several devices train together on GPUs; this build is for {what}")
        self.plan, self.leaves_cores = first.plan, first.leaves_cores
        self.devices, self.members, self._first = len(members), members, first
        self.name = f"{len(members)} x ({first.name})"
        if len({member.grid(MANY) for member in members}) > 1:
            names = "; ".join(member.name for member in members)
            raise fail(f"devices that train together have to be alike: {names}")
        self._threads, self._process = self._started()
        self._is_shared, self._turn, self._has_failed = [False, False], 0, False

    def _started(self) -> tuple[ThreadPoolExecutor, int]:
        """Threads, and the process that has them. One for each device: a launch of the VM returns when it is
        over, and a launch may wait for those of the others."""
        return ThreadPoolExecutor(self.devices), os.getpid()

    def _all(self, call: Callable[[int, Member], T]) -> list[T]:
        """What a call of every member gives, once all have returned, whatever happens; an error of them.

        One that did not wait for others in vain, if there is one: it is why others did.
        """
        if self._process != os.getpid():  # a fork has none of them
            self._threads, self._process = self._started()
        under_way = list[Future[T]]()
        try:
            for each in enumerate(self.members):
                under_way.append(self._threads.submit(call, *each))
            wait(under_way)
        except BaseException:
            self._has_failed = True
            wait(under_way)
            raise
        problems = [problem for future in under_way if (problem := future.exception()) is not None]
        if problems:
            self._has_failed = True
            raise min(problems, key=lambda problem: any(echo in str(problem) for echo in ECHOES))
        return [future.result() for future in under_way]

    @property
    def launches(self) -> int:
        """Kernels started so far, on all devices."""
        return sum(member.launches for member in self.members)

    @property
    def lanes(self) -> int:
        """Those of the first device."""
        return self._first.lanes

    def grid(self, samples: int, trains: bool = True, lanes: int = 1) -> tuple[int, int]:
        """The grid of a device, for its share of what is trained on."""
        return self._first.grid(-(-samples // self.devices) if trains else samples, trains, lanes)

    def allocate(self, words: int) -> None:
        """Makes a pool on every device, each within reach of the others."""
        self._all(lambda _, member: member.allocate(words))
        for number, member in enumerate(self.members):
            member.meet(self.members, number)

    def close(self) -> None:
        """Gives all pools back."""
        for member in self.members:
            member.close()
        self._threads.shutdown()

    def capacity(self) -> int:
        """Words of the device that has the fewest."""
        return min(member.capacity() for member in self.members)

    def write(self, at: int, values: Array) -> None:
        """Copies words into every pool."""
        self._all(lambda _, member: member.write(at, values))

    def read(self, at: int, count: int) -> NDArray[np.float32]:
        """Words of the first pool."""
        return self._first.read(at, count)

    def launch(
        self, schedules: Sequence[Schedule], slot: int, traced: int = 0, fill: Fill | None = None
    ) -> None:
        """Starts the launches of shares on their devices, others on the first one."""
        self._is_shared[slot] = isinstance(schedules, Schedules) and schedules.devices > 1
        if not self._is_shared[slot]:
            self._first.launch(schedules, slot, traced, fill)
            return
        assert isinstance(schedules, Schedules) and not traced and fill is None
        if self._has_failed:
            self._agree(schedules.static_words)
        own, turn = [schedules.of_device(number) for number in range(self.devices)], self._turn
        self._turn += MEETINGS * len(own[0])
        for number, member in enumerate(self.members):
            member.make_room(own[number], slot)
        with ALONE:  # also, all devices have the launches of several models in one order
            self._all(lambda number, member: member.launch_share(own[number], slot, turn))

    def _agree(self, words: int) -> None:
        """After something has failed on one device, and not on another: what all have is what the first has.

        words: in front of the activations.
        """
        kept = self._first.read(0, words)
        for number, member in enumerate(self.members):
            member.write(0, kept)
            member.meet(self.members, number)
        self._has_failed = False

    def pool_array(self) -> Any:
        """The pool of the first device."""
        return self._first.pool_array()

    def finish(self, slot: int) -> NDArray[np.float32]:
        """The results of the slot's last launches, in the order of their schedules."""
        if not self._is_shared[slot]:
            return self._first.finish(slot)
        found = self._all(lambda _, member: member.finish(slot))
        return np.stack(found, axis=1).reshape(-1, found[0].shape[1])

    def values(self, slot: int) -> NDArray[np.float32]:
        """What the first device read out."""
        return self._first.values(slot)

    def trace_with(self, files: dict[str, bytes]) -> bool:
        """A timeline is that of one device."""
        raise fail(f"{self.name}: a timeline is one device's: choose one")

    def times(self, slot: int) -> list[Times]:
        """None."""
        return []

    def run(
        self, schedule: Schedule, reads: Sequence[tuple[int, int]], fill: Fill | None = None
    ) -> list[NDArray[np.float32]]:
        """A launch of the first device."""
        return self._first.run(schedule, reads, fill)

    def time_kernels(self, on: bool = True) -> list[float] | None:
        """Those of the first device's `run`."""
        return self._first.time_kernels(on)
