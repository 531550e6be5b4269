"""Declared outputs: from the rows of result buffers to values in the order of the samples.

In: words of the pool behind a prediction launch. Out: per output one value a sample, or for an
output over all vertices one array a sample. Guaranteed: the order is that of the samples asked
for; within a sample that of its vertices in the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnc.ir.forest import Ints
from dnc.ir.program import ROOT
from dnc.runtime.backend import Backend
from dnc.runtime.encoder import Encoder
from dnc.runtime.schedule import Schedule

Array = NDArray[Any]


def collect(backend: Backend, data: Encoder, schedule: Schedule, samples: Ints) -> dict[str, list[Any]]:
    """The outputs of a launch: by name a list that matches `samples` (each sample occurs once).

    Where a sample's root has an arm without this output, the value is None.
    """
    found: dict[str, list[Any]] = {}
    plan = schedule.plan
    for result in plan.results:
        if result.kind != "output":
            continue
        rows = schedule.rows[result.space]
        width = plan.buffer(result.buffer).width
        words = backend.read(schedule.bases[result.buffer] * 4, rows * width).reshape(rows, width)
        size = int(np.prod(result.shape, dtype=np.int64))
        values: Array = words[:, :size].reshape(rows, *result.shape)
        if result.dtype == "i32":
            values = np.rint(values).astype(np.int32)
        found[result.name] = _by_sample(data, schedule, result.space, values, samples)
    return found


def _by_sample(data: Encoder, schedule: Schedule, space: str, values: Array, samples: Ints) -> list[Any]:
    """Splits the rows of a space by sample, in the order of `samples`."""
    prepared = data.prepared.spaces[space]
    position = schedule.positions[space]
    sample = np.searchsorted(prepared.begin, position, side="right") - 1
    order = np.lexsort((prepared.vertex[position], sample))
    ordered, rows = sample[order], values[order]
    first = np.searchsorted(ordered, samples, side="left")
    last = np.searchsorted(ordered, samples, side="right")
    if schedule.plan.program.space(space).selection == ROOT:
        return [rows[a] if a < b else None for a, b in zip(first, last, strict=True)]
    return [rows[a:b] for a, b in zip(first, last, strict=True)]
