"""How large a batch can be: what samples like those at hand take of a device's memory.

In: a plan, a forest of samples, the rows of its tables, the memory of a device. Out: `MemoryFacts`.
Two batches of different sizes are encoded; the line through what they take says what a further sample
takes, and so where the memory ends.
"""

from __future__ import annotations

import attrs
import numpy as np

from dnc.explain.facts import mode_of, replicas_of
from dnc.ir import isa
from dnc.ir.forest import Forest
from dnc.ir.machine import machine
from dnc.ir.plan import Plan
from dnc.runtime.encoder import DoesNotFit, Encoder
from dnc.runtime.pool import MAX_ADDRESS, static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.schedule import Schedule, queue

COUNTS = ((64, 128), (8, 16), (1, 2))
LARGEST_POOL = MAX_ADDRESS * 16


@attrs.frozen
class MemoryFacts:
    """memory: of the device, of which a pool takes `share`. parameters, sample, schedule in bytes; vertices:
    of a sample; largest: samples of a batch. grid_exchanges: how often all workers meet, once a batch."""

    memory: int
    share: float
    parameters: int
    sample: float
    schedule: float
    vertices: float
    largest: int
    samples: str
    grid_exchanges: int

    @property
    def reach(self) -> str:
        """What is said where more memory would be of no use."""
        beyond = self.memory * self.share > LARGEST_POOL
        return f" (addresses reach {LARGEST_POOL / 2**30:.0f} GiB)" if beyond else ""

    @property
    def vertex(self) -> float:
        """Bytes of activations a vertex."""
        return self.sample / max(self.vertices, 1.0)


def memory_facts(plan: Plan, forest: Forest, rows: dict[str, int], memory: int, samples: str) -> MemoryFacts:
    """What samples like those of `forest` take; `samples` says what they are, for people."""
    for few, many in COUNTS:
        try:
            taken = [_encoded(plan, forest, rows, count) for count in (few, many)]
            while _runs(taken[0]) != _runs(taken[1]):  # larger ones are as wide as the second
                few, many = many, 2 * many
                taken = [taken[1], _encoded(plan, forest, rows, many)]
            break
        except DoesNotFit:  # a pool's addresses do not reach so far
            if few == COUNTS[-1][0]:
                raise
    sample = (taken[1].activations - taken[0].activations) * 4 / (many - few)
    schedule = (len(taken[1].words) - len(taken[0].words)) * 4 / (many - few)
    parameters = static_pool(plan, rows, 0).words * 4
    fixed = taken[0].activations * 4 - few * sample + 2 * (len(taken[0].words) * 4 - few * schedule)
    share = machine(plan.target).pool_share
    room = min(memory * share, LARGEST_POOL) - parameters - max(fixed, 0.0)
    largest = max(int(room // max(sample + 2 * schedule, 1.0)), 0)
    vertices = sum(table.begin[-1] for table in forest.tables.values()) / max(forest.samples, 1)
    instructions = queue(taken[1].words, plan, 0)[:, 0]
    meetings = int((instructions == plan.opcode(isa.GRID_BARRIER).number).sum())
    return MemoryFacts(
        memory, share, parameters, sample, schedule, float(vertices), largest, samples, meetings
    )


def _runs(schedule: Schedule) -> int:
    """Runs of a record of partial sums, where a plan leaves the number to schedules."""
    return int(schedule.words[isa.layout(schedule.plan).header[isa.RUNS]])


def _encoded(plan: Plan, forest: Forest, rows: dict[str, int], count: int) -> Schedule:
    """A batch of so many samples, those of the forest again and again."""
    assert plan.tiling is not None
    workers, mode = plan.tiling.workers, mode_of(plan)
    chosen = forest.select(np.arange(count, dtype=np.int32) % forest.samples)
    encoder = Encoder(prepare(plan, chosen), static_pool(plan, rows, 2**26), shares_rows=False)
    numbers = np.arange(count, dtype=np.int32)
    return encoder.encode(numbers, mode=mode, replicas=replicas_of(plan), workers=workers)
