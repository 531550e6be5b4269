"""Streams beside the device's own: for copies, and for launches that do not need each other's results.

In: a device with its own stream. Out: a stream a lane, one for schedules that go there and one for results
that come back, and launches set up once for each. Guaranteed: launches of a lane run in order, behind
all that was queued in the device's stream before; what is queued there behind a `join` comes behind all
lanes. Kernels wait for no copy but that of their own schedules, which goes there while others run.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnc.runtime.cuda_driver import (
    Call,
    Device,
    DeviceBuffer,
    Event,
    Kernel,
    LaunchShape,
    PinnedBuffer,
    Stream,
)


class Lanes:
    """See the module. One lane is the device's own stream.

    copies_beside: False where someone else reads and writes schedules in the device's stream, behind the
    launches: then copies are made there, too.
    """

    def __init__(self, device: Device) -> None:
        self._device, self.copies_beside = device, True
        self._copies, self._results = device.new_stream(), device.new_stream()
        self._streams: list[Stream] = []
        self._ends: list[Event] = []
        self._begin, self._sent, self._end = (device.stream.record() for _ in range(3))
        self._calls: dict[tuple[int, int, int], Call] = {}
        self._last: tuple[int, Event] | None = None

    def use(self, device: Device) -> None:
        """Another device, or this one with another stream: launches are set up anew."""
        self._device = device
        self._calls.clear()

    def call(self, kernel: Kernel, shape: LaunchShape, stream: Stream) -> Call:
        """A launch of `kernel`, in the device's stream or a lane's."""
        key = id(kernel), int(stream.handle), shape.workers
        if key not in self._calls:
            self._calls[key] = self._device.call(kernel, shape, stream)
        return self._calls[key]

    def join(self) -> None:
        """Waits, in the device's stream, for all lanes and their results."""
        if self._last is not None:
            self._device.stream.wait(self._last[1])
            self._last = None

    def prepare(self, lanes: int) -> None:
        """Before the copies for launches in so many lanes, 0 for launches in the device's stream alone.

        Lanes that are as many as before have the same memory as before, and need not wait for each other.
        """
        if self._last is not None and self._last[0] != lanes:
            self.join()

    def send(self, to: DeviceBuffer, source: PinnedBuffer, after: Event) -> None:
        """Copies to the device once `after` has come; what is queued in its stream from now on waits."""
        if not self.copies_beside:
            self._device.stream.upload(to, source, to.size)
            return
        self._copies.wait(after)
        self._copies.upload(to, source, to.size)
        self._copies.mark(self._sent)
        self._device.stream.wait(self._sent)

    def fork(self, lanes: int) -> Sequence[Stream]:
        """The streams of so many lanes."""
        own = self._device.stream
        if lanes == 1:
            return (own,)
        while len(self._streams) < lanes:
            self._streams.append(self._device.new_stream())
            self._ends.append(self._streams[-1].record())
        own.mark(self._begin)
        for stream in self._streams[:lanes]:
            stream.wait(self._begin)
        return self._streams[:lanes]

    def merge(self, streams: Sequence[Stream]) -> Stream:
        """A stream behind what is queued in these, for their results; its end is told to `ends`."""
        if not self.copies_beside:
            return self._device.stream
        for stream, end in zip(streams, [self._end] if len(streams) == 1 else self._ends, strict=False):
            stream.mark(end)
            self._results.wait(end)
        return self._results

    def ends(self, lanes: int, done: Event) -> None:
        """Notes where the last results of so many lanes are there."""
        self._last = (lanes, done) if self.copies_beside else None
