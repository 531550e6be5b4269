"""Tokens and classes that may be missing, `class<tags>?`: they cost nothing, and no metric counts them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dnc.diagnostics import DiagnosticError, Source
from dnc.editing import texts
from dnc.frontend.build import load_program
from dnc.ir.parser import parse_program
from dnc.ir.printer import print_program
from dnc.runtime.data import describe, layout_of, read_samples, summarize
from tests.support.models import opened

TEXT = """model M(vocab, kinds = 3, classes = 3, d = 4)
struct Tree = Leaf(word: token<vocab>?, kind: class<kinds>?, label: class<classes>?)
            | Node(left: Tree, right: Tree, label: class<classes>?)
param E: table[vocab, d], K: [kinds, d], U: [d, 2 * d], V: [classes, d]
fn encode(t: Tree) -> [d] = match t:
    Leaf(word, kind, ...)  -> tanh(E[word] + K[kind])
    Node(left, right, ...) -> tanh(U @ concat(encode(left), encode(right)))
fn logits(t: Tree) = V @ encode(t)
loss    sum(t in all(Tree)) cross_entropy(logits(t), t.label)
metric  accuracy = mean(t in all(Tree)) argmax(logits(t)) == t.label
metric  macro = macro_f1(t in all(Tree)) argmax(logits(t)), t.label
output  p = [softmax(logits(t)) for t in all(Tree)], given = [t.label for t in all(Tree)]
output  leaf = [encode(t) for t in all(Tree.Leaf)]
"""
SAMPLES: list[dict[str, Any]] = [
    {"left": {"word": "a", "kind": 2, "label": 0}, "right": {"kind": 1}, "label": 2},
    {"left": {"word": "a", "label": None}, "right": {"word": "b", "kind": None, "label": 1}},
    {"left": {"word": "c"}, "right": {"left": {}, "right": {"word": "b"}}},
    {
        "Tree": {
            "arm": ["Leaf", "Leaf", "Node"],
            "word": ["a", None, None],
            "left": [None, None, 0],
            "right": [None, None, 1],
            "label": [None, 2, 1],
        },
        "root": 2,
    },
]
LABELS = [[0, -1, 2], [-1, 1, -1], [-1] * 5, [-1, 2, 1]]
FULL = [{"word": word, "kind": kind, "label": kind} for word, kind in zip("abc", (0, 1, 2), strict=True)]


def program(text: str = TEXT):
    return load_program(Source("m.dn", text), {})[0]


def test_what_is_missing_is_so_in_both_forms():
    table = read_samples(SAMPLES, program()).forest.tables["Tree"]
    assert table.data["label"].tolist() == [each for labels in LABELS for each in labels]
    leaves = table.arm == 0
    assert (table.data["word"][leaves] >= 0).tolist() == [1, 0, 1, 1, 1, 0, 1, 1, 0]
    assert table.data["kind"][leaves].tolist() == [2, 1, -1, -1, -1, -1, -1, -1, -1]


def test_a_summary_counts_what_is_missing():
    lines = summarize(read_samples(SAMPLES, program())).splitlines()
    assert [line.strip() for line in lines if "missing" in line] == [
        "Tree.word: 3 of 9 are missing",
        "Tree.kind: 7 of 9 are missing",
        "Tree.label: 9 of 14 are missing",
    ]


def test_a_run_notes_what_no_vertex_has(tmp_path, command):
    opened(tmp_path, TEXT, "vm")
    told = []
    for number, leaf in enumerate(({"word": "a"}, FULL[0])):
        data = tmp_path / f"{number}.jsonl"
        data.write_text(json.dumps({"left": leaf, "right": {"word": "b"}}))
        done = command(f"run {tmp_path / 'b'} --data {data} --device vm --run-dir {tmp_path / str(number)}")
        assert done.code == 0
        told.append([line for line in done.error.splitlines() if "missing" in line])
    missing = f"is missing at all {{}} vertices of {tmp_path / '0.jsonl'}"
    assert told == [
        [f"note: Tree.kind {missing.format(2)}", f"note: Tree.label {missing.format(3)}"],
        [],
    ]


def test_fields_that_no_arm_needs():
    text = """model A(k = 2)
struct W = A(x: class<k>?, t: class<k>?) | B(y: class<k>?, t: class<k>?)
struct S = S(ws: [W])
param q: [k]
loss sum(w in all(W)) cross_entropy(q, w.t)
"""
    with pytest.raises(DiagnosticError, match="A may have 'x', 't'; B may have 'y', 't'"):
        read_samples([{"ws": [{"x": 1, "y": 1}]}], program(text))


@pytest.mark.parametrize("kind", ["token", "class"])
def test_what_outputs_read_is_not_made(tmp_path, kind):
    """Each step would read that it is missing, and never what was chosen."""
    shape = "table[vocab, d]" if kind == "token" else "[vocab, d]"
    text = f"""model G(vocab = 4, d = 3)
struct Word = Word(form: {kind}<vocab>?, seen: class<vocab>?)
struct Text = Text(words: [Word])
param E: {shape}, V: [vocab, d]
fn h(w: Word) -> [d] = tanh(h(w.prev) + E[w.prev.form])
loss sum(w in all(Word)) cross_entropy(V @ h(w), w.seen)
output words = [argmax(V @ h(w)) for w in all(Word)]
"""
    model = opened(tmp_path, text, "vm")
    model.attach([{"words": [{"form": 1, "seen": 2}, {}]}])
    with pytest.raises(DiagnosticError, match="'words' cannot be made: data give every Word its form"):
        model.generate([{}], 0)


def test_without_the_mark_nothing_may_be_missing():
    for declared in ("label: class<classes>", "word: token<vocab>"):
        with pytest.raises(DiagnosticError, match=f"field '{declared[:5].strip(':')}.*' is (missing|null)"):
            read_samples(SAMPLES, program(TEXT.replace(f"{declared}?", declared)))


def test_another_label_is_a_mistake_all_the_same():
    with pytest.raises(DiagnosticError, match=r"is 3, but class<classes> has 0\.\.2"):
        read_samples([{"word": "a", "label": 3}], program())
    with pytest.raises(DiagnosticError, match="must be a whole number or a label, found an array"):
        read_samples([{"word": "a", "label": []}], program())


def test_it_is_written_as_it_was_read():
    text = print_program(program())
    assert "label: class<classes = 3>?" in text and "word: token<vocab = open>?" in text
    assert print_program(parse_program(text)) == text
    assert "Leaf(word: token<vocab>?, kind: class<kinds = 3>?, label: class<classes = 3>?)" in describe(
        program()
    )
    fields = layout_of(program()).structs["Tree"].fields
    shown = [texts.field(field) for field in fields.values() if field.dimension is not None]
    assert shown == ["word: token<vocab>?", "kind: class<kinds>? = 3", "label: class<classes>? = 3"]
    assert [name for name, field in fields.items() if field.may_miss] == ["word", "kind", "label"]


@pytest.mark.parametrize("device", ["vm", "cpu"])
def test_losses_metrics_and_rows(tmp_path, device):
    model = opened(tmp_path, TEXT, device)
    model.attach([*SAMPLES, *FULL])
    found = model.predict()
    assert [each.tolist() for each in found["given"][:4]] == LABELS
    labels = [*LABELS, [0], [1], [2]]
    right, hits = [], []
    for p, own in zip(found["p"], labels, strict=True):
        known = np.array(own) >= 0
        right += np.log(p[known, np.array(own)[known]]).tolist()
        hits += (p[known].argmax(1) == np.array(own)[known]).tolist()
    measured = model.evaluate()
    assert measured.loss == pytest.approx(-sum(right) / len(labels), rel=1e-5)
    assert measured.metrics["accuracy"] == pytest.approx(sum(hits) / len(hits))
    assert np.abs(found["leaf"][2][1]).max() == 0  # neither a word nor a kind
    E, K = model.parameters()["E"], model.parameters()["K"]
    assert np.allclose(found["leaf"][0][1], np.tanh(K[1]), atol=1e-6)
    word = model.vocabularies["vocab"].index["a"]
    assert np.allclose(found["leaf"][1][0], np.tanh(E[word]), atol=1e-6)


@pytest.mark.parametrize("device", ["vm", "cpu"])
def test_nothing_is_learned_from_what_is_not_there(tmp_path, device):
    model = opened(tmp_path, TEXT, device)
    model.attach([*SAMPLES, *FULL])
    before = {name: value.copy() for name, value in model.parameters().items()}
    model.step([2])
    assert model.sync() == 0  # no label at all
    assert all(np.array_equal(before[name], value) for name, value in model.parameters().items())
    model.step([0])
    model.sync()
    moved = np.abs(model.parameters()["E"] - before["E"]).max(1) > 0
    assert np.flatnonzero(moved).tolist() == [model.vocabularies["vocab"].index["a"]]
    moved = np.abs(model.parameters()["K"] - before["K"]).max(1) > 0
    assert moved.tolist() == [False, True, True]
    losses = []
    for _ in range(60):
        model.step([0, 1, 3])
        losses.append(model.sync())
    assert losses[-1] < 0.5 * losses[0]


def test_entities_and_the_word_behind(tmp_path):
    text = """model T(vocab, tags = 3, d = 3)
struct Word = Word(form: token<vocab>, tag: class<tags>?)
struct Text = Text(words: [Word])
param E: table[vocab, d], V: [tags, d]
fn score(w: Word) = V @ E[w.form]
loss   sum(w in all(Word)) cross_entropy(score(w), w.tag)
metric entities = f1(w in all(Word)) argmax(score(w)), w.tag
metric behind = mean(w in all(Word)) w.next.tag == w.tag
"""
    model = opened(tmp_path, text, "vm")
    tags = ["B-X", None, "B-X", "O", "I-X", None]
    model.attach([{"words": [{"form": "a", "tag": tag} for tag in tags]}])
    measured = model.evaluate()
    assert measured.metrics["behind"] == 0.0  # of the two pairs that are known, none alike
    assert np.isfinite(measured.metrics["entities"]) and measured.samples == 1
    model.attach([{"words": [{"form": "a"}]}])
    assert np.isnan(model.evaluate().metrics["behind"])
