"""Measures the constants of a machine by fitting the cost model to launches of a build.

In: builds (their kernels, also those of candidates), data, a device. Out: `Calibration`, kept in the user's
cache for the device. Guaranteed: TVM is not needed for builds of a GPU; no run and no build is written. What
the launches say nothing of keeps the value that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.api.arguments import Data, check_whole
from dnc.api.ranking import Work, candidate_of, counted, encoder_of
from dnc.api.timing import Contestant, measure
from dnc.api.tuning import device_name, replicas_of, work_of
from dnc.api.tuning_kernels import Kernel, kernels_of
from dnc.compiler import build_program, stored_options
from dnc.diagnostics import fail
from dnc.ir.machine import Constants, Machine, machine
from dnc.machine_constants import Measured, check_place, save
from dnc.passes.candidates import candidates
from dnc.runtime.build import MANIFEST, Build, read_build
from dnc.runtime.devices import TIMED, VM, Place, alone, choose
from dnc.runtime.prepared import prepare

BATCHES = (1, 4, 16, 64)
EACH = 3  # batches of a size
# How strongly a constant is drawn to the value it had, against one launch; and the least share of it.
PULL, LEAST = 0.01, 0.02
Floats = NDArray[np.float64]


@attrs.frozen
class Calibration:
    """before: the constants that the fit began with. error_before: as `Measured.error`, with them."""

    measured: Measured
    path: Path
    before: Constants
    error_before: float


def calibrate(
    builds: Sequence[str | Path],
    data: Data,
    *,
    device: str | None = None,
    rounds: int = 5,
    tell: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Times the kernels of `builds` on every grid and several sizes of batches, and fits the constants."""
    check_whole("rounds", rounds, 1)
    counts, times, problems = list[Floats](), list[float](), dict[str, None]()
    place, chip = Place("", ""), machine("cpu")
    for path in builds:
        opened = read_build(path)
        first, place = place.target, alone(choose(opened, device), TIMED)
        target = place.target
        if first not in ("", target):
            raise fail(f"{path}: would run as {target}, those before it as {first}", "--device chooses one")
        if place.device == VM:
            raise fail("the reference VM is no device to be timed; devices: cpu, cuda")
        check_place(device_name(place))
        chip = machine(opened.targets[target].machine)
        program = build_program(opened)
        own = kernels_of(opened, program, target)
        samples = work_of(program, data, 1, 1, chip).data
        for batch in (size for size in BATCHES if size <= samples.samples):
            tell(f"{opened.model}, batches of {batch}")
            work = work_of(program, samples, batch, EACH, chip)
            found, seconds, why = _launches(opened, work, place, own, rounds)
            counts += found
            times += seconds
            problems |= dict.fromkeys(why)
    if len(times) < 2:
        raise fail("no launch could be timed", *problems)
    matrix, measured = np.array(counts), np.array(times) * 1e3
    before = np.array(attrs.astuple(chip.constants))
    fitted = fit(matrix, measured, before)
    result = Measured(
        device_name(place),
        chip.name,
        datetime.now(UTC).isoformat(timespec="seconds"),
        round(_error(matrix, measured, fitted), 4),
        len(times),
        Constants(*(float(f"{value:.4g}") for value in fitted)),
    )
    return Calibration(result, save(result), chip.constants, round(_error(matrix, measured, before), 4))


def fit(counts: Floats, times: Floats, before: Floats) -> Floats:
    """The constants for which counts @ constants is nearest to `times` [ns], by relative error.

    Least squares over factors on `before`, none below LEAST, each drawn to 1: coordinate descent.
    """
    shares = counts * before / times[:, None]
    pull = PULL * np.eye(len(before))
    normal, goal = shares.T @ shares + pull, shares.sum(axis=0) + PULL
    factors = np.ones(len(before))
    for _ in range(2000):
        for at in range(len(before)):
            rest = goal[at] - normal[at] @ factors + normal[at, at] * factors[at]
            factors[at] = max(LEAST, rest / normal[at, at])
    found: Floats = factors * before
    return found


def _error(counts: Floats, times: Floats, constants: Floats) -> float:
    return float(np.median(np.abs(counts @ constants / times - 1)))


def _launches(
    build: Build, work: Work, place: Place, own: Sequence[Kernel], rounds: int
) -> tuple[list[Floats], list[float], list[str]]:
    """Counts and microseconds of a launch, for every kernel on every grid that runs; why others do not."""
    ways = [
        (kernel, candidate_of(kernel.plan, stored_options(build, kernel.target), *grid))
        for kernel in own
        for grid in _grids(kernel, work.chip, work.cores)
    ]
    contestants = [
        Contestant(kernel.plan, kernel.files, replicas_of(way, work.chip), way.workers)
        for kernel, way in ways
    ]
    counts, times, problems = [], [], []
    for (kernel, way), measured in zip(ways, measure(work, place, contestants, rounds), strict=True):
        if measured.microseconds:
            encoder = encoder_of(work, prepare(kernel.plan, work.data.forest))
            ran = attrs.evolve(way, replicas=measured.replicas)
            counts.append(counted(work, encoder, ran))
            times.append(measured.microseconds)
        else:
            problems.append(f"{build.path}: {measured.problem}")
    return counts, times, problems


def builds_in(folder: str | Path) -> list[Path]:
    """The builds in a folder, in order of their names; DiagnosticError if there is none."""
    place = Path(folder)
    if not place.is_dir():
        problem = "is a file, expected a folder of builds" if place.exists() else "does not exist"
        raise fail(f"{folder}: {problem}")
    found = sorted(each.parent for each in place.glob(f"*/{MANIFEST}"))
    if not found:
        beside = " (it is a build itself: name it without --builds)" if (place / MANIFEST).exists() else ""
        raise fail(f"{folder}: holds no builds{beside}")
    return found


def _grids(kernel: Kernel, chip: Machine, cores: int) -> list[tuple[int, int]]:
    assert kernel.plan.tiling is not None
    if not chip.is_gpu:
        return list(dict.fromkeys((each.replicas, each.workers) for each in candidates(chip, cores)))
    workers = kernel.plan.tiling.workers
    resident = chip.replicas(workers, kernel.plan.tiling.cluster)
    return [(count, workers) for count in dict.fromkeys((resident, 1))]
