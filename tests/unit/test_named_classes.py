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


ONE = """model M(words, tags = 4, d = 4)
struct W = W(form: token<words>, tag: class<tags>, x: vector<tags>)
struct S = S(ws: [W])
param E: table[words, d], U: [4 * d, 2 * d], V: [tags, d], b: [tags], F: [4, d], C: [tags, d]
param D: [2 * tags, d]
state P = (h: [d], c: [d])
cell lstm(x: [d], p: P) -> P:
    i, o, u, f = split(U @ concat(x, p.h), 4)
    c = sigmoid(i) * tanh(u) + sigmoid(f) * p.c
    h = sigmoid(o) * tanh(c)
fn run(w: W) -> P = lstm(E[w.form], run(w.prev))
fn hidden(w: W) = run(w).h
fn score(w: W) = log_softmax(V @ hidden(w) + b)
cell first(x: [d]) -> [tags]:
    a, _ = split(D @ x, 2)
    2 * a
fn halved(w: W) = first(hidden(w))
loss sum(w in all(W)) cross_entropy(score(w), w.tag)
output tags = [argmax(score(w)) for w in all(W)], halves = [argmax(halved(w)) for w in all(W)]
output sums = argmax(sum(score(w) for w in root.ws)), given = [w.tag for w in all(W)]
output seen = argmax(attend(hidden(root.ws.last), hidden(w), score(w) for w in root.ws))
output numbered = [argmax(F @ hidden(w)) for w in all(W)], data = [argmax(w.x) for w in all(W)]
output hidden = [argmax(run(w).h) for w in all(W)], cells = [argmax(run(w).c) for w in all(W)]
output row = [argmax(C[w.tag]) for w in all(W)], embedded = [argmax(E[w.form]) for w in all(W)]
output both = argmax(attend(hidden(root.ws.last), score(w), hidden(w) for w in root.ws))
"""


@pytest.mark.parametrize("without", [(), ("inline",), ("hoist",), ("inline", "hoist", "canonicalize")])
def test_vectors_of_as_many_elements_that_are_no_classes(without: tuple[str, ...]) -> None:
    """Hidden units stay numbers, though there are as many of them; sizes that are numbers say nothing."""
    program, _ = load_program(Source("m.dn", ONE), {})
    program = transform(program, PlanOptions(without=without))
    words = [{"form": "x", "tag": tag, "x": [0, 0, 0, 0]} for tag in "ABCD"]
    known = read_samples([{"ws": words}], program).vocabularies
    assert set(named_classes(program, known)) == {
        "tags", "halves", "sums", "given", "seen", "numbered", "data"
    }  # fmt: skip
