"""Machine descriptions: what the planner knows of a chip. One entry per generation.

In: the name of an architecture. Out: sizes and measured costs. Times are nanoseconds; those of
sm_90a were measured on an H200 (docs/performance.md), the others are scaled from it by clock and
number of processors and are only used to rank candidates.
"""

from __future__ import annotations

import attrs

WARPS, LANES = 8, 32  # of a worker on a GPU, and threads of a warp
THREADS = WARPS * LANES


@attrs.frozen
class Machine:
    """A chip as the planner sees it.

    processors: SMs, or cores. shared_bytes: on-chip memory that one worker may use. registers:
    weight registers a thread can hold beside the interpreter (measured: no spill up to 160).
    clusters: sizes of clusters that may be used, largest first. flops: fp32 operations a
    nanosecond of one worker. bytes_from_l2: bytes a nanosecond into one worker.
    """

    name: str
    processors: int
    threads: int
    shared_bytes: int
    registers: int
    clusters: tuple[int, ...]
    flops: float
    bytes_from_l2: float
    cluster_barrier: float
    grid_barrier: float
    launch: float

    @property
    def is_gpu(self) -> bool:
        """Whether workers are CTAs."""
        return self.threads > 1

    @property
    def splits_gradients(self) -> bool:
        """Whether there are so many workers that the rows of weight gradients are cut into chunks."""
        return self.is_gpu

    def cluster_replicas(self, cluster: int) -> int:
        """Clusters of that size that are resident together (an estimate; the driver is asked)."""
        if self.name == "sm_90a":
            return {8: 15, 16: 7}.get(cluster, self.processors // cluster)
        return self.processors // cluster


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("cpu", 1, 1, 0, 0, (), 80.0, 40.0, 500.0, 500.0, 2000.0),
        Machine("sm_80", 108, THREADS, 163 * 1024, 160, (), 180.0, 30.0, 1200.0, 1200.0, 5000.0),
        Machine("sm_86", 84, THREADS, 99 * 1024, 160, (), 350.0, 20.0, 1200.0, 1200.0, 5000.0),
        Machine("sm_89", 128, THREADS, 99 * 1024, 160, (), 500.0, 30.0, 1100.0, 1100.0, 5000.0),
        Machine("sm_90a", 132, THREADS, 227 * 1024, 160, (16, 8), 500.0, 38.0, 205.0, 930.0, 5000.0),
        Machine("sm_100a", 148, THREADS, 227 * 1024, 160, (16, 8), 500.0, 38.0, 205.0, 930.0, 5000.0),
        Machine("sm_120", 170, THREADS, 99 * 1024, 160, (8,), 600.0, 20.0, 250.0, 1000.0, 5000.0),
    )
}


def machine(name: str) -> Machine:
    """The description of an architecture; KeyError if there is none."""
    return MACHINES[name]
