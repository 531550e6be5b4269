"""What the host does for a batch, with a device that takes no time.

    dnc compile examples/treelstm.dn -o BUILD --mode infer --set embed=8,hidden=8 --target cpu
    python benchmarks/host.py BUILD DATA.jsonl [--encoders 0 2] [--profile 8]

In: a build, and the samples of a stream. Out: microseconds of this process's main thread for a batch, and
how many samples a second that allows: of `Model.predictions` with so many other processes to encode, of
calls one by one, and of `Model.step` for a build that trains. Schedules are those of a GPU with 7 clusters of
16 workers; they are copied, nothing is launched, and all values are zeros. What a driver takes for its calls
is not in it. Best on an idle machine.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
from benchmarks import common
from benchmarks.models import shuffled
from dnc.api import Model
from dnc.ir import isa
from dnc.runtime.backend import Fill, VMBackend
from dnc.runtime.schedule import Schedule
from dnc.runtime.schedules import first_of, words_of

BATCHES, REPLICAS, WORKERS = (1, 8, 32, 256), 7, 16
CALLS = 500


class NoDevice(VMBackend):
    """Takes schedules, and has results of zeros at once."""

    leaves_cores = True

    def __init__(self, plan: Any) -> None:
        super().__init__(plan, REPLICAS, WORKERS)
        self.lanes = REPLICAS
        self.words = np.zeros(1, np.int32)
        self.count = [(0, 0), (0, 0)]

    def grid(self, samples: int, trains: bool = True, lanes: int = 1) -> tuple[int, int]:
        """That of an H200."""
        if lanes > 1:
            return 1, WORKERS
        return REPLICAS if trains else min(REPLICAS, samples), WORKERS

    def write(self, at: int, values: NDArray[Any]) -> None:
        """Nobody reads it."""

    def read(self, at: int, count: int) -> NDArray[np.float32]:
        """Zeros."""
        return np.zeros(count, np.float32)

    def launch(
        self, schedules: Sequence[Schedule], slot: int, traced: int = 0, fill: Fill | None = None
    ) -> None:
        """The copy, and nothing else."""
        found = words_of(schedules)
        if self.words.size < found.size:
            self.words = np.zeros(2 * found.size, np.int32)
        self.words[: found.size].reshape(found.shape)[:] = found
        readout = first_of(schedules).readout
        self.count[slot] = len(schedules), 0 if readout is None else readout.count

    def finish(self, slot: int) -> NDArray[np.float32]:
        """Zeros, of a step that was made."""
        found = np.zeros((self.count[slot][0], isa.RESULT_WORDS), np.float32)
        found[:, isa.RESULT_UPDATED] = 1
        return found

    def values(self, slot: int) -> NDArray[np.float32]:
        """Zeros."""
        return np.zeros(self.count[slot][1], np.float32)


def opened(build: Path, data: Path, encoders: int) -> Model:
    """The build without a device, with data attached."""
    model = dnc.load(build, "vm", encoders=encoders)
    model.backend = NoDevice(model.plan)
    model.attach(data)
    return model


def stream(model: Model, size: int, seconds: float) -> float:
    """Seconds of the main thread for a batch of a stream, once other processes help."""
    ahead, done, start, cpu = model.session.answers.ahead, 0, 0.0, 0.0
    assert model.attached is not None
    begin = time.perf_counter()
    for _ in model.predictions(shuffled(model.attached.samples, size)):
        done += 1
        now = time.perf_counter()
        if not start and now - begin > seconds / 4 and not ahead.is_starting:
            done, start, cpu = 0, now, time.thread_time()
        elif start and now - start > seconds:
            break
    return (time.thread_time() - cpu) / done


def calls(model: Model, size: int, seconds: float) -> float:
    """The same for calls, each of which is waited for."""
    assert model.attached is not None
    batches, data = shuffled(model.attached.samples, size), model.encoder(model.attached)
    for batch in islice(batches, 20):
        model.session.predict(data, batch)
    done, begin, cpu = 0, time.perf_counter(), time.thread_time()
    while time.perf_counter() - begin < seconds:
        model.session.predict(data, next(batches))
        done += 1
    return (time.thread_time() - cpu) / done


def steps(model: Model, size: int, seconds: float) -> float:
    """The same for training steps, one by one."""
    assert model.attached is not None
    batches = shuffled(model.attached.samples, size)
    for batch in islice(batches, 20):
        model.step(batch)
    done, begin, cpu = 0, time.perf_counter(), time.thread_time()
    while time.perf_counter() - begin < seconds:
        model.step(next(batches))
        done += 1
    return (time.thread_time() - cpu) / done


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for encoders in options.encoders:
        model = opened(options.build, options.data, encoders)
        for size in BATCHES:
            kinds = {f"stream, {encoders} processes": stream}
            if encoders == options.encoders[0]:
                kinds |= {"calls": calls, "steps": steps} if model.plan.trains else {"calls": calls}
            for name, measure in kinds.items():
                each = measure(model, size, options.seconds)
                yield {"what": name, "batch": size, "us": each * 1e6, "samples_per_second": size / each}
        if options.profile:
            profile(model, options.profile)


def profile(model: Model, size: int) -> None:
    """Where the time of a stream goes."""
    assert model.attached is not None
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in islice(model.predictions(shuffled(model.attached.samples, size)), 4 * CALLS):
        pass
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    """Prints a line for every way and batch size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--encoders", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--profile", type=int, metavar="BATCH")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit")
    options = parser.parse_args()
    result: dict[str, Any] = common.stamp("no device", options.commit) | {"points": []}
    for name in ("build", "data"):
        result["command"] = result["command"].replace(str(getattr(options, name)), name.upper())
    for found in rows(options):
        print(
            f"{found['what']:24}{found['batch']:6}{found['us']:10,.1f} us"
            f"{found['samples_per_second']:14,.0f}/s",
            flush=True,
        )
        result["points"].append(found)
        if options.out:
            common.write(options.out, result)


if __name__ == "__main__":
    main()
