"""Losses of large logits, and sums of many: what is small beside the largest one is not lost in it."""

from __future__ import annotations

import numpy as np
import pytest

import dnc
from dnc.compiler import compile_model

MODEL = """
model Large(width = 3, classes = 3)
struct Row = Row(x: vector<width>, y: vector<width>, tag: class<classes>)
param unused: [width]
loss   sum(r in root) cross_entropy(r.x, r.tag) + 0 * sum(unused)
metric entropy = mean(r in root) kl_divergence(r.y, r.x)
output p = log_softmax(root.x)
"""


def log_softmax(x):
    x = x.astype("f8")
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


@pytest.mark.parametrize("top", [0.0, 60.0, 3e4, -1e30])
def test_losses_of_large_logits(tmp_path, top):
    (tmp_path / "model.dn").write_text(MODEL)
    compile_model(tmp_path / "model.dn", tmp_path / "build", ("cpu",))
    model = dnc.load(tmp_path / "build", "cpu")
    x = (np.float32(top) + np.array([0.0, -5.5, -7.25], "f4")).astype("f4")
    y = np.array([0.9, 0.0, 0.1])
    row = {"x": x.tolist(), "y": y.tolist(), "tag": 0}
    wanted = log_softmax(x)
    np.testing.assert_allclose(model.predict([row])["p"][0], wanted, rtol=1e-6, atol=2e-7)
    found = model.evaluate([row])
    np.testing.assert_allclose(found.loss, -wanted[0], rtol=1e-6, atol=2e-7)
    some = y.astype("f4").astype("f8")
    divergence = sum(t * (np.log(t) - v) for t, v in zip(some, wanted, strict=True) if t > 0)
    np.testing.assert_allclose(found.metrics["entropy"], divergence, rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("device", ["cpu", "vm"])
@pytest.mark.parametrize("top", [0.0, 60.0, 3e4, -1e30])
def test_gradients_of_large_logits(tmp_path, top, device):
    text = """
model Large(classes = 3)
struct Row = Row(x: vector<classes>, tag: class<classes>)
param b: [classes] = zeros
loss sum(r in all(Row)) cross_entropy(r.x + b, r.tag)
"""
    (tmp_path / "model.dn").write_text(text)
    compile_model(tmp_path / "model.dn", tmp_path / "build", ("cpu",))
    model = dnc.load(tmp_path / "build", device)
    model.configure(optimizer="sgd", learning_rate=1.0)
    x = (np.float32(top) + np.array([0.0, -5.5, -7.25], "f4")).astype("f4")
    model.step([{"x": x.tolist(), "tag": 0}])
    wanted = np.array([1.0, 0.0, 0.0]) - np.exp(log_softmax(x))
    np.testing.assert_allclose(model.parameters()["b"], wanted, rtol=1e-4, atol=1e-7)


def test_many_losses_lose_nothing(tmp_path):
    """20,000 losses that are alike: added up one behind the other, a float's last bit is 4e-3 at the end."""
    text = """
model Many(vocab, classes = 5)
struct Word = Word(form: token<vocab>, tag: class<classes>)
param V: table[vocab, classes] = zeros
loss sum(w in all(Word)) cross_entropy(V[w.form], w.tag)
"""
    (tmp_path / "model.dn").write_text(text)
    compile_model(tmp_path / "model.dn", tmp_path / "build", ("cpu",))
    words = [{"form": "a", "tag": number % 5} for number in range(20_000)]
    model = dnc.load(tmp_path / "build", "cpu")
    model.attach(words)
    found = model.evaluate()
    np.testing.assert_allclose(found.loss, np.log(5), rtol=2e-7)


def test_gradients_of_many_rows_lose_little(tmp_path):
    """20,000 rows that give a bias the same: one behind the other, a float loses 1e-4 of their sum."""
    text = """
model Many(width = 3)
struct Row = Row(x: vector<width>)
param b: [width] = zeros, W: [width, width] = zeros
loss sum(r in all(Row)) sum(r.x * b) + sum(W @ r.x)
"""
    (tmp_path / "model.dn").write_text(text)
    compile_model(tmp_path / "model.dn", tmp_path / "build", ("cpu",))
    model = dnc.load(tmp_path / "build", "cpu")
    model.configure(optimizer="sgd", learning_rate=1.0)
    model.step([{"x": [1.1, 0.3, -0.7]}] * 20_000)
    found = model.parameters()
    np.testing.assert_allclose(found["b"], [-1.1, -0.3, 0.7], rtol=5e-6)
    np.testing.assert_allclose(found["W"], [[-1.1, -0.3, 0.7]] * 3, rtol=5e-6)
