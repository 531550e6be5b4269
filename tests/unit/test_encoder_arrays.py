"""The encoder's arrays against plain Python: the rows of spaces, the lists of slots."""

from collections.abc import Sequence

import numpy as np
import pytest

from dnc.runtime.encoder.assign import Burdens, assign
from dnc.runtime.encoder.lists import in_order
from dnc.runtime.encoder.rows import Spaces
from dnc.runtime.encoder.words import Words
from dnc.runtime.prepared import SpaceRows

SAMPLES = 12


def space(random: np.random.Generator, most: int, sizes: tuple[int, ...] = ()) -> SpaceRows:
    """Up to `most` rows of every sample, which rise by level."""
    counts = random.integers(0, most + 1, SAMPLES)
    level = [np.sort(random.integers(0, 20, count)) for count in counts]
    begin = np.concatenate(([0], counts.cumsum())).astype(np.intp)
    key = random.integers(0, int(np.prod(sizes)), begin[-1]).astype(np.intp)
    return SpaceRows(np.arange(begin[-1]), np.concatenate(level).astype(np.int32), begin, key, sizes)


@pytest.mark.parametrize("batches", [[[3]], [[5, 1, 9, 2]], [[4], [0]], [[7, 2, 0], [1, 11, 10], [3, 4, 5]]])
@pytest.mark.parametrize("replicas", [1, 2, 7])
def test_rows_are_ordered_by_batch_key_replica_level_and_sample(
    batches: Sequence[Sequence[int]], replicas: int
) -> None:
    random = np.random.default_rng(replicas)
    burdens = Burdens(random.integers(1, 9, SAMPLES), random.integers(0, 40, SAMPLES))
    spaces = {"plain": space(random, 6), "stack": space(random, 6, (2, 3)), "none": space(random, 0)}
    assigned = assign([np.array(each, np.int32) for each in batches], burdens, replicas)
    found = Spaces(spaces, {}).rows(assigned)
    for name, own in spaces.items():
        rows = [
            (*divmod(int(owner), assigned.replicas), int(own.key[row]), int(own.level[row]), row)
            for sample, owner in zip(assigned.samples, assigned.owner, strict=True)
            for row in range(own.begin[sample], own.begin[sample + 1])
        ]
        rows.sort(key=lambda each: (each[0], each[2], each[1], each[3]))
        assert found[name].positions.tolist() == [row for *_, row in rows]
        numbers: dict[tuple[int, ...], list[int]] = {}
        counts = [0] * len(batches)
        for batch, replica, key, level, _ in rows:
            numbers.setdefault((batch, key, replica, level), []).append(counts[batch])
            counts[batch] += 1
        assert found[name].spread.counts.tolist() == counts
        assert found[name].counts.sum() == len(rows)
        for place, those in numbers.items():
            assert (found[name].starts[place], found[name].counts[place]) == (those[0], len(those))


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("batches", [1, 3])
def test_slots_of_a_row_stay_in_order(rows: int, batches: int) -> None:
    random = np.random.default_rng(rows)
    targets = [random.integers(-1, batches * rows, count) for count in (0, 7, 19)]
    addresses = [np.arange(len(each)) + 100 * turn for turn, each in enumerate(targets)]
    body = Words(batches, 16)
    at = body.slots(targets, addresses, rows)
    words = body.finish()
    merged = list(zip(np.concatenate(targets), np.concatenate(addresses), strict=True))
    for row in range(batches * rows):
        own, (batch, number) = [address for target, address in merged if target == row], divmod(row, rows)
        head = int(words[batch, at + number])
        begin = head + 1
        found = [-1 - head] if head < 0 else words[batch, begin : begin + words[batch, head]].tolist()
        assert (found if head else []) == own


def test_single_slots_are_those_of_a_list_with_many() -> None:
    targets, addresses = [np.array([3, -1, 0]), np.array([5])], [np.array([7, 8, 9]), np.array([1])]
    found = []
    for are_single in (False, True):
        body = Words(2, 16)
        body.slots(targets, addresses, 3, are_single)
        found.append(body.finish())
    assert np.array_equal(*found)


def test_keys_in_order_leave_out_what_is_absent() -> None:
    keys = np.array([4, -1, 2, 4, 0, -1, 2])
    found, which = in_order(keys)
    assert found.tolist() == [0, 2, 2, 4, 4]
    assert which.tolist() == [4, 2, 6, 0, 3]
    assert all(len(each) == 0 for each in in_order(keys[:0]))
