"""The order in which a user counts vertices: sample by sample, flat samples as their file has them.

In: a forest, and where vertices stand in the file. Out: an `Order`. Guaranteed: what `predict` hands out,
and what is handed in and handed back, is in this order.
"""

from __future__ import annotations

import attrs
import numpy as np

from dnc.ir.forest import Forest, Ints
from dnc.ir.program import ROOT, Space


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
