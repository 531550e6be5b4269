"""Processes that encode jobs: words, replies, what does not fit, and how they begin and end."""

import contextlib
import os
import time

import attrs
import numpy as np
import pytest

from dnc.ir.optimizers import Hyper
from dnc.runtime.encoder import DoesNotFit
from dnc.runtime.encoder.job import Job
from dnc.runtime.encoder.processes import Lost, Processes, default_count
from tests.support.forests import ForestGrower
from tests.support.models import small_plan, small_session
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of Linux")

SAMPLES = 24
SGD = Hyper("sgd", 0.1)


def attached():
    """A session without processes, and data of it."""
    session = small_session("treelstm")
    return session, session.attach(ForestGrower(small_plan("treelstm").program, 3).grow(SAMPLES, 5, "random"))


def started(data, count=1):
    """Processes of a data set that are there."""
    processes = Processes(data.prepared, count)
    wait_for(lambda: processes.ready, "the processes do not start")
    return processes


def job_of(session, samples):
    return Job(
        np.array([samples], np.int32),
        (2, 2),
        [SGD.update(1)],
        np.zeros(1, np.uint32),
        session.memory.pool,
        0,
        session.memory.words,
    )


def with_room(job):
    """The job in a pool that is large enough."""
    return attrs.evolve(job, pool=attrs.evolve(job.pool, schedule_words=1 << 20), pool_words=1 << 24)


def test_a_job_that_does_not_fit_says_what_it_needs():
    session, data = attached()
    job = job_of(session, range(SAMPLES))
    with pytest.raises(DoesNotFit) as expected:
        job.encode(data)
    processes = started(data)
    large = with_room(job)
    expected_words = large.encode(data)[0].words
    for _ in range(2):
        processes.submit(job)
        assert processes.has_room
        processes.submit(large)
        assert not processes.has_room
        with pytest.raises(DoesNotFit) as found:
            processes.receive(job)
        assert found.value.schedule_words == expected.value.schedule_words
        assert found.value.activations == expected.value.activations
        assert processes.has_room
        assert np.array_equal(processes.receive(large)[0].words, expected_words)
    processes.close()
    with pytest.raises(Lost):
        processes.submit(large)


@pytest.mark.parametrize("count", [1, 2])
def test_words_stay_while_the_next_job_is_encoded(count):
    """A process has one job while it encodes another, and the words of both lie in memory of their own."""
    session, data = attached()
    jobs = [with_room(job_of(session, [at % SAMPLES])) for at in range(12)]
    jobs[5] = attrs.evolve(jobs[5], noises=np.zeros(1 << 20, np.uint32))  # more than a pipe holds
    expected = [job.encode(data)[0].words.copy() for job in jobs]
    processes = started(data, count)
    ahead = 0
    for at, job in enumerate(jobs):
        while ahead < len(jobs) and processes.has_room:
            processes.submit(jobs[ahead])
            ahead += 1
        assert ahead == min(at + 2 * count, len(jobs))
        found = processes.receive(job)[0].words
        time.sleep(0.02)  # the process is at the next one, or has made it
        assert np.array_equal(found, expected[at])
    processes.close()


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_within_a_reply(before, monkeypatch):
    """A process of which nobody knows what it says next is not listened to any more."""
    session, data = attached()
    first, second = (with_room(job_of(session, [at])) for at in range(2))
    processes = started(data)
    processes.submit(first)
    processes.submit(second)
    process = processes._all[0]
    receive = process.receive

    def interrupted():
        if not before:
            receive()
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        processes.receive(first)
    monkeypatch.setattr(process, "receive", receive)
    for job in (second, first):
        with pytest.raises(Lost):
            processes.receive(job)
    processes.close()


def test_what_cannot_be_read_ends_a_process():
    """As code that has changed under it: nobody waits for each other."""
    _, data = attached()
    processes = started(data)
    processes._all[0].connection.send_bytes(b"no pickle")
    assert processes._all[0]._running.wait(20) == 0
    processes.close()


def open_files():
    """Every open file of this process: its number, and what it stands for."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def test_a_process_that_does_not_start_leaves_nothing_open(monkeypatch):
    def refused(*arguments, **options):
        raise OSError("no more processes")

    _, data = attached()
    before = open_files()
    monkeypatch.setattr("dnc.runtime.encoder.processes.subprocess.Popen", refused)
    with pytest.raises(Lost, match="no more processes") as held:  # whoever keeps the error keeps its frames
        Processes(data.prepared, 2)
    # what other tests have left may be closed meanwhile
    assert open_files() <= before and held.value.__traceback__


def test_no_processes_beside_kernels_that_use_all_cores(monkeypatch):
    monkeypatch.setattr("dnc.runtime.encoder.processes.cores", lambda: 8)
    assert (default_count(True), default_count(False)) == (7, 0)
    monkeypatch.setattr("dnc.runtime.encoder.processes.cores", lambda: 32)
    assert (default_count(True), default_count(True, 2), default_count(True, 4)) == (12, 24, 31)
