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
NOUGHT = np.zeros(1, np.intp)  # of the only batch; nobody writes it


class Spread:
    """Items of several batches, batch after batch, and where they go in a matrix.

    counts: [batches]. most: the length of a row. batch, local: of every item its batch and its
    number there, as words hold it. place: batch * most + local.
    """

    def __init__(self, counts: Numbers) -> None:
        self.counts, self.batches = counts, len(counts)
        if self.batches == 1:
            self.total = self.most = int(counts[0])
            self.first = self.batch = NOUGHT
            self.local: Numbers = np.arange(self.total, dtype=np.int32)
            self.place: Numbers = np.arange(self.total)
            return
        ends = counts.cumsum()
        self.first = ends - counts
        self.total, self.most = int(ends[-1]), int(counts.max())
        turn = np.arange(self.batches)
        self.batch = turn.repeat(counts)
        self.place = np.arange(self.total) + (turn * self.most - self.first).repeat(counts)
        self.local = (self.place - self.batch * self.most).astype(np.int32)

    def matrix(self, values: NDArray[Any]) -> Ints:
        """[batches, most]: every batch's values, then zeros."""
        if self.batches == 1:
            return values.astype(np.int32, copy=False).reshape(1, -1)
        out = np.zeros(self.batches * self.most, np.int32)
        out[self.place] = values
        return out.reshape(self.batches, self.most)

    def numbers(self, most: int, first: int) -> Numbers:
        """Numbers of all items, in a matrix with a row of `most` a batch, from column `first` on."""
        numbers: Numbers = self.place + (self.batch * (most - self.most) + first)
        return numbers

    def of(self, batch: int) -> slice:
        """The items of one batch."""
        return slice(int(self.first[batch]), int(self.first[batch] + self.counts[batch]))


def in_order(keys: Numbers) -> tuple[Numbers, Numbers]:
    """The keys that are not negative in a stable order, and which of all they are."""
    bits = len(keys).bit_length()
    joined = keys << bits
    joined |= np.arange(len(keys))
    joined.sort()
    if len(joined) and joined[0] < 0:
        joined = joined[joined >= 0]
    return joined >> bits, joined & ((1 << bits) - 1)


def order_below(keys: Numbers, bound: int) -> Numbers:
    """A stable order of keys below a bound."""
    return (keys.astype(np.uint16) if bound <= 1 << 16 else keys).argsort(kind="stable")


def chosen(which: NDArray[np.bool_], yes: int, no: int) -> int | Numbers:
    """Of every batch one of two numbers: the one where all batches agree, else [batches]."""
    if len(which) == 1:
        return yes if which[0] else no
    if which.all():
        return yes
    return np.where(which, yes, no) if which.any() else no


class Words:
    """Collects pieces of the schedules; offsets are known at once, the words are joined last.

    devices: so many schedules behind each other lie at the same place, each on its device. turns: of every
    schedule how many lie in front of it.
    """

    def __init__(self, batches: int, first: int, devices: int = 1) -> None:
        self.batches, self.at, self.devices = batches, first, devices
        self.turns = np.arange(batches, dtype=np.int32) // devices
        self._pieces = [np.zeros((batches, first), np.int32)]
        self._addresses: list[tuple[int, int]] = []

    def align(self, words: int) -> None:
        """Fills up to a multiple of `words`."""
        self.room(-self.at % words)

    def room(self, words: int) -> int:
        """Appends words of zeros; the offset of the first."""
        return self.add(np.zeros((self.batches, words), np.int32)) if words else self.at

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

    def no_slots(self, rows: int) -> int:
        """Appends a list of slots in which none of `rows` rows a batch has any."""
        return self.add(np.zeros((self.batches, rows), np.int32))

    def slots(
        self, targets: list[Numbers], addresses: list[Numbers], rows: int, are_single: bool = False
    ) -> int:
        """Appends a list of slots with `rows` heads a batch.

        targets: batch * rows + row of every slot (below 0: dropped); slots of a row stay in order.
        are_single: no row has several of them.
        """
        total = self.batches * rows
        if not targets or not rows:
            return self.no_slots(rows)
        if are_single:
            heads = np.zeros(total + 1, np.int32)  # the last one takes what is dropped
            for target, address in zip(targets, addresses, strict=True):
                heads[target] = ~address
            return self.add(heads[:total].reshape(self.batches, rows))
        target = targets[0] if len(targets) == 1 else np.concatenate(targets)
        address = addresses[0] if len(addresses) == 1 else np.concatenate(addresses)
        if target.min(initial=0) < 0:
            target, address = target[target >= 0], address[target >= 0]
        # Few rows have several slots: only those are put in order.
        heads = np.zeros(total, np.int32)
        heads[target] = ~address
        again = (np.bincount(target, minlength=total).take(target) > 1).nonzero()[0]
        target, address = target.take(again), address.take(again)
        order = order_below(target, total)
        return self._add_slots(heads, target[order], address[order])

    def ordered_slots(self, target: Numbers, entries: Numbers, rows: int) -> int:
        """The same, with slots in the order of their rows."""
        return self._add_slots(np.zeros(self.batches * rows, np.int32), target, entries)

    def _add_slots(self, heads: Ints, target: Numbers, entries: Numbers) -> int:
        """Appends a list of slots: those of rows that have no head yet, in order; and the others."""
        rows = len(heads) // self.batches
        change = np.ones(len(target) + 1, bool)
        np.not_equal(target[1:], target[:-1], out=change[1:-1])
        bounds = change.nonzero()[0] if len(target) else NOUGHT
        begins = bounds[:-1]
        row, sizes = target[begins], bounds[1:] - begins
        heads[row] = ~entries[begins]
        several = sizes > 1
        if not several.any():
            return self.add(heads.reshape(self.batches, rows))
        # Behind the heads: for every row with several slots its count, then its entries.
        counts, row = sizes[several], row[several]
        lengths = counts + 1
        ends = lengths.cumsum()
        starts = ends - lengths
        spread = Spread(np.bincount(row // rows, lengths, self.batches).astype(np.intp))
        heads[row] = self.at + rows + spread.local[starts]
        tail = np.empty(int(ends[-1]), np.int32)
        inner = np.ones(len(tail), bool)
        inner[starts] = False
        tail[starts], tail[inner] = counts, entries[several.repeat(sizes)]
        at = self.add(heads.reshape(self.batches, rows))
        self.add(spread.matrix(tail))
        return at

    def finish(self) -> Ints:
        """All words, [batches, words of a schedule], each schedule whole 64-byte lines."""
        self.align(16)
        words = np.concatenate(self._pieces, axis=1)
        if self.batches > 1:
            shift = self.turns[:, None] * np.int32(words.shape[1] // 4)
            for begin, end in self._addresses:
                words[:, begin:end] += shift
        return words
