"""Where weights lie in the shared memory of a GPU's worker: the kernel and `dnc explain` ask here.

In: a plan with placements. Out: words. In order come the window of the schedule, its tables, SHARED and
SPARSE slices and the rests of slices in registers, vectors that cells of the recursion read, and SHARED
slices whose place is lent (`uses.lends`). What every instruction uses as it likes, staging, begins behind.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dnc.ir.isa import layout
from dnc.ir.plan import UNIT, ParameterAddress, Placement, Plan, unit_share
from dnc.ir.program import LEVEL
from dnc.ir.repeated import repeated_parts
from dnc.ir.uses import lends

Vector = tuple[str, int, bool]  # a parameter, the units that it is for, whether these are repeated


@attrs.frozen
class SharedMemory:
    """Words of a worker's shared memory.

    vectors: where each lies among the weights, and how long it is. kept, lent: those of matrices in front of
    the vectors, and behind them.
    """

    window: int
    tables: int
    kept: int
    vectors: Mapping[Vector, tuple[int, int]]
    lent: int

    @property
    def weights_at(self) -> int:
        """Where the weights begin."""
        return self.window + self.tables

    @property
    def lent_at(self) -> int:
        """Where those begin whose place is lent, among the weights."""
        return -(-max((at + size for at, size in self.vectors.values()), default=self.kept) // 4) * 4

    @property
    def weights(self) -> int:
        """Words of all weights."""
        return self.lent_at + self.lent

    def slice_at(self, placement: Placement) -> int:
        """Where a SHARED or SPARSE slice lies."""
        return self.weights_at + placement.slot + (self.lent_at if self.lent else 0)


def shared_memory(plan: Plan) -> SharedMemory:
    """The shared memory of a worker of a plan that has placements."""
    assert plan.tiling is not None
    placed = plan.placements
    slices = (place.slot + place.bytes_per_worker // 4 for place in placed if place.in_shared)
    matrices = max((*slices, *(place.rest.stop for place in placed)), default=0)
    lent = matrices if lends(plan) else 0
    tables = -(-layout(plan).queues_at // 32) * 32
    return SharedMemory(plan.tiling.window, tables, matrices - lent, _vectors(plan, matrices - lent), lent)


def _vectors(plan: Plan, first: int) -> dict[Vector, tuple[int, int]]:
    """Vectors that cells of the recursion read, from word `first` on."""
    assert plan.tiling is not None
    found: dict[Vector, tuple[int, int]] = {}
    for segment in plan.segments:
        if segment.mapping != UNIT or plan.program.stage(segment.stage).placement != LEVEL:
            continue
        for part, repeated in zip(repeated_parts(segment), (True, False), strict=True):
            workers = 1 if repeated else plan.tiling.workers
            for load in part.loads:
                address = load.address
                if isinstance(address, ParameterAddress) and address.offset == 0 and address.select is None:
                    shape = plan.program.parameter(address.parameter).type.shape
                    key = address.parameter, segment.units, repeated
                    if len(shape) == 1 and shape[0] % segment.units == 0 and key not in found:
                        size = shape[0] // segment.units * unit_share(segment.units, workers)
                        found[key] = first, size
                        first += size
    return found
