"""What was chosen before the first word: zeros by a function of that word, row 0 by its scores."""

from __future__ import annotations

import numpy as np

import dnc
from dnc.compiler import compile_model

TEXT = """
model First(vocab = 4, hidden = 3)
struct Word = Word(form: class<vocab>)
struct Text = Text(words: [Word])
param E: [vocab, hidden], V: [vocab, hidden]
fn scores(w: Word) = V @ E[w.form]
fn chosen(w: Word) -> [hidden] = E[argmax(scores(w))]
loss sum(w in all(Word)) cross_entropy(scores(w), w.form)
output called = [chosen(w.prev) for w in all(Word)]
output read = [E[argmax(scores(w.prev))] for w in all(Word)]
output taught = [E[w.prev.form] for w in all(Word)]
"""


def test_what_was_chosen_before_the_first_word(tmp_path):
    (tmp_path / "first.dn").write_text(TEXT)
    compile_model(tmp_path / "first.dn", tmp_path / "build", ("cpu",))
    model = dnc.load(tmp_path / "build", "vm")
    found = model.predict([{"words": [{"form": 2}, {"form": 1}]}])
    rows = model.parameters()["E"]
    choice = rows[np.argmax(model.parameters()["V"] @ rows[2])]
    np.testing.assert_array_equal(found["called"][0], [np.zeros(3), choice])
    np.testing.assert_array_equal(found["read"][0], [rows[0], choice])
    np.testing.assert_array_equal(found["taught"][0], [np.zeros(3), rows[2]])
