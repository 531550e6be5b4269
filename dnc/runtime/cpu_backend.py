"""The CPU backend: a worker is an OS thread; a launch is one call of the kernel per worker.

In: a plan and the files that `dnc.codegen.cpu_kernel` made. Out: the `Backend` protocol. Guaranteed:
launches run in the order they were made, while Python prepares the next one (a call releases the
GIL); more workers than cores are slow but right; a kernel that gave up is an error in words.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc import cpu_code
from dnc.cache_folder import cache_folder
from dnc.diagnostics import fail
from dnc.ir import isa
from dnc.ir.machine import machine
from dnc.ir.plan import Plan
from dnc.ir.program import FORWARD, LEVEL
from dnc.ir.stamps import ANCHOR_WORDS, Times, run_words
from dnc.runtime.backend import Fill
from dnc.runtime.build import kernel_file
from dnc.runtime.cores import cores, machine_memory
from dnc.runtime.schedule import Schedule, longest_queue
from dnc.runtime.schedules import words_of
from dnc.runtime.trace.timeline import CLOCK
from dnc.runtime.tuned import Tuned, tuned_grid
from dnc.runtime.worker_thread import Task, WorkerThread

Array = NDArray[Any]

# Yields of a waiting worker before the launch is given up: at least ten seconds.
YIELD_LIMIT = 1 << 25
MAX_WORKERS = 256
# Weights of a step that are worth sharing out. A recurrence of four gates of 64 units (16,384 weights), 100
# steps: 112 µs alone, 357 µs by two workers, the least of 300 launches each.
SHARED_FLOATS = 1 << 17
MOST_VIEWS = 1024


class CpuBackend:
    """Runs schedules of `plan` on the cores of this machine."""

    leaves_cores, devices = False, 1
    lanes = 1

    def __init__(
        self,
        plan: Plan,
        files: dict[str, bytes],
        replicas: int | None = None,
        workers: int | None = None,
        yield_limit: int = YIELD_LIMIT,
        tuned: Sequence[Tuned] = (),
    ) -> None:
        self.plan = plan
        described = json.loads(kernel_file(files, "kernel.json", "a CPU"))
        text = kernel_file(files, "kernel.tirx", "a CPU").decode()
        self._module = _loaded(text)
        self._kernel = self._module[described["symbol"]]
        self._scratch_floats, self._places = int(described["scratch_floats"]), int(described["places"])
        self._own: list[tuple[Any, Any]] = []
        self._threads: list[WorkerThread] = []
        self._is_running = False  # a launch that is waited for at once
        self._replicas, self._workers, self._tuned = replicas, workers, tuned
        self._limit, self._launches = yield_limit, 0
        self._is_small = _step_floats(plan) < SHARED_FLOATS
        self.cores = cores()
        self.name = f"CPU, {self.cores} cores"
        self._pool: Array = np.zeros(0, np.float32)
        self._traced_kernel: Any = None
        self._slots: list[_Launches | None] = [None, None]
        self._header = isa.layout(plan).header
        self._views: dict[tuple[int, int], tuple[Array, Any]] = {}  # of the pool, where schedules lie
        self._times: list[float] | None = None
        self._process = os.getpid()

    @property
    def launches(self) -> int:
        """Schedules started so far."""
        return self._launches

    def grid(self, samples: int, trains: bool = True, lanes: int = 1) -> tuple[int, int]:
        """Replicas of one worker where there are samples for all cores; else the workers share.

        Where a step of the recursion is less work than meeting over it, a small batch has one worker.
        What `dnc tune` found comes before these rules, if there are as many cores.
        """
        if self._replicas or self._workers:
            return self._replicas or 1, self._workers or 1
        tuned = tuned_grid(self._tuned, samples) if trains == self.plan.trains else None
        if tuned is not None and math.prod(tuned) <= self.cores:
            return tuned
        if self._is_small and samples < 2 * self.cores:
            return 1, 1
        return (self.cores, 1) if samples >= 2 * self.cores else (1, self.cores)

    def capacity(self) -> int:
        """Words that a pool may have, of the machine's memory."""
        return int(machine_memory() * machine(self.plan.target).pool_share) // 4

    def allocate(self, words: int) -> None:
        """Makes the pool."""
        self._synchronize()
        self._slots = [None if here is None else here.apart() for here in self._slots]
        try:
            self._pool = cpu_code.aligned_zeros(words)
        except MemoryError:
            raise fail(f"{self.name}: there are no {words * 4 / 2**20:,.0f} MiB of memory") from None
        self._tensor = cpu_code.vector(self._pool)
        self._views.clear()

    def close(self) -> None:
        """Gives the pool back, but for a word: nothing has no address."""
        self.allocate(1)

    def write(self, at: int, values: Array) -> None:
        """Copies words into the pool, after all launches so far."""
        self._synchronize()
        flat = np.ascontiguousarray(values).ravel()
        self._pool[at : at + len(flat)] = flat.view(np.float32)

    def read(self, at: int, count: int) -> NDArray[np.float32]:
        """Words of the pool, after all launches so far."""
        self._synchronize()
        return self._pool[at : at + count].copy()

    def trace_with(self, files: dict[str, bytes]) -> bool:
        """Loads the traced kernel."""
        described, text = json.loads(files["kernel.json"]), files["kernel.tirx"].decode()
        self._traced_module = _loaded(text)
        self._traced_kernel = self._traced_module[described["symbol"]]
        return True

    def times(self, slot: int) -> list[Times]:
        """The times of the slot's traced launches."""
        here = self._slots[slot]
        return [] if here is None else here.times

    def pool_array(self) -> Any:
        """The pool."""
        return self._pool

    def launch(
        self, schedules: Sequence[Schedule], slot: int, traced: int = 0, fill: Fill | None = None
    ) -> None:
        """Copies the schedules into the pool and hands them to the threads."""
        self._enter()
        first, size = schedules[0], len(schedules[0].words)
        total, sync = self._grid_of(first)
        last = self._slots[1 - slot]
        for here in (self._slots[slot], last):
            if here is not None and (here is not last or here.workers != total):
                here.wait()
        at = first.address * 4
        words = self._pool[at : at + len(schedules) * size].view(np.int32).reshape(len(schedules), size)
        words[:] = words_of(schedules)
        if fill is not None:
            fill()
        results = words[:, sync - isa.RESULT_WORDS : sync].view(np.float32)
        abort = words[:, sync + isa.SYNC_ABORT * isa.SYNC_STRIDE :][:, : len(isa.ABORT_FIELDS)]
        tensors = [cpu_code.vector(row) for row in words]
        size = run_words(longest_queue(schedules[:traced])) if traced else 0
        flat = [cpu_code.aligned_zeros(total * size, "int64") for _ in range(traced)]
        runs = [cpu_code.vector(each) for each in flat]
        times = [each.reshape(total, size) for each in flat]
        readout = first.readout
        at, count = (0, 0) if readout is None else (readout.first, readout.count)
        values = self._pool[at : at + count]
        with self._all_or_none(abort):
            tasks = tuple(
                thread.submit(partial(self._run, number, tensors, abort, runs, size - ANCHOR_WORDS))
                for number, thread in enumerate(self._threads[:total])
            )
            self._slots[slot] = _Launches(tasks, abort, results, total, times, values)
        self._launches += len(schedules)

    def finish(self, slot: int) -> NDArray[np.float32]:
        """Waits for the slot's launches; their results."""
        self._enter()
        here = self._slots[slot]
        if here is None:
            raise fail("nothing was launched")
        for task in here.tasks:
            task.result()
        for words in here.abort:
            self._check(words)
        return here.results.copy()

    def values(self, slot: int) -> NDArray[np.float32]:
        """The words of the readout, where the slot's launches wrote them."""
        here = self._slots[slot]
        return self._pool[:0] if here is None else here.values

    def run(
        self, schedule: Schedule, reads: Sequence[tuple[int, int]], fill: Fill | None = None
    ) -> list[NDArray[np.float32]]:
        """Runs a schedule in this thread, with the other workers in theirs; then copies words."""
        self._synchronize()
        total, sync = self._grid_of(schedule)
        at, size = schedule.address * 4, len(schedule.words)
        if (at, size) not in self._views:
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            words = self._pool[at : at + size].view(np.int32)
            self._views[at, size] = words, cpu_code.vector(words)
        words, tensor = self._views[at, size]
        words[:] = schedule.words
        if fill is not None:
            fill()
        at = sync + isa.SYNC_ABORT * isa.SYNC_STRIDE
        abort = words[at : at + len(isa.ABORT_FIELDS)]
        start = time.perf_counter()
        with self._all_or_none(abort[None]):
            self._is_running = True
            others = [
                thread.submit(partial(self._run, number, [tensor], abort[None], [], 0))
                for number, thread in enumerate(self._threads[1:total], 1)
            ]
            self._run(0, [tensor], abort[None], [], 0)
            for other in others:
                other.result()
            self._is_running = False
        if self._times is not None:
            self._times.append(time.perf_counter() - start)
        self._launches += 1
        self._check(abort)
        return [self._pool[first : first + count].copy() for first, count in reads]

    def time_kernels(self, on: bool = True) -> list[float] | None:
        """The time from the first worker's start to the last one's end."""
        self._times = [] if on else None
        return self._times

    def _grid_of(self, schedule: Schedule) -> tuple[int, int]:
        """All workers of a schedule, for whom there are threads now; where its counters begin."""
        words = schedule.words
        replicas, workers, sync = (int(words[self._header[n]]) for n in ("replicas", "workers", "sync"))
        total = replicas * workers
        if not 0 < total <= MAX_WORKERS:
            raise fail(f"{total} workers; a CPU has at most {MAX_WORKERS}")
        self._grow(total)
        return total, sync

    def _check(self, abort: Array) -> None:
        """DiagnosticError if a launch was given up."""
        if abort[0]:
            record = dict(zip(isa.ABORT_FIELDS, abort.tolist(), strict=True))
            exchange = isa.ABORT_EXCHANGES[record["exchange"]]
            raise fail(
                f"{self.name}: worker {record['waiter'] - 1} gave up at instruction "
                f"{record['instruction']} ({exchange}, {record['missing']} arrivals missing)"
            )

    # ---- threads --------------------------------------------------------------------------------

    def _grow(self, total: int) -> None:
        """Threads and scratch memory for `total` workers; they stay."""
        while len(self._threads) < total:
            scratch = cpu_code.aligned_zeros(self._scratch_floats)
            places = cpu_code.aligned_zeros(self._places, "int64")
            self._own.append((cpu_code.vector(scratch), cpu_code.vector(places)))
            self._threads.append(WorkerThread(f"dnc-worker-{len(self._threads)}"))

    def _run(self, worker: int, schedules: list[Any], abort: Array, runs: list[Any], stamps: int) -> None:
        """One worker's part of some launches; a launch that was given up ends them.

        runs: where the first launches, which are traced, keep their times: so many stamps a worker.
        """
        scratch, places = self._own[worker]
        for words, given_up, times in zip_longest(schedules, abort, runs):
            if times is not None:
                arguments = self._tensor, words, scratch, places, worker, self._limit, times, stamps, CLOCK
                self._traced_kernel(*arguments)
            else:
                self._kernel(self._tensor, words, scratch, places, worker, self._limit)
            if given_up[0]:
                return

    @contextmanager
    def _all_or_none(self, abort: Array) -> Iterator[None]:
        """Ends launches that an interrupt has kept from some workers, or from the caller: workers would wait
        for each other, and the next launch would overwrite what they read.

        As if one had given up; nobody looks at what they leave. Further interrupts wait for that.
        """
        try:
            yield
        except BaseException:
            while True:
                try:
                    abort[:, 0] = 1
                    for thread in self._threads:
                        thread.wait()
                    self._is_running = False
                    break
                except KeyboardInterrupt:
                    continue
            raise

    def _enter(self) -> None:
        """In a process that was forked threads are made anew: they stayed in the other one.

        DiagnosticError if launches were under way there.
        """
        if os.getpid() == self._process:
            return
        if self._is_running or not all(task.done for here in self._slots if here for task in here.tasks):
            raise fail(f"{self.name}: the process was forked while launches were under way in it")
        self._threads, self._own, self._process = [], [], os.getpid()

    def _synchronize(self) -> None:
        self._enter()
        for here in self._slots:
            if here is not None:
                here.wait()


@attrs.frozen(eq=False)
class _Launches:
    """Launches under way: their tasks, and in the pool their abort records, results and values.

    times: of those that are traced.
    """

    tasks: tuple[Task, ...]
    abort: Array
    results: Array
    workers: int
    times: list[Times]
    values: Array

    def apart(self) -> _Launches:
        """The same without the pool, once they have ended."""
        abort, results, values = (part.copy() for part in (self.abort, self.results, self.values))
        return attrs.evolve(self, abort=abort, results=results, values=values)

    def wait(self) -> None:
        """Until they have ended."""
        for task in self.tasks:
            task.wait()


@lru_cache(maxsize=8)
def _loaded(text: str) -> cpu_code.Module:
    """The compiled kernel of a text. Some are kept: without a linker machine code takes seconds to make."""
    return cpu_code.load(text, cache_folder() / "cpu", _compile)


def _compile(folder: Path, text: str) -> Path:
    from dnc import tirx_cpu  # imports TVM

    return tirx_cpu.compile_text(folder, text)


def _step_floats(plan: Plan) -> int:
    """The most weights that a segment of the forward recursion multiplies by."""
    stages = {
        stage.name for stage in plan.program.stages if stage.placement == LEVEL and stage.direction == FORWARD
    }
    return max(
        (
            sum(math.prod(plan.program.parameter(p.parameter).type.shape) for p in segment.products)
            for segment in plan.segments
            if segment.stage in stages
        ),
        default=0,
    )
