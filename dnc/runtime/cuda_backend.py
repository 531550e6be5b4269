"""The CUDA backend: one cooperative launch a batch, schedules through pinned double buffers.

In: a plan and the files that `dnc.codegen.cuda_kernel` made (cubin and its description). Out: the
`Backend` protocol. Imports neither TVM nor Lark. Guaranteed: exactly one kernel launch a schedule
and no other kernel; the number of replicas is what the driver says is resident together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import fail
from dnc.ir import isa, lean
from dnc.ir.machine import machine
from dnc.ir.plan import Plan
from dnc.ir.stamps import ANCHOR_WORDS, Times, run_words
from dnc.runtime.backend import Fill
from dnc.runtime.build import kernel_file
from dnc.runtime.cuda_context import in_context
from dnc.runtime.cuda_driver import (
    Call,
    CudaError,
    Device,
    DeviceBuffer,
    Kernel,
    LaunchShape,
    LentBuffer,
    Stream,
    raise_on_abort,
)
from dnc.runtime.cuda_lanes import Lanes
from dnc.runtime.cuda_slots import NOTHING, RECORD, Direct, Runs, Slot
from dnc.runtime.cuda_together import Together
from dnc.runtime.encoder.parts import replicas_of_sample
from dnc.runtime.encoder.readout import Readout
from dnc.runtime.schedule import Schedule, longest_queue
from dnc.runtime.schedules import first_of, lanes_of, lean_of, words_of
from dnc.runtime.tuned import Tuned, tuned_grid

MOST_LAUNCHES = 1024  # in one group
MOST_LANES = 16
FIRST_READ = 16  # words before what `run` brings back: the abort record

ARGUMENTS = {
    "pool": "pointer",
    "words": "pointer",
    "counters": "pointer",
    "grid": "int32",
    "limit_us": "uint32",
    "others": "pointer",
    "turn": "uint32",
    "runs": "pointer",
    "stamps": "int32",
}


class CudaBackend:
    """Runs schedules of `plan` on one GPU."""

    leaves_cores, devices = True, 1

    def __init__(
        self,
        plan: Plan,
        files: dict[str, bytes],
        device: Device,
        replicas: int | None = None,
        tuned: Sequence[Tuned] = (),
    ) -> None:
        self.plan = plan
        self.device = device
        described = json.loads(kernel_file(files, "kernel.json", "a GPU"))
        self._check_chip()
        self.workers = int(described["workers"])
        self.cluster = int(described["cluster"])
        self._threads, self._shared = int(described["threads"]), int(described["shared_bytes"])
        with device.inside():
            self.kernel, self.lean = self._load(files)
            resident = self._resident()
            self._turn = device.stream.record()
            self._lanes = Lanes(device)
        if resident < 1:
            raise fail(
                f"{self.device.name} cannot hold {self.workers} workers of this build at once",
                "compile for this GPU: dnc compile ... --target cuda:" + self.device.arch,
            )
        if replicas is not None and replicas > resident:
            kind = "clusters" if self.cluster > 1 else "replicas"
            raise fail(
                f"{self.device.name} holds {resident} {kind} of {self.workers} workers of this build at "
                f"once; {replicas} were asked for"
            )
        self.replicas, self._tuned = replicas or resident, () if replicas else tuned
        shape = f"clusters of {self.workers}" if self.cluster > 1 else f"x {self.workers} workers"
        self.name = f"{self.device.name}, {self.replicas} {shape}"
        self._pool: DeviceBuffer | None = None
        self._traced: tuple[Kernel, Kernel | None] | None = None
        self._allocate: Callable[[int], DeviceBuffer] = self.device.allocate
        self._idle: Callable[[], int] = lambda: 0
        self._slots: list[Slot | None] = [None, None]
        self._direct: Direct | None = None
        self._header, self._of_sample = isa.layout(plan).header, replicas_of_sample(plan)
        self._times: list[float] | None = None
        self._before = self.device.launches
        self._together = Together()

    def _load(self, files: dict[str, bytes]) -> tuple[Kernel, Kernel | None]:
        """The kernel, and the lean one if there is one."""

        def load(name: str) -> Kernel:
            described = json.loads(kernel_file(files, f"{name}.json", "a GPU"))
            machine_code = kernel_file(files, f"{name}.cubin", "a GPU")
            parameters = [(name, ARGUMENTS[name]) for name in described["parameters"]]
            return self.device.load(machine_code, described["symbol"], parameters)  # type: ignore[arg-type]

        return load("kernel"), load(lean.NAME) if f"{lean.NAME}.cubin" in files else None

    @in_context
    def trace_with(self, files: dict[str, bytes]) -> bool:
        """Loads the traced kernel."""
        self._traced = self._load(files)
        self._prepare(*self._traced)
        return False

    def _check_chip(self) -> None:
        want = self.plan.target.rstrip("a")
        if want.split("_")[1][:-1] != self.device.arch.split("_")[1][:-1]:
            raise fail(
                f"this build is for {self.plan.target}; the GPU is {self.device.name} ({self.device.arch})",
                f"compile for it: dnc compile ... --target cuda:{self.device.arch}",
            )

    def _shape(self, workers: int) -> LaunchShape:
        return LaunchShape(workers, self._threads, self._shared, self.cluster)

    def _resident(self) -> int:
        """Replicas that the driver says are resident together; from now on the kernel can be launched.

        Without `prepare` a driver takes neither as much shared memory nor clusters as large.
        """
        shape = self._shape(self.workers)
        self._prepare(self.kernel, self.lean)
        if self.cluster > 1:
            return self.kernel.resident_clusters(shape)
        total = self.kernel.resident_workers_per_sm(shape) * self.device.multiprocessors
        return total // self.workers

    def _prepare(self, *kernels: Kernel | None) -> None:
        for kernel in kernels:
            if kernel is not None:
                kernel.prepare(self._shape(self.workers))

    @property
    def launches(self) -> int:
        """Kernels started by this backend."""
        return self.device.launches - self._before

    def grid(self, samples: int, trains: bool = True, lanes: int = 1) -> tuple[int, int]:
        """All resident replicas for training, also on few samples: they share gradients and update.

        Otherwise no more than samples can be on: one without any would only load its weights. Fewer
        where `dnc tune` found that faster, for a launch that has the device alone; beside others as many
        as a lane has.
        """
        busy = samples * self._of_sample
        if lanes > 1:
            return min(self.replicas // lanes, busy), self.workers
        tuned = tuned_grid(self._tuned, samples) if trains == self.plan.trains else None
        most = min(self.replicas, tuned[0] or self.replicas) if tuned else self.replicas
        return most if trains else max(1, min(most, busy)), self.workers

    @property
    def lanes(self) -> int:
        """A replica each, up to MOST_LANES.

        One lane where the pool is someone else's, who may write to it behind what is queued in the stream.
        """
        return 1 if isinstance(self._pool, LentBuffer) else min(self.replicas, MOST_LANES)

    @in_context
    def capacity(self) -> int:
        """Words that a pool may have, of the memory that is free or held already."""
        held = self._pool.size if self._pool else 0
        free = self.device.free_memory() + self._idle() + held
        return int(free * machine(self.plan.target).pool_share) // 4

    @in_context
    def allocate(self, words: int) -> None:
        """Makes the pool."""
        self._synchronize()
        self._free_pool()
        try:
            self._pool = self._allocate(words * 4)
            self._lanes.copies_beside = not isinstance(self._pool, LentBuffer)
            self.device.stream.fill_zero(self._pool)
            self.device.stream.synchronize()
        except CudaError as error:
            raise fail(
                f"{error.message}: the pool of this model needs {words * 4 / 2**30:.2f} GiB"
            ) from error

    @in_context
    def meet(self, members: Sequence[CudaBackend], number: int) -> None:
        """Launches meet those of these, over the links between the GPUs."""
        self._together.meet(self.device, [(each.device, each._at(0), each._together) for each in members])

    @in_context
    def make_room(self, schedules: Sequence[Schedule], slot: int) -> None:
        """Makes the slot large enough."""
        self._slot(slot, words_of(schedules).size)

    @in_context
    def launch_share(self, schedules: Sequence[Schedule], slot: int, turn: int) -> None:
        """Starts launches that meet those of others."""
        with self._together.launching(self.device, turn):
            self.launch(schedules, slot)

    def _free_pool(self) -> None:
        if self._pool is not None:
            self._pool.free()
            self._pool = None

    @in_context
    def close(self) -> None:
        """Gives its memory back, on the GPU and what is page-locked."""
        self._synchronize()
        self._free_pool()
        for here in (*self._slots, self._direct):
            if here is not None:
                here.free()
        self._slots, self._direct = [None, None], None

    def _at(self, word: int) -> int:
        if self._pool is None:
            raise fail("the pool was not allocated")
        return self._pool.address + word * 4

    def _synchronize(self) -> None:
        self._lanes.join()
        self.device.stream.synchronize()

    @in_context
    def write(self, at: int, values: NDArray[Any]) -> None:
        """Copies words into the pool, after all launches so far."""
        self._synchronize()
        self.device.copy_to(self._at(at), values)

    @in_context
    def read(self, at: int, count: int) -> NDArray[np.float32]:
        """Words of the pool, after all launches so far."""
        self._synchronize()
        out = np.empty(count, np.float32)
        self.device.copy_from(out, self._at(at))
        return out

    def lend(self, allocate: Callable[[int], LentBuffer], idle: Callable[[], int]) -> None:
        """Takes memory from someone else (so many bytes), whom the pool is shared with from then on.

        idle: bytes that the lender holds and does not use.
        """
        self._allocate, self._idle = allocate, idle

    @in_context
    def use_stream(self, handle: int) -> None:
        """Goes on in another stream of the primary context, behind what was queued so far."""
        if handle == int(self.device.stream.handle):
            return
        stream = self.device.stream_of(handle)
        self._lanes.join()
        self.device.stream.mark(self._turn)
        stream.wait(self._turn)
        self.device = attrs.evolve(self.device, stream=stream)
        self.forget_calls()

    def pool_array(self) -> Any:
        """The pool as what `lend` was given."""
        if not isinstance(self._pool, LentBuffer):
            raise fail("the pool was not allocated by someone that it can be shared with")
        return self._pool.array

    @in_context
    def launch(
        self, schedules: Sequence[Schedule], slot: int, traced: int = 0, fill: Fill | None = None
    ) -> None:
        """One copy of all schedules, a kernel for each, one copy of all results and abort records.

        And one of all values, where the schedules have a readout.
        """
        first, source, lanes = first_of(schedules), words_of(schedules), lanes_of(schedules)
        is_lean = lean_of(schedules)
        count, size = source.shape
        here = self._slot(slot, count * size)
        here.done.synchronize()  # behind an interrupt nobody may have waited for what it had
        here.words[: count * size].reshape(count, size)[:] = source
        sync, replicas = (int(source[0, self._header[name]]) for name in ("sync", "replicas"))
        words_at = self._at(first.address * 4)
        grid = replicas * self.workers
        self._lanes.prepare(0 if traced else lanes)
        self._lanes.send(DeviceBuffer(words_at, count * size * 4), here.pinned, here.done)
        if fill is not None:
            fill()
        here.times = [self._traced_run(schedule, grid) for schedule in schedules[:traced]]
        for index, runs in enumerate(here.times):
            call = self._traced_call(grid, runs, is_lean[index])
            self._start(call, words_at + index * size * 4, sync)
        streams = self._lanes.fork(lanes)
        calls = {way: [self._call(grid, each, way) for each in streams] for way in set(is_lean[traced:])}
        try:
            for index in range(traced, count):
                call = calls[is_lean[index]][index % lanes]
                self._together.take_turn(call, index)
                self._start(call, words_at + index * size * 4, sync)
        finally:  # also behind those of a group that ends halfway
            stream = self._lanes.merge(streams)
            stream.mark(here.done)
            self._lanes.ends(lanes, here.done)
        here.results = here.room[: count * RECORD].reshape(count, RECORD)
        results = DeviceBuffer(words_at + (sync - isa.RESULT_WORDS) * 4, RECORD * 4)
        if count == 1:
            stream.download(here.back, results, RECORD * 4)
        else:
            stream.download_rows(here.back, results, count, size * 4)
        if first.readout is not None:
            here.values = self._values_of(first.readout, here, stream)
        stream.mark(here.done)

    def _call(self, grid: int, stream: Stream, is_lean: bool) -> Call:
        """A launch of so many workers, of the lean kernel if there is one."""
        kernel = self._chosen((self.kernel, self.lean), is_lean)
        call = self._lanes.call(kernel, self._shape(grid), stream)
        call.set(pool=self._at(0), grid=grid)
        self._together.prepare(call)
        return call

    def _chosen(self, kernels: tuple[Kernel, Kernel | None], is_lean: bool) -> Kernel:
        """The kernel, or the lean one beside it: traced where it is without a trace, for the same bits."""
        kernel, own = kernels
        return own if is_lean and self.lean is not None and own is not None else kernel

    def _start(self, call: Call, words: int, sync: int) -> None:
        """Launches the schedule at an address, whose counters come at its word `sync`."""
        call.set(words=words, counters=words + sync * 4)
        call.launch()

    @in_context
    def finish(self, slot: int) -> NDArray[np.float32]:
        """Waits for the slot's launches; their results."""
        here = self._slots[slot]
        if here is None:
            raise fail("nothing was launched")
        here.done.synchronize()
        records = here.results[:, isa.RESULT_WORDS + isa.SYNC_ABORT * isa.SYNC_STRIDE :]
        for words in records if records.any() else ():
            record = dict(zip(isa.ABORT_FIELDS, words.tolist(), strict=False))
            raise_on_abort(record, isa.ABORT_EXCHANGES)
        return here.results[:, : isa.RESULT_WORDS].view(np.float32).copy()

    def _values_of(self, readout: Readout, here: Slot, stream: Stream) -> NDArray[np.float32]:
        """Where the words of a readout come to lie, behind the launches so far."""
        if here.fetched is None or here.fetched.bytes.nbytes < readout.count * 4:
            old, here.fetched = here.fetched, None  # if there is no room for the new one
            if old is not None:
                old.free()
            here.fetched = self.device.pinned(max(readout.count * 2, 1 << 12) * 4)
        stream.download_to(here.fetched.address, self._at(readout.first), readout.count * 4)
        return here.fetched.view(np.float32)[: readout.count]

    def values(self, slot: int) -> NDArray[np.float32]:
        """The words of the readout of the slot's last launches, in page-locked memory."""
        here = self._slots[slot]
        return NOTHING if here is None else here.values

    def _traced_run(self, schedule: Schedule, grid: int) -> Runs:
        """Memory for the times of a launch."""
        words = run_words(longest_queue([schedule]))
        buffer = self.device.allocate(grid * words * 8)
        self.device.stream.fill_zero(buffer)
        return Runs(buffer, grid, words)

    def _traced_call(self, grid: int, runs: Runs, is_lean: bool) -> Call:
        if self._traced is None:
            raise fail("the traced kernel was not loaded")
        kernel = self._chosen(self._traced, is_lean)
        call = self.device.call(kernel, self._shape(grid), self.device.stream)
        call.set(pool=self._at(0), grid=grid)
        self._together.prepare(call)
        call.set(runs=runs.buffer.address, stamps=runs.words - ANCHOR_WORDS)
        return call

    @in_context
    def times(self, slot: int) -> list[Times]:
        """The times of the slot's traced launches; their memory on the GPU is given back."""
        here = self._slots[slot]
        found = []
        for runs in [] if here is None else here.times:
            times = np.empty((runs.workers, runs.words), np.int64)
            self.device.copy_from(times, runs.buffer.address)
            runs.buffer.free()
            found.append(times)
        if here is not None:
            here.times = []
        return found

    @in_context
    def run(
        self, schedule: Schedule, reads: Sequence[tuple[int, int]], fill: Fill | None = None
    ) -> list[NDArray[np.float32]]:
        """One copy there, one launch, one copy back for the abort record and each range; one wait."""
        words, count = schedule.words, sum(count for _, count in reads)
        here, stream = self._direct_for(len(words), count), self.device.stream
        sync, replicas = (int(words[self._header[name]]) for name in ("sync", "replicas"))
        here.words[: len(words)] = words
        words_at = self._at(schedule.address * 4)
        grid = replicas * self.workers
        self._lanes.prepare(0)
        call = self._call(grid, stream, schedule.lean)
        stream.upload(DeviceBuffer(words_at, len(words) * 4), here.pinned, len(words) * 4)
        if fill is not None:
            fill()
        if self._times is not None:
            stream.mark(here.before)
        self._start(call, words_at, sync)
        if self._times is not None:
            stream.mark(here.after)
        abort_at = words_at + (sync + isa.SYNC_ABORT * isa.SYNC_STRIDE) * 4
        stream.download_to(here.back.address, abort_at, len(isa.ABORT_FIELDS) * 4)
        begin = FIRST_READ
        for first, size in reads:
            stream.download_to(here.back.address + begin * 4, self._at(first), size * 4)
            begin += size
        stream.synchronize()
        if self._times is not None:
            self._times.append(here.after.microseconds_since(here.before) * 1e-6)
        record = here.back_words[: len(isa.ABORT_FIELDS)].tolist()
        raise_on_abort(dict(zip(isa.ABORT_FIELDS, record, strict=True)), isa.ABORT_EXCHANGES)
        found, begin = [], FIRST_READ
        for _, size in reads:
            found.append(here.back_words[begin : begin + size].view(np.float32).copy())
            begin += size
        return found

    def time_kernels(self, on: bool = True) -> list[float] | None:
        """The time between two events around the kernel."""
        self._times = [] if on else None
        return self._times

    def _direct_for(self, words: int, back: int) -> Direct:
        """Pinned memory for `run`: so many words there, so many back."""
        here = self._direct
        if here is None or len(here.words) < words or len(here.back_words) < back + FIRST_READ:
            self._direct = None  # if there is no room for the new one
            if here is not None:
                here.free()
            device = self.device
            here = Direct(
                device.pinned(max(words * 2, 1 << 14) * 4),
                device.pinned(max((back + FIRST_READ) * 2, 1 << 12) * 4),
                device.stream.record(),
                device.stream.record(),
            )
            self._direct = here
        return here

    def forget_calls(self) -> None:
        """Sets launches up anew, for who has replaced `device` to look at them."""
        self._lanes.use(self.device)

    def _slot(self, slot: int, words: int) -> Slot:
        here = self._slots[slot]
        if here is None or len(here.words) < words:
            if here is not None:
                here.done.synchronize()
                self._slots[slot] = None  # if there is no room for the new one
                here.free()
            pinned = self.device.pinned(max(words, 1 << 14) * 8)
            back = self.device.pinned(MOST_LAUNCHES * RECORD * 4)
            here = Slot(pinned, back, self.device.stream.record())
            self._slots[slot] = here
        return here
