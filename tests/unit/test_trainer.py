"""Training: order of samples, resuming, scores, stopping."""

import attrs
import numpy as np
import pytest

from dnc.ir.optimizers import Hyper
from dnc.runtime.checkpoint import Position
from dnc.runtime.results import Evaluation, NotFinite
from dnc.runtime.trainer import Trainer, TrainOptions, shuffled
from tests.support.forests import ForestGrower
from tests.support.models import small_plan, small_session

FOREST = ForestGrower(small_plan("treelstm").program, 5).grow(7, 4, "random")
OPTIONS = TrainOptions(epochs=2, batch=3, hyper=Hyper("adagrad", 0.1), seed=4, log_every=2)


def trainer(options=OPTIONS, session=None, **more):
    session = session or small_session("treelstm")
    events, saved = [], []
    data = session.attach(FOREST)
    made = Trainer(session, data, options, events.append, saved.append, **more)
    return made, events, saved


def test_every_epoch_has_its_order():
    first, second = shuffled(50, 1, 0), shuffled(50, 1, 1)
    assert sorted(first) == list(range(50)) and not np.array_equal(first, second)
    assert np.array_equal(first, shuffled(50, 1, 0)) and not np.array_equal(first, shuffled(50, 2, 0))


def test_a_run():
    made, events, saved = trainer()
    assert made.run()
    assert made.position == Position(2, 0, 6) and saved == ["last", "last"]
    assert [e["event"] for e in events] == ["step", "epoch", "step", "step", "epoch"]
    assert [e["step"] for e in events] == [2, 3, 4, 6, 6]
    assert events[-1]["samples"] == 7 and events[-1]["loss"] < events[1]["loss"]
    assert made.session.backend.launches == 6


@pytest.mark.parametrize("batches", [1, 3, 4])
def test_a_stopped_run_goes_on_to_the_same_bits(batches):
    whole, _, _ = trainer()
    whole.run()
    asked = iter([False] * batches + [True])
    stopped, _, saved = trainer(stop=lambda: next(asked))
    assert not stopped.run() and saved[-1] == "last"
    assert stopped.position.step == batches
    again = small_session("treelstm")
    again.write_arrays(stopped.session.read_arrays())
    again.write_state("adagrad", batches, stopped.session.read_state())
    rest, _, _ = trainer(session=again, position=stopped.position)
    assert rest.run() and rest.position == whole.position
    for name, value in whole.session.read_arrays().items():
        assert np.array_equal(value, rest.session.read_arrays()[name])


@pytest.mark.parametrize("asked_for", [RuntimeError, KeyboardInterrupt])
def test_a_run_that_an_exception_broke_off_goes_on_to_the_same_bits(asked_for):
    """Results under way are of updates that were made: the place is behind them."""
    whole, _, _ = trainer()
    whole.run()
    broken, _, _ = trainer()
    told = []

    def tell(event):
        told.append(event)
        raise asked_for

    broken.report = tell
    with pytest.raises(asked_for):
        broken.run()
    assert len(told) == 1 and broken.position.step == broken.session.steps_done > told[0]["step"]
    assert broken.position.seen == min(broken.position.batch * OPTIONS.batch, 7)
    rest, _, _ = trainer(session=broken.session, position=broken.position)
    assert rest.run() and rest.position == whole.position
    for name, value in whole.session.read_arrays().items():
        assert np.array_equal(value, rest.session.read_arrays()[name])


def test_an_epoch_of_which_no_batch_is_left_ends():
    """So a checkpoint may say that was written where a step was not finite."""
    made, events, saved = trainer(position=Position(0, 3, 3, 5.0, 6))
    made.session.steps_done = 3
    assert made.run() and made.position == Position(2, 0, 6) and saved == ["last", "last"]
    assert [e["samples"] for e in events if e["event"] == "epoch"] == [6, 7]


def test_the_dev_set_decides_what_is_best():
    session = small_session("treelstm")
    made, events, saved = trainer(session=session, dev=session.attach(FOREST))
    made.run()
    epochs = [event for event in events if event["event"] == "epoch"]
    scores = [event["dev"]["accuracy"] for event in epochs]
    better = [score > max([-1, *scores[:at]]) for at, score in enumerate(scores)]
    assert [event.get("best", False) for event in epochs] == better
    assert saved.count("best") == sum(better) and made.best == max(scores)


def test_without_hits_the_loss_decides():
    session = small_session("dag")
    data = session.attach(ForestGrower(session.plan.program, 1).grow(4, 3, "random"))
    made = Trainer(session, data, OPTIONS, lambda event: None, lambda kind: None, dev=data)
    made.run()
    assert made.best == -session.evaluate(data).loss


def test_a_loss_that_is_not_finite_is_the_worst(monkeypatch):
    session, losses = small_session("dag"), iter([float("nan"), 2.0])
    data = session.attach(ForestGrower(session.plan.program, 1).grow(4, 3, "random"))
    monkeypatch.setattr(session, "evaluate", lambda data: Evaluation(4, next(losses), {"error": 0.5}))
    made = Trainer(session, data, OPTIONS, lambda event: None, lambda kind: None, dev=data)
    made.run()
    assert (made.best, made.best_epoch) == (-2.0, 2)


def test_what_is_not_finite_ends_training_and_saves():
    options = attrs.evolve(OPTIONS, hyper=Hyper("sgd", 1e38))
    made, _, saved = trainer(options)
    with pytest.raises(NotFinite, match="its update was not made"):
        made.run()
    assert saved == ["last"]  # the place is behind all steps that were under way
    assert made.position.step == made.position.batch == made.session.steps_done > 1
