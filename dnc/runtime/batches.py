"""Batches put together or cut: several small ones for one encoding, a large one for several launches.

In: sample numbers. Out: groups of batches, parts of a batch. Guaranteed: order is kept, no sample occurs
twice in a group, and no batch is lost where the caller raises something behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Generic, TypeVar

import attrs
import numpy as np

from dnc.diagnostics import fail
from dnc.ir.forest import Ints
from dnc.runtime.data import Dataset
from dnc.runtime.encoder import Encoder
from dnc.runtime.encoder.tail import WHOLE, Part
from dnc.runtime.phases import trains

_Batch = TypeVar("_Batch", bound=Sized)

T = TypeVar("T")
R = TypeVar("R")

# Batches that are encoded together have at most so many samples: few in the first group, so that the device
# gets work soon, and as many more in every other one, as far as SOON_SAMPLES; once every encoder has had
# SOON_ROUNDS, twice as many a round. And a lane has at most so many batches.
GROUP_SAMPLES, SOON_SAMPLES, SOON_ROUNDS = 64, 256, 3
MOST_SAMPLES = 1024
GROUP_BATCHES = 32


def one_lane(samples: int) -> int:
    """For batches that run one after another, each on the whole device."""
    return 1


def full_group(samples: int, most: int = MOST_SAMPLES, lanes: int = 1) -> int:
    """How many batches of so many samples a group has once groups have grown."""
    return max(1, min(GROUP_BATCHES * lanes, most // max(samples, 1)))


def groups(
    batches: Iterable[Sequence[int] | Ints],
    most: int = MOST_SAMPLES,
    lanes: Callable[[int], int] = one_lane,
    encoders: int = 1,
) -> Iterator[Ints]:
    """Batches in groups, as `Groups` makes them."""
    return Groups(most, lanes, encoders).of(batches)


@attrs.define(eq=False)
class Drawn(Generic[T]):
    """What a caller gives, to its end or to an error, which waits until what came before is through.

    An interrupt does not wait.
    """

    given: Iterable[T]
    _problem: Exception | None = None

    def __iter__(self) -> Iterator[T]:
        try:
            for each in self.given:  # noqa: UP028 (who breaks off leaves it open)
                yield each
        except Exception as problem:
            self._problem = problem

    def through(self, results: Iterable[R]) -> Iterator[R]:
        """What is made of it, and then the error."""
        yield from results
        if self._problem is not None:
            raise self._problem


@attrs.define(eq=False)
class Groups:
    """Puts batches into groups to be encoded together, [batches, samples]: in them no sample occurs twice.

    most: samples of a group, if it has several batches. lanes: how many batches of so many samples run at the
    same time; a group has a multiple of that, if it can, so that no lane has less to do than another.
    encoders: groups that are encoded at the same time. They have grown as far for the next batches as those
    before them left it.
    """

    most: int = MOST_SAMPLES
    lanes: Callable[[int], int] = one_lane
    encoders: int = 1
    _made: int = attrs.field(default=0, init=False)

    @property
    def _limit(self) -> int:
        """Samples of the next group."""
        rounds = self._made // self.encoders - SOON_ROUNDS
        soon = min(GROUP_SAMPLES * (1 + self._made), SOON_SAMPLES)
        return min(soon if rounds < 0 else SOON_SAMPLES << rounds + 1, self.most)

    def _sizes(self, samples: int) -> tuple[int, int]:
        """Batches of so many samples in the next group, and how many there are in one at most."""
        each, turn = max(samples, 1), self.lanes(samples)
        largest = full_group(each, self.most, turn)
        size = min(largest, max(self._limit // each, turn))
        return size - size % turn or size, largest

    def of(self, batches: Iterable[Sequence[int] | Ints]) -> Iterator[Ints]:
        """The groups of some batches.

        Where groups are as large as they become, the last two are about as large as each other: behind a
        group of one batch the device would wait until the host has sent the next one.
        """
        held: Ints | None = None
        for group, is_full in self._gathered(batches):
            if held is not None:
                if not is_full and held.shape[1] == group.shape[1]:
                    both = np.concatenate((held, group))
                    if are_distinct(both.reshape(-1)):
                        held, group = both[: len(both) // 2], both[len(both) // 2 :]
                yield held
                held = None
            if is_full and self.lanes(group.shape[1]) == 1:
                held = group
            else:
                yield group
        if held is not None:
            yield held

    def _gathered(self, batches: Iterable[Sequence[int] | Ints]) -> Iterator[tuple[Ints, bool]]:
        """Groups as large as they may be, and whether none will be larger."""
        group, size, largest = list[Ints](), 0, 0
        for batch in batches:
            own = np.array(batch, np.int32)  # a copy: the next batch may be written where this one was
            if group and len(own) != len(group[0]):
                yield from _cut(group)
                group = []
            if not group:
                size, largest = self._sizes(len(own))
            group.append(own)
            if len(group) < size:
                continue
            count = _distinct_batches(group)
            yield np.stack(group[:count]), 1 < largest == count
            group = group[count:]
            if not group:
                self._made += 1
        yield from _cut(group)


def _cut(group: list[Ints]) -> Iterator[tuple[Ints, bool]]:
    """What is left, in groups in which no sample occurs twice; there may be larger ones."""
    while group:
        count = _distinct_batches(group)
        yield np.stack(group[:count]), False
        group = group[count:]


def _distinct_batches(group: list[Ints]) -> int:
    """How many of the first batches no sample occurs twice in; one at least, even if it occurs there."""
    if are_distinct(np.concatenate(group)):
        return len(group)
    seen, count = set[int](), 0
    for batch in group:
        before = len(seen)
        seen.update(batch.tolist())
        if len(seen) < before + len(batch):
            break
        count += 1
    return max(count, 1)


def filled(batch: _Batch) -> _Batch:
    """The batch; DiagnosticError where it holds no samples."""
    if not len(batch):
        raise fail("a batch holds no samples")
    return batch


def are_distinct(samples: Ints) -> bool:
    """Whether no sample occurs twice."""
    ordered = np.sort(samples)
    return not (ordered[1:] == ordered[:-1]).any()


def distinct(dataset: Dataset, samples: Ints) -> tuple[Dataset, Ints]:
    """The data of a batch and its sample numbers; where one occurs twice, data in which each is a sample."""
    if are_distinct(samples):
        return dataset, samples
    return dataset.select(samples), np.arange(len(samples), dtype=np.int32)


def parts_of(data: Encoder, samples: Ints, mode: str, parts: int) -> Iterator[tuple[Ints, Part]]:
    """The samples in `parts` shares; in training the shares of one update over all tokens."""
    if parts == 1:
        yield samples, WHOLE
        return
    if not trains(mode):
        yield from ((numbers, WHOLE) for numbers in np.array_split(samples, parts))
        return
    tokens = {table.parameter: data.tokens(table, samples) for table in data.plan.table_gradients}
    followed = data.followed(samples)
    for index, numbers in enumerate(np.array_split(samples, parts)):
        yield numbers, Part(index > 0, index == parts - 1, len(samples), tokens, followed)
