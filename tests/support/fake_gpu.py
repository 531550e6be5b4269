"""A GPU that executes nothing but clocks: for what surrounds a CUDA kernel, on a machine without one.

In: the plan. Out: a `Device` for `CudaBackend`. Memory is one array; a launch writes the results of a step
that has worked, and on the traced kernel the stamps of every worker, with clocks of its own: instruction i
of worker w lasts 100 + 10 i + w ns. As a driver, it refuses what is asked outside its context.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dnc.ir import isa
from dnc.ir.plan import Plan
from dnc.ir.stamps import ANCHOR_WORDS, run_words
from dnc.runtime.cuda_driver import CudaError, DeviceBuffer, LaunchShape, PinnedBuffer
from dnc.runtime.schedule import header, queue

CYCLES = 3  # a nanosecond, of the multiprocessors' own clocks
PROLOGUE, DECODE, REST = 500, 20, 30  # ns before the first instruction, before each, behind the last
LAUNCH_GAP = 5_000


def duration(index: int, worker: int) -> int:
    """Of an instruction, in ns."""
    return 100 + 10 * index + worker


class FakeStream:
    """Everything happens at once."""

    handle = 1

    def __init__(self, device: FakeDevice) -> None:
        self.device = device

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def record(self) -> FakeStream:
        """An event: itself."""
        self.device.check_context()
        return self

    def mark(self, event: object) -> None:
        """Nothing to note."""
        self.device.check_context()

    def wait(self, event: object) -> None:
        """Nothing to wait for."""

    def fill_zero(self, buffer: DeviceBuffer) -> None:
        """Clears a buffer."""
        self.device.bytes(buffer.address, buffer.size)[:] = 0

    def upload(self, to: DeviceBuffer, source: PinnedBuffer, size: int) -> None:
        """Copies to the device."""
        self.device.bytes(to.address, size)[:] = source.bytes[:size]

    def download(self, to: PinnedBuffer, source: DeviceBuffer, size: int) -> None:
        """Copies from the device."""
        to.bytes[:size] = self.device.bytes(source.address, size)

    def download_rows(self, to: PinnedBuffer, source: DeviceBuffer, rows: int, pitch: int) -> None:
        """Copies rows that lie apart."""
        for row in range(rows):
            found = self.device.bytes(source.address + row * pitch, source.size)
            to.bytes[row * source.size : (row + 1) * source.size] = found


RESIDENT = 2  # clusters that the device holds at once


class FakeKernel:
    """A kernel is its parameters' names. prepared: whether it may use what a launch of it needs."""

    def __init__(self, names: list[str]) -> None:
        self.names, self.prepared = names, False

    def prepare(self, shape: LaunchShape) -> None:
        """From now on it can be launched."""
        self.prepared = True

    def resident_clusters(self, shape: LaunchShape) -> int:
        """The same for every shape."""
        return RESIDENT

    def check(self, shape: LaunchShape) -> None:
        """As a driver: CudaError for what was not prepared, or is too large to be resident."""
        if not self.prepared or shape.workers > RESIDENT * shape.cluster:
            raise CudaError(f"cannot launch {shape.workers} workers: more than can be resident at once")


class FakeCall:
    """A launch; `now` is the device's clock in ns, which began at a time of its own."""

    def __init__(self, device: FakeDevice, kernel: FakeKernel, shape: LaunchShape) -> None:
        self.device, self.kernel, self.shape = device, kernel, shape
        self.values: dict[str, Any] = {}

    def set(self, **values: Any) -> None:
        """Arguments by name."""
        self.values |= values

    def launch(self) -> None:
        """Results, and stamps on the traced kernel."""
        assert set(self.kernel.names) <= set(self.values)
        self.kernel.check(self.shape)
        device, plan = self.device, self.device.plan
        where = device.bytes(self.values["words"], 4 * len(isa.HEADER)).view(np.int32)
        size = int(where[isa.HEADER.index("words")])
        words = device.bytes(self.values["words"], size * 4).view(np.int32)
        results = int(header(words, plan)["sync"]) - isa.RESULT_WORDS
        words[results : results + isa.RESULT_WORDS].view(np.float32)[isa.RESULT_UPDATED] = 1.0
        device.launches += 1
        device.traced.append("runs" in self.kernel.names)
        if device.traced[-1]:
            self._stamp(words.copy())
        device.now += LAUNCH_GAP

    def _stamp(self, words: Any) -> None:
        device, stamps = self.device, int(self.values["stamps"])
        count = stamps + ANCHOR_WORDS
        runs = device.bytes(self.values["runs"], self.values["grid"] * count * 8).view(np.int64)
        ends = []
        for worker in range(self.values["grid"]):
            length = len(queue(words, device.plan, worker))
            assert run_words(length) <= count
            times = [device.now + 7 * worker, device.now + 7 * worker + PROLOGUE]
            for index in range(length):
                times.append(times[-1] + DECODE)
                times.append(times[-1] + duration(index, worker))
            times.append(times[-1] + REST)
            own = (np.array(times) - device.born) * CYCLES + 1_000_000 * worker
            run = runs[worker * count : (worker + 1) * count]
            run[:4] = times[0], own[0], times[-1], own[-1]
            run[4 : 4 + len(own) - 2] = own[1:-1]
            ends.append(times[-1])
        device.now = max(ends)


class FakeDevice:
    """See the module. traced: of every launch so far, whether it was of the traced kernel."""

    name, arch, multiprocessors = "a made-up GPU", "sm_90", 132
    ordinal = origin = 0  # its number; where its memory begins

    def __init__(self, plan: Plan) -> None:
        self.plan, self.launches, self.traced = plan, 0, list[bool]()
        self.memory = np.zeros(1 << 25, np.uint8)
        self.used, self.held, self.locked = 256, 0, 0
        self.born = 10**17
        self.now = self.born + 12345
        self.stream = FakeStream(self)
        self._threads = threading.local()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The context is current in this thread."""
        before = getattr(self._threads, "inside", 0)
        self._threads.inside = before + 1
        try:
            yield
        finally:
            self._threads.inside = before

    def check_context(self) -> None:
        """CudaError where the context is not current."""
        if not getattr(self._threads, "inside", 0):
            raise CudaError("no context is current in this thread")

    def bytes(self, address: int, size: int) -> Any:
        """A piece of memory."""
        first = address - self.origin
        assert first > 0 and first + size <= self.used
        return self.memory[first : first + size]

    def allocate(self, size: int) -> Any:
        """Memory that is never used again."""
        self.check_context()
        device, address = self, self.origin + self.used
        self.used += -(-size // 256) * 256
        self.held += 1

        class Freed(DeviceBuffer):
            def free(self) -> None:
                device.held -= 1

        return Freed(address, size)

    def free_memory(self) -> int:
        """Bytes."""
        self.check_context()
        return len(self.memory) - self.used

    def copy_to(self, address: int, values: Any) -> None:
        """To the device."""
        self.check_context()
        flat = np.ascontiguousarray(values).view(np.uint8).ravel()
        self.bytes(address, len(flat))[:] = flat

    def copy_from(self, values: Any, address: int) -> None:
        """From the device."""
        self.check_context()
        values.view(np.uint8).ravel()[:] = self.bytes(address, values.nbytes)

    def reach(self, other: FakeDevice) -> None:
        """All memory is the host's."""
        self.check_context()

    def pinned(self, size: int) -> Any:
        """Memory of the host."""
        self.check_context()
        device, memory = self, np.zeros(size, np.uint8)
        self.locked += 1

        class Freed(PinnedBuffer):
            def free(self) -> None:
                device.locked -= 1

        found = Freed(memory.ctypes.data, memory, None)
        found.forget.detach()  # there is no driver
        return found

    def new_stream(self) -> FakeStream:
        """The same."""
        self.check_context()
        return self.stream

    def load(self, cubin: bytes, symbol: str, parameters: list[tuple[str, str]]) -> FakeKernel:
        """A kernel."""
        self.check_context()
        return FakeKernel([name for name, _ in parameters])

    def call(self, kernel: FakeKernel, shape: LaunchShape, stream: FakeStream) -> FakeCall:
        """A launch."""
        self.check_context()
        return FakeCall(self, kernel, shape)
