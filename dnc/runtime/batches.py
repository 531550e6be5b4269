"""Batches put together or cut: several small ones for one encoding, a large one for several launches.

In: sample numbers. Out: groups of batches, parts of a batch. Guaranteed: order is kept, and no sample
occurs twice in a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs
import numpy as np

from dnc.ir.forest import Ints
from dnc.runtime.encoder import Encoder
from dnc.runtime.encoder.tail import WHOLE, Part
from dnc.runtime.phases import TRAIN

# Batches that are encoded together have at most so many samples: few in the first groups, so that the
# device gets work soon, twice as many once every encoder has had one. And a lane has at most so many batches.
GROUP_SAMPLES = 64
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
    _limit: int = attrs.field(init=False)
    _made: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._limit = min(GROUP_SAMPLES, self.most)

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
        group: list[list[int]] = []
        seen: set[int] = set()
        for batch in batches:
            samples = batch.tolist() if isinstance(batch, np.ndarray) else list(batch)
            own = set(samples)
            repeats = len(own) < len(samples)
            if group and (repeats or len(samples) != len(group[0]) or not seen.isdisjoint(own)):
                yield np.array(group, np.int32), False
                group, seen = [], set()
            group.append(samples)
            seen |= own
            turn = self.lanes(len(samples))
            each = max(len(samples), 1)
            largest = full_group(each, self.most, turn)
            size = min(largest, max(self._limit // each, turn))
            if repeats or len(group) >= (size - size % turn or size):
                yield np.array(group, np.int32), 1 < largest == len(group)
                group, seen = [], set()
                self._made += 1
                if self._made % self.encoders == 0:
                    self._limit = min(2 * self._limit, self.most)
        if group:
            yield np.array(group, np.int32), False


def are_distinct(samples: Ints) -> bool:
    """Whether no sample occurs twice."""
    return len(set(samples.tolist())) == len(samples)


def parts_of(data: Encoder, samples: Ints, mode: str, parts: int) -> Iterator[tuple[Ints, Part]]:
    """The samples in `parts` shares; in training the shares of one update over all tokens."""
    if parts == 1:
        yield samples, WHOLE
        return
    if mode != TRAIN:
        yield from ((numbers, WHOLE) for numbers in np.array_split(samples, parts))
        return
    tokens = {table.parameter: data.tokens(table, samples) for table in data.plan.table_gradients}
    followed = data.followed(samples)
    for index, numbers in enumerate(np.array_split(samples, parts)):
        yield numbers, Part(index > 0, index == parts - 1, len(samples), tokens, followed)
