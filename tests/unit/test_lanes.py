"""Batches of predictions that run at the same time: each lane has memory of its own, and the bits stay."""

from __future__ import annotations

import numpy as np
import pytest

import dnc.runtime.batches
from dnc.ir.noise import NONE
from dnc.runtime.batches import groups
from dnc.runtime.phases import PREDICT
from dnc.runtime.schedules import lanes_of
from tests.support.models import SMALL, small_session
from tests.unit.test_answers import forest_of, same

LANES = 3
BATCHES = [[at, at + 1] for at in range(0, 24, 2)]


def session_of(name, lanes=LANES, **options):
    session = small_session(name, 2, 2, **options)
    session.backend.lanes = lanes
    return session


@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_bits_of_one_after_another(name, monkeypatch):
    monkeypatch.setenv("DNC_VERIFY", "1")  # every schedule's places are in the pool, and do not meet
    session, plain = session_of(name), session_of(name, 1)
    data, other = session.attach(forest_of(name)), plain.attach(forest_of(name))
    mixed = [*BATCHES, [7, 7, 8], [9], [0], *BATCHES[:4]]
    for found, expected in zip(
        session.predictions(data, mixed), plain.predictions(other, mixed), strict=True
    ):
        same(found, expected)
    assert session.evaluate(data) == plain.evaluate(other)


@pytest.mark.parametrize("name", sorted(SMALL))
@pytest.mark.parametrize("spare", [0, 4096])
def test_no_launch_writes_where_another_lane_does(name, spare):
    """All words that a launch changes are its lane's own; the verifier looks at what it reads, above."""
    session = session_of(name)
    data = session.attach(forest_of(name))
    list(session.predictions(data, BATCHES))  # memory has grown
    memory = session.memory
    memory.grow(memory.pool.schedule_words, memory.words - memory.pool.words + spare)
    job = session.job(data, np.array(BATCHES[:6]), PREDICT, np.full(6, NONE, np.uint32), 0, lanes=LANES)
    schedules = session.encode_job(data, job, session.answers.ahead)
    assert lanes_of(schedules) == LANES
    changed = []
    for schedule in schedules:
        pool = session.backend.pool
        pool[memory.pool.words :] = 1234.5
        for each in schedules:
            pool[each.address * 4 :][: len(each.words)] = each.words.view(np.float32)
        before = pool.view(np.int32).copy()
        session.backend.machine.run(schedule.words, pool, memory.pool.words)
        changed.append(np.flatnonzero(pool.view(np.int32) != before))
    for i, one in enumerate(changed):
        assert len(one)
        for j in range(i):
            shared = np.intersect1d(one, changed[j])
            assert not len(shared) if (i - j) % LANES else len(shared)


def test_lanes_are_as_far_apart_in_every_group():
    """Else a lane would wait for the others: its memory would be another's of the group before."""
    session = session_of("treelstm")
    data = session.attach(forest_of("treelstm"))
    list(session.predictions(data, BATCHES))
    found = set()
    for first in (0, 3, 6):
        chosen = np.array(BATCHES[first : first + 3])
        job = session.job(data, chosen, PREDICT, np.full(3, NONE, np.uint32), 0, lanes=LANES)
        schedules = session.encode_job(data, job, session.answers.ahead)
        for buffer in schedules.moving:
            if buffer in {b.name for b in session.modes.mode(PREDICT).inner}:
                found |= set(np.diff(schedules.moving[buffer]).tolist())
    assert len(found) == 1


def test_lanes_that_there_is_no_memory_for(monkeypatch):
    """One after another, on the same grid, then batch by batch: the same values from less and less memory."""
    wide, forest, seen = session_of("treelstm", 1), forest_of("treelstm"), list[int]()
    expected = list(wide.predictions(wide.attach(forest), BATCHES))
    for memory in range(wide.memory.words, wide.memory.pool.schedules[0] * 4, -200):
        narrow, taken = session_of("treelstm", memory=memory), list[tuple[int, int]]()

        def noted(schedules, *rest, start=narrow.launches.start, taken=taken, **options):
            taken.append((lanes_of(schedules), len(schedules)))
            start(schedules, *rest, **options)

        monkeypatch.setattr(narrow.launches, "start", noted)
        for one, other in zip(narrow.predictions(narrow.attach(forest), BATCHES), expected, strict=True):
            same(one, other)
        seen += [taken[0]] * (not seen or seen[-1] != taken[0])
        if taken[0][1] == 1:
            break
    assert [lanes for lanes, _ in seen] == [LANES, 1, 1] and seen[1][1] == len(BATCHES)


def test_a_group_is_shared_evenly():
    single = [[at] for at in range(25)]
    assert [len(g) for g in groups(single, 10, lanes=lambda samples: 4)] == [8, 8, 8, 1]
    assert [len(g) for g in groups(single, 10, lanes=lambda samples: 12)] == [10, 10, 5]
    assert [len(g) for g in groups(single, 10)] == [10, 7, 8]


def test_a_lane_has_so_many_batches_of_a_group(monkeypatch):
    monkeypatch.setattr(dnc.runtime.batches, "GROUP_BATCHES", 3)
    single = [[at] for at in range(25)]
    assert [len(g) for g in groups(single, lanes=lambda samples: 4)] == [12, 12, 1]
    assert [len(g) for g in groups(single)] == [3] * 7 + [2, 2]


def test_large_batches_have_the_device_alone():
    answers = session_of("treelstm", 7).answers
    assert [answers._lanes(samples) for samples in (1, 292, 293)] == [7, 7, 1]
