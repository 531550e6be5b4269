"""Checkpoints that there is no memory for: refused before anything is changed, or the model begins anew."""

import numpy as np
import pytest

import dnc
from dnc.runtime.memory import AMPLE, FIRST_SCHEDULE, LITTLE, SLACK, Memory
from dnc.runtime.pool import static_pool

SMALL = [{"word": "a", "label": 1}, {"word": "b", "label": 2}]


@pytest.fixture
def trained(workplace):
    """A model that has written a checkpoint."""
    model = dnc.load("build", "vm")
    model.attach([{"word": f"w{at}", "label": at % 5} for at in range(4000)])
    model.configure("adam", learning_rate=0.01)
    model.step([0, 1, 2])
    model.sync()
    model.save("adam.safetensors")
    return model


def opened(trained, schedule, states):
    """Another model, with memory for the trained one's parameters, such a schedule and so many states."""
    rows = trained.session.memory.table_rows
    words = static_pool(trained.plan, rows, schedule, states).words
    return dnc.load("build", "vm", seed=3, memory_bytes=words * 4)


def test_no_room_for_the_parameters(trained):
    trained.configure("sgd")
    trained.save("sgd.safetensors")
    model = opened(trained, FIRST_SCHEDULE - 64, 0)
    model.attach(SMALL)
    before = model.predict(SMALL)["p"]
    with pytest.raises(dnc.DiagnosticError, match="the parameters with their gradients need"):
        model.restore("sgd.safetensors")
    np.testing.assert_array_equal(model.predict(SMALL)["p"], before)
    assert model.step([0, 1]) is None and model.sync() is not None


def test_no_room_for_what_the_optimizer_keeps(trained):
    model = opened(trained, FIRST_SCHEDULE, 1)
    model.attach(SMALL)
    before, session = model.parameters(), model.session
    with pytest.raises(dnc.DiagnosticError, match=r"and what the optimizer keeps need .* are there"):
        model.restore("adam.safetensors")
    assert model.session is session and (model.seed, model.position.step) == (3, 0)
    for name, values in model.parameters().items():
        np.testing.assert_array_equal(values, before[name])


def test_a_device_that_has_no_memory_after_all(trained):
    def refuse(words):
        raise dnc.DiagnosticError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained.backend, "allocate", refuse)
        with pytest.raises(dnc.DiagnosticError):
            trained.restore("adam.safetensors")
    with pytest.raises(dnc.DiagnosticError, match="the model has no vocabulary yet"):
        trained.predict(SMALL)
    trained.attach(SMALL)
    assert trained.position.step == 0 and len(trained.predict(SMALL)["p"]) == 2
    trained.restore("adam.safetensors")
    assert trained.position.step == 1


@pytest.mark.parametrize(
    "part, slack",
    [(40, AMPLE), (LITTLE * 1.3 * SLACK, SLACK), (1.3, SLACK), (1.1, 1.0), (0.9, None)],
)
def test_room_beyond_what_is_asked_for(trained, part, slack):
    """Twice as much where that is little of what there is; then less; what was encoded ahead stays good."""
    static, asked = trained.session.memory.pool.words, 1 << 20
    limit = round(part * (static + asked))
    memory = Memory(trained.plan, trained.backend, trained.session.memory.table_rows, limit)
    schedule = memory.pool.schedule_words
    if slack is None:
        assert not memory.grow(schedule, asked) and memory.words == memory.pool.words
        return
    assert memory.grow(schedule, asked)
    assert memory.words == memory.pool.words + round(asked * slack) + 16 <= limit


def test_room_that_is_held_is_kept(trained):
    """A batch that needs less of everything but of its schedule."""
    static, held = trained.session.memory.pool.words, 1 << 20
    memory = Memory(trained.plan, trained.backend, trained.session.memory.table_rows, (static + held) * 8)
    assert memory.grow(memory.pool.schedule_words, held)
    before = memory.words - memory.pool.words
    assert memory.grow(memory.pool.schedule_words * 2, held // 64)
    assert memory.words - memory.pool.words == before
