"""Which labels the numbers of predicted classes mean, where several dimensions of classes have one size."""

from __future__ import annotations

import pytest

from dnc.compiler import PlanOptions, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.runtime.data import Vocabulary, read_samples
from dnc.runtime.predictions import named_classes

TEXT = """model M(words, layers = 2, tags = 3, kinds = 3, d = 3)
struct W = W(form: token<words>, layer: index<layers>, tag: class<tags>, kind: class<kinds>)
struct S = S(ws: [W])
param E: table[words, d], U: [d, d], V: [tags, d], K: stack[layers, kinds, d], c: [kinds]
param T: table[words, tags]
fn run(w: W) -> [d] = tanh(U @ run(w.prev) + E[w.form])
fn tag(w: W) -> [tags] = tanh(V @ run(w) + tag(w.next))
fn kind(w: W) -> [kinds] = log_softmax(2 * (K[w.layer] @ run(w)) + c)
loss sum(w in all(W)) cross_entropy(tag(w), w.tag) + cross_entropy(kind(w), w.kind)
output tags = [argmax(tag(w)) for w in all(W)], kinds = [argmax(kind(w)) for w in all(W)]
output words = [argmax(T[w.form]) for w in all(W)], fixed = argmax(c), given = [w.next.tag for w in all(W)]
output hidden = [argmax(run(w)) for w in all(W)], both = [argmax(tag(w) + kind(w)) for w in all(W)]
"""


@pytest.mark.parametrize("without", [(), ("inline",), ("hoist",), ("inline", "hoist", "canonicalize")])
def test_rows_of_parameters_say_which_classes(without: tuple[str, ...]) -> None:
    program, _ = load_program(Source("m.dn", TEXT), {})
    program = transform(program, PlanOptions(without=without))
    words = {"tag": ("D", "N", "V"), "kind": ("a", "b", "c")}
    samples = [
        {"ws": [{"form": "x", "layer": 0, "tag": tag, "kind": kind}]}
        for tag, kind in zip(words["tag"], words["kind"], strict=True)
    ]
    known: dict[str, Vocabulary] = read_samples(samples, program).vocabularies
    tags, kinds = known["tags"].words, known["kinds"].words
    expected = {"tags": tags, "words": tags, "given": tags, "kinds": kinds, "fixed": kinds}
    assert named_classes(program, known) == expected
