"""Sessions on the reference VM against the interpreter."""

import re
from contextlib import contextmanager

import attrs
import numpy as np
import pytest

from dnc.diagnostics import DiagnosticError
from dnc.ir.interpreter import interpret
from dnc.ir.optimizers import Hyper
from dnc.runtime.backend import VMBackend
from dnc.runtime.memory import Memory, too_little
from dnc.runtime.results import NotFinite
from tests.support.forests import ForestGrower
from tests.support.models import rows_of, small_plan, small_session

SGD, ADAM = Hyper("sgd", 0.1), Hyper("adam", 0.1)


def forest_of(name, samples=6, leaves=5, seed=3):
    return ForestGrower(small_plan(name).program, seed).grow(samples, leaves, "random")


def doubles(session):
    return {name: value.astype(float) for name, value in session.read_arrays().items()}


@pytest.mark.parametrize("name", ["treelstm", "bilstm_tagger", "dag"])
def test_steps_follow_the_interpreter(name):
    session = small_session(name, replicas=2, workers=2)
    forest = forest_of(name)
    data = session.attach(forest)
    expected, losses = doubles(session), []
    for batch in ([0, 1, 2], [5, 3], [4]):
        found = interpret(session.plan.program, forest.select(np.array(batch)), expected)
        losses.append(found.loss)
        for parameter, gradient in found.gradients.items():
            expected[parameter] = expected[parameter] - 0.1 * gradient
    results = [session.step(data, batch, SGD) for batch in ([0, 1, 2], [5, 3], [4])]
    results.append(session.sync())
    assert results[0] is None and session.sync() is None
    np.testing.assert_allclose([result.loss for result in results[1:]], losses, rtol=1e-5)
    assert [result.step for result in results[1:]] == [1, 2, 3]
    for parameter, value in session.read_arrays().items():
        np.testing.assert_allclose(value, expected[parameter], atol=1e-5)


@pytest.mark.parametrize("name", ["treelstm", "bilstm_tagger", "dag", "childsum"])
@pytest.mark.parametrize("replicas, workers", [(1, 1), (3, 2)])
def test_groups_of_batches_give_the_same_bits(name, replicas, workers):
    """Encoded together or alone; a batch of another size and a sample seen before end a group."""
    forest = forest_of(name, samples=9)
    batches = [[4], [0], [7], [2, 1], [8, 3], [5], [6], [5], [0, 1, 2, 3], [4, 5, 6, 7]]
    together, alone = (small_session(name, replicas, workers) for _ in range(2))
    found = list(together.steps(together.attach(forest), batches, SGD))
    data, expected = alone.attach(forest), []
    for batch in batches:
        alone.step(data, batch, SGD)
        expected.append(alone.sync())
    assert found == expected and together.backend.launches == len(batches)
    for parameter, value in alone.read_arrays().items():
        assert np.array_equal(together.read_arrays()[parameter], value)
    assert together.sync() is None


@pytest.mark.parametrize("asks", ["read_arrays", "sync", "evaluate", "predict"])
def test_results_are_those_of_the_one_who_started_the_steps(asks):
    """Others wait for steps too, in the middle of a stream of them; none of its results is lost by that."""
    session, alone = small_session("treelstm"), small_session("treelstm")
    forest = forest_of("treelstm")
    data, batches = session.attach(forest), [[0], [1], [2], [3, 4], [5, 0], [1, 2], [3], [4], [5]]
    found = []
    for result in session.steps(data, batches, SGD):
        found.append(result)
        getattr(session, asks)(*((data,) if asks in ("evaluate", "predict") else ()))
    assert found == list(alone.steps(alone.attach(forest), batches, SGD))


def test_groups_that_do_not_fit_run_alone():
    forest = forest_of("treelstm")
    whole = small_session("treelstm")
    expected = list(whole.steps(whole.attach(forest), [[0], [1], [2]], SGD))
    room = whole.attach(forest).encode(np.array([0])).activations * 2
    tight = small_session("treelstm", memory=whole.memory.pool.words + room)
    tight.memory.limit = tight.memory.words + room
    found = list(tight.steps(tight.attach(forest), [[0], [1], [2]], SGD))
    assert [result.loss for result in found] == pytest.approx([result.loss for result in expected], 1e-5)


@pytest.mark.parametrize("little, times", [(16, 1), (1 << 40, 2)])
def test_memory_grows_once_for_groups_that_grow(monkeypatch, little, times):
    """Where it is little; what was encoded ahead is then not in vain."""
    monkeypatch.setattr("dnc.runtime.memory.LITTLE", little)
    session = small_session("treelstm")
    data = session.attach(forest_of("treelstm", 600))
    session.reserve(data, 16)
    before, grow = session.memory.pool.schedule_words, session.memory.grow
    found = []

    def noted(*words):
        grown = grow(*words)
        found.append(session.memory.pool.schedule_words)
        return grown

    session.memory.grow = noted
    results = list(session.steps(data, [range(at, at + 16) for at in range(0, 592, 16)], SGD))
    assert len(results) == 37 and len(set(found)) == times and min(found) > before


def test_one_launch_a_batch():
    session = small_session("treelstm")
    data = session.attach(forest_of("treelstm"))
    session.reserve(data, 3)
    for batch in ([0, 1, 2], [3, 4, 5], [1]):
        session.step(data, batch)
    session.sync()
    assert session.backend.launches == 3


def test_a_batch_in_parts_is_one_update():
    forest = forest_of("treelstm")
    whole = small_session("treelstm")
    data = whole.attach(forest)
    whole.step(data, range(6), SGD)
    loss = whole.sync()
    activations = data.encode(np.arange(6)).activations
    tight = whole.memory.pool.words + activations * 3 // 4
    twice = []
    for _ in range(2):
        parted = small_session("treelstm", memory=tight)
        parted.step(parted.attach(forest), range(6), SGD)
        result = parted.sync()
        assert result.parts > 1 and result.parts == parted.backend.launches
        np.testing.assert_allclose((result.loss, result.norm), (loss.loss, loss.norm), rtol=1e-5)
        twice.append(parted.read_arrays())
    for name, value in whole.read_arrays().items():
        np.testing.assert_allclose(twice[0][name], value, atol=1e-5)
        assert np.array_equal(twice[0][name], twice[1][name])


def test_a_sample_that_does_not_fit_is_refused():
    session = small_session("treelstm")
    session = small_session("treelstm", memory=session.memory.words + 50)
    with pytest.raises(DiagnosticError, match=r"a batch of one sample needs .* MiB; .* are there"):
        session.step(session.attach(forest_of("treelstm")), [0, 1])


@pytest.mark.parametrize("call", ["step", "steps", "backward"])
def test_a_step_that_fails_leaves_what_the_optimizer_keeps(call):
    session = small_session("treelstm")
    data = session.attach(forest_of("treelstm"))
    session.step(data, [0, 1], ADAM)
    before, steps = session.read_state(), session.optimizer_steps
    large = session.attach(forest_of("treelstm", 1, 300))
    session.memory.limit = session.memory.words
    for own, samples, hyper in ((large, [0], SGD), (data, [7], SGD), (large, [0], Hyper("adamw", 0.1))):
        with pytest.raises(DiagnosticError, match=r"MiB|holds sample 7"):
            if call == "steps":
                list(session.steps(own, [samples], hyper))
            else:
                getattr(session, call)(own, samples, hyper)
        assert (session.optimizer, session.optimizer_steps) == ("adam", steps)
        for state, values in session.read_state().items():
            for name, value in values.items():
                np.testing.assert_array_equal(value, before[state][name])
    assert any(value.any() for value in before["mean"].values())
    list(session.steps(data, [[0], [1]], SGD))
    assert (session.optimizer, session.optimizer_steps) == ("sgd", 2)


def test_an_optimizer_that_there_is_no_room_for_changes_nothing():
    session = small_session("treelstm")
    data = session.attach(forest_of("treelstm"))
    session.step(data, [0], Hyper("momentum", 0.1))
    before = session.read_state()["velocity"]
    session.memory.limit = session.memory.pool.words
    with pytest.raises(DiagnosticError, match="what the optimizer keeps need"):
        session.step(data, [0], ADAM)
    assert (session.optimizer, session.optimizer_steps) == ("momentum", 1)
    for name, value in session.read_state()["velocity"].items():
        np.testing.assert_array_equal(value, before[name])


def test_parameters_that_do_not_fit_are_refused():
    with pytest.raises(DiagnosticError, match="the parameters with their gradients need"):
        small_session("treelstm", memory=100)


@pytest.mark.parametrize("lack", [1, 1000])
def test_what_is_needed_and_what_there_is_are_told_apart(lack):
    """Both have as many digits as that takes."""
    plan = small_plan("treelstm")
    need = Memory(plan, VMBackend(plan, 1, 1), rows_of(plan)).words
    told = too_little(need, need - lack)
    wanted, there = re.fullmatch(r"([0-9.]+) MiB; ([0-9.]+) MiB are there", told).groups()
    assert float(wanted) > float(there) and len(wanted) == len(there)
    assert too_little(2**20, 2**19) == "4.0 MiB; 2.0 MiB are there"
    with pytest.raises(DiagnosticError, match=f"gradients need {re.escape(told)}"):
        small_session("treelstm", memory=need - lack)


def test_growth_keeps_parameters_and_optimizer_state():
    session = small_session("treelstm")
    data = session.attach(forest_of("treelstm"))
    session.step(data, [0], Hyper("adagrad", 0.1))
    before, state = session.read_arrays(), session.read_state()["squares"]
    words = session.memory.words
    assert session.memory.grow(10 * words, 10 * words) and session.memory.words > 11 * words
    for name, value in session.read_arrays().items():
        assert np.array_equal(value, before[name])
        assert np.array_equal(session.read_state()["squares"][name], state[name])
    assert any(value.any() for value in state.values())


def test_a_device_that_refuses_memory_leaves_the_old_pool(monkeypatch):
    session = small_session("treelstm")
    before, words, allocate = session.read_arrays(), session.memory.words, session.backend.allocate

    def refuse(asked):
        if asked > words:
            raise DiagnosticError
        allocate(asked)

    monkeypatch.setattr(session.backend, "allocate", refuse)
    assert not session.memory.grow(10, words)
    for name, value in session.read_arrays().items():
        assert np.array_equal(value, before[name])


@pytest.mark.parametrize("name", ["treelstm", "bilstm_tagger"])
def test_evaluation_and_prediction(name, monkeypatch):
    monkeypatch.setattr("dnc.runtime.answers.CHUNK", 4)
    session = small_session(name, replicas=3)
    forest = forest_of(name)
    data = session.attach(forest)
    reference = interpret(session.plan.program, forest, doubles(session))
    found = session.evaluate(data)
    assert found.loss == pytest.approx(reference.loss, rel=1e-5)
    assert found.metrics == pytest.approx(reference.metrics)
    order = [3, 0, 5, 3]
    outputs = session.predict(data, order)
    for output, values in outputs.items():
        for sample, value in zip(order, values, strict=True):
            alone = interpret(session.plan.program, forest.select(np.array([sample])), doubles(session))
            expected = np.asarray(alone.outputs[output]).reshape(np.shape(value))
            np.testing.assert_allclose(value, expected, atol=1e-5)


def test_a_sample_twice_in_a_batch_counts_twice():
    session = small_session("treelstm", replicas=2)
    forest = forest_of("treelstm")
    session.step(session.attach(forest), [2, 2, 4], SGD)
    loss = session.sync().loss
    again = small_session("treelstm")
    values = doubles(again)
    expected = interpret(again.plan.program, forest.select(np.array([2, 2, 4])), values)
    assert loss == pytest.approx(expected.loss, rel=1e-5)
    for name, value in session.read_arrays().items():
        np.testing.assert_allclose(value, values[name] - 0.1 * expected.gradients[name], atol=1e-5)


def test_what_is_not_finite_stops_and_keeps_the_weights():
    session = small_session("treelstm")
    data = session.attach(forest_of("treelstm"))
    values = session.read_arrays()
    values["b_v"] = np.full_like(values["b_v"], np.inf)
    session.write_arrays(values)
    assert session.step(data, [0], SGD) is None
    with pytest.raises(NotFinite, match="step 1: the loss is nan"):
        session.step(data, [1], SGD)
    assert np.array_equal(session.read_arrays()["U"], values["U"])
    assert session.sync() is None


@pytest.mark.parametrize(
    "batch, message", [([], "no samples"), ([6], "holds sample 6"), ([-1], "data has 6")]
)
def test_wrong_batches(batch, message):
    session = small_session("treelstm")
    with pytest.raises(DiagnosticError, match=message):
        session.step(session.attach(forest_of("treelstm")), batch)


@contextmanager
def finish_raises(session, monkeypatch, error):
    """Nobody's wait for launches comes to an end meanwhile."""

    def finish(slot):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(session.backend, "finish", finish)
        yield


def test_a_failed_launch_leaves_nothing_under_way(monkeypatch):
    session = small_session("treelstm")
    data = session.attach(forest_of("treelstm"))
    session.step(data, [0])
    with finish_raises(session, monkeypatch, DiagnosticError), pytest.raises(DiagnosticError):
        session.sync()
    assert session.sync() is None
    session.step(data, [0])
    assert session.sync() is not None


def test_predictions_go_on_behind_a_step_that_is_not_finite():
    """What was started for them is theirs, whoever waits meanwhile."""
    session = small_session("treelstm")
    data = session.attach(forest_of("treelstm"))
    batches = [[at % 6] for at in range(200)]
    found = session.predictions(data, batches)
    count = len([next(found)])
    session.write_arrays({"W": np.full_like(session.read_arrays()["W"], np.nan)})
    session.step(data, [0])
    count += len([next(found) for _ in range(40)])
    with pytest.raises(NotFinite):
        session.sync()
    assert count + len(list(found)) == len(batches)


def test_an_interrupt_while_somebody_waits(monkeypatch):
    """Whoever waits again finds what he waited for."""
    session = small_session("treelstm")
    data = session.attach(forest_of("treelstm"))
    session.step(data, [0])
    for wait in (session.launches.drain, session.sync):
        with finish_raises(session, monkeypatch, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            wait()
    assert session.sync().step == 1 and session.sync() is None


def test_a_result_is_handed_out_once():
    session = small_session("treelstm")
    data = session.attach(forest_of("treelstm"))
    steps = session.steps(data, [[0], [1]])
    assert [next(steps).step, next(steps).step] == [1, 2]
    assert session.sync() is None


def test_sessions_are_repeatable():
    def run():
        session = small_session("treelstm", replicas=2)
        data = session.attach(forest_of("treelstm"))
        for batch in ([0, 1, 2], [3, 4, 5]):
            session.step(data, batch, attrs.evolve(SGD, optimizer="adagrad"))
        return session.read_arrays()

    first, second = run(), run()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert set(rows_of(small_plan("treelstm"))) <= set(first)


@pytest.mark.parametrize("count", [0, 1, 3, 70])
def test_an_error_of_who_gives_batches_comes_behind_them(count):
    """Also where groups of them were waiting for more; an interrupt does not wait."""

    def batches(error):
        yield from ([at % 6] for at in range(count))
        raise error

    session, whole = small_session("treelstm"), small_session("treelstm")
    data, found = session.attach(forest_of("treelstm")), []
    with pytest.raises(OSError, match="the disk"):
        found += session.steps(data, batches(OSError("the disk")), SGD)
    assert [result.step for result in found] == list(range(1, count + 1))
    list(whole.steps(whole.attach(forest_of("treelstm")), [[at % 6] for at in range(count)], SGD))
    for name, value in session.read_arrays().items():
        assert np.array_equal(value, whole.read_arrays()[name])
    outputs = session.predictions(data, batches(OSError("the disk")))
    assert len([next(outputs) for _ in range(count)]) == count
    with pytest.raises(OSError, match="the disk"):
        next(outputs)
    with pytest.raises(KeyboardInterrupt):
        list(session.steps(data, batches(KeyboardInterrupt()), SGD))
    assert count == 70 or session.steps_done == count


def test_batches_of_who_breaks_off_are_his_own():
    session = small_session("treelstm")
    batches = ([at % 6] for at in range(200))
    for _ in session.steps(session.attach(forest_of("treelstm")), batches, SGD):
        break
    assert next(batches)
