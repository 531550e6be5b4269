"""Metrics over a whole set, of predictions that are made and measured apart from each other.

On the reference VM and the CPU: what `evaluate` says equals what the outputs of `predict` give when
they are measured here, in order, whatever the launches and however samples are given.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest

import dnc
from dnc.compiler import compile_model
from dnc.diagnostics import DiagnosticError
from dnc.ir.interpreter import interpret
from dnc.ir.parser import parse_program
from dnc.ir.printer import print_program
from tests.support.models import kernels_for
from tests.unit.test_measures import conll_entities

TAGGER = """
model Tagger(vocab = 20, hidden = 4, tags = 5)
struct Word     = Word(form: token<vocab>, tag: class<tags>, score: float)
struct Sentence = Sentence(words: [Word])
param E: table[vocab, hidden] = normal(1), F: [vocab, hidden] = normal(1)
param U: [hidden, hidden], V: [tags, hidden] = normal(1), v: [hidden] = normal(1)
fn forward(w: Word) -> [hidden] = tanh(E[w.form] + U @ forward(w.prev))
fn scores(w: Word) = V @ forward(w)
fn score(w: Word) = sum(v * forward(w))
loss    sum(w in all(Word)) cross_entropy(scores(w), w.tag)
metric  accuracy = mean(w in all(Word)) argmax(scores(w)) == w.tag
metric  entities = f1(w in all(Word)) argmax(scores(w)), w.tag
metric  confusion = perplexity(w in all(Word)) cross_entropy(scores(w), w.tag)
metric  agreement = pearson(w in all(Word)) score(w), w.score
metric  following = perplexity(w in all(Word)) cross_entropy(scores(w), w.next.tag)
metric  changes = mean(w in all(Word)) 1 - (w.prev.tag == w.next.tag)
metric  ahead = mean(w in all(Word)) sum(E[w.next.form] + F[w.form])
metric  behind = mean(w in all(Word)) sum(F[w.prev.form])
metric  ranks = spearman(w in all(Word)) score(w), w.score
metric  distance = rmse(w in all(Word)) score(w), w.score
metric  each = macro_f1(w in all(Word)) argmax(scores(w)), w.tag
metric  later = macro_f1(w in all(Word)) argmax(scores(w)), w.next.tag
output  tags = [argmax(scores(w)) for w in all(Word)]
output  p = [softmax(scores(w)) for w in all(Word)]
output  s = [score(w) for w in all(Word)]
"""
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


@pytest.fixture(scope="module", params=["vm", "cpu"])
def build(request, tmp_path_factory):
    """(device, a build of the tagger)."""
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "tagger.dn").write_text(TAGGER)
    with kernels_for(request.param, folder / "cache"):
        compile_model(folder / "tagger.dn", folder / "build", ("cpu",))
    return request.param, folder / "build"


def samples(count, seed, flat):
    """Sentences; as flat samples with their words in a random order of the file."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        size = int(random.integers(1, 8))
        words = [
            {
                "form": str(random.integers(9)),
                "tag": str(random.choice(TAGS)),
                "score": float(random.normal()),
            }
            for _ in range(size)
        ]
        if flat:
            place = random.permutation(size).tolist()
            rows = [words[place.index(row)] for row in range(size)]
            table = {key: [row[key] for row in rows] for key in words[0]}
            found.append({"Word": table, "Sentence": {"words": [place]}, "root": 0, "all": words})
        else:
            found.append({"words": words})
    return found


def macro_f1(pairs):
    """Of (predicted, right)."""
    found = []
    for tag in {tag for pair in pairs for tag in pair}:
        hits = pairs.count((tag, tag))
        found.append(2 * hits / (sum(tag == a for a, _ in pairs) + sum(tag == b for _, b in pairs)))
    return np.mean(found)


def given(sample):
    return {key: value for key, value in sample.items() if key != "all"}


@pytest.mark.parametrize("flat", [False, True])
def test_metrics_are_those_of_the_predictions(build, flat, monkeypatch):
    monkeypatch.setattr("dnc.runtime.answers.CHUNK", 4)
    device, folder = build
    data = samples(11, 7, flat)
    model = dnc.load(folder, device)
    model.attach([given(sample) for sample in data])
    found = model.evaluate().metrics
    outputs = model.predict()
    names = model.vocabularies["tags"].words
    entities, hits, predicted, right, losses, pairs = [0, 0], 0, [], [], [], []
    following, changes, ahead, behind, later = [], [], [], [], []
    sums = {name: model.parameters()[name].sum(axis=1) for name in "EF"}
    numbers = {word: number for number, word in enumerate(model.vocabularies["vocab"].words)}
    for number, sample in enumerate(data):
        words = sample.get("all") or sample["words"]
        order = sample["Sentence"]["words"][0] if flat else range(len(words))
        tags = [names[outputs["tags"][number][at]] for at in order]
        predicted += tags
        later += zip(tags[:-1], [word["tag"] for word in words[1:]], strict=True)
        right += [word["tag"] for word in words]
        ours, theirs = conll_entities(tags), conll_entities([word["tag"] for word in words])
        hits += len(ours & theirs)
        entities = [entities[0] + len(ours), entities[1] + len(theirs)]
        for at, word in zip(order, words, strict=True):
            losses.append(-math.log(outputs["p"][number][at][names.index(word["tag"])]))
            pairs.append((outputs["s"][number][at], word["score"]))
        for at, word in zip(list(order)[:-1], words[1:], strict=True):
            following.append(-math.log(outputs["p"][number][at][names.index(word["tag"])]))
        forms = [numbers[word["form"]] for word in words]
        ahead += [sums["E"][b] + sums["F"][a] for a, b in pairwise(forms)]
        behind += [sums["F"][form] for form in forms[:-1]]
        changes += [before["tag"] != after["tag"] for before, after in zip(words, words[2:], strict=False)]
    assert hits and found["entities"] == pytest.approx(2 * hits / sum(entities))
    assert found["accuracy"] == pytest.approx(
        np.mean([a == b for a, b in zip(predicted, right, strict=True)])
    )
    assert found["confusion"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
    assert found["agreement"] == pytest.approx(np.corrcoef(np.array(pairs, float).T)[0, 1], abs=1e-6)
    assert found["following"] == pytest.approx(math.exp(np.mean(following)), rel=1e-5)
    assert found["changes"] == pytest.approx(np.mean(changes))
    assert found["ahead"] == pytest.approx(np.mean(ahead), rel=1e-5)
    assert found["behind"] == pytest.approx(np.mean(behind), rel=1e-5)
    ours, theirs = np.array(pairs, float).T
    assert found["distance"] == pytest.approx(math.sqrt(np.mean((ours - theirs) ** 2)), rel=1e-5)
    places = [[(each < x).sum() + (each <= x).sum() for x in each] for each in (ours, theirs)]
    assert found["ranks"] == pytest.approx(np.corrcoef(*places)[0, 1], abs=1e-9)
    assert found["each"] == pytest.approx(macro_f1(list(zip(predicted, right, strict=True))))
    assert found["later"] == pytest.approx(macro_f1(later))
    assert list(found)[:5] == ["accuracy", "entities", "confusion", "agreement", "following"]
    assert list(found)[5:] == ["changes", "ahead", "behind", "ranks", "distance", "each", "later"]


def test_a_sample_that_occurs_twice_counts_twice(build, monkeypatch):
    monkeypatch.setattr("dnc.runtime.answers.CHUNK", 3)
    device, folder = build
    data = samples(4, 3, False)
    model = dnc.load(folder, device)
    model.attach(data)
    numbers = model.evaluate([0, 1, 1, 2, 3, 3, 1])
    again = [data[at] for at in (0, 1, 1, 2, 3, 3, 1)]
    assert numbers.metrics == pytest.approx(model.evaluate(again).metrics, rel=1e-6)


def test_classes_without_names_have_no_entities(build):
    device, folder = build
    data = [{"words": [{"form": "a", "tag": 1, "score": 0.0}]}]
    with pytest.raises(DiagnosticError) as caught:
        dnc.load(folder, device).attach(data)
    assert str(caught.value) == (
        "error: metric 'entities' has to know what its classes are called, but the data hold numbers\n"
        "  the classes are tags, as B-PER, I-PER and O"
    )


def test_the_first_metric_with_a_direction_decides(build, tmp_path):
    device, folder = build
    model = dnc.load(folder, device)
    model.configure("sgd", 0.5)
    events = []
    data = samples(12, 5, False)
    model.train(
        data, epochs=4, batch=4, dev=samples(6, 6, False), run_dir=tmp_path / "run", report=events.append
    )
    epochs = [event for event in events if event["event"] == "epoch"]
    scores = [event["dev"]["accuracy"] for event in epochs]
    assert [event.get("best", False) for event in epochs] == [
        score > max([-1.0, *scores[:at]]) for at, score in enumerate(scores)
    ]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-2]["dev"].keys() == {"loss", "samples", *model.evaluate().metrics}


def test_the_interpreter_measures_alike(build):
    device, folder = build
    model = dnc.load(folder, device)
    dataset = model.attach([given(sample) for sample in samples(9, 8, True)])
    parameters = {name: value.astype(float) for name, value in model.parameters().items()}
    names = {"entities": model.vocabularies["tags"].words}
    expected = interpret(model.program, dataset.forest, parameters, names)
    assert model.evaluate().metrics == pytest.approx(expected.metrics, rel=1e-5)
    assert parse_program(print_program(model.program)) == model.program
