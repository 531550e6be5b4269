"""Candidates: every way of dividing a machine that kernels can be made for, enumerated in one place.

In: a machine, and for a CPU its cores. Out: `Candidate`s. They differ in the workers of a replica and
whether these are a cluster, in the vertices of a tile and the registers for weights (each its own
kernel), and in how many replicas a launch has (the same kernel). Threads of a worker and workers of a
processor are what the code generator has one of: 256 threads, and as much shared memory as there is.
"""

from __future__ import annotations

import attrs

from dnc.ir.machine import Machine

GPU_TILES = (64, 16)
CPU_TILES = (48, 24, 96)
SMALLEST_CLUSTER = 8  # smaller ones keep too little of a model on the chip
BESIDE = (2, 3, 4, 5)  # replicas without clusters: together they have more of a GPU than clusters of 16
WEIGHTS = ((None, False), (None, True), (0, False))  # registers for them, and whether they are split
FEW_WORKERS = (2, 4, 8)  # of such replicas, which keep nothing, where a sample's own levels are wide


@attrs.frozen(order=True)
class Candidate:
    """workers: of a replica. cluster: CTAs of a cluster, 1 for none. tile: vertices worked on at a time.

    registers: for weights, a thread; None for as many as the machine has to offer without spills.
    replicas: of a launch. splits: whether weights that would be streamed may be in registers and shared
    memory together. On a CPU kernels serve any number of workers, and have no registers for weights.
    """

    workers: int
    cluster: int
    tile: int
    registers: int | None
    replicas: int
    splits: bool = False


def candidates(chip: Machine, cores: int = 1) -> tuple[Candidate, ...]:
    """The whole space, what is chosen without data first. cores: of this CPU, if the machine is one."""
    if not chip.is_gpu:
        grids = [(count, workers) for workers in _divisors(cores) for count in _divisors(cores // workers)]
        return tuple(
            Candidate(workers, 1, tile, None, replicas)
            for tile in CPU_TILES
            for replicas, workers in sorted(grids, reverse=True)
        )
    most = 1 << (chip.processors.bit_length() - 1)
    shares = [(size, size) for size in chip.cluster_sizes if size >= SMALLEST_CLUSTER]
    shares += [(most, 1), *((chip.processors // count, 1) for count in BESIDE)]
    shares += [(workers, 1) for workers in FEW_WORKERS]
    found = []
    for workers, cluster in shares:
        resident = chip.replicas(workers, cluster)
        for tile in GPU_TILES:
            for registers, splits in WEIGHTS:
                for replicas in replica_counts(resident):
                    found.append(Candidate(workers, cluster, tile, registers, replicas, splits))
    return tuple(found)


def replica_counts(resident: int) -> tuple[int, ...]:
    """Replicas of a launch that are tried on a GPU: all that are resident, or half of them."""
    return tuple(dict.fromkeys((resident, max(1, resident // 2))))


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
