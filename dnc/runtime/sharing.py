"""What a program shares with another net, batch by batch.

In: a data set and sample numbers. Out: a `Guest` for the encoder: where pulled vectors and gradients of
pushed values go, and which rows of which results are wanted, in the order of `predict`'s outputs.
Guaranteed: what depends on the data alone is worked out once, and the data set is not kept alive by it;
no Python runs per vertex or sample.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dnc.ir.forest import Ints
from dnc.ir.plan import Plan
from dnc.ir.program import Space
from dnc.runtime.data import Dataset
from dnc.runtime.encoder.guest import Guest, Handed
from dnc.runtime.outside import pulled_fields, pushed_values
from dnc.runtime.phases import TRAIN, trains

GRADIENT, OUTPUT = "gradient", "output"


class Sharing:
    """The places of one data set for one plan."""

    def __init__(self, plan: Plan, dataset: Dataset) -> None:
        program = plan.program
        self.pulled, self.pushed = pulled_fields(program), pushed_values(program)
        # A gradient is wanted of all vertices with the field, also where each arm has a result of its own.
        self._results: dict[str, dict[str, Space]] = {GRADIENT: {}, OUTPUT: {}}
        for result in plan.results:
            if result.kind == GRADIENT:
                self._results[GRADIENT][result.name], _ = self.pulled[result.name]
            elif result.kind == OUTPUT:
                self._results[OUTPUT][result.name] = program.space(result.space)
        handed = [*self.pulled.values(), *self.pushed.values()]
        spaces = {space for space, _ in handed}.union(*(each.values() for each in self._results.values()))
        self._orders = {space: dataset.order(space) for space in spaces}
        tables = {(space.struct, field): dataset.forest.tables[space.struct] for space, field in handed}
        self._widths = {key: table.data[key[1]].shape[1] for key, table in tables.items()}
        self._nobody = {key: np.full(len(table) + 1, -1, np.int32) for key, table in tables.items()}

    def guest_of(self, samples: Ints, mode: str) -> Guest:
        """What a batch shares in a mode: in training gradients come in and go out, otherwise outputs do."""
        places = {**self.pulled, **(self.pushed if trains(mode) else {})}
        handed = {
            (space.struct, field): self._handed(space, field, samples) for space, field in places.values()
        }
        wanted = self._wanted(mode).items()
        return Guest(handed, {name: self._orders[space].of(samples) for name, space in wanted})

    def _wanted(self, mode: str) -> Mapping[str, Space]:
        """The spaces of what goes out, by name."""
        gradients = self._results[GRADIENT] if trains(mode) else {}
        outputs = self._results[OUTPUT] if mode != TRAIN else {}
        return {**outputs, **gradients}

    def in_groups(self, mode: str) -> bool:
        """Whether several batches can be encoded together: they share the gradients of tables alone."""
        return not (self._nobody or self._wanted(mode))

    def counts(self, samples: Ints) -> Mapping[str, Ints]:
        """Rows of every sample, by pulled field and by output."""
        spaces = {name: space for name, (space, _) in self.pulled.items()} | self._results[OUTPUT]
        return {name: self._orders[space].counts(samples) for name, space in spaces.items()}

    def _handed(self, space: Space, field: str, samples: Ints) -> Handed:
        key = space.struct, field
        vertices = self._orders[space].of(samples)
        number = self._nobody[key].copy()  # a guest's own: several may wait to be encoded
        number[vertices] = np.arange(len(vertices), dtype=np.int32)
        return Handed(len(vertices), self._widths[key], number)
