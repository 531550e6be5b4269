"""Tunes a build: times the best candidates of the cost model on the user's data, and keeps the fastest.

In: a build, data, the size of a batch. Out: a `Tuning`, and the build with the winner's kernel and grid.
Guaranteed: the build is replaced whole, at the very end, or not at all; runs and checkpoints are neither
read nor written. Where TVM is missing only kernels that the build holds are timed: `emit_candidates` puts
them there on a machine that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs
import msgspec

from dnc.api.arguments import Data, check_whole
from dnc.api.ranking import (
    Ranked,
    Work,
    candidate_of,
    constants_of,
    distinct_kernels,
    rank,
    some_batches,
)
from dnc.api.timing import Contestant, Measured, measure
from dnc.api.tuning_kernels import Kernel, has_compiler, keep, kernel_for, kernels_of, write_kernels
from dnc.compiler import build_program, digest, stored_options
from dnc.diagnostics import fail
from dnc.explain.facts import DOING, mode_of
from dnc.ir.machine import Machine, machine
from dnc.ir.program import Program
from dnc.passes.candidates import Candidate, replica_counts
from dnc.runtime.build import Build, check_place, read_build
from dnc.runtime.cores import cores
from dnc.runtime.data import Dataset, examples, read, read_samples
from dnc.runtime.devices import CPU, CUDA, TIMED, VM, Place, alone, choose, without_kernels
from dnc.runtime.outside import pulled_fields
from dnc.runtime.phases import TRAIN
from dnc.runtime.tuned import Tuned, tuned_grid

BEST = 5
BATCHES = 8
ROUNDS = 5
# What is as fast as this, as a share of the fastest, is not replaced.
KEEP = 1.01


@attrs.frozen
class Entry:
    """A candidate, predicted and measured, in microseconds a launch; problem: why it was not measured.

    rank: its place among all that were predicted, from 1. current: it is what the build does now.
    """

    candidate: Candidate
    rank: int
    predicted: float
    measured: float | None
    problem: str = ""
    current: bool = False


@attrs.frozen
class Tuning:
    """What was timed, the fastest first. ranked: candidates in all. chosen: the place of the winner.

    replaced: whether the build has another kernel, or another grid for such batches, than before.
    """

    model: str
    target: str
    device: str
    doing: str
    batch: int
    batches: int
    ranked: int
    constants: str
    entries: tuple[Entry, ...]
    chosen: int
    replaced: bool


def work_of(program: Program, data: Data, batch: int, batches: int, chip: Machine, seed: int = 1) -> Work:
    """Batches of the user's data; DiagnosticError where they hold less than one."""
    if pulled_fields(program):
        raise fail("the program pulls vectors from outside: its speed is that of what makes them")
    if isinstance(data, Dataset):
        dataset = data
    else:
        dataset = read(data, program) if isinstance(data, str | Path) else read_samples(data, program)
    if dataset.samples < batch:
        count = f"{dataset.samples} sample{'' if dataset.samples == 1 else 's'}"
        raise fail(f"{dataset.path}: holds {count}, fewer than a batch of {batch}")
    found = some_batches(dataset.samples, batch, batches, seed)
    return Work(program, dataset, found, chip, cores(), constants_of(chip)[0])


def tune(
    build: str | Path,
    data: Data,
    *,
    batch: int = 32,
    best: int = BEST,
    device: str | None = None,
    rounds: int = ROUNDS,
    keeps: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """Times the `best` candidates and what the build does now, and writes the fastest into the build.

    batch: samples of a launch. rounds: how often every batch is run. keeps: False leaves the build as it
    is. tell: hears what is being done.
    """
    for name, value in (("batch", batch), ("best", best), ("rounds", rounds)):
        check_whole(name, value, 1)
    opened = read_build(build)
    if keeps:
        check_place(opened.path)
    place = alone(choose(opened, device), TIMED)
    name = place.target
    if place.device == VM:
        raise fail("the reference VM is no device to be timed; devices: cpu, cuda")
    if not has_compiler() and (place.device == CPU or name not in opened.candidates):
        raise fail(
            f"{build}: there is no TVM here to make kernels with, and the build holds no other ones",
            f"where TVM is: dnc tune {build} --emit {BEST}",
        )
    tell("reading")
    program = build_program(opened)
    chip = machine(opened.targets[name].machine)
    work = work_of(program, data, batch, BATCHES, chip)
    own = kernels_of(opened, program, name)
    tell("ranking")
    ranked, now = _ranked(opened, work, place, own, batch)
    chosen = [*ranked[:best], *(each for each in ranked[best:] if each.candidate == now)]
    kernels = [kernel_for(opened, own, each, chip, tell) for each in chosen]
    contestants = [
        None if isinstance(kernel, str) else _contestant(kernel, each.candidate, chip)
        for kernel, each in zip(kernels, chosen, strict=True)
    ]
    tell(f"timing {len(chosen)} candidates")
    timed = _measure_all(work, place, contestants, kernels, rounds)
    entries = [
        Entry(each.candidate, ranked.index(each) + 1, each.microseconds, time.microseconds, time.problem,
              each.candidate == now)
        for each, time in zip(chosen, timed, strict=True)
    ]  # fmt: skip
    winner = _winner(entries, name, build)
    kernel = kernels[winner]
    assert isinstance(kernel, Kernel)
    where = device_name(place)
    entry = entries[winner]
    note = Tuned(
        batch,
        replicas_of(entry.candidate, chip) or 0,
        entry.candidate.workers,
        round(entry.measured or 0.0, 2),
        sum(each.measured is not None for each in entries),
        where,
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if keeps:
        tell("writing")
        keep(opened, name, own, kernel, note)
    order = sorted(entries, key=lambda each: (each.measured is None, each.measured or 0.0))
    return Tuning(
        opened.model,
        name,
        where,
        DOING[mode_of(kernel.plan)],
        batch,
        len(work.batches),
        len(ranked),
        constants_of(chip)[1],
        tuple(order),
        order.index(entry),
        not entry.current,
    )


def emit_candidates(
    build: str | Path,
    count: int,
    *,
    data: Data | None = None,
    batch: int = 32,
    device: str | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """Puts the kernels of the `count` best candidates into the build, for a machine without TVM.

    data: what they are ranked on; a made-up sample without. device: whose target, "cpu" or "cuda".
    """
    check_whole("count", count, 1)
    check_whole("batch", batch, 1)
    opened = read_build(build)
    check_place(opened.path)
    name = _target_for(opened, device)
    if not has_compiler():
        raise fail("there is no TVM here to make kernels with")
    program = build_program(opened)
    chip = machine(opened.targets[name].machine)
    if data is None:
        data = [msgspec.json.decode(examples(program)[1])] * batch
    tell("ranking")
    work = work_of(program, data, batch, 1, chip)
    own = kernels_of(opened, program, name)[:1]
    ranked = rank(work, stored_options(opened, opened.targets[name]))
    added, entries = list[Kernel](), list[Entry]()
    for each in distinct_kernels(ranked):
        if len(entries) == count:
            break
        kernel = kernel_for(opened, own, each, chip, tell)
        problem = kernel if isinstance(kernel, str) else ""
        current = isinstance(kernel, Kernel) and kernel.target.plan == own[0].target.plan
        entries.append(
            Entry(each.candidate, ranked.index(each) + 1, each.microseconds, None, problem, current)
        )
        if isinstance(kernel, Kernel) and not current:
            added.append(kernel)
    tell("writing")
    write_kernels(opened, name, own[0].target, own[0].files, added)
    doing = DOING[mode_of(own[0].plan)]
    source = constants_of(chip)[1]
    return Tuning(opened.model, name, "", doing, batch, 1, len(ranked), source, tuple(entries), 0, False)


# ---- what is timed --------------------------------------------------------------------------------


def _target_for(build: Build, device: str | None) -> str:
    """The target that candidates are made for, whether or not its device is here."""
    if device not in (None, CPU, CUDA):
        raise fail(f"--device: found '{device}', expected cpu or cuda")
    names = [name for name in build.targets if device is None or name.partition(":")[0] == device]
    if not names:
        raise without_kernels(build, str(device))
    return next((name for name in names if name != CPU), names[0])


def _ranked(
    build: Build, work: Work, place: Place, own: Sequence[Kernel], batch: int
) -> tuple[list[Ranked], Candidate]:
    """Candidates by predicted time, with what the build does now among them, which is the second result."""
    chip, first = work.chip, own[0]
    options = [stored_options(build, kernel.target) for kernel in own]
    trains = mode_of(first.plan) == TRAIN
    grid = _grid_now(place, first, chip, batch, trains)
    now = candidate_of(first.plan, options[0], *grid)
    if has_compiler():
        ranked = rank(work, options[0])
    else:
        ranked = []
        for kernel, way in zip(own, options, strict=True):
            tiling = kernel.plan.tiling
            assert tiling is not None
            resident = chip.replicas(tiling.workers, tiling.cluster)
            counts = replica_counts(resident)
            only = [candidate_of(kernel.plan, way, count, tiling.workers) for count in counts]
            ranked += rank(work, way, only)
    same = digest(first.plan)
    for at, each in enumerate(ranked):
        if digest(each.plan) == same and (each.candidate.replicas, each.candidate.workers) == grid:
            ranked[at] = attrs.evolve(each, candidate=now)
            break
    else:
        ranked += rank(work, options[0], [now])
    return sorted(ranked, key=lambda each: each.microseconds), now


def _grid_now(place: Place, kernel: Kernel, chip: Machine, batch: int, trains: bool) -> tuple[int, int]:
    """Replicas and workers that a batch is launched on now; all replicas as the estimate has them."""
    assert kernel.plan.tiling is not None
    if place.device == CPU:
        from dnc.runtime.cpu_backend import CpuBackend

        return CpuBackend(kernel.plan, kernel.files, tuned=kernel.target.tuned).grid(batch, trains)
    found = tuned_grid(kernel.target.tuned, batch)
    workers = kernel.plan.tiling.workers
    resident = chip.replicas(workers, kernel.plan.tiling.cluster)
    return (found[0] if found and found[0] else resident), workers


def _contestant(kernel: Kernel, candidate: Candidate, chip: Machine) -> Contestant:
    return Contestant(kernel.plan, kernel.files, replicas_of(candidate, chip), candidate.workers)


def replicas_of(candidate: Candidate, chip: Machine) -> int | None:
    """Replicas to launch; None for all that a GPU holds, of which a candidate has only the estimate."""
    if chip.is_gpu and candidate.replicas == chip.replicas(candidate.workers, candidate.cluster):
        return None
    return candidate.replicas


def _measure_all(
    work: Work,
    place: Place,
    contestants: Sequence[Contestant | None],
    kernels: Sequence[Kernel | str],
    rounds: int,
) -> list[Measured]:
    able = [each for each in contestants if each is not None]
    found = iter(measure(work, place, able, rounds))
    return [
        Measured(None, str(kernel)) if each is None else next(found)
        for each, kernel in zip(contestants, kernels, strict=True)
    ]


def _winner(entries: Sequence[Entry], target: str, build: str | Path) -> int:
    """The place of the fastest; of what is now, where that is as fast."""
    times = [each.measured for each in entries]
    least = min((time for time in times if time is not None), default=None)
    if least is None:
        problems = "; ".join(dict.fromkeys(each.problem for each in entries))
        raise fail(f"{build}: no candidate for {target} runs here: {problems}")
    for at, each in enumerate(entries):
        if each.current and each.measured is not None and each.measured <= KEEP * least:
            return at
    return times.index(least)


def device_name(place: Place) -> str:
    """What constants are kept for, and what was timed."""
    if place.device == CUDA:
        from dnc.runtime.cuda_driver import open_device

        return open_device(place.gpu).name
    return f"CPU, {cores()} cores"
