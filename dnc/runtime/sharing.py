"""What a program shares with another net, batch by batch.

In: a data set and sample numbers. Out: a `Guest` for the encoder: where pulled vectors and gradients of
pushed values go, and which rows of which results are wanted, in the order of `predict`'s outputs.
Guaranteed: what depends on the data alone is worked out once; no Python runs per vertex or sample.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dnc.ir.forest import Ints
from dnc.ir.plan import Plan, Result
from dnc.ir.program import Space
from dnc.runtime.data import Dataset
from dnc.runtime.encoder.guest import Guest, Handed
from dnc.runtime.outside import pulled_fields, pushed_values
from dnc.runtime.phases import TRAIN

GRADIENT, OUTPUT = "gradient", "output"


class Sharing:
    """The places of one data set for one plan."""

    def __init__(self, plan: Plan, dataset: Dataset) -> None:
        self.plan, self.dataset = plan, dataset
        self.pulled, self.pushed = pulled_fields(plan.program), pushed_values(plan.program)
        self._numbers: dict[tuple[str, str], Ints] = {}

    def guest_of(self, samples: Ints, mode: str) -> Guest:
        """What a batch shares in a mode: in training gradients come in and go out, otherwise outputs."""
        kind, backward = (GRADIENT, True) if mode == TRAIN else (OUTPUT, False)
        places = {**self.pulled, **(self.pushed if backward else {})}
        handed = {
            (space.struct, field): self._handed(space, field, samples) for space, field in places.values()
        }
        wanted = [result for result in self.plan.results if result.kind == kind]
        return Guest(
            handed, {result.name: self.dataset.order(self._space(result)).of(samples) for result in wanted}
        )

    def counts(self, samples: Ints) -> Mapping[str, Ints]:
        """Rows of every sample, by pulled field and by output."""
        found = {name: self.dataset.order(space).counts(samples) for name, (space, _) in self.pulled.items()}
        results = [result for result in self.plan.results if result.kind == OUTPUT]
        return found | {
            result.name: self.dataset.order(self._space(result)).counts(samples) for result in results
        }

    def _space(self, result: Result) -> Space:
        return self.plan.program.space(result.space)

    def _handed(self, space: Space, field: str, samples: Ints) -> Handed:
        table = self.dataset.forest.tables[space.struct]
        key = space.struct, field
        if key not in self._numbers:
            self._numbers[key] = np.full(len(table) + 1, -1, np.int32)
        vertices = self.dataset.order(space).of(samples)
        number = self._numbers[key]
        number[vertices] = np.arange(len(vertices), dtype=np.int32)
        return Handed(len(vertices), table.data[field].shape[1], number)
