"""Groups of batches that are encoded together: few samples first, order kept, nothing twice in one."""

from __future__ import annotations

import numpy as np
import pytest

from dnc.runtime.batches import GROUP_BATCHES, GROUP_SAMPLES, MOST_SAMPLES, groups


def epoch(samples, size, seed=1):
    order = np.random.default_rng(seed).permutation(samples)
    return [order[first : first + size] for first in range(0, samples, size)]


def sizes(found):
    return [group.size for group in found]


@pytest.mark.parametrize("encoders", [1, 3])
def test_every_encoder_begins_with_few_samples(encoders):
    """Else the device would wait for the first group as long as a large one takes, once an epoch."""
    found = sizes(groups(epoch(20000, 16), encoders=encoders))
    assert found[:encoders] == [GROUP_SAMPLES] * encoders
    assert found[encoders : 2 * encoders] == [2 * GROUP_SAMPLES] * encoders
    assert max(found) == GROUP_BATCHES * 16
    assert sorted(found[:-2]) == found[:-2]


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
