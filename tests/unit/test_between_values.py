"""What is called between two values of a stream, or in the middle of training."""

import copy
import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import dnc
import dnc.kernel_cache
from dnc.compiler import compile_model
from dnc.runtime.checkpoint import load_checkpoint
from dnc.runtime.phases import TRAIN
from dnc.runtime.results import NotFinite
from dnc.runtime.sharing import Sharing
from dnc.runtime.trainer import shuffled
from tests.support.command_line import SIZES, TREE, command, finished_build, workplace
from tests.support.models import EXAMPLES

__all__ = ["command", "finished_build", "workplace"]

TREES = [json.loads(line) for line in (EXAMPLES / "data" / "sentiment-train.jsonl").read_text().splitlines()]
TREES.sort(key=lambda tree: len(json.dumps(tree)))


def same(one, other):
    return all(np.array_equal(a, b) for name in one for a, b in zip(one[name], other[name], strict=True))


def same_weights(one, other):
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("device", ["vm", "cpu"])
def test_predictions_go_on_behind_calls_of_every_size(device, tmp_path, monkeypatch):
    """A call's schedule is written where a launch under way has left its results; they are read before."""
    if device == "vm":
        monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
        monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    compile_model(TREE, tmp_path / "build", ("cpu",), SIZES)
    model = dnc.load(tmp_path / "build", device)
    model.attach(TREES)
    batches = [range(3 * at, 3 * at + 1 + at % 2) for at in range(6)]
    expected, called = list(model.predictions(batches)), {}
    for size in (1, 2, 5, 8, 12, 20):
        called[size] = model.predict(TREES[-size:])
        for wanted, found in zip(expected, model.predictions(batches), strict=True):
            assert same(wanted, found)
            assert same(called[size], model.predict(TREES[-size:]))


def test_a_call_collects_a_launch_that_was_given_up(workplace):
    """Its error is that of whoever waits first; what comes behind is not in its way."""
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    expected = model.predict(TREES[:1])
    stream, whole = model.predictions([[0], [1, 2], [3], [4, 5]]), model.backend.finish
    next(stream)

    def given_up(slot):
        model.backend.finish = whole
        raise dnc.diagnostics.fail("worker 0 gave up")

    model.backend.finish = given_up
    with pytest.raises(dnc.DiagnosticError, match="gave up"):
        model.predict(TREES[:1])
    with pytest.raises(dnc.DiagnosticError, match="interrupted"):
        list(stream)
    assert same(model.predict(TREES[:1]), expected)


def test_a_guest_stays_as_it_is_when_another_is_made(workplace):
    """Several may wait to be encoded: each has the rows of its own batch, and of no other one."""
    compile_model(EXAMPLES / "token_vectors.dn", "vectors", ("cpu",), {"width": 3, "hidden": 4})
    model, leaf = dnc.load("vectors", "vm"), {}
    data = model.attach([leaf, {"left": leaf, "right": leaf}, leaf])
    sharing = Sharing(model.plan, data)
    alone = [Sharing(model.plan, data).guest_of(np.array(each), TRAIN) for each in ([0, 1], [2, 1])]
    waiting = [sharing.guest_of(np.array(each), TRAIN) for each in ([0, 1], [2, 1])]
    assert waiting[0].handed.keys() == alone[0].handed.keys() != set()
    for found, expected in zip(waiting, alone, strict=True):
        for key, handed in found.handed.items():
            assert np.array_equal(handed.number, expected.handed[key].number)


# ---- another session of the same backend ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["predictions", "steps"])
@pytest.mark.parametrize("words", [0, 3000])
def test_a_stream_ends_where_its_model_is_restored(workplace, kind, words):
    """It would go on with the addresses of other tables."""
    other = dnc.load("build", "vm", seed=5)
    trees = [json.loads(line) for line in Path("train.jsonl").read_text().splitlines()]
    other.attach(trees + [{"word": f"word {at}", "label": 0} for at in range(words)])
    other.save("other.safetensors")
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    stream = getattr(model, kind)([[at % 12] for at in range(40)])
    next(stream)
    model.restore("other.safetensors")
    place = model.position
    with pytest.raises(dnc.DiagnosticError, match="the model was restored"):
        next(stream)
    assert same_weights(model.parameters(), other.parameters()) and model.position == place
    assert list(stream) == []
    model.attach("train.jsonl")
    other.attach("train.jsonl")
    batches = [[0, 1], [2], [3]]
    assert all(map(same, model.predictions(batches), other.predictions(batches)))
    assert list(model.steps(batches)) == list(other.steps(batches))


@pytest.mark.parametrize("kind", ["predictions", "steps"])
def test_batches_of_a_stream_that_restore_its_model(workplace, kind):
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    model.save("first.safetensors")
    before = model.parameters()
    model.configure("adam")  # whose state would be cleared in the memory of another session

    def batches():
        model.restore("first.safetensors")
        yield [0, 1]
        yield [2]

    with pytest.raises(dnc.DiagnosticError, match="the model was restored"):
        list(getattr(model, kind)(batches()))
    assert same_weights(model.parameters(), before) and model.position.step == 0


def test_what_was_forwarded_has_no_backward_in_another_vocabulary(workplace):
    other = dnc.load("build", "vm")
    other.attach([{"word": "good", "label": 1}])
    other.save("other.safetensors")
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    model.forward([0, 1])
    model.restore("other.safetensors")
    with pytest.raises(dnc.DiagnosticError, match="call forward first"):
        model.backward()


# ---- steps that made no update --------------------------------------------------------------------


def poisoned(optimizer="adam"):
    """A model for samples of which one has a gradient that is not finite: the third in the first epoch."""
    trees = [json.loads(line) for line in Path("train.jsonl").read_text().splitlines()] * 4
    trees[shuffled(len(trees), 1, 0)[2]] = {"word": "poison", "label": 1}
    model = dnc.load("build", "vm")
    model.attach(trees)
    model.configure(optimizer, 0.01)
    values = model.parameters()
    table, weights = values["E"], values["W"]
    table[:, 0] = weights[:, 0] = 0  # so no other sample has a gradient there
    table[model.vocabularies["vocab"].words.index("poison"), 0] = 3e38
    model.set_parameters({"E": table, "W": weights})
    return model, trees


@pytest.mark.filterwarnings("error")
def test_a_step_without_an_update_leaves_a_checkpoint_with_all_behind_it(workplace):
    """Batches behind it were under way, and are neither lost nor taken again."""
    model, trees = poisoned()
    with pytest.raises(NotFinite, match="step 3: "):
        model.train(trees, epochs=1, batch=1, run_dir="run", log_every=1)
    found = load_checkpoint("run/last.safetensors")
    events = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    told = {event["step"]: event["loss"] for event in events if event["event"] == "step"}
    assert list(told) == [step for step in range(1, found.position.step + 1) if step != 3]
    mean = sum(told.values()) / len(told)
    assert found.position.loss == pytest.approx(mean * found.position.seen)
    assert found.position.step == found.position.batch == found.position.seen == found.optimizer_steps > 3
    assert found.position == model.position
    one_by_one, _ = poisoned()
    bad = 0
    for sample in shuffled(len(trees), 1, 0)[: found.position.step]:
        try:
            one_by_one.step([int(sample)])
        except NotFinite:
            bad += 1
    one_by_one.sync()
    assert bad == 1 and same_weights(one_by_one.parameters(), found.weights)
    assert one_by_one.position.step == found.position.step


@pytest.mark.filterwarnings("error")
def test_the_place_counts_the_step_that_told_of_another_ones_gradient(workplace):
    model, trees = poisoned()
    bad = trees.index({"word": "poison", "label": 1})
    model.step([bad])
    with pytest.raises(NotFinite) as caught:
        model.step([0])
    assert [result.step for result in caught.value.behind] == [2]
    assert model.position.step == model.session.steps_done == 2
    model.forward([bad])
    with pytest.raises(NotFinite):
        model.backward()
    assert model.position.step == model.session.steps_done == 3


# ---- checkpoints meanwhile ------------------------------------------------------------------------


def test_saving_between_steps_leaves_the_optimizer_alone(workplace):
    """Also where the next steps have another one, which a checkpoint begins with."""
    model, plain = dnc.load("build", "vm"), dnc.load("build", "vm")
    losses = []
    for each, saves in ((model, True), (plain, False)):
        each.attach("train.jsonl")
        each.configure("momentum", 0.05)
        steps = each.steps([[at] for at in range(12)] * 3)
        losses.append(list(itertools.islice(steps, 5)))
        if saves:
            each.configure("adam")
            each.save("mine.safetensors")
            kept = load_checkpoint("mine.safetensors")
            assert kept.hyper.optimizer == "adam" and kept.optimizer_steps == 0
            assert not any(value.any() for state in kept.optimizer_state.values() for value in state.values())
            assert dnc.load("build", "vm", checkpoint="mine.safetensors").position == each.position
        losses[-1] += steps
    assert losses[0] == losses[1] and same_weights(model.parameters(), plain.parameters())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_checkpoint_that_a_callback_saves_has_the_place_of_its_weights(workplace, optimizer):
    known, plain = {"epochs": 2, "batch": 1}, dnc.load("build", "vm")
    plain.configure(optimizer, 0.01)
    plain.train("train.jsonl", run_dir="plain", **known)
    model, names = dnc.load("build", "vm"), iter(range(99))
    model.configure(optimizer, 0.01)

    def report(event):
        if event["event"] == "start" or event.get("step", 0) in (3, 12, 17):
            model.save(f"{next(names)}.safetensors")

    model.train("train.jsonl", run_dir="run", log_every=1, report=report, **known)
    assert same_weights(model.parameters(), plain.parameters())
    for number in range(next(names)):
        again = dnc.load("build", "vm", checkpoint=f"{number}.safetensors")
        assert again.position.step == load_checkpoint(f"{number}.safetensors").optimizer_steps
        again.train("train.jsonl", run_dir=f"again-{number}", **known)
        assert again.position == plain.position and same_weights(again.parameters(), plain.parameters())
    assert number >= 4


@pytest.mark.parametrize(
    "path, message",
    [
        ("build/mine.safetensors", "lies in the build"),
        ("build/cpu/mine.safetensors", "lies in the build"),
        ("link/mine.safetensors", "lies in the build"),
        ("train.jsonl", "is read here too and would be lost"),
        ("run/best.safetensors", "belongs to the run"),
        ("run/run.toml", "belongs to the run"),
    ],
)
def test_a_checkpoint_takes_the_place_of_nothing_else(workplace, path, message):
    model = dnc.load("build", "vm")
    model.train("train.jsonl", dev="dev.jsonl", run_dir="run")  # which writes its own, twice
    model.train("train.jsonl", dev="dev.jsonl", epochs=2, run_dir="run", resumed="run/last.safetensors")
    Path("link").symlink_to("build")
    before = {each: each.read_bytes() for each in workplace.rglob("*") if each.is_file()}
    with pytest.raises(dnc.DiagnosticError, match=message):
        model.save(path)
    assert before == {each: each.read_bytes() for each in workplace.rglob("*") if each.is_file()}
    model.save("mine.safetensors")
    model.save("mine.safetensors")  # and over its own


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_model_is_no_value(workplace, way):
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    with pytest.raises(dnc.DiagnosticError, match=r"neither copied nor pickled[\s\S]*save\(path\)"):
        way(model)
    with pytest.raises(dnc.DiagnosticError, match="neither copied nor pickled"):
        way({"model": model} if way is not copy.copy else model)
