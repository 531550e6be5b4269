"""Streams: lists in chunks of any size give the bits of the whole list at once."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnc
from dnc.compiler import PlanOptions, compile_model
from dnc.diagnostics import DiagnosticError
from dnc.runtime.encoder.ending import Ending
from dnc.runtime.streams import StreamState
from tests.support.models import EXAMPLES, kernels_for

# Two elements back, a field of the one before, a start from the parent, letters in every word, an
# optional child: all that a stream has to hand on.
EVERYTHING = """model M(words = 7, letters = 5, d = 6)
struct Letter = Letter(form: token<letters>)
struct Word = Word(form: token<words>, letters: [Letter], weight: float)
struct Text = Text(words: [Word], topic: token<words>)
param E: table[words, d], C: table[letters, d], W: [d, d], U: [d, d], A: [d, d], b: [d] = normal(0.5)
fn spell(c: Letter) -> [d] = tanh(A @ C[c.form] + spell(c.prev))
fn start(t: Text) -> [d] = tanh(W @ E[t.topic])
fn plain(w: Word) = W @ spell(w.letters.last) + E[w.form] * w.weight
fn run(w: Word) -> [d] = tanh(U @ step(w) + W @ E[w.prev.form] + plain(w.prev.prev) + b)
fn step(w: Word) -> [d] = tanh(plain(w) + A @ (run(w.prev) else start(w.parent)))
fn last(t: Text) = run(t.words.last) + plain(t.words.last.prev)
loss sum(t in root) sum(last(t))
output states = [run(w) for w in all(Word)], end = last(root), letters = [spell(c) for c in all(Letter)]
"""
PULLED = """model P(d = 5)
struct Frame = Frame(x: pulled<d>)
struct Film = Film(frames: [Frame])
param W: [d, d], U: [d, d], A: [d, d]
fn run(f: Frame) -> [d] = tanh(W @ f.x + A @ f.prev.x + U @ run(f.prev))
push states = [run(f) for f in all(Frame)]
"""
EXAMPLE = {
    "language_model": ("words", {"hidden": 5, "embed": 4, "vocab": 7}),
    "char_rnn": ("letters", {"hidden": 4, "embed": 3, "chars": 7}),
    "gru_classifier": ("words", {"hidden": 6, "embed": 5}),
    "lstm2": ("words", {"hidden": 5, "embed": 4}),
    "encoder_decoder": ("target", {"hidden": 5, "embed": 4, "targets": 7}),
    "attention": ("target", {"hidden": 5, "embed": 4, "targets": 7}),
}


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


def opened(builds: Path, name: str, text: str | None, sizes: dict[str, int], device: str) -> dnc.Model:
    """A build for inference; the VM's has no kernels."""
    folder, program = builds / f"{name}-{device}", EXAMPLES / f"{name}.dn"
    if text is not None:
        program = builds / f"{name}.dn"
        program.write_text(text)
    if not folder.exists():
        with kernels_for(device, builds / "cache"):
            compile_model(program, folder, ("cpu",), sizes, PlanOptions(mode="infer"))
    return dnc.load(folder, device, seed=3)


def sample(name: str, choice: random.Random, length: int) -> dict[str, Any]:
    def words(count: int) -> list[dict[str, Any]]:
        return [{"form": choice.randrange(7)} for _ in range(count)]

    if name in ("encoder_decoder", "attention"):
        return {"source": words(3), "target": words(length)}
    if name == "char_rnn":
        return {"letters": [{"letter": choice.randrange(7)} for _ in range(length)]}
    if name != "everything":
        return {"words": words(length)}
    for word in (found := words(length)):
        count = choice.randint(1, 3)
        word["letters"] = [{"form": choice.randrange(5)} for _ in range(count)]
        word["weight"] = choice.random()
    return {"words": found, "topic": choice.randrange(7)}


def chunks(whole: dict[str, Any], field: str, choice: random.Random) -> list[dict[str, Any]]:
    found, at = [], 0
    while at < len(whole[field]):
        size = choice.choice((1, 1, 2, 3, 5))
        found.append({**whole, field: whole[field][at : at + size]})
        at += size
    return found


CASES = [("everything", "words", EVERYTHING, {})]
CASES += [(name, field, None, sizes) for name, (field, sizes) in EXAMPLE.items()]


@pytest.mark.parametrize("device", ["vm", "cpu"])
@pytest.mark.parametrize("name, field, text, sizes", CASES, ids=[case[0] for case in CASES])
def test_chunks_are_the_whole(
    builds: Path, name: str, field: str, text: str | None, sizes: dict[str, int], device: str
) -> None:
    model, choice = opened(builds, name, text, sizes, device), random.Random(name)
    model.read([sample(name, choice, 9) for _ in range(30)], labels_required=False)
    lists = {r.name for r in model.plan.results if model.program.space(r.space).selection == "all"}
    stream = model.stream(field)
    for length in (1, 4, 11):
        stream.reset()
        whole = sample(name, choice, length)
        expected = {output: values[0] for output, values in model.predict([whole]).items()}
        found = [stream.feed(chunk) for chunk in chunks(whole, field, choice)]
        for output, value in expected.items():
            parts = [each[output] for each in found]
            got = np.concatenate(parts) if output in lists else parts[-1]
            assert got.shape == np.shape(value) and np.array_equal(got, value), output


def test_several_streams_and_their_states(builds: Path) -> None:
    """Streams go on side by side; a state that was kept is a place to go back to."""
    model, choice = opened(builds, "everything", EVERYTHING, {}, "cpu"), random.Random(5)
    wholes = [sample("everything", choice, 8) for _ in range(3)]
    model.read(wholes)
    expected = model.predict(wholes)
    stream = model.stream()
    cuts = (0, 1, 4, 8)
    found, kept = [], []
    for begin, end in pairwise(cuts):
        kept.append(stream.state)
        found.append(stream.feed([{**whole, "words": whole["words"][begin:end]} for whole in wholes]))
    for number in range(3):
        states = np.concatenate([each["states"][number] for each in found])
        assert np.array_equal(states, expected["states"][number])
        assert np.array_equal(found[-1]["end"][number], expected["end"][number])
    other = model.stream()
    for at in (2, 1, 2):
        other.state = kept[at]
        again = other.feed([{**whole, "words": whole["words"][cuts[at] : cuts[at + 1]]} for whole in wholes])
        assert all(np.array_equal(a, b) for a, b in zip(again["end"], found[at]["end"], strict=True))


def test_a_dict_that_holds_one_element_after_another(builds: Path) -> None:
    """What a stream reads again of the elements before is as it was when they were fed."""
    model, choice = opened(builds, "everything", EVERYTHING, {}, "cpu"), random.Random(8)
    whole = sample("everything", choice, 6)
    model.read([whole])
    for word in whole["words"]:
        word["weight"] = np.float32(word["weight"])
    expected = model.predict([whole])["states"][0]
    stream, found, word, letters = model.stream(), [], {}, []
    for each in whole["words"]:
        letters[:] = each["letters"]
        word.update({**each, "letters": letters})
        found.append(stream.feed({**whole, "words": [word]})["states"])
    assert np.array_equal(np.concatenate(found), expected)


def test_streams_and_predictions_by_turns(builds: Path) -> None:
    """The launch of a chunk is behind those of the batches that are under way."""
    model, choice = opened(builds, "everything", EVERYTHING, {}, "cpu"), random.Random(9)
    wholes = [sample("everything", choice, 1 + at % 5) for at in range(25)]
    model.attach(wholes)
    batches = [range(2 * at, 2 * at + 1 + at % 2) for at in range(12)]
    expected = list(model.predictions(batches))
    for length in (1, 2, 3, 6, 12, 24):
        stream, long = model.stream(), sample("everything", choice, length)
        whole = model.predict([long])["states"][0]
        for wanted, found in zip(expected, model.predictions(batches), strict=True):
            for name, values in wanted.items():
                assert all(map(np.array_equal, values, found[name])), name
            stream.reset()
            assert np.array_equal(stream.feed(long)["states"], whole)


def test_pulled_vectors(builds: Path) -> None:
    model, choice = opened(builds, "pulled", PULLED, {}, "cpu"), np.random.default_rng(1)
    vectors = choice.normal(size=(6, 5)).astype(np.float32)
    expected = model.forward([{"frames": [{}] * 6}], {"Frame.x": [vectors]})["states"][0]
    stream = model.stream()
    parts = [
        stream.feed({"frames": [{}] * len(part)}, {"Frame.x": [part]})["states"]
        for part in np.split(vectors, (1, 2, 4))
    ]
    assert np.array_equal(np.concatenate(parts), expected)


def test_a_step_encodes_nothing_and_looks_at_its_own_elements(builds: Path) -> None:
    """However long the list has become: one launch a step, over the vertices of the chunk."""
    model = opened(builds, "language_model", None, EXAMPLE["language_model"][1], "cpu")
    model.read([{"words": [{"form": at} for at in range(7)]}])
    stream, seen = model.stream(), []
    run = model.backend.run
    model.backend.run = lambda schedule, *more: seen.append(schedule) or run(schedule, *more)  # type: ignore
    for at in range(30):
        stream.feed({"words": [{"form": at % 7}]})
    assert len(seen) == 30 and {schedule.rows[s] for schedule in seen for s in schedule.rows} == {1}
    assert len({id(schedule.words) for schedule in seen}) == 2  # the first step has nothing before it


def test_a_failed_step_changes_nothing(builds: Path) -> None:
    model = opened(builds, "language_model", None, EXAMPLE["language_model"][1], "cpu")
    model.read([{"words": [{"form": at} for at in range(7)]}])
    stream = model.stream()
    first = stream.feed({"words": [{"form": 1}]})
    kept = stream.state
    for wrong, message in (
        ({"words": []}, "a list of an element or more"),
        ({"words": [{"from": 1}]}, "form"),
        ({"words": [{"form": 99}]}, "99"),
        ({"Word": {"form": [1]}, "Sentence": {"words": [[0]]}, "root": 0}, "expected an object with 'words'"),
        ([{"words": [{"form": 1}]}] * 2, "found 2 chunks, expected 1, one a stream"),
        ([], "found 0 chunks"),
        ("words", "found str, expected a chunk"),
        ([3], "chunk 1: expected an object with 'words'"),
    ):
        with pytest.raises(DiagnosticError, match=message):
            stream.feed(wrong)  # type: ignore[arg-type]
        assert stream.state is kept
    for wrong, options, message in (
        ({"words": [{"form": 1}]}, {"times": 0}, "times is 0, expected 1 or more"),
        ({"words": [{"form": 1}]}, {"times": None}, "times is None, expected a whole number"),
        (
            {"words": [{"form": 1}]},
            {"times": 3},
            "chunk 1: its last element stands there 3 times, and has to",
        ),
        ({"words": [{"form": 1}]}, {"ending": 3}, "ending: found int, expected an Ending"),
        ({"words": [{"form": 1}]}, {"ending": Ending("none", 3)}, "'none' is no output of words"),
        ({"words": [{"form": 1}]}, {"ending": Ending("next", -1)}, "end is -1, expected 0 or more"),
        ({"words": [{"form": 1}]}, {"ending": Ending("next", 10**12)}, "end is 1000000000000, expected 0 to"),
    ):
        with pytest.raises(DiagnosticError, match=message):
            stream.feed(wrong, **options)  # type: ignore[arg-type]
        assert stream.state is kept
    stream.reset()
    again = stream.feed({"words": [{"form": 1}]})
    assert np.array_equal(first["next"], again["next"])
    with pytest.raises(DiagnosticError, match="found no chunk"):
        model.stream().feed([])
    with pytest.raises(DiagnosticError, match=r"is missing|is unknown"):
        stream.feed({"words": [{"form": 1}]}, {"Word.x": [[1.0]]})


def test_what_is_no_state_of_a_stream(builds: Path) -> None:
    """It is refused when it is set, where the mistake is, and the streams stand where they stood."""
    text = EXAMPLE["language_model"][1]
    model = opened(builds, "language_model", None, text, "cpu")
    model.read([{"words": [{"form": at} for at in range(7)]}])
    stream = model.stream()
    stream.feed({"words": [{"form": 1}]})
    kept = stream.state
    assert kept is not None
    (records,) = kept.states
    half = {name: values[:, :-1] for name, values in records.items()}
    for wrong, message in (
        (3, "found int, expected a state that a stream has had, or None"),
        (stream, "found ModelStream, expected a state"),
        (StreamState(kept.elements, ()), "of streams of another program, or along another list"),
        (StreamState(((),), kept.states), "another program"),
        (StreamState(kept.elements, ({},)), "another program"),
        (StreamState(kept.elements, (half,)), "another program"),
    ):
        with pytest.raises(DiagnosticError, match=message):
            stream.state = wrong  # type: ignore[assignment]
        assert stream.state is kept
    stream.state = None
    stream.state = kept


HEAD = """model M(d = 3)
struct V = V(x: vector<d>, inner: [V2], y: pulled<d>)
struct V2 = V2(x: vector<d>)
struct R = R(items: [V], others: [V])
param W: [d, d]
fn f(v: V) -> [d] = W @ v.x + f(v.prev)
fn below(v: V2) = W @ v.x
fn back(v: V) -> [d] = W @ v.x + back(v.next)
"""


@pytest.mark.parametrize(
    "output, field, message",
    [
        ("a = [back(v) for v in all(V)]", "items", "the next V, which is yet to come"),
        ("a = [f(v.next) for v in all(V)]", "items", "the next V, which is yet to come"),
        (
            "a = total(root)",
            "items",
            "streamed: the outputs read the whole list, which has gone",
        ),
        ("a = f(root.items.first)", "items", "its first element, which has gone"),
        (
            "a = [below(v.prev.inner.last) for v in all(V)]",
            "items",
            "'inner' of an element before",
        ),
        ("a = f(root.items.last)", None, "R has the lists items, others: name one"),
        ("a = f(root.items.last)", "words", "R, the root, has no list 'words'; its lists: items, others"),
    ],
)
def test_what_cannot_be_streamed(builds: Path, output: str, field: str | None, message: str) -> None:
    text = HEAD + "fn total(r: R) = sum(f(v) for v in r.items)\noutput " + output
    text += "\nloss sum(r in root) sum(f(r.items.last))\n"
    model = opened(builds, f"no{abs(hash((output, field)))}", text, {}, "vm")
    with pytest.raises(DiagnosticError) as error:
        model.stream(field)
    assert message in str(error.value) and "\n" not in str(error.value).rstrip()


def test_no_list_no_output_no_vocabulary(builds: Path) -> None:
    tree = opened(builds, "treelstm", None, {"hidden": 4, "embed": 4}, "vm")
    with pytest.raises(DiagnosticError, match="goes along a list of Tree, the root; it has none"):
        tree.stream()
    text = HEAD.replace(", others: [V]", "") + "loss sum(r in root) sum(f(r.items.last))\n"
    with pytest.raises(DiagnosticError, match="model M declares no output: there is nothing to stream"):
        opened(builds, "silent", text, {}, "vm").stream()
    model = opened(builds, "lstm2", None, EXAMPLE["lstm2"][1], "vm")
    with pytest.raises(DiagnosticError, match="no vocabulary yet"):
        model.stream().feed({"words": [{"form": 1}]})


def test_a_mistake_is_told_by_its_place_in_the_chunk(builds):
    """However many elements there were before it."""
    model = opened(builds, "everything", EVERYTHING, {}, "vm")
    model.attach([{"words": [{"form": 1, "letters": [{"form": 2}], "weight": 0.5}], "topic": 3}])
    stream = model.stream()
    word = {"form": 1, "letters": [{"form": 2}], "weight": 0.5}
    for _ in range(3):
        stream.feed({"words": [word], "topic": 3})
        with pytest.raises(DiagnosticError, match=r"words\[1\].*77"):
            stream.feed({"words": [word, {**word, "form": 77}], "topic": 3})
