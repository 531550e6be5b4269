"""Ranks the ways in which a model can run on a machine, by what batches of the user's are predicted to take.

In: a build's program, data, a batch size, a machine with its constants. Out: `Ranked` candidates, the
cheapest first. Guaranteed: nothing is compiled or run; candidates whose kernels would be the same are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from dnc.compiler import PlanOptions, digest, make_plan
from dnc.explain.facts import mode_of
from dnc.ir.costs import Costs, Counts, nanoseconds
from dnc.ir.forest import Ints
from dnc.ir.machine import Constants, Machine, machine
from dnc.ir.plan import Plan
from dnc.ir.program import Program
from dnc.ir.uses import keeps_weights
from dnc.machine_constants import known
from dnc.passes.candidates import Candidate, candidates
from dnc.runtime.cores import cores
from dnc.runtime.data import Dataset, table_rows
from dnc.runtime.encoder import Encoder
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import Prepared, prepare
from dnc.runtime.schedule_cost import busiest
from dnc.runtime.tuned import Tuned

# Batches that a prediction is made of, and words that a schedule may have in them.
BATCHES = 4
SCHEDULE_WORDS = 2**24
SHOWN = 6


@attrs.frozen(eq=False)
class Ranked:
    """A candidate with what makes its plan, and its predicted time: microseconds a launch."""

    candidate: Candidate
    options: PlanOptions
    plan: Plan
    microseconds: float


@attrs.frozen(eq=False)
class Work:
    """What is ranked and timed: batches (sample numbers) of data, on a machine."""

    program: Program
    data: Dataset
    batches: tuple[Ints, ...]
    chip: Machine
    cores: int
    constants: Constants

    @property
    def rows(self) -> dict[str, int]:
        """Rows of the tables."""
        return table_rows(self.program, self.data.vocabularies)


def constants_of(chip: Machine) -> tuple[Constants, str]:
    """The constants to rank with, and where they are from."""
    measured = known(chip.name)
    if measured is None:
        return chip.constants, "built in; dnc calibrate measures them"
    return measured.constants, f"measured on {measured.device}, {measured.date}"


def some_batches(samples: int, batch: int, count: int, seed: int = 1) -> tuple[Ints, ...]:
    """Batches of distinct samples, in the order of a shuffle; fewer than `count` where data are few."""
    order = np.random.default_rng(seed).permutation(samples).astype(np.int32)
    size = min(batch, samples)
    return tuple(np.sort(order[at : at + size]) for at in range(0, samples - size + 1, size))[:count]


def rank(work: Work, options: PlanOptions, only: Sequence[Candidate] | None = None) -> list[Ranked]:
    """Every candidate with its predicted time, the cheapest first.

    options: how the build was made; what candidates say replaces its own. only: those, not all.
    """
    chosen = list(candidates(work.chip, work.cores) if only is None else only)
    prepared: Prepared | None = None
    found, seen = list[Ranked](), set[tuple[str, int, int]]()
    kernels = {each: kernel_of(options, each, work.chip) for each in chosen}
    keeps = dict[PlanOptions, bool]()  # whether weights of the recursion stay on the chip
    for kernel in dict.fromkeys(kernels.values()):
        plain = attrs.evolve(kernel, splits=False)
        if kernel.splits and keeps.get(plain):
            continue
        plan = make_plan(work.program, work.chip.name, kernel)
        keeps[kernel] = keeps_weights(plan)
        if kernel.splits and plain in keeps and not keeps[kernel]:
            continue
        prepared = prepare(plan, work.data.forest) if prepared is None else attrs.evolve(prepared, plan=plan)
        encoder = encoder_of(work, prepared)
        for each in (each for each in chosen if kernels[each] == kernel):
            key = digest(plan), each.replicas, each.workers
            if key not in seen:
                seen.add(key)
                found.append(Ranked(each, kernel, plan, predicted(work, encoder, each)))
    return sorted(found, key=lambda each: (each.microseconds, chosen.index(each.candidate)))


def encoder_of(work: Work, prepared: Prepared) -> Encoder:
    """An encoder with room for any batch, which nobody launches."""
    return Encoder(prepared, static_pool(prepared.plan, work.rows, SCHEDULE_WORDS))


def predicted(work: Work, encoder: Encoder, candidate: Candidate) -> float:
    """Microseconds of a launch, the mean over the batches."""
    return nanoseconds(counted(work, encoder, candidate), work.constants) / 1e3


def counted(work: Work, encoder: Encoder, candidate: Candidate) -> Counts:
    """What a launch is made of, the mean over the batches."""
    costs = Costs(encoder.plan, candidate.replicas, candidate.workers)
    mode, found = mode_of(encoder.plan), []
    for batch in work.batches[:BATCHES]:
        schedule = encoder.encode(batch, mode=mode, replicas=candidate.replicas, workers=candidate.workers)
        found.append(busiest(schedule, costs, work.constants))
    counts: Counts = np.mean(found, axis=0)
    return counts


def kernel_of(options: PlanOptions, candidate: Candidate, chip: Machine) -> PlanOptions:
    """The options of a candidate's kernel, for a build that was made with `options`."""
    if not chip.is_gpu:
        return attrs.evolve(options, tile=candidate.tile)
    return attrs.evolve(
        options,
        cluster=candidate.cluster if candidate.cluster > 1 else 0,
        workers=candidate.workers,
        tile=candidate.tile,
        registers=candidate.registers,
        splits=candidate.splits,
    )


def candidate_of(plan: Plan, options: PlanOptions, replicas: int, workers: int) -> Candidate:
    """What a build's kernel is, as a candidate for a grid."""
    assert plan.tiling is not None
    tiling = plan.tiling
    return Candidate(workers, tiling.cluster, tiling.tile, options.registers, replicas, tiling.splits)


def describe(candidate: Candidate, chip: Machine) -> str:
    """A candidate for people."""
    if not chip.is_gpu:
        return f"{candidate.replicas} x {candidate.workers} workers, tile {candidate.tile}"
    kind = f"cluster of {candidate.workers}" if candidate.cluster > 1 else f"{candidate.workers} workers"
    registers = "" if candidate.registers is None else f", {candidate.registers} registers for weights"
    split = ", weights split" if candidate.splits else ""
    return f"{candidate.replicas} x {kind}, tile {candidate.tile}{registers}{split}"


def tuned_lines(entries: Sequence[Tuned]) -> Iterator[str]:
    """What a build says of its tuning."""
    yield "tuned"
    for each in entries:
        least, most = -(-each.batch // 2), each.batch * 2
        yield (
            f"  batches of {least} to {most}: {each.replicas or 'all'} x {each.workers} workers; "
            f"{each.microseconds:,.1f} us a launch of {each.batch}, the fastest of "
            f"{each.candidates} on {each.device}, {each.date}"
        )


def candidate_lines(plan: Plan, options: PlanOptions, data: Dataset, batch: int) -> Iterator[str]:
    """The candidates that are predicted to be fastest for a batch like the first samples of `data`."""
    chip = machine(plan.target)
    constants, source = constants_of(chip)
    size = min(batch, data.samples)
    work = Work(plan.program, data, some_batches(data.samples, size, 1), chip, cores(), constants)
    found = rank(work, options)
    count = f"{size} sample{'' if size == 1 else 's'}"
    yield f"candidates, predicted for a batch of {count} ({len(found)} in all; constants: {source})"
    for each in found[:SHOWN]:
        yield f"  {each.microseconds:10,.1f} us: {describe(each.candidate, chip)}"


def distinct_kernels(ranked: Sequence[Ranked]) -> Iterator[Ranked]:
    """The best of every kernel, in order."""
    seen = set[str]()
    for each in ranked:
        name = digest(each.plan)
        if name not in seen:
            seen.add(name)
            yield each
