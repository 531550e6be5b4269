"""Losses of large logits: what is small beside the largest one is not lost in it."""

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
