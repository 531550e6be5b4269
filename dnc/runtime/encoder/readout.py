"""What the host reads of a group of launches: values that lie side by side, and whose they are.

In: the results of a mode, the rows of a group of batches. Out: a `Readout`, which turns words into values.
Guaranteed: every batch has a place of its own, behind the words of the group, so one copy brings the values
of all of them; samples come in the order in which they were asked for, and a sample's vertices in that of
the data. No Python runs per vertex.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.forest import Ints
from dnc.ir.plan import Result
from dnc.ir.program import ROOT
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Numbers
from dnc.runtime.prepared import Indices, Prepared

Floats = NDArray[np.float32]


@attrs.frozen(eq=False)
class Values:
    """The values of a result. at: first word; width: of a record; rows: that a batch has room for.

    For outputs `take` has the rows of all samples, one sample after another, counted over all batches, and
    `begin` [samples + 1] which are whose; of a root a sample has one row or none.
    """

    name: str
    buffer: str
    kind: str
    at: int
    rows: int
    width: int
    shape: tuple[int, ...]
    is_integer: bool
    is_root: bool
    take: Indices
    begin: Indices

    def of(self, words: Floats, batches: int) -> NDArray[Any]:
        """[batches * rows, shape]: every row's value, in the order of the launches."""
        found = words[self.at : self.at + batches * self.rows * self.width].reshape(-1, self.width)
        return self._shaped(found)

    def of_samples(self, words: Floats, batches: int) -> list[Any]:
        """One value or array a sample; None for a root that has no such output."""
        found = words[self.at : self.at + batches * self.rows * self.width].reshape(-1, self.width)
        values = self._shaped(found[self.take])
        begin = self.begin.tolist()
        if self.is_root and len(values) == len(begin) - 1:
            return list(values)
        pairs = pairwise(begin)
        if self.is_root:
            return [values[a] if a < b else None for a, b in pairs]
        return [values[a:b] for a, b in pairs]

    def _shaped(self, found: NDArray[Any]) -> NDArray[Any]:
        size = math.prod(self.shape)
        values = found[:, :size].reshape(len(found), *self.shape)
        if not self.is_integer:
            return values
        with np.errstate(invalid="ignore"):  # behind the last row there is what was there before
            numbers: NDArray[np.int32] = np.rint(values).astype(np.int32)
        return numbers


@attrs.frozen(eq=False)
class Readout:
    """first, count: words of the pool that hold all values. batches: how many launches make them."""

    first: int
    count: int
    batches: int
    values: tuple[Values, ...]

    @property
    def column_names(self) -> set[str]:
        """The columns of metrics among the values."""
        return {each.name for each in self.values if each.kind == "column"}

    def outputs(self, words: Floats) -> dict[str, list[Any]]:
        """The declared outputs by name, one entry a sample, batch after batch; a copy of what it needs."""
        found: dict[str, list[Any]] = {each.name: [] for each in self.values if each.kind == "output"}
        for each in self.values:
            if each.kind == "output":
                found[each.name] += each.of_samples(words, self.batches)
        return found

    def columns(self, words: Floats) -> list[dict[str, NDArray[Any]]]:
        """For every batch the columns of metrics by name, all rows in the order of the launch."""
        found: list[dict[str, NDArray[Any]]] = [{} for _ in range(self.batches)]
        for each in self.values:
            if each.kind == "column":
                rows = each.of(words, self.batches)
                for batch, own in enumerate(found):
                    own[each.name] = rows[batch * each.rows :][: each.rows].copy()
        return found


def room(rows: Rows) -> int:
    """Rows that every batch has room for: records of four words or more then are whole lines together."""
    return -(-rows.spread.most // 4) * 4


class Readouts:
    """Makes readouts for one prepared data set; the order of the rows is worked out once a space."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self._orders: dict[str, tuple[Indices, Indices]] = {}
        self._first = np.zeros(prepared.samples, np.intp)
        plan = prepared.plan
        self._width = {buffer.name: buffer.width for buffer in plan.buffers}
        self._is_root = {space.name: space.selection == ROOT for space in plan.program.spaces}

    def _order(self, space: str) -> tuple[Indices, Indices]:
        """Of every prepared row its sample, and its place among the rows of that sample."""
        if space not in self._orders:
            found = self.prepared.spaces[space]
            sample = np.repeat(np.arange(self.prepared.samples), np.diff(found.begin))
            order = np.lexsort((found.vertex, sample))
            rank = np.empty(len(order), np.intp)
            rank[order] = np.arange(len(order)) - found.begin[sample[order]]
            self._orders[space] = sample, rank
        return self._orders[space]

    def _whose(self, space: str, rows: Rows, wanted: Ints) -> tuple[Indices, Indices]:
        """`take` and `begin` of the samples that are wanted, in that order."""
        spread = rows.spread
        begin = self.prepared.spaces[space].begin
        ends = np.zeros(len(wanted) + 1, np.intp)
        np.cumsum(begin[wanted + 1] - begin[wanted], out=ends[1:])
        sample, rank = self._order(space)
        self._first[wanted] = ends[:-1]
        take = np.empty(int(ends[-1]), np.intp)
        take[self._first[sample[rows.positions]] + rank[rows.positions]] = (
            spread.batch * room(rows) + spread.local
        )
        return take, ends

    def make(
        self,
        results: Iterable[Result],
        rows: Mapping[str, Rows],
        batches: Sequence[Ints],
        address: int,
    ) -> tuple[Readout, dict[str, tuple[int, int]]]:
        """The readout of a group from an address on; by buffer the first batch's base, and the next one's
        distance (both in addresses)."""
        wanted = batches[0] if len(batches) == 1 else np.concatenate(batches)
        known: dict[str, tuple[Indices, Indices]] = {}
        values, places, at = [], dict[str, tuple[int, int]](), 0
        nobody: Numbers = np.zeros(0, np.intp)
        for result in results:
            width, most = self._width[result.buffer], room(rows[result.space])
            if result.kind == "output" and result.space not in known:
                known[result.space] = self._whose(result.space, rows[result.space], wanted)
            take, begin = known.get(result.space, (nobody, nobody))
            values.append(
                Values(
                    result.name,
                    result.buffer,
                    result.kind,
                    at,
                    most,
                    width,
                    result.shape,
                    result.dtype == "i32",
                    self._is_root[result.space],
                    take,
                    begin,
                )
            )
            places[result.buffer] = address + at // 4, most * width // 4
            at += len(batches) * most * width
        return Readout(address * 4, at, len(batches), tuple(values)), places
