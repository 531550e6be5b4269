"""Vertices that are alike: same words, nothing below them, so the same state, which one row computes for all.

In: prepared data, the rows of a group of training batches. Out: fewer rows, each for several vertices.
Guaranteed: every vertex has the state that it has alone, and gives its gradient to the sum of theirs, because
who reads a state, or leaves a gradient for it, finds it by a list. It is the hash consing of functional
languages, of leaves only; which rows there are follows from the batch and the grid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dnc.ir.plan import ClassList, GatherList, OperandList, Plan, SlotList, TableList
from dnc.runtime.encoder.lists import Lists
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Spread, in_order, order_below
from dnc.runtime.prepared import Indices, Prepared

# A row that stands for many has as many gradients to add up, one after another.
MOST_ALIKE = 6
# Replicas with no more rows on the average have waited less for products than they then do for gradients.
FEWEST = 128


class Alike:
    """What is alike over a data set: by space a number for every row, the same where rows are alike."""

    def __init__(self, prepared: Prepared, lists: Lists) -> None:
        self._prepared, self._lists = prepared, lists
        spaces = [space.name for space in prepared.plan.program.spaces]
        self._spaces = {name for name in spaces if _may_be(prepared.plan, name)}
        self._numbers: dict[str, Indices | None] = {}

    def merged(self, space: str, rows: Rows) -> Rows:
        """The rows of a space, one for up to MOST_ALIKE vertices of a replica."""
        wide = rows.spread.counts > FEWEST * rows.counts.shape[2]
        if space not in self._spaces or not wide.any():
            return rows
        if space not in self._numbers:
            self._numbers[space] = self._find(space)
        numbers = self._numbers[space]
        return rows if numbers is None else _merged(rows, numbers, wide)

    def _find(self, space: str) -> Indices | None:
        prepared = self._prepared
        rows = prepared.spaces[space]
        if rows.level.any() or rows.sizes:
            return None
        found = np.zeros(len(rows.vertex), np.intp)
        for item in prepared.plan.lists:
            if item.space == space and isinstance(item, TableList | ClassList):
                column = self._lists.numbers(space, item.path, item.field)[0] + 1
                _, found = np.unique(found * (int(column.max()) + 1) + column, return_inverse=True)
        return found if int(found.max()) + 1 < len(found) else None


def _may_be(plan: Plan, space: str) -> bool:
    """Whether all that a row of the space knows is numbers, and others find it by lists."""
    own = {stage.function for stage in plan.program.stages if stage.space == space}
    lists = [item for item in plan.lists if item.space == space]
    return (
        None not in own
        and any(isinstance(item, TableList | ClassList) for item in lists)
        and all(
            isinstance(item, TableList | ClassList | SlotList | OperandList)
            or (isinstance(item, GatherList) and not item.path and {item.function} == own)
            for item in lists
        )
        and not any(result.space == space for result in plan.results)
    )


def _merged(rows: Rows, numbers: Indices, wide: NDArray[np.bool_]) -> Rows:
    """wide: the batches that it is for."""
    spread, blocks = rows.spread, rows.counts.reshape(-1)
    total = spread.total
    block = np.arange(len(blocks)).repeat(blocks)
    alike = numbers[rows.positions]
    if not wide.all():
        alone = ~wide.repeat(spread.counts)
        alike = np.where(alone, int(numbers.max()) + 1 + np.arange(total), alike)
    key = block * (int(alike.max()) + 1) + alike
    key, order = in_order(key)
    first = np.ones(total, bool)
    np.not_equal(key[1:], key[:-1], out=first[1:])
    begin = np.maximum.accumulate(np.where(first, np.arange(total), 0))
    first = (np.arange(total) - begin) % MOST_ALIKE == 0
    # Rows that stand for many come first in their replica: whose gradients are many is nobody's last row.
    begin, group = first.nonzero()[0], first.cumsum() - 1
    kept, sizes = order[begin], np.diff(begin, append=total)
    widest = int(sizes.max())
    turn = order_below(block[kept] * widest + widest - sizes, len(blocks) * widest + 1)
    number = np.empty_like(turn)
    number[turn] = np.arange(len(turn))
    stands = np.empty(total, np.intp)
    stands[order] = number[group]
    counts = np.bincount(block[kept], minlength=len(blocks))
    own = Spread(counts.reshape(spread.batches, -1).sum(axis=1))
    starts = counts.cumsum() - counts - own.first.repeat(len(blocks) // spread.batches)
    shape = rows.counts.shape
    return Rows(
        rows.positions[kept[turn]],
        own,
        counts.reshape(shape),
        starts.reshape(shape),
        rows.sizes,
        (rows.positions, stands),
    )
