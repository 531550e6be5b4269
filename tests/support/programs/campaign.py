"""Many random programs outside CI: `python -m tests.support.programs.campaign vm 0 20000`.

In: an executor (`vm` or `cpu`), the first seed and how many programs. Out: counts, and for every kind
of failure the shortest program with its seed and case; `check_seed` runs one of them again.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
import warnings
from collections import Counter

import attrs

from dnc.codegen.cpu_kernel import build_cpu
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

GRIDS = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (3, 2))
REPORT_EVERY = 1000


def text_of(executor: str, seed: int) -> str:
    """The program of a seed; the CPU's are wider."""
    return program_of(seed, SMALL_WIDTHS if executor == "vm" else WIDTHS)


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
    )


def check(executor: str, text: str, case: Case) -> None:
    """Runs a program on the executor: on the CPU one kernel with every grid and two data sets."""
    prepared = prepare(text, case)
    if executor == "vm":
        run(prepared, VMBackend(prepared.plan, case.replicas, case.workers, case.seed), case)
        return
    backend = CpuBackend(prepared.plan, build_cpu(prepared.plan))
    for grid in dict.fromkeys([(case.replicas, case.workers), *GRIDS]):
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


def campaign(executor: str, first: int, count: int) -> dict[tuple[str, ...], Failure]:
    """Runs seeds `first` to `first + count`; prints counts now and then."""
    failures: dict[tuple[str, ...], Failure] = {}
    unsuitable: Counter[str] = Counter()
    start = time.perf_counter()
    for done, seed in enumerate(range(first, first + count), start=1):
        text, case = text_of(executor, seed), case_of(executor, seed)
        try:
            check(executor, text, case)
            if executor == "vm" and seed % 5 == 0:
                check_differences(prepare(text, case), seed)
        except Unsuitable as reason:
            unsuitable[str(reason).split()[0]] += 1
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            shown = f"seed {seed}: {type(error).__name__}: {error}"[:600]
            key = (type(error).__name__, frame.filename, str(frame.lineno))
            known = failures.setdefault(key, Failure(0, text, f"{shown}\n{case}"))
            known.count += 1
            if len(text) < len(known.text):
                known.text, known.message = text, f"{shown}\n{case}"
            if known.count == 1:
                print(f"{key}\n{known.message}\n{text}", flush=True)
        if done % REPORT_EVERY == 0 or done == count:
            seconds = time.perf_counter() - start
            bad = sum(failure.count for failure in failures.values())
            print(
                f"{executor}: {done} programs in {seconds:.0f} s, {bad} failures of {len(failures)} kinds, "
                f"not comparable: {dict(unsuitable)}",
                flush=True,
            )
    return failures


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = campaign(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    for key, failure in found.items():
        print(f"\n==== {failure.count} times {key}\n{failure.message}\n{failure.text}")
    sys.exit(1 if found else 0)
