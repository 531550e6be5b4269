"""Machine descriptions: what the planner knows of a chip. One entry per generation.

In: the name of an architecture. Out: sizes and measured costs. Times are nanoseconds; those of
sm_90a were measured on an H200 (docs/performance-log.md), the others are scaled from it by clock and
number of processors and are only used to rank candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dnc.diagnostics import fail

DEFAULT_GPU = "sm_90a"
WARPS, LANES = 8, 32  # of a worker on a GPU, and threads of a warp
THREADS = WARPS * LANES


def weight_registers(rows: int, columns: int, packed: int = 1) -> int:
    """Registers of a thread that hold a worker's slice, `packed` weights each: for 8 rows and 128 columns
    four weights."""
    return -(-rows // WARPS) * -(-columns // (4 * LANES)) * (4 // packed)


@attrs.frozen
class Constants:
    """Nanoseconds that a worker takes for the things that a launch is made of; `dnc calibrate` measures them.

    launch: one launch, with nothing in it. instruction: to fetch one and see its first loads arrive.
    cluster_exchange, exchange: workers of a replica meet, in a cluster or at a counter in memory.
    grid_exchange: all workers meet. flop, tiled_flop: an operation of a product, within the recursion
    and in large tiles. element: an operation of a cell. byte: read from the L2 cache. shared_byte: of weights
    in shared memory.
    """

    launch: float
    instruction: float
    cluster_exchange: float
    exchange: float
    grid_exchange: float
    flop: float
    tiled_flop: float
    element: float
    byte: float
    shared_byte: float

    def scaled(self, compute: float, meeting: float = 1.0) -> Constants:
        """Those of a chip whose workers compute, and meet, in so many times the time."""
        return Constants(
            self.launch,
            self.instruction * meeting,
            self.cluster_exchange * meeting,
            self.exchange * meeting,
            self.grid_exchange * meeting,
            self.flop * compute,
            self.tiled_flop * compute,
            self.element * compute,
            self.byte * compute,
            self.shared_byte * compute,
        )


# From Experiment 0 and timelines on an H200 (docs/performance-log.md).
H200 = Constants(5000.0, 900.0, 350.0, 960.0, 1090.0, 0.0037, 0.0021, 0.04, 0.026, 0.004)
# Two cores of an Intel Xeon with AVX-512.
CPU = Constants(20000.0, 300.0, 600.0, 600.0, 600.0, 0.0125, 0.0125, 0.3, 0.03, 0.0)


@attrs.frozen
class Machine:
    """A chip as the planner sees it.

    processors: SMs, or cores. shared_bytes: on-chip memory that one worker may use. registers:
    weight registers a thread can hold beside the interpreter (measured: no spill up to 160).
    clusters: sizes of clusters that may be used, largest first.
    """

    name: str
    processors: int
    threads: int
    shared_bytes: int
    registers: int
    clusters: tuple[int, ...]
    constants: Constants

    @property
    def is_gpu(self) -> bool:
        """Whether workers are CTAs."""
        return self.threads > 1

    @property
    def pool_share(self) -> float:
        """The share of memory that a pool may take: of what is free on a GPU, of all that a CPU has."""
        return 0.9 if self.is_gpu else 0.5

    @property
    def cluster_sizes(self) -> tuple[int, ...]:
        """Every size of cluster that kernels can be made for, largest first."""
        most = max(self.clusters, default=1)
        return tuple(1 << power for power in range(most.bit_length() - 1, 0, -1))

    @property
    def splits_gradients(self) -> bool:
        """Whether there are so many workers that the rows of weight gradients are cut into chunks."""
        return self.is_gpu

    def cluster_replicas(self, cluster: int) -> int:
        """Clusters of that size that are resident together (an estimate; the driver is asked)."""
        if self.name == "sm_90a":
            return {2: 66, 4: 30, 8: 15, 16: 7}.get(cluster, self.processors // cluster)
        return self.processors // cluster

    def replicas(self, workers: int, cluster: int) -> int:
        """Replicas of so many workers that are resident together (an estimate, as above)."""
        return self.cluster_replicas(cluster) if cluster > 1 else max(1, self.processors // workers)


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("cpu", 1, 1, 0, 0, (), CPU),
        Machine("sm_80", 108, THREADS, 163 * 1024, 160, (), H200.scaled(1.5, 1.2)),
        Machine("sm_86", 84, THREADS, 99 * 1024, 160, (), H200.scaled(1.4, 1.2)),
        Machine("sm_89", 128, THREADS, 99 * 1024, 160, (), H200.scaled(1.0, 1.1)),
        Machine("sm_90a", 132, THREADS, 227 * 1024, 160, (16, 8), H200),
        Machine("sm_100a", 148, THREADS, 227 * 1024, 160, (16, 8), H200),
        Machine("sm_120", 170, THREADS, 99 * 1024, 160, (8,), H200.scaled(0.9, 1.1)),
    )
}


def machine(name: str) -> Machine:
    """The description of an architecture; KeyError if there is none."""
    return MACHINES[name]


def target_name(name: str) -> str:
    """The full name of the target that an architecture is: cpu, cuda:sm_90a. KeyError as for `machine`."""
    return f"cuda:{name}" if machine(name).is_gpu else name


def machine_of(target: str) -> str:
    """The machine that a target on the command line means; DiagnosticError if there is none."""
    if target == "cpu":
        return "cpu"
    kind, _, arch = target.partition(":")
    name = arch or DEFAULT_GPU
    if kind == "cuda" and name in MACHINES and machine(name).is_gpu:
        return name
    known = ", ".join(f"cuda:{name}" for name, chip in MACHINES.items() if chip.is_gpu)
    raise fail(f"unknown target '{target}'", f"targets: cpu, cuda (= cuda:{DEFAULT_GPU}), {known}")


def machines_of(targets: Sequence[str]) -> tuple[str, ...]:
    """The machines that targets mean, each once; DiagnosticError if there is none."""
    if (
        isinstance(targets, str)
        or not isinstance(targets, Sequence)
        or not all(isinstance(each, str) for each in targets)
    ):
        raise fail(f"targets are {targets!r}, expected names, as ('cpu', 'cuda')")
    if not targets:
        raise fail("targets: there are none, expected one or more")
    return tuple(dict.fromkeys(map(machine_of, targets)))
