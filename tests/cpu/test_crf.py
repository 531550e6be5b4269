"""The conditional random field of docs/language.md: loss, gradients and best paths are those of all paths."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import dnc
from dnc.compiler import compile_model

PAGE = Path(__file__).parents[2] / "docs" / "language.md"
TAGS = 3
SENTENCES = [[(0, 2)], [(1, 0), (3, 1)], [(2, 1), (2, 1), (0, 2), (1, 0)]]
"""Words with their tags, of a sentence of each length."""


def score(values, words, tags):
    """The logarithm of the mass of one path."""
    total = values["start"][tags[0]] + values["stop"][tags[-1]]
    total += sum(values["E"][word][tag] for word, tag in zip(words, tags, strict=True))
    return total + sum(values["T"][to][back] for back, to in itertools.pairwise(tags))


def negative_log_likelihood(values):
    """Of the tags of all sentences, by going through every path."""
    total = 0.0
    for sentence in SENTENCES:
        words, tags = zip(*sentence, strict=True)
        paths = itertools.product(range(TAGS), repeat=len(words))
        total -= score(values, words, tags) - np.logaddexp.reduce([score(values, words, p) for p in paths])
    return total / len(SENTENCES)


def best_path(values, words):
    """The tags of the path with the largest score."""
    return list(max(itertools.product(range(TAGS), repeat=len(words)), key=lambda p: score(values, words, p)))


@pytest.mark.parametrize("device", ["cpu", "vm"])
def test_loss_gradients_and_best_paths_are_those_of_all_paths(tmp_path, device):
    (program,) = re.findall(r"```dn\n(model Crf.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "crf.dn").write_text(program)
    compile_model(tmp_path / "crf.dn", tmp_path / "build", ("cpu",), {"tags": TAGS})
    model = dnc.load(tmp_path / "build", device)
    data = [{"words": [{"form": form, "tag": tag} for form, tag in words]} for words in SENTENCES]
    model.attach(data)
    rng = np.random.default_rng(1)
    first = {name: rng.normal(size=each.shape).astype("f4") for name, each in model.parameters().items()}
    model.set_parameters(first)
    best = [best_path(first, [word for word, _ in sentence]) for sentence in SENTENCES]
    assert [list(tags) for tags in model.predict(data)["tags"]] == best
    right = [
        tag == chosen
        for s, b in zip(SENTENCES, best, strict=True)
        for (_, tag), chosen in zip(s, b, strict=True)
    ]
    assert model.evaluate(data).metrics["accuracy"] == pytest.approx(np.mean(right))
    np.testing.assert_allclose(model.evaluate(data).loss, negative_log_likelihood(first), rtol=1e-5)
    model.configure("sgd", 1.0)
    model.step(range(len(data)))
    model.sync()
    exact = {name: each.astype("f8") for name, each in first.items()}
    for name, after in model.parameters().items():
        expected = np.zeros_like(exact[name])
        for place in np.ndindex(*expected.shape):
            for way in (1e-5, -1e-5):
                moved = exact[name].copy()
                moved[place] += way
                expected[place] += negative_log_likelihood({**exact, name: moved}) / (2 * way)
        np.testing.assert_allclose(first[name] - after, expected, atol=2e-6, rtol=1e-4, err_msg=name)
