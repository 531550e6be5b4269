"""Launches of trees as one group a replica, and as two whose levels alternate.

    python benchmarks/groups.py BUILDS OUT.json --trees sst.jsonl [--commit COMMIT]

In: builds of `benchmarks.applications`, by their names. Out: the median of launches by batch size, in turns,
on the same batches: with the levels that a program has, and with every level in two, of samples with even and
with odd numbers, an exchange behind each. What the second way takes longer is what two groups in flight
would cost; what they could hide is at most the exchanges of the first way.
Needs a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.applications.points import SST
from benchmarks.ways import compare
from dnc.ir.forest import Forest, Ints
from dnc.ir.program import Program
from dnc.runtime import prepared

DATA = {"tree-256": SST, "tree-256-tf32": SST, "tree-512": SST}
SAMPLES, BATCHES = 4096, (8, 32, 128, 256, 512)


@contextmanager
def _two() -> Iterator[None]:
    levels_of = prepared.stage_levels

    def apart(program: Program, forest: Forest) -> dict[str, tuple[Ints, Ints]]:
        found = levels_of(program, forest)
        for name, (vertices, level) in found.items():
            begin = forest.tables[program.space(name).struct].begin
            sample = np.searchsorted(begin, vertices, side="right") - 1
            if level.any():
                found[name] = vertices, (2 * level + sample % 2).astype(level.dtype)
        return found

    with patch.object(prepared, "stage_levels", apart):
        yield


if __name__ == "__main__":
    compare(__doc__, DATA, SAMPLES, BATCHES, {"one group": nullcontext, "two groups": _two})
