"""Weights of losses, of a term and of single vertices, against the closed form of value and gradient."""

from __future__ import annotations

import numpy as np
import pytest

import dnc
import dnc.kernel_cache
from dnc.compiler import compile_model

MODEL = """
model Weighted(vocab, width = 3, classes = 4)
struct Word = Word(form: token<vocab>, tag: class<classes>, weight: float)
struct Text = Text(words: [Word], x: vector<width>, y: float, weight: float)
param E: table[vocab, width] = normal(1)
param V: [classes, width], b: [classes] = normal(1), a: [width] = normal(1)
loss   0.5 * sum(w in all(Word)) w.weight * cross_entropy(V @ E[w.form] + b, w.tag)
loss   -3 * sum(t in root) squared_error(sum(a * t.x), t.y) * (t.weight / 2)
metric weighted = mean(w in all(Word)) w.weight * cross_entropy(V @ E[w.form] + b, w.tag)
"""


@pytest.fixture(params=["vm", "cpu"])
def model(request, tmp_path, monkeypatch):
    """The model on a device, with its data attached."""
    if request.param == "vm":
        monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
        monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "model.dn").write_text(MODEL)
    compile_model(tmp_path / "model.dn", tmp_path / "build", ("cpu",))
    model = dnc.load(tmp_path / "build", request.param)
    model.attach(data())
    return model


def data():
    """Texts whose weights are of every kind: large, fractional, zero, negative."""
    random = np.random.default_rng(4)
    weights = [0.0, 1.0, 2.5, 1e-3, -1.0, 40.0]
    return [
        {
            "words": [
                {
                    "form": int(random.integers(5)),
                    "tag": int(random.integers(4)),
                    "weight": random.choice(weights),
                }
                for _ in range(random.integers(1, 6))
            ],
            "x": random.normal(size=3).tolist(),
            "y": float(random.normal()),
            "weight": random.choice(weights),
        }
        for _ in range(7)
    ]


def closed_form(values, samples):
    """The loss of a batch, its gradients, and the metric."""
    p = {name: value.astype(np.float64) for name, value in values.items()}
    gradients = {name: np.zeros_like(value) for name, value in p.items()}
    loss, measured = 0.0, []
    for sample in samples:
        for word in sample["words"]:
            x = p["E"][word["form"]]
            logits = p["V"] @ x + p["b"]
            q = np.exp(logits) / np.exp(logits).sum()
            measured.append(-word["weight"] * np.log(q[word["tag"]]))
            loss += 0.5 * measured[-1]
            delta = 0.5 * word["weight"] * (q - np.eye(4)[word["tag"]])
            gradients["V"] += np.outer(delta, x)
            gradients["b"] += delta
            gradients["E"][word["form"]] += p["V"].T @ delta
        error = p["a"] @ np.array(sample["x"]) - sample["y"]
        loss += -3 * error**2 * sample["weight"] / 2
        gradients["a"] += -3 * 2 * error * np.array(sample["x"]) * sample["weight"] / 2
    return loss / len(samples), {n: g / len(samples) for n, g in gradients.items()}, np.mean(measured)


def test_value_and_gradient(model):
    before, samples, rate = model.parameters(), data(), 2.0**-6
    loss, gradients, measured = closed_form(before, samples)
    found = model.evaluate()
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert found.metrics["weighted"] == pytest.approx(measured, rel=1e-5)
    model.configure("sgd", rate)
    model.step(range(7))
    assert model.sync() == pytest.approx(loss, rel=1e-5)
    for name, after in model.parameters().items():
        change = (before[name].astype(np.float64) - after) / rate
        assert np.linalg.norm(gradients[name]) > 0.1
        np.testing.assert_allclose(
            change, gradients[name], rtol=1e-4, atol=2e-5 * np.abs(gradients[name]).max()
        )
