"""Losses of many classes, whose gradient workers share out by units: each has the number of a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dnc
from dnc.compiler import compile_model
from dnc.ir.plan import UNIT

TEXT = """
model Words(vocab = 600, hidden = 16)
struct Word     = Word(form: token<vocab>)
struct Sentence = Sentence(words: [Word])
param E: table[vocab, hidden] = normal(0.5), V: [vocab, hidden] = normal(0.5), b: [vocab]
fn logits(w: Word) = V @ tanh(E[w.form]) + b
loss sum(w in all(Word)) cross_entropy(logits(w), CLASS)
"""


@pytest.mark.parametrize("which", ["w.next.form", "argmax(logits(w.prev))"])
def test_the_gradient_of_many_classes(tmp_path: Path, which: str) -> None:
    (tmp_path / "model.dn").write_text(TEXT.replace("CLASS", which))
    compile_model(tmp_path / "model.dn", tmp_path / "build", ("cpu",))
    random = np.random.default_rng(3)
    words = [{"words": [{"form": f"w{n}"} for n in random.integers(0, 40, 7)]} for _ in range(3)]
    found = {}
    for device in ("cpu", "vm"):
        model = dnc.load(tmp_path / "build", device)
        model.configure(optimizer="sgd", learning_rate=1.0)
        model.attach(words)
        model.step(words)
        found[device] = model.parameters()
    turned = [segment for segment in model.plan.segments if segment.transposed]
    assert [segment.mapping for segment in turned] == [UNIT]
    for name, value in found["vm"].items():
        np.testing.assert_allclose(found["cpu"][name], value, rtol=1e-4, atol=1e-6, err_msg=name)
