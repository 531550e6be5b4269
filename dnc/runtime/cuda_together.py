"""Launches on one GPU that meet those of other GPUs, which train on shares of the same batch.

In: the GPUs and their pools. Out: what a kernel is told of the others, as arguments of its launch.
Guaranteed: launches of several models that meet others run in one order on all GPUs: each takes a whole GPU,
and two GPUs that ran different ones would wait for each other in vain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from dnc.ir.isa import MEETINGS
from dnc.runtime.cuda_driver import Call, Device, DeviceBuffer, Event

# How long a worker waits for the others before the launch is given up; and where launches on other GPUs are
# waited for, which the host has to start.
TIME_LIMIT_US, TOGETHER_LIMIT_US = 2_000_000, 60_000_000
SIGNAL_BYTES = 128  # from a GPU's signal to the next one's

_ENDS: dict[int, Event] = {}
"""By GPU the end of the last launches that met others."""


class Together:
    """See the module; the context of the GPU is current where it is called."""

    def __init__(self) -> None:
        self._signals: DeviceBuffer | None = None
        self._others: DeviceBuffer | None = None
        self._turn: int | None = None
        self._limit_us = TIME_LIMIT_US
        self._end: Event | None = None

    def meet(self, device: Device, all_of_them: Sequence[tuple[Device, int, Together]]) -> None:
        """Launches from now on meet those of all these, this one among them: GPU, address of its pool."""
        table = np.empty((len(all_of_them), 2), np.uint64)
        for at, (other, pool, together) in enumerate(all_of_them):
            if other is not device:
                device.reach(other)
            with other.inside():
                table[at] = pool, together._made(other, len(all_of_them)).address
        if self._others is None:
            self._others = device.allocate(table.nbytes)
        device.copy_to(self._others.address, table)

    def _made(self, device: Device, count: int) -> DeviceBuffer:
        """Where each of so many GPUs says how far it has come."""
        if self._signals is None:
            self._signals = device.allocate(count * SIGNAL_BYTES)
            device.stream.fill_zero(self._signals)
            device.stream.synchronize()
        return self._signals

    @contextmanager
    def launching(self, device: Device, turn: int) -> Iterator[None]:
        """Within, launches meet others, the first at a turn."""
        if device.ordinal in _ENDS:
            device.stream.wait(_ENDS[device.ordinal])
        self._turn, self._limit_us = turn, TOGETHER_LIMIT_US
        try:
            yield
        finally:
            self._turn, self._limit_us = None, TIME_LIMIT_US
        if self._end is None:
            self._end = device.stream.record()
        device.stream.mark(self._end)
        _ENDS[device.ordinal] = self._end

    def prepare(self, call: Call) -> None:
        """What launches behind each other are told alike."""
        others = 0 if self._others is None else self._others.address
        call.set(limit_us=self._limit_us, others=others, turn=0)

    def take_turn(self, call: Call, number: int) -> None:
        """What the one with a number of them is told: nothing more, where it meets no other."""
        if self._turn is not None:
            call.set(turn=(self._turn + MEETINGS * number) % 2**32)
