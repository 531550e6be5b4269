"""Words of several schedules at once: a matrix with a row per batch of the group.

In: values of all batches, one after another. Out: offsets, the same in every batch of the group,
and at the end the words. Guaranteed: what is behind a batch's own values is zero and never read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Numbers = NDArray[np.signedinteger[Any]]


class Spread:
    """Items of several batches, batch after batch, and where they go in a matrix.

    counts: [batches]. most: the length of a row. batch, local: of every item its batch and its
    number there. place: batch * most + local.
    """

    def __init__(self, counts: Numbers) -> None:
        self.counts, self.batches = counts, len(counts)
        if self.batches == 1:
            self.total = self.most = int(counts[0])
            self.first, self.batch = np.zeros(1, np.intp), np.zeros(1, np.intp)
            self.local: Numbers = np.arange(self.total)
            self.place: Numbers = self.local
            return
        ends = counts.cumsum()
        self.first = ends - counts
        self.total, self.most = int(ends[-1]), int(counts.max())
        turn = np.arange(self.batches)
        self.batch = turn.repeat(counts)
        self.place = np.arange(self.total) + (turn * self.most - self.first).repeat(counts)
        self.local = self.place - self.batch * self.most

    def matrix(self, values: NDArray[Any]) -> Ints:
        """[batches, most]: every batch's values, then zeros."""
        if self.batches == 1:
            return values.astype(np.int32, copy=False).reshape(1, -1)
        out = np.zeros(self.batches * self.most, np.int32)
        out[self.place] = values
        return out.reshape(self.batches, self.most)

    def of(self, batch: int) -> slice:
        """The items of one batch."""
        return slice(int(self.first[batch]), int(self.first[batch] + self.counts[batch]))


class Words:
    """Collects pieces of the schedules; offsets are known at once, the words are joined last."""

    def __init__(self, batches: int, first: int) -> None:
        self.batches, self.at = batches, first
        self._pieces = [np.zeros((batches, first), np.int32)]
        self._addresses: list[tuple[int, int]] = []

    def align(self, words: int) -> None:
        """Fills up to a multiple of `words`."""
        self.add(np.zeros((self.batches, -self.at % words), np.int32))

    def add(self, matrix: Ints) -> int:
        """Appends a matrix [batches, count]; the offset of its first word."""
        at = self.at
        if matrix.shape[1]:
            self._pieces.append(matrix)
            self.at += matrix.shape[1]
        return at

    def add_addresses(self, matrix: Ints) -> int:
        """Appends addresses inside the first batch's schedule; each batch gets those of its own."""
        self._addresses.append((self.at, self.at + matrix.shape[1]))
        return self.add(matrix)

    def ragged(self, counts: Numbers, rows: Spread, entries: Numbers) -> int:
        """Appends begin[rows + 1] as offsets of words, and the entries they lead to."""
        before = np.zeros(rows.total + 1, np.int32)
        np.cumsum(counts, out=before[1:])
        spread = Spread(before[rows.first + rows.counts] - before[rows.first])
        first = self.at + rows.most + 1
        begin = np.zeros((self.batches, rows.most + 1), np.int32)
        begin[rows.batch, rows.local] = first + before[:-1] - spread.first[rows.batch]
        begin[np.arange(self.batches), rows.counts] = first + spread.counts
        at = self.add(begin)
        self.add(spread.matrix(entries))
        return at

    def slots(self, targets: list[Numbers], addresses: list[Numbers], rows: int) -> int:
        """Appends a list of slots with `rows` heads a batch.

        targets: batch * rows + row of every slot (below 0: dropped); slots of a row stay in order.
        """
        if not targets or not rows:
            return self.add(np.zeros((self.batches, rows), np.int32))
        target = targets[0] if len(targets) == 1 else np.concatenate(targets)
        address = addresses[0] if len(addresses) == 1 else np.concatenate(addresses)
        total = self.batches * rows
        counts = np.bincount(target + 1, minlength=total + 1)[1:]
        heads = np.zeros(total + 1, np.int32)  # the last one takes what is dropped
        if counts.max() <= 1:  # every row has at most one: no sorting
            heads[target] = -1 - address
            return self.add(heads[:total].reshape(self.batches, rows))
        if target.min() < 0:
            target, address = target[target >= 0], address[target >= 0]
        small = target.astype(np.uint16) if total < 65536 else target
        entries = address[np.argsort(small, kind="stable")]
        begin = np.cumsum(counts) - counts
        one, more = np.flatnonzero(counts == 1), np.flatnonzero(counts > 1)
        heads[one] = -1 - entries[begin[one]]
        # Behind the heads: for every row with several slots its count, then its entries.
        sizes = counts[more] + 1
        spread = Spread(np.bincount(more // rows, sizes, self.batches).astype(np.int64))
        starts = np.cumsum(sizes) - sizes
        heads[more] = self.at + rows + spread.local[starts]
        tail = np.zeros(spread.total, np.int32)
        tail[starts] = counts[more]
        inner = np.ones(spread.total, bool)
        inner[starts] = False
        tail[inner] = entries[np.repeat(counts > 1, counts)]
        at = self.add(heads[:total].reshape(self.batches, rows))
        self.add(spread.matrix(tail))
        return at

    def finish(self) -> Ints:
        """All words, [batches, words of a schedule], each schedule whole 64-byte lines."""
        self.align(16)
        words = np.concatenate(self._pieces, axis=1)
        if self.batches > 1:
            shift = np.arange(self.batches, dtype=np.int32)[:, None] * np.int32(words.shape[1] // 4)
            for begin, end in self._addresses:
                words[:, begin:end] += shift
        return words
