"""Predictions and evaluations of many batches: the bits of every batch alone, whoever encodes them."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

import dnc.runtime.answers
from dnc.diagnostics import DiagnosticError
from dnc.ir.noise import NONE
from tests.support.forests import ForestGrower
from tests.support.models import SMALL, small_plan, small_session

SAMPLES = 24
MIXED = [[3, 1, 2], [4, 5, 6], [7, 7, 8], [1, 2, 3], [9], list(range(SAMPLES)), [0], [1], [2], [23, 0]]


def forest_of(name, seed=3):
    return ForestGrower(small_plan(name).program, seed).grow(SAMPLES, 5, "random")


def same(found, expected):
    """Whether outputs are equal to the bit, types included."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert len(values) == len(found[name])
        for one, other in zip(found[name], values, strict=True):
            assert type(one) is type(other)
            assert one is None or (one.dtype == other.dtype and np.array_equal(one, other)), name


def each_alone(session, data, batches):
    return [session.answers._alone(data, np.asarray(batch, np.int32), NONE) for batch in batches]


@pytest.mark.parametrize("name", sorted(SMALL))
def test_predictions_are_those_of_every_batch_alone(name, monkeypatch):
    monkeypatch.setenv("DNC_VERIFY", "1")
    session = small_session(name, 2, 2)
    data = session.attach(forest_of(name))
    found = list(session.predictions(data, MIXED))
    for outputs, expected in zip(found, each_alone(session, data, MIXED), strict=True):
        same(outputs, expected)
    whole, order = session.predict(data), [5, 3, 3, 20]
    same(session.predict(data, order), {name: [values[at] for at in order] for name, values in whole.items()})


@pytest.mark.parametrize("name", sorted(SMALL))
def test_an_evaluation_in_groups_is_that_of_chunks(name, monkeypatch):
    monkeypatch.setattr(dnc.runtime.answers, "CHUNK", 5)
    session = small_session(name, 2, 2)
    data = session.attach(forest_of(name))
    chosen = [*range(SAMPLES), 3, 3, 4, 9]
    before = session.backend.launches
    found = session.evaluate(data, chosen)
    assert session.backend.launches == before + 6  # a launch a chunk, however they are encoded
    monkeypatch.setattr(dnc.runtime.answers, "BATCH_WORDS", -1)
    assert session.evaluate(data, chosen) == found


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of Linux")
@pytest.mark.parametrize("name", ["treelstm", "bilstm_tagger"])
def test_other_processes_make_the_same_bits(name, monkeypatch):
    monkeypatch.setattr(dnc.runtime.answers, "GROUPS", 2)
    monkeypatch.setattr(dnc.runtime.answers, "CHUNK", 4)
    session, plain = small_session(name, 2, 2, encoders=2), small_session(name, 2, 2)
    data, end = session.attach(forest_of(name)), time.monotonic() + 60
    expected = each_alone(plain, plain.attach(forest_of(name)), MIXED)
    encode_job, helped = session.encode_job, []

    def counted(data, job, ahead):
        helped.append(bool(ahead._taken) and ahead._taken[0] is job)
        return encode_job(data, job, ahead)

    def batches():
        """Until processes help, then all of them twice."""
        while not session.answers.ahead.has_room:
            assert time.monotonic() < end, "the processes do not start"
            yield [0]
        yield from MIXED * 2

    monkeypatch.setattr(session, "encode_job", counted)
    found = list(session.predictions(data, batches()))[-2 * len(MIXED) :]
    assert sum(helped) >= 10
    for outputs, wanted in zip(found, expected * 2, strict=True):
        same(outputs, wanted)
    assert session.evaluate(data, MIXED[5] * 12) == plain.evaluate(
        plain.attach(forest_of(name)), MIXED[5] * 12
    )


def test_memory_for_one_sample_at_a_time():
    """Groups and batches that do not fit run in parts."""
    wide = small_session("treelstm", 1, 1)
    expected = wide.predict(wide.attach(forest_of("treelstm")))
    least = wide.memory.pool.schedules[0] * 4
    for memory in (least + 20_000, least + 40_000):
        session = small_session("treelstm", 1, 1, memory=memory)
        data = session.attach(forest_of("treelstm"))
        same(session.predict(data), expected)
        assert session.evaluate(data).samples == SAMPLES


def test_many_values_are_read_batch_by_batch(monkeypatch):
    session = small_session("treelstm", 2, 2)
    data = session.attach(forest_of("treelstm"))
    expected = list(session.predictions(data, MIXED))
    monkeypatch.setattr(dnc.runtime.answers, "GROUP_WORDS", 1)
    few = list(session.predictions(data, MIXED))
    monkeypatch.setattr(dnc.runtime.answers, "BATCH_WORDS", 1)
    alone = list(session.predictions(data, MIXED))
    for each in (few, alone):
        for one, other in zip(each, expected, strict=True):
            same(one, other)


def test_steps_between_predictions():
    """A step reads what predictions that are under way have left, and waits for nobody."""
    session = small_session("treelstm", 2, 2)
    data = session.attach(forest_of("treelstm"))
    expected = session.predict(data, [4, 5])
    stream = session.predictions(data, [[4, 5]] * 3)
    same(next(stream), expected)
    assert session.step(data, [1, 2]) is None
    assert all(outputs.keys() == expected.keys() for outputs in stream)
    assert session.sync().step == 1


def test_left_early_and_mistakes():
    session = small_session("treelstm", 2, 2)
    data = session.attach(forest_of("treelstm"))
    stream = session.predictions(data, [[each] for each in range(SAMPLES)] * 4)
    next(stream)
    stream.close()
    same(next(session.predictions(data, [[1]])), session.answers._alone(data, np.array([1]), NONE))
    with pytest.raises(DiagnosticError, match="a batch holds sample 99"):
        list(session.predictions(data, [[0], [99]]))
    with pytest.raises(DiagnosticError, match="a batch holds no samples"):
        list(session.predictions(data, [[0], []]))
    assert list(session.predictions(data, [])) == []
