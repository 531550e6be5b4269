"""Groups of batches that are encoded together: few samples first, order kept, nothing twice in one."""

from __future__ import annotations

import numpy as np
import pytest

from dnc.runtime.batches import (
    GROUP_BATCHES,
    GROUP_SAMPLES,
    MOST_SAMPLES,
    SOON_ROUNDS,
    SOON_SAMPLES,
    groups,
)


def epoch(samples, size, seed=1):
    order = np.random.default_rng(seed).permutation(samples)
    return [order[first : first + size] for first in range(0, samples, size)]


def sizes(found):
    return [group.size for group in found]


@pytest.mark.parametrize("encoders", [1, 3])
def test_groups_grow(encoders):
    """Else the device would wait for the first group as long as a large one takes, or for the host, for which
    every group is work."""
    found = sizes(groups(epoch(40000, 8), encoders=encoders))
    soon = SOON_ROUNDS * encoders
    steps = range(GROUP_SAMPLES, GROUP_SAMPLES * (soon + 1), GROUP_SAMPLES)
    assert found[:soon] == [min(size, SOON_SAMPLES) for size in steps]
    assert max(found) == GROUP_BATCHES * 8
    found = sizes(groups(epoch(160 * 256, 256), encoders=encoders))
    assert found[soon - 1] == 256 and found[soon : soon + encoders] == [512] * encoders
    assert found[soon + encoders : -2] == [MOST_SAMPLES] * (len(found) - 2 - soon - encoders)


@pytest.mark.parametrize("size", [1, 7, 32, 200, 3000])
def test_the_order_is_kept(size):
    batches = epoch(6000, size)
    found = list(groups(batches, encoders=4))
    assert np.concatenate([group.reshape(-1) for group in found]).tolist() == np.concatenate(batches).tolist()
    assert all(len(group) == 1 or group.size <= MOST_SAMPLES for group in found)


def test_the_first_group_has_a_batch_for_every_lane_if_it_may():
    lanes = 7
    first = next(groups(epoch(20000, 32), lanes=lambda samples: lanes))
    assert first.shape == (lanes, 32)
    assert next(groups(epoch(20000, 32), most=100, lanes=lambda samples: lanes)).shape == (3, 32)


def test_the_last_groups_of_an_epoch_share_what_is_left():
    """A group of one batch is over before the host has sent the next group."""
    epochs = [batch for seed in range(3) for batch in epoch(33 * 256, 256, seed)]
    found = [len(group) for group in groups(epochs)]
    assert found[-18:] == [*[4] * 7, 2, 3, *[4] * 7, 2, 3]
    assert sum(found) == 99
    lanes = [len(group) for group in groups(epoch(36 * 32, 32), lanes=lambda samples: 7)]
    assert lanes == [7, 7, 7, 14, 1]  # no lane has more to do than another


def test_what_occurs_twice_is_in_two_groups():
    assert [group.tolist() for group in groups([[1, 2], [3, 1], [4, 4], [5, 6]])] == [
        [[1, 2]],
        [[3, 1]],
        [[4, 4]],
        [[5, 6]],
    ]


def test_a_group_is_cut_where_a_sample_occurs_again():
    """Behind the cut it goes on growing, as an epoch does that begins in the middle of a group."""
    batches = [[number] for number in range(GROUP_SAMPLES // 2)] * 3
    found = [group.reshape(-1).tolist() for group in groups(batches)]
    assert found == [list(range(GROUP_SAMPLES // 2))] * 3
    assert [len(group) for group in groups([[5]] * 40)] == [1] * 40


def test_batches_that_are_written_in_one_place():
    def turns():
        place = np.zeros(2, np.int32)
        for number in range(3):
            place[:] = (2 * number, 2 * number + 1)
            yield place

    assert [group.tolist() for group in groups(turns())] == [[[0, 1], [2, 3], [4, 5]]]
