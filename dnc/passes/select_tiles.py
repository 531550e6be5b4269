"""Select tiles: chooses how many workers share a copy of the weights, by a cost model.

In: a plan with segments. Out: the plan with its `Tiling`. Candidates are clusters of the sizes the
machine allows (every cluster a replica with its own trees) and the whole chip as one replica with
a barrier through the L2 cache. The cost of a candidate is the time of a wavefront, from measured
constants: arithmetic on a worker's rows, bytes that do not fit on the chip, one exchange.
"""

from __future__ import annotations

import attrs

from dnc.ir.machine import Machine
from dnc.ir.plan import REGISTER, SHARED, STREAMED, UNIT, Plan, Tiling, product_parameters
from dnc.ir.program import LEVEL
from dnc.passes.plan_weights import PlanWeights

WINDOW_WORDS = 1024
VERTICES_PER_TILE = 64


@attrs.frozen
class Candidate:
    """A tiling with its predicted time in ns per vertex of the recursion, for wide batches."""

    tiling: Tiling
    replicas: int
    level_ns: float
    vertex_ns: float


@attrs.frozen
class SelectTiles:
    """Ranks the candidates for `machine`. `cluster` forces one (0 = the whole chip, None = choose).

    `window` is the number of words of the schedule held on chip.
    """

    machine: Machine
    cluster: int | None = None
    window: int = WINDOW_WORDS
    workers: int | None = None
    name: str = attrs.field(default="select-tiles", init=False)
    optional: bool = attrs.field(default=False, init=False)

    def __call__(self, plan: Plan) -> Plan:
        """The plan with the cheapest tiling."""
        if not self.machine.is_gpu:
            tiling = Tiling(workers=self.workers or 1, threads=1, cluster=1, tile=1, window=self.window)
            return attrs.evolve(plan, tiling=tiling)
        ranked = sorted(self.candidates(plan), key=lambda c: c.level_ns + 16 * c.vertex_ns)
        wanted = [c for c in ranked if self.cluster is None or c.tiling.cluster == max(self.cluster, 1)]
        if not wanted:
            raise ValueError(f"{self.machine.name} has no clusters of {self.cluster}")
        best = wanted[0]
        remarks = tuple(
            f"tiles: {c.tiling.workers} workers a replica, cluster {c.tiling.cluster}, "
            f"{c.replicas} replicas: "
            f"{c.level_ns:.0f} ns a level, {c.vertex_ns:.0f} ns a vertex"
            for c in ranked
        )
        return attrs.evolve(plan, tiling=best.tiling, remarks=(*plan.remarks, *remarks))

    def candidates(self, plan: Plan) -> list[Candidate]:
        """Every tiling the machine allows, with its cost."""
        chip = 1 << (self.machine.processors.bit_length() - 1)
        options = [(size, size) for size in self.machine.clusters] + [(self.workers or chip, 1)]
        return [self._cost(plan, workers, cluster) for workers, cluster in options]

    def _cost(self, plan: Plan, workers: int, cluster: int) -> Candidate:
        tiling = Tiling(workers, self.machine.threads, cluster, VERTICES_PER_TILE, self.window)
        placed = PlanWeights(self.machine)(attrs.evolve(plan, tiling=tiling))
        replicas = self.machine.cluster_replicas(cluster) if cluster > 1 else 1
        streamed = flops = 0.0
        residency = {(p.parameter, p.units): p for p in placed.placements}
        exchanges = 0
        for segment in plan.segments:
            if segment.mapping != UNIT or plan.program.stage(segment.stage).placement != LEVEL:
                continue
            exchanges += 1
            for parameter in product_parameters(segment):
                place = residency[parameter, segment.units]
                rows, columns = plan.program.parameter(parameter).type.shape
                flops += 2.0 * rows * columns / workers
                if place.residency == STREAMED:
                    streamed += place.bytes_per_worker
                else:
                    assert place.residency in (REGISTER, SHARED)
        barrier = self.machine.cluster_barrier if cluster > 1 else self.machine.grid_barrier
        level = exchanges * (barrier + 1000.0) + streamed / self.machine.bytes_from_l2
        return Candidate(tiling, replicas, level, flops / self.machine.flops / replicas)
