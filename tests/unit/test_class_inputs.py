"""Classes that outputs are worked out from: they have to be there to predict, and to be known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dnc
from dnc.compiler import PlanOptions, compile_model, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.runtime.data import layout_of, read_samples
from tests.support.models import EXAMPLES, SUPPORT

CHOSEN = """model P(kinds = 3, d = 4)
struct V = V(kind: class<kinds>, x: float, y: float)
param K: [kinds, d] = normal(0.5), v: [d] = normal(0.5)
fn value(t: V) = sum(v * K[t.kind]) * t.x
loss sum(t in root) squared_error(value(t), t.y)
output value = value(root)
"""
DECODER = (SUPPORT / "decoder.dn").read_text()
FORMS = {("Target", "form")}
# A class of every word, one that is the target, and one that nothing but a metric reads.
WORDS = """model Q(kinds = 3, tags = 2, d = 4)
struct W = W(kind: class<kinds>, tag: class<tags>, seen: class<tags>)
struct S = S(ws: [W], topic: class<kinds>)
param K: [kinds, d] = normal(0.5), U: [d, d], V: [tags, d]
fn run(w: W) -> [d] = tanh(U @ run(w.prev) + K[w.kind])
fn score(w: W) = V @ run(w)
loss sum(w in all(W)) cross_entropy(score(w), w.tag)
metric hit = mean(w in all(W)) w.seen == w.tag
output tags = [argmax(score(w)) for w in all(W)]
OUTPUT
"""


def layout(text: str, options: PlanOptions | None = None, **sizes: int) -> Any:
    program, _ = load_program(Source("m.dn", text), sizes)
    return layout_of(program if options is None else transform(program, options), labels_required=False)


EVERY = [None, *(PlanOptions(mode=mode) for mode in ("train", "infer"))]
EVERY += [PlanOptions(without=("inline", "hoist")), PlanOptions(without=("canonicalize", "share", "merge"))]


@pytest.mark.parametrize("options", EVERY)
@pytest.mark.parametrize(
    ("text", "inputs", "root_inputs"),
    [
        (CHOSEN, set(), {"kind"}),
        (WORDS.replace("OUTPUT", ""), {("W", "kind")}, set()),
        (WORDS.replace("OUTPUT", "output given = [w.tag for w in all(W)]"), {("W", "kind")}, set()),
        (WORDS.replace("OUTPUT", "output far = V @ K[root.topic]"), {("W", "kind")}, {"topic"}),
        (
            WORDS.replace("OUTPUT", "output far = [V @ K[w.parent.topic] for w in all(W)]"),
            {("W", "kind"), ("S", "topic")},
            set(),
        ),
        (
            WORDS.replace("OUTPUT", "output right = [argmax(score(w)) == w.tag for w in all(W)]"),
            {("W", "kind")},
            set(),
        ),
        (
            WORDS.replace("output tags", "output right")
            .replace("[argmax(score(w))", "[argmax(score(w)) == w.tag")
            .replace("OUTPUT", "output given = [w.tag for w in all(W)]"),
            {("W", "kind"), ("W", "tag")},
            set(),
        ),
        (DECODER, set(), set()),
        (DECODER.replace("output words = [argmax(scores(w)) for w in all(Target)]\n", ""), FORMS, set()),
    ],
)
def test_which_classes_outputs_are_worked_out_from(
    text: str, inputs: set[Any], root_inputs: set[str], options: PlanOptions | None
) -> None:
    """Not the targets of losses and metrics, unless every output reads them, and not those that an output
    hands out as they are."""
    found = layout(text, options)
    assert (found.inputs, found.root_inputs) == (inputs, root_inputs)


def test_targets_of_recursions_that_only_a_loss_reads() -> None:
    text = (EXAMPLES / "crf_tagger.dn").read_text()
    found = layout(text, PlanOptions(), embed=4, hidden=4)
    assert (found.inputs, found.root_inputs) == (set(), set())


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"x": 1}, "V: field 'kind' is missing"),
        ({"kind": None, "x": 1}, "V: field 'kind' is missing"),
        (
            {"kind": "mull", "x": 1},
            "field 'kind' is \"mull\", which is no label of 'kinds'; did you mean 'mul'?",
        ),
        ({"V": {"x": [1]}, "root": 0}, "V: field 'kind' is missing"),
        ({"kind": "mul"}, "V: field 'x' is missing"),
    ],
)
def test_at_the_root(sample: dict[str, Any], message: str) -> None:
    program, _ = load_program(Source("p.dn", CHOSEN), {})
    known = read_samples([{"kind": kind, "x": 1, "y": 1} for kind in ("add", "mul")], program).vocabularies
    good = {"kind": "mul", "x": 1}
    assert read_samples([good], program, known, labels_required=False).samples == 1
    with pytest.raises(DiagnosticError) as caught:
        read_samples([good, sample], program, known, labels_required=False)
    assert str(caught.value).splitlines()[0] == f"samples:2: error: {message}"


def test_at_every_vertex() -> None:
    program, _ = load_program(Source("q.dn", WORDS.replace("OUTPUT", "output far = V @ K[root.topic]")), {})
    word = {"kind": "n", "tag": "A", "seen": "A"}
    known = read_samples([{"ws": [word], "topic": "n"}], program).vocabularies
    bare = {"kind": "n"}

    def read(words: list[Any], **rest: Any) -> Any:
        return read_samples([{"ws": words, **rest}], program, known, labels_required=False)

    data = read([bare, {**bare, "tag": "new"}], topic="n")
    assert data.forest.tables["W"].data["tag"].tolist() == [-1, -1]
    for words, rest, message in (
        ([bare, {}], {"topic": "n"}, "ws[1]: W: field 'kind' is missing"),
        ([bare, {"kind": None}], {"topic": "n"}, "ws[1]: W: field 'kind' is null"),
        ([bare, {"kind": "v"}], {"topic": "n"}, "ws[1].kind is \"v\", which is no label of 'kinds'"),
        ([bare], {}, "S: field 'topic' is missing"),
        ([bare], {"topic": "v"}, "field 'topic' is \"v\", which is no label of 'kinds'"),
    ):
        with pytest.raises(DiagnosticError) as caught:
            read(words, **rest)
        assert str(caught.value).startswith(f"samples:1: error: {message}")


def test_the_command_refuses_them(command, workplace: Path) -> None:
    (workplace / "p.dn").write_text(CHOSEN)
    compile_model("p.dn", "p", ("cpu",))
    train = [{"kind": kind, "x": 1, "y": y} for kind, y in (("add", 1), ("mul", 2), ("neg", 3))]
    for name, samples in (("train", train), ("new", [{"kind": "mul", "x": 1}, {"kind": "mull", "x": 1}])):
        (workplace / f"{name}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in samples))
    assert command("run p --data train.jsonl --device vm --run-dir r").code == 0
    done = command("run p --data new.jsonl --device vm --run-dir r --predict -")
    assert done.code == 2 and not done.out
    assert "new.jsonl:2: error: field 'kind' is \"mull\", which is no label of 'kinds'" in done.error
    done = command("check p.dn --data new.jsonl --no-labels")
    assert done.code == 0  # without a run nobody knows which labels there are
    (workplace / "new.jsonl").write_text('{"x":1}\n{"x":2,"kind":"mul"}\n')
    for line in ("run p --device vm --run-dir r --predict -", "check p.dn --no-labels"):
        done = command(f"{line} --data new.jsonl")
        assert done.code == 2 and "new.jsonl:1: error: V: field 'kind' is missing" in done.error
    model = dnc.load("p", "vm", checkpoint="r/last.safetensors")
    assert len(model.predict([{"kind": "add", "x": 1}])["value"]) == 1
    with pytest.raises(DiagnosticError, match="V: field 'kind' is missing"):
        model.predict([{"x": 1}])


def test_a_list_whose_elements_need_one_is_not_made(workplace: Path) -> None:
    text = """model G(words = 3, d = 2)
struct W = W(word: class<words>)
struct S = S(ws: [W], x: vector<d>)
param K: [words, d] = normal(0.5), V: [words, d] = normal(0.5)
fn h(w: W) -> [d] = tanh(K[w.prev.word] + h(w.prev) + w.parent.x)
loss sum(w in all(W)) cross_entropy(V @ h(w), w.word)
output next = [argmax(V @ h(w)) for w in all(W)]
"""
    (workplace / "g.dn").write_text(text)
    compile_model("g.dn", "g", ("cpu",))
    model = dnc.load("g", "vm")
    model.attach([{"ws": [{"word": 1}], "x": [0, 0]}])
    with pytest.raises(DiagnosticError) as caught:
        model.generate([{"x": [1, 1]}], 0)
    first, second = str(caught.value).splitlines()
    assert "'ws' cannot be made: data give every W its word" in first
    assert "a class that every output reads is none that is made" in second
