"""Sessions whose batches other processes encode: the same bits, whatever becomes of the processes."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

from dnc.diagnostics import DiagnosticError
from dnc.ir.optimizers import Hyper
from dnc.runtime.ahead import GROUPS, Ahead
from dnc.runtime.checkpoint import Position
from dnc.runtime.encoder.job import Job
from dnc.runtime.encoder.processes import Lost, Processes
from dnc.runtime.phases import TRAIN
from dnc.runtime.results import NotFinite
from dnc.runtime.trainer import Trainer, TrainOptions
from tests.support.forests import ForestGrower
from tests.support.models import small_plan, small_session
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of Linux")

SAMPLES = 24
SGD = Hyper("sgd", 0.1)
RATES = [Hyper("sgd", 0.01 * step, clip_norm=2.0) for step in range(1, 200)]


def forest_of(name, seed=3):
    return ForestGrower(small_plan(name).program, seed).grow(SAMPLES, 5, "random")


def batches_of(size, epochs, seed=0):
    order = np.random.default_rng(seed)
    for _ in range(epochs):
        samples = order.permutation(SAMPLES)
        yield from (samples[at : at + size] for at in range(0, SAMPLES, size))


def first_steps(session, data):
    """Steps enough of them that processes start."""
    found = []
    for step, batch in enumerate(batches_of(6, 2)):
        found += session.steps(data, [batch], RATES[step])
    assert len(found) > GROUPS
    return found


def with_processes(session, data):
    """The same, until the processes are there."""
    found = first_steps(session, data)
    wait_for(lambda: session.ahead.has_room, "the processes do not start")
    return found


def rates(step):
    return RATES[step]


def both(name, batches, encoders=2, hyper=rates, between=lambda session: None):
    """The results and the parameters of a session with processes, and of one without."""
    found = []
    for processes in (encoders, 0):
        session = small_session(name, 2, 2, encoders=processes)
        data = session.attach(forest_of(name))
        if processes:
            results = with_processes(session, data)
            between(session)
        else:
            results = first_steps(session, data)
        results += session.steps(data, batches(), hyper)
        found.append((results, session.read_arrays()))
    (ours, arrays), (expected, others) = found
    assert ours == expected
    for name, value in others.items():
        assert np.array_equal(arrays[name], value)
    return ours


@pytest.mark.parametrize("name", ["treelstm", "dag"])
def test_processes_make_the_same_bits(name):
    """Several groups: of batches of one, of four, one with a sample twice, one of everything."""

    def batches():
        yield from batches_of(1, 3)
        yield from batches_of(4, 4)
        yield [3, 3, 1]
        yield range(SAMPLES)
        yield from batches_of(12, 2)

    assert len(both(name, batches)) == 8 + 3 * SAMPLES + 4 * 6 + 2 + 4


def test_another_optimizer_waits_for_what_was_taken():
    def hyper(step):
        return Hyper("momentum", 0.01) if step > 60 else RATES[step]

    both("treelstm", lambda: batches_of(1, 4), hyper=hyper)


def test_steps_of_the_caller_between_those_that_were_taken():
    """What was taken ahead has the number, and so the coefficients, that it gets in the end."""
    adam, found = Hyper("adam", 0.05), []
    for processes in (2, 0):
        session = small_session("treelstm", 2, 2, encoders=processes)
        data = session.attach(forest_of("treelstm"))
        with_processes(session, data) if processes else first_steps(session, data)
        results = []
        for result in session.steps(data, batches_of(SAMPLES, 12), adam):
            results.append(result)
            if len(results) % 3 == 0:
                session.step(data, [len(results)], adam)
        found.append((results, session.read_arrays()))
    (ours, arrays), (expected, others) = found
    assert ours == expected and len(ours) == 12
    assert all(np.array_equal(arrays[name], value) for name, value in others.items())


def test_streams_over_two_data_sets():
    """Each has the words of its own, though processes have one data set at a time."""

    def run(encoders):
        session = small_session("treelstm", encoders=encoders)
        first, second = (session.attach(forest_of("treelstm", seed)) for seed in (3, 4))
        if encoders:
            with_processes(session, first)
        else:
            first_steps(session, first)
        streams = [session.steps(data, batches_of(2, 3), Hyper("sgd", 0.01)) for data in (first, second)]
        found = [result.loss for pair in zip(*streams, strict=True) for result in pair]
        return found, session.read_arrays()

    (some, moved), (others, same) = run(2), run(0)
    assert some == others and all(np.array_equal(moved[name], same[name]) for name in moved)


def test_a_process_that_is_lost_while_others_start():
    """Whoever asks whether they are about to help is told that they are not."""
    ahead = Ahead(2)

    class Gone:
        @property
        def ready(self):
            raise Lost("gone")

        def close(self):
            """Nothing to end."""

    ahead._processes = Gone()
    assert not ahead.is_starting and not ahead.has_room and ahead.encoders == 1


def test_an_optimizer_that_begins_anew_between_steps_that_were_taken():
    adam = Hyper("adam", 0.01)

    def run(encoders):
        session = small_session("treelstm", encoders=encoders)
        data = session.attach(forest_of("treelstm"))
        (with_processes if encoders else first_steps)(session, data)
        found = []
        for at, result in enumerate(session.steps(data, batches_of(2, 4), adam)):
            found.append(result.loss)
            if at == 9:
                session.start_optimizer("adam")
        return found

    assert run(2) == run(0)


def test_growing_memory_makes_what_was_encoded_stale():
    """Batches of one while the pool is small, then larger ones: the pool grows under jobs that were taken."""

    def batches():
        yield from batches_of(1, 1)
        yield from batches_of(2, 1)
        yield from batches_of(SAMPLES, 1)
        yield from batches_of(3, 1)

    both("treelstm", batches)


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_lost_process_costs_nothing(when):
    def kill(session):
        for each in session.ahead._processes._all:
            each._running.kill()
            each._running.wait()

    sessions = []

    def batches():
        for at, batch in enumerate(batches_of(1, 3)):
            if when == "during" and at == 40:
                kill(sessions[0]) if sessions else None
                sessions.clear()
            yield batch

    def between(session):
        sessions.append(session)
        if when == "before":
            kill(session)

    both("treelstm", batches, between=between)


@pytest.mark.parametrize("place", ["submit", "receive"])
def test_an_interrupt_between_a_job_and_the_note_of_it(monkeypatch, place):
    """Whoever goes on behind a Ctrl-C does not get the words of other batches."""
    session, plain = (small_session("treelstm", 2, 2, encoders=count) for count in (2, 0))
    data = session.attach(forest_of("treelstm"))
    with_processes(session, data)
    whole = getattr(Processes, place)

    def interrupted(processes, job):
        if place == "submit":
            whole(processes, job)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Processes, place, interrupted)
        list(session.steps(data, batches_of(12, 9), SGD))
    session.settle()
    plain.write_arrays(session.read_arrays())
    plain.steps_done, plain.optimizer_steps = session.steps_done, session.optimizer_steps
    again = list(session.steps(data, batches_of(12, 9, 1), SGD))
    assert again == list(plain.steps(plain.attach(forest_of("treelstm")), batches_of(12, 9, 1), SGD))


def test_steps_that_are_left_early_leave_nothing_behind():
    session, plain = (small_session("treelstm", 2, 2, encoders=count) for count in (2, 0))
    data = session.attach(forest_of("treelstm"))
    with_processes(session, data)
    steps = session.steps(data, batches_of(1, 4), SGD)
    next(steps)
    steps.close()
    session.settle()
    plain.write_arrays(session.read_arrays())
    plain.steps_done, plain.optimizer_steps = session.steps_done, session.optimizer_steps
    again = list(session.steps(data, batches_of(2, 2), SGD))
    assert again == list(plain.steps(plain.attach(forest_of("treelstm")), batches_of(2, 2), SGD))


def test_the_next_stretch_is_encoded_while_one_ends(monkeypatch):
    """Between them something else may run: what was encoded stays good, whichever slot is next."""
    session, plain = (small_session("treelstm", 2, 2, encoders=count) for count in (2, 0))
    found, drawn, here = [], [], []
    encode = Job.encode
    monkeypatch.setattr(Job, "encode", lambda job, *more: here.append(job) or encode(job, *more))

    def stretches():
        for epoch in range(7):
            drawn.append(epoch)
            yield batches_of(SAMPLES // 2, 1, epoch)

    for each in (session, plain):
        data, dev = each.attach(forest_of("treelstm")), each.attach(forest_of("treelstm", 4))
        (with_processes if each is session else first_steps)(each, data)
        list(each.steps(data, batches_of(SAMPLES // 2, 4), rates))  # memory as large as it becomes
        drawn.clear()
        here.clear()
        ends, results = [], []
        for result in each.stretches(data, stretches(), rates):
            if result is None:
                own = [job for job in here if job.mode == TRAIN]
                ends.append((len(results), len(drawn), len(own)))
                results.append(each.evaluate(dev, np.arange(len(ends))).loss)
                here.clear()
            else:
                results.append(result)
        found.append((results, ends))
    (ours, ends), (expected, others) = found
    assert ours == expected and [done for done, *_ in ends] == [done for done, *_ in others] == list(
        range(2, 23, 3)
    )
    assert [taken for _, taken, _ in ends] == [5, 6, 7, 7, 7, 7, 7]  # two processes, two jobs each
    assert [taken for _, taken, _ in others] == [1, 2, 3, 4, 5, 6, 7]
    assert not any(made for *_, made in ends) and all(made for *_, made in others)


def test_training_does_not_depend_on_who_encodes():
    found = []
    for encoders in (3, 0):
        session, events, saved = small_session("treelstm", 2, 2, encoders=encoders), [], []
        data, dev = session.attach(forest_of("treelstm")), session.attach(forest_of("treelstm", 4))
        options = TrainOptions(7, 5, Hyper("adagrad", 0.1), log_every=1, save_every=2, patience=7)
        made = Trainer(session, data, options, events.append, lambda kind: None, dev)
        made.save = lambda kind, made=made, saved=saved: saved.append((kind, made.position))
        (with_processes if encoders else first_steps)(session, data)
        assert made.run()
        clock = {"seconds", "samples_per_second"}
        told = [{k: v for k, v in event.items() if k not in clock} for event in events]
        found.append((told, saved, session.read_arrays()))
    (told, saved, arrays), (expected, places, others) = found
    assert told == expected and saved == places and len(saved) > 21
    assert all(np.array_equal(arrays[name], value) for name, value in others.items())


@pytest.mark.parametrize("after", [1, 20, 40])
def test_training_that_is_stopped_knows_how_far_it_came(after):
    """What was taken of the next epoch is not counted."""
    session = small_session("treelstm", 2, 2, encoders=2)
    data, asked = session.attach(forest_of("treelstm")), itertools.count(1)
    with_processes(session, data)
    first = session.steps_done
    options = TrainOptions(9, 1, Hyper("sgd", 0.1))
    made = Trainer(session, data, options, lambda event: None, lambda kind: None)
    made.stop = lambda: next(asked) > after
    assert not made.run()
    done = min(after, SAMPLES)  # an epoch that ends meanwhile ends training
    assert made.position.step == session.steps_done - first == done
    epoch, batch = divmod(done, SAMPLES)
    assert (made.position.epoch, made.position.batch, made.position.seen) == (epoch, batch, batch)


def test_training_that_has_taken_all_batches_is_stopped_at_the_end_of_an_epoch():
    session = small_session("treelstm", 2, 2, encoders=4)
    data, asked = session.attach(forest_of("treelstm")), []
    with_processes(session, data)
    first, options = session.steps_done, TrainOptions(4, 8, Hyper("sgd", 0.1))
    made = Trainer(session, data, options, lambda event: None, lambda kind: None)

    def stop():
        asked.append(session.steps_done - first)
        return asked[-1] > SAMPLES // 8

    made.stop = stop
    assert not made.run() and made.position == Position(2, 0, 6) and session.steps_done - first == 6
    assert asked.count(0) == 12  # all of them


def test_a_step_that_is_not_finite_ends_the_steps():
    session = small_session("treelstm", 2, 2, encoders=2)
    data = session.attach(forest_of("treelstm"))
    with_processes(session, data)
    with pytest.raises(NotFinite):
        list(session.steps(data, batches_of(1, 4), Hyper("sgd", 1e38)))
    with pytest.raises(DiagnosticError, match="a batch holds sample 99"):
        list(session.steps(data, [[0], [99]], SGD))


@pytest.mark.parametrize("encoders", [2, 0])
def test_batches_before_an_empty_one_are_run(encoders):
    """Also those that were taken ahead, and those that are in a group with it."""
    session = small_session("treelstm", 2, 2, encoders=encoders)
    data = session.attach(forest_of("treelstm"))
    (with_processes if encoders else first_steps)(session, data)
    first, size = session.steps_done, 4
    for run in (
        lambda batches: session.steps(data, batches, SGD),
        lambda each: session.predictions(data, each),
    ):
        batches, found = [*batches_of(1, 4), *batches_of(size, 4)], []
        with pytest.raises(DiagnosticError, match="a batch holds no samples"):
            for result in run([*batches, [], [0]]):
                found.append(result)
        assert len(found) == len(batches)
    assert session.steps_done - first == 4 * (SAMPLES + SAMPLES // size)


def test_processes_end_with_their_session():
    session = small_session("treelstm", 2, 2, encoders=2)
    data = session.attach(forest_of("treelstm"))
    with_processes(session, data)
    running = [each._running for each in session.ahead._processes._all]
    assert all(each.poll() is None for each in running)
    other = session.attach(forest_of("treelstm", seed=4))
    list(session.steps(other, [[0]], SGD))  # another data set: those of the first are not needed
    assert all(each.poll() is not None for each in running)


def test_files_of_the_working_folder_are_not_run(monkeypatch, tmp_path):
    (tmp_path / "attrs.py").write_text("raise RuntimeError('a file of the user')\n")
    monkeypatch.chdir(tmp_path)
    session = small_session("treelstm", encoders=1)
    with_processes(session, session.attach(forest_of("treelstm")))
