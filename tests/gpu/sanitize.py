"""Training launches with all instructions, and an evaluation, of a test kernel, for `compute-sanitizer`.

    DNC_GPU_BUILDS=FOLDER compute-sanitizer --tool racecheck python -m tests.gpu.sanitize NAME [SAMPLES
    [added]]

Waits of kernels end after two seconds, and `racecheck` slows one down by more: here they may take an hour.
With `added` partial sums are sent to who adds them up, in every level, by an instruction that `racecheck`
does not know.
"""

from __future__ import annotations

import sys

from dnc.ir.optimizers import Hyper
from dnc.runtime import cuda_together
from tests.gpu.test_cuda import _backend, _device
from tests.support.executors import Bench
from tests.support.forced import forced
from tests.support.forests import ForestGrower

REPLICAS = 2


def main(name: str, samples: str = "12", sums: str = "") -> None:
    """Launches three times: few rows and many of weight gradients, with deltas added up apart."""
    cuda_together.TIME_LIMIT_US = 3_600_000_000
    program, backend = _backend(_device(), name, trains=False)
    backend.replicas = min(backend.replicas, REPLICAS)  # of many workers there may be room for one
    forest = ForestGrower(program, 1).grow(int(samples), 9, "random", 0.0)
    bench = Bench(program, backend.plan, backend, forest, 1)
    for few in (True, False) if backend.plan.trains else ():
        with forced(few=few, apart=not few, alike=few, added=sums == "added", shared=few, early=few):
            bench.launch("train", Hyper(learning_rate=0.5))
    bench.launch("evaluate")


if __name__ == "__main__":
    main(*sys.argv[1:])
