"""What a program shares with another net, batch by batch.

In: a data set and sample numbers. Out: a `Guest` for the encoder: where pulled vectors and gradients of
pushed values go, and which rows of which results are wanted, in the order of `predict`'s outputs.
Guaranteed: what depends on the data alone is worked out once; no Python runs per vertex or sample.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np

from dnc.ir.forest import Forest, Ints
from dnc.ir.plan import Plan, Result
from dnc.ir.program import ROOT, Space
from dnc.runtime.data import Dataset
from dnc.runtime.encoder.guest import Guest, Handed
from dnc.runtime.outside import pulled_fields, pushed_values
from dnc.runtime.phases import TRAIN

GRADIENT, OUTPUT = "gradient", "output"


@attrs.frozen(eq=False)
class Order:
    """The vertices of a space over the whole data set, sample by sample as the user counts them.

    begin: [samples + 1]. vertices: rows of the struct's table.
    """

    begin: Ints
    vertices: Ints

    def of(self, samples: Ints) -> Ints:
        """The vertices of some samples, one sample after another."""
        counts = self.counts(samples)
        ends = np.cumsum(counts)
        first = np.repeat(self.begin[samples] - (ends - counts), counts)
        found: Ints = self.vertices[first + np.arange(ends[-1])]
        return found

    def counts(self, samples: Ints) -> Ints:
        """How many vertices every sample has."""
        counts: Ints = self.begin[samples + 1] - self.begin[samples]
        return counts


def order_of(forest: Forest, positions: Ints | None, space: Space) -> Order:
    """The order in which a user counts the vertices of a space.

    positions: where a vertex of the struct stands in the file; None for that of the table.
    """
    rows, begin = forest.vertices(space), forest.tables[space.struct].begin
    sample = np.searchsorted(begin, rows, side="right") - 1
    within = rows if positions is None or space.selection == ROOT else positions[rows]
    order = np.lexsort((within, sample))
    counts = np.bincount(sample, minlength=forest.samples)
    first = np.zeros(forest.samples + 1, np.int32)
    np.cumsum(counts, out=first[1:])
    return Order(first, rows[order].astype(np.int32))


class Sharing:
    """The places of one data set for one plan."""

    def __init__(self, plan: Plan, dataset: Dataset) -> None:
        self.plan, self.forest, self._positions = plan, dataset.forest, dataset.positions
        self.pulled, self.pushed = pulled_fields(plan.program), pushed_values(plan.program)
        self._orders: dict[tuple[str, tuple[str, ...], str], Order] = {}
        self._numbers: dict[tuple[str, str], Ints] = {}

    def order(self, space: Space) -> Order:
        """The order of a space, worked out when it is first asked for."""
        key = space.struct, space.arms, space.selection
        if key not in self._orders:
            self._orders[key] = order_of(self.forest, self._positions.get(space.struct), space)
        return self._orders[key]

    def guest_of(self, samples: Ints, mode: str) -> Guest:
        """What a batch shares in a mode: in training gradients come in and go out, otherwise outputs."""
        kind, backward = (GRADIENT, True) if mode == TRAIN else (OUTPUT, False)
        places = {**self.pulled, **(self.pushed if backward else {})}
        handed = {
            (space.struct, field): self._handed(space, field, samples) for space, field in places.values()
        }
        wanted = [result for result in self.plan.results if result.kind == kind]
        return Guest(handed, {result.name: self.order(self._space(result)).of(samples) for result in wanted})

    def counts(self, samples: Ints) -> Mapping[str, Ints]:
        """Rows of every sample, by pulled field and by output."""
        found = {name: self.order(space).counts(samples) for name, (space, _) in self.pulled.items()}
        results = [result for result in self.plan.results if result.kind == OUTPUT]
        return found | {result.name: self.order(self._space(result)).counts(samples) for result in results}

    def _space(self, result: Result) -> Space:
        return self.plan.program.space(result.space)

    def _handed(self, space: Space, field: str, samples: Ints) -> Handed:
        table = self.forest.tables[space.struct]
        key = space.struct, field
        if key not in self._numbers:
            self._numbers[key] = np.full(len(table) + 1, -1, np.int32)
        vertices = self.order(space).of(samples)
        number = self._numbers[key]
        number[vertices] = np.arange(len(vertices), dtype=np.int32)
        return Handed(len(vertices), table.data[field].shape[1], number)
