"""What a batch shares with another net: vectors that come from it, rows that go to it.

A group of several batches shares the gradients of its tables, and nothing else.

In: which vertices, in the order in which the other net counts them. Out: room for the vectors in front of
the activations, where the other net writes them; row numbers for what is taken, in the schedule.
Guaranteed: a vector lies where the other net counts it, whatever the order of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.forest import Ints
from dnc.ir.plan import Plan, padded
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Spread, Words
from dnc.runtime.pool import units
from dnc.runtime.prepared import Prepared

Numbers = NDArray[np.signedinteger]


@attrs.frozen(eq=False)
class Handed:
    """Vectors of a field. number: of every vertex of the struct the row of its vector, and -1 at the end."""

    rows: int
    width: int
    number: Ints

    @property
    def stride(self) -> int:
        """Words from one vector to the next."""
        return padded(self.width)


@attrs.define(eq=False)
class Guest:
    """handed: by (struct, field). taken: by a result's name its vertices, in the order that is wanted.

    Filled in by the encoder: the addresses of the vectors by (struct, field); and as offsets of words in
    the schedule the rows of what is taken by buffer, -1 where a vertex has none (then the buffer is among
    `partial`); the touched rows of tables by parameter with how many they are in every batch.
    """

    handed: Mapping[tuple[str, str], Handed]
    taken: Mapping[str, Ints]
    vectors: dict[tuple[str, str], int] = attrs.field(factory=dict)
    numbers: dict[str, int] = attrs.field(factory=dict)
    partial: set[str] = attrs.field(factory=set)
    touched: dict[str, tuple[int, Numbers]] = attrs.field(factory=dict)

    def bare(self) -> Guest:
        """Without the numbers of all vertices, which nobody reads once the batch is encoded."""
        nobody = np.zeros(0, np.int32)
        handed = {key: attrs.evolve(each, number=nobody) for key, each in self.handed.items()}
        return attrs.evolve(self, handed=handed)

    def reserve(self, at: int) -> int:
        """Room for the vectors from an address on; the first address behind them."""
        for key, handed in self.handed.items():
            self.vectors[key] = at
            at += units(handed.rows * handed.stride)
        return at

    def addresses(self, key: tuple[str, str], target: Numbers) -> Ints:
        """The address of every row's vector, given the vertices it belongs to (-1: a row of zeros)."""
        handed, first = self.handed[key], self.vectors[key]
        number = handed.number[target]
        return np.where(number >= 0, first + number * (handed.stride // 4), 0).astype(np.int32)

    def write_numbers(self, plan: Plan, prepared: Prepared, rows: Mapping[str, Rows], body: Words) -> None:
        """The row of every vertex that is wanted, by buffer: arms may have results of one name."""
        for result in plan.results:
            if result.name in self.taken and result.space in rows:
                space = prepared.spaces[result.space]
                vertex = space.vertex[rows[result.space].positions]
                found = row_of(vertex, self.taken[result.name])
                if found.min(initial=0) < 0:
                    self.partial.add(result.buffer)
                self.numbers[result.buffer] = body.add(found.astype(np.int32)[None])

    def write_touched(self, parameter: str, tokens: Numbers, spread: Spread, body: Words) -> None:
        """The touched rows of a table."""
        self.touched[parameter] = body.add(spread.matrix(tokens)), spread.counts

    def of(self, batch: int) -> Guest:
        """That of one batch of a group."""
        touched = {name: (at, counts[batch : batch + 1]) for name, (at, counts) in self.touched.items()}
        return attrs.evolve(self, touched=touched)


def row_of(vertex: Numbers, wanted: Ints) -> Numbers:
    """The row of every wanted vertex, given the vertex of each row; -1 where there is none."""
    if not len(vertex):
        return np.full(len(wanted), -1)
    order = np.argsort(vertex)
    place = np.minimum(np.searchsorted(vertex, wanted, sorter=order), len(vertex) - 1)
    found = order[place]
    return np.where(vertex[found] == wanted, found, -1)
