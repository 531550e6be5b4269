"""Select tiles: chooses how many workers share a copy of the weights, by a cost model.

In: a plan with segments. Out: the plan with its `Tiling`. Candidates are clusters of the sizes the
machine allows (every cluster a replica with its own trees), the whole chip as one replica with
a barrier through the L2 cache, and some such replicas of more workers than a cluster has, where weights
of the recursion fit into these and into no cluster. Without data a wavefront has to stand for a batch:
one of a single row, and the time of every further row, of which a batch of a known size has one a sample
(`dnc tune` ranks more candidates, for the user's own batches). Products count as in fp32 at every precision:
what a wavefront leaves out, products outside the recursion above all, weighs more the faster they are, and
with their own times language models of 512 units would go to clusters, which take 1.4 to 1.7 times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from dnc.ir.costs import INSTRUCTION, NAMES, Costs, nanoseconds
from dnc.ir.machine import Constants, Machine
from dnc.ir.plan import FP32, UNIT, Plan, Tiling, unit_share
from dnc.ir.program import LEVEL
from dnc.ir.uses import keeps_weights
from dnc.passes.candidates import BESIDE
from dnc.passes.plan_weights import PlanWeights

WINDOW_WORDS = 1024
VERTICES_PER_TILE = 64
CPU_TILE = 48
# Rows of a wavefront, over the whole chip, that a choice is made for where nobody says how large batches are.
NOMINAL_ROWS = 32
# Then of candidates as near as this the one that takes further rows for less: it also serves large batches.
NEAR = 1.15
# Rows with which such replicas still have to be fastest, where nobody says how large batches are: two that
# keep 10 MiB took 8 % less than clusters for a batch of 32, and 18 % more for one of 128.
MANY_ROWS = 2 * NOMINAL_ROWS
# What weights that are split are thought to cost more: they take shared memory from products outside the
# recursion, which a wavefront does not count. One of 10,000 rows, in tiles, took a quarter more with them.
SPLIT = 1.5


@attrs.frozen
class Ranked:
    """A tiling with its predicted time in ns for a wavefront of one row, and for every further row. keeps:
    whether all weights of the recursion stay on the chip."""

    tiling: Tiling
    replicas: int
    level_ns: float
    vertex_ns: float
    keeps: bool

    @property
    def beside(self) -> bool:
        """Whether it is one of several replicas without clusters."""
        return self.tiling.cluster == 1 and self.replicas > 1

    def time(self, further: int) -> float:
        """In ns, that of a wavefront of so many rows beside the first."""
        return (self.level_ns + further * self.vertex_ns) * (SPLIT if self.tiling.splits else 1.0)

    def time_of(self, batch: int) -> float:
        """In ns, that of a wavefront with a row of each of so many samples, which replicas share."""
        return self.time((-(-batch // self.replicas) - 1) * self.replicas)


def _count(_: object, field: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{field.name}: found {value}, expected 1 or more")


def _size(tiles: SelectTiles, _: object, size: int | None) -> None:
    chip = tiles.machine
    if size is not None and size > 1 and chip.is_gpu and size not in chip.cluster_sizes:
        raise ValueError(f"{chip.name} has no clusters of {size}")


@attrs.frozen
class SelectTiles:
    """Ranks the candidates for `machine`. `cluster` forces one (0 = the whole chip, None = choose).

    `window` is the number of words of the schedule held on chip. `workers`: of a replica that is no
    cluster. `tile`: vertices worked on at a time. `constants`: measured ones, None for the machine's own.
    `batch`: samples of a batch, None where that is not known. `weights`: places them in every candidate.
    `splits`: whether they may be in registers and shared memory together; None: both ways are candidates.
    """

    machine: Machine
    cluster: int | None = attrs.field(default=None, validator=_size)
    window: int = attrs.field(default=WINDOW_WORDS, validator=_count)
    workers: int | None = attrs.field(default=None, validator=_count)
    tile: int | None = attrs.field(default=None, validator=_count)
    constants: Constants | None = None
    batch: int | None = attrs.field(default=None, validator=_count)
    weights: PlanWeights = attrs.Factory(lambda self: PlanWeights(self.machine), takes_self=True)
    splits: bool | None = None
    name: str = attrs.field(default="select-tiles", init=False)
    optional: bool = attrs.field(default=False, init=False)

    def __call__(self, plan: Plan) -> Plan:
        """The plan with the cheapest tiling."""
        if not self.machine.is_gpu:
            tile = self.tile or CPU_TILE
            tiling = Tiling(workers=self.workers or 1, threads=1, cluster=1, tile=tile, window=self.window)
            return attrs.evolve(plan, tiling=tiling)
        ranked = self._ranked(plan)
        remarks = tuple(
            f"tiles: {c.tiling.workers} workers a replica, cluster {c.tiling.cluster}, "
            f"{c.replicas} replicas: "
            f"{c.level_ns:.0f} ns a level, {c.vertex_ns:.0f} ns a vertex"
            for c in ranked
        )
        return attrs.evolve(plan, tiling=self._chosen(ranked).tiling, remarks=(*plan.remarks, *remarks))

    def best(self, plan: Plan) -> Ranked:
        """The tiling that it chooses on a GPU, with its cost."""
        return self._chosen(self._ranked(plan))

    def expected(self, ranked: Ranked) -> float:
        """The time by which a choice is made, in ns."""
        return ranked.time(NOMINAL_ROWS) if self.batch is None else ranked.time_of(self.batch)

    def _ranked(self, plan: Plan) -> list[Ranked]:
        return sorted(self.candidates(plan), key=self.expected)

    def _chosen(self, ranked: list[Ranked]) -> Ranked:
        if self.batch is not None:
            return ranked[0]
        most = min((c.time(MANY_ROWS) for c in ranked if not c.beside), default=math.inf)
        fit = [c for c in ranked if not c.beside or c.time(MANY_ROWS) <= most]
        if fit[0].tiling.splits:
            return fit[0]
        near = [c for c in fit if self.expected(c) <= NEAR * self.expected(fit[0])]
        return min((c for c in near if not c.tiling.splits), key=lambda c: c.vertex_ns)

    def candidates(self, plan: Plan) -> list[Ranked]:
        """Every tiling the machine allows, or the one that was asked for, with its cost."""
        chip = 1 << (self.machine.processors.bit_length() - 1)
        sizes = self.machine.cluster_sizes if self.cluster else self.machine.clusters
        options = [(size, size) for size in sizes] + [(self.workers or chip, 1)]
        wanted = None if self.cluster is None else max(self.cluster, 1)
        asked = [option for option in options if wanted in (None, option[1])]
        found = [each for option in asked for each in self._ways(plan, *option)]
        return found if self.cluster is not None else [*found, *self._beside(plan, found)]

    def _ways(self, plan: Plan, workers: int, cluster: int) -> list[Ranked]:
        """A tiling as it is, and, where weights of the recursion would be streamed, with those on the chip
        that registers and shared memory have room for together."""
        if self.splits is not None:
            return [self._cost(plan, workers, cluster, self.splits)]
        plain = self._cost(plan, workers, cluster, False)
        if plain.keeps:
            return [plain]
        split = self._cost(plan, workers, cluster, True)
        return [plain, split] if split.keeps else [plain]

    def _beside(self, plan: Plan, others: Sequence[Ranked]) -> list[Ranked]:
        """Replicas without clusters, some on a chip, where these keep what clusters have to stream."""
        clusters = [each for each in others if each.tiling.cluster > 1 and not each.tiling.splits]
        if not clusters or (self.batch is None and any(each.keeps for each in clusters)):
            return []
        sizes = [self.machine.processors // count for count in BESIDE]
        even = [workers for workers in sizes if _shares_evenly(plan, workers)]
        return [each for workers in even for each in self._ways(plan, workers, 1) if each.keeps]

    def _cost(self, plan: Plan, workers: int, cluster: int, splits: bool) -> Ranked:
        tile = self.tile or VERTICES_PER_TILE
        tiling = Tiling(workers, self.machine.threads, cluster, tile, self.window, splits)
        placed = self.weights(attrs.evolve(plan, tiling=tiling))
        replicas = self.machine.replicas(workers, cluster)
        costs = Costs(attrs.evolve(placed, precision=FP32), replicas, workers)
        constants = self.constants or self.machine.constants
        one, many = np.zeros(len(NAMES)), np.zeros(len(NAMES))
        for segment in placed.segments:
            if placed.program.stage(segment.stage).placement != LEVEL:
                continue
            one[INSTRUCTION] += 1
            one += costs.exchange() + costs.segment(segment.name, np.ones(1))
            many += costs.segment(segment.name, np.full(1, 1.0 + NOMINAL_ROWS / replicas))
            many -= costs.segment(segment.name, np.ones(1))
        vertex = nanoseconds(many, constants) / NOMINAL_ROWS
        return Ranked(tiling, replicas, nanoseconds(one, constants), vertex, keeps_weights(placed))


def _shares_evenly(plan: Plan, workers: int) -> bool:
    """Whether workers have all units of their share of a level, or none: else no lanes add up runs together
    (`bodies/cuda_runs.py`), and launches took a third more."""
    level = [s for s in plan.segments if plan.program.stage(s.stage).placement == LEVEL and s.mapping == UNIT]
    return all(segment.units % unit_share(segment.units, workers) == 0 for segment in level)
