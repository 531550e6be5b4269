"""Many random programs outside CI: `python -m tests.support.programs.campaign vm 0 20000`.

In: an executor (`vm` or `cpu`), the first seed and how many programs. Out: counts, and for every kind
of failure the shortest program with its seed and case; `check_seed` runs one of them again. On the CPU
the kernels of a batch of programs share a module that LLVM does not optimise (`kernels.py`), and one
program of five hundred goes the way of a build, optimised.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs

from dnc.codegen.cpu_kernel import build_cpu
from dnc.passes.distribute import NARROW
from dnc.runtime.backend import Backend, VMBackend
from dnc.runtime.cpu_backend import CpuBackend
from tests.support.executors import OnGrid
from tests.support.forests import SHAPES
from tests.support.programs import SMALL_WIDTHS, WIDTHS, program_of
from tests.support.programs.check import (
    OPTIONAL_PASSES,
    Case,
    Prepared,
    Unsuitable,
    check_differences,
    prepare,
    run,
)
from tests.support.programs.kernels import compile_together

GRIDS = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (3, 2))
SIZES = ((1, 2),) * 5 + ((2, 2),) * 3 + ((1, 3), (3, 3))
"""Groups of functions and depth of expressions, at most, of programs for the CPU: LLVM takes the time."""
REPORT_EVERY = 100
BATCH = 32
BUILD_EVERY = 500


def text_of(executor: str, seed: int) -> str:
    """The program of a seed; the CPU's are wider."""
    if executor == "vm":
        return program_of(seed, SMALL_WIDTHS)
    groups, depth = random.Random(-2 - seed).choice(SIZES)
    return program_of(seed, WIDTHS, groups, depth)


def case_of(executor: str, seed: int) -> Case:
    """Data, grid and passes left out, from a seed."""
    choice = random.Random(-1 - seed)
    replicas, workers = choice.choice(GRIDS)
    return Case(
        seed=seed,
        samples=choice.randint(1, 4),
        vertices=choice.choice((3, 6, 10)) if executor == "vm" else choice.choice((6, 20)),
        shape=choice.choice(SHAPES),
        sharing=choice.choice((0.0, 0.4)),
        replicas=replicas,
        workers=workers,
        without=tuple(name for name in OPTIONAL_PASSES if choice.random() < 0.25),
        target=choice.choice(("cpu", "sm_90a")) if executor == "vm" else "cpu",
        apart=choice.random() < 0.5,
        alike=choice.random() < 0.5,
        shared=choice.random() < 0.5,
        repeat=choice.choice((None, True, False)),
        parts=choice.random() < 0.7,
        reduce=choice.choice((None, True)),
        narrow=choice.choice((0, NARROW)),
    )


def check(executor: str, text: str, case: Case) -> None:
    """Runs a program on the executor: on the CPU the kernel of a build, with every grid."""
    prepared = prepare(text, case)
    if executor == "vm":
        run(prepared, VMBackend(prepared.plan, case.replicas, case.workers, case.seed), case)
        return
    on_grids(prepared, CpuBackend(prepared.plan, build_cpu(prepared.plan)), case, GRIDS)


def on_grids(prepared: Prepared, backend: CpuBackend, case: Case, grids: Sequence[tuple[int, int]]) -> None:
    """Runs a kernel on the grid of the case and on others."""
    for grid in dict.fromkeys([(case.replicas, case.workers), *grids]):
        on_grid: Backend = OnGrid(backend, grid)  # type: ignore[assignment]
        run(prepared, on_grid, case)


def check_seed(executor: str, seed: int) -> Prepared:
    """Runs the program of a seed."""
    text, case = text_of(executor, seed), case_of(executor, seed)
    check(executor, text, case)
    prepared = prepare(text, case)
    check_differences(prepared, seed)
    return prepared


@attrs.define
class Failure:
    """A kind of failure, by where it was raised."""

    count: int
    text: str
    message: str


@attrs.define
class Tally:
    """What a run has found so far."""

    executor: str
    done: int = 0
    agreed: int = 0
    start: float = attrs.Factory(time.perf_counter)
    unsuitable: Counter[str] = attrs.Factory(Counter)
    failures: dict[tuple[str, ...], Failure] = attrs.Factory(dict)

    @contextmanager
    def of(self, seed: int, last: bool = True) -> Iterator[None]:
        """Keeps what a step of a seed's comparison raises; last: behind it the program is done."""
        ended = last
        try:
            yield
            self.agreed += last
        except Unsuitable as reason:
            self.unsuitable[str(reason).split()[0]] += 1
            ended = True
        except Exception as error:
            self._failed(seed, error)
            ended = True
        self.done += ended
        if ended and self.done % REPORT_EVERY == 0:
            self.report()

    def _failed(self, seed: int, error: Exception) -> None:
        text, case = text_of(self.executor, seed), case_of(self.executor, seed)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        shown = f"seed {seed}: {type(error).__name__}: {error}"[:600]
        key = (type(error).__name__, frame.filename, str(frame.lineno))
        known = self.failures.setdefault(key, Failure(0, text, f"{shown}\n{case}"))
        known.count += 1
        if len(text) < len(known.text):
            known.text, known.message = text, f"{shown}\n{case}"
        print(f"{key}\n{known.message}\n{text}" if known.count == 1 else f"{key} {shown}", flush=True)

    def report(self) -> None:
        """The counts so far."""
        seconds = time.perf_counter() - self.start
        bad = sum(failure.count for failure in self.failures.values())
        print(
            f"{self.executor}: {self.done} programs in {seconds:.0f} s, {self.agreed} agree, "
            f"{bad} failures of {len(self.failures)} kinds, not comparable: {dict(self.unsuitable)}",
            flush=True,
        )


def campaign(executor: str, first: int, count: int) -> Tally:
    """Runs seeds `first` to `first + count`; prints counts now and then."""
    tally, seeds = Tally(executor), range(first, first + count)
    if executor == "vm":
        for seed in seeds:
            with tally.of(seed):
                check_on_vm(seed)
    else:
        for begin in range(0, count, BATCH):
            check_on_cpu(seeds[begin : begin + BATCH], tally)
    tally.report()
    return tally


def check_on_vm(seed: int) -> None:
    """A program on the reference VM; every fifth against differences."""
    text, case = text_of("vm", seed), case_of("vm", seed)
    check("vm", text, case)
    if seed % 5 == 0:
        check_differences(prepare(text, case), seed)


def check_on_cpu(seeds: Sequence[int], tally: Tally) -> None:
    """A batch of programs on kernels of one module, each on two grids."""
    batch: dict[int, Prepared] = {}
    for seed in seeds:
        with tally.of(seed, last=False):
            batch[seed] = prepare(text_of("cpu", seed), case_of("cpu", seed))
    backends: dict[int, CpuBackend] = {}
    for seed in [seed for seed in batch if seed % BUILD_EVERY == 0]:
        with tally.of(seed, last=False):
            backends[seed] = CpuBackend(batch[seed].plan, build_cpu(batch[seed].plan))
    together = [seed for seed in batch if seed % BUILD_EVERY != 0]
    try:
        backends |= zip(together, compile_together([batch[seed].plan for seed in together]), strict=True)
    except Exception:  # one by one, to see which
        for seed in together:
            with tally.of(seed, last=False):
                backends[seed] = compile_together([batch[seed].plan])[0]
    for seed, backend in backends.items():
        case = case_of("cpu", seed)
        others = [grid for grid in GRIDS if grid != (case.replicas, case.workers)]
        with tally.of(seed):
            on_grids(batch[seed], backend, case, [random.Random(-3 - seed).choice(others)])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    faulthandler.enable()
    found = campaign(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).failures
    for key, failure in found.items():
        print(f"\n==== {failure.count} times {key}\n{failure.message}\n{failure.text}")
    sys.exit(1 if found else 0)
