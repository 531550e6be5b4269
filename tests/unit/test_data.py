"""Reading data: both forms, the order of vertices, labels, vectors, what `describe` shows."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from dnc.diagnostics import DiagnosticError
from dnc.ir.program import Program
from dnc.ir.structure import Dimension
from dnc.runtime.data import describe, examples, read, read_samples, summarize
from tests.support.data_programs import (
    ALL_PROGRAMS,
    ARITY,
    GATES,
    MUTUAL,
    SENTENCE,
    SPEECH,
    TREE,
    TWINS,
    child,
    children,
    contents,
    label,
    optional,
    program,
    struct,
    token,
    write,
)

NESTED = {
    "left": {"word": "b", "label": 1},
    "right": {"left": {"word": "a", "label": 2}, "right": {"word": "b", "label": 3}, "label": 4},
    "label": 0,
}
FLAT = {
    "Tree": {
        "arm": ["Leaf", "Leaf", "Leaf", "Node", "Node"],
        "word": ["b", "a", "b", None, None],
        "label": [1, 2, 3, 4, 0],
        "left": [None, None, None, 1, 0],
        "right": [None, None, None, 2, 3],
    },
    "root": 4,
}


@pytest.mark.parametrize("sample", [NESTED, FLAT], ids=["nested", "flat"])
def test_tree(tmp_path: Path, sample: dict) -> None:
    data = read(write(tmp_path / "t.jsonl", sample, "", sample), TREE)
    table = data.forest.tables["Tree"]
    assert data.samples == 2 and data.lines == (1, 3)
    assert table.begin.tolist() == [0, 5, 10]
    assert table.arm[:5].tolist() == [0, 0, 0, 1, 1]
    assert data.vocabularies["vocab"].words == ("<unk>", "b", "a")
    assert table.data["word"][:5].tolist() == [1, 2, 1, -1, -1]
    assert table.data["label"][:5].tolist() == [1, 2, 3, 4, 0]
    assert table.children["left"].tolist() == [-1, -1, -1, 1, 0, -1, -1, -1, 6, 5]
    assert table.children["right"][3:5].tolist() == [2, 3]
    assert table.parent.tolist() == [4, 3, 3, 4, -1, 9, 8, 8, 9, -1]
    assert data.forest.roots.tolist() == [4, 9]


def test_flat_vertices_may_stand_in_any_order() -> None:
    shuffled = {
        "Tree": {
            "arm": ["Node", "Leaf", "Node", "Leaf", "Leaf"],
            "word": [None, "b", None, "b", "a"],
            "label": [0, 1, 4, 3, 2],
            "left": [1, None, 4, None, None],
            "right": [2, None, 3, None, None],
        },
        "root": 0,
    }
    assert contents(read_samples([shuffled], TREE).forest) == contents(read_samples([NESTED], TREE).forest)


def test_list_and_neighbours() -> None:
    words = [{"form": form, "tag": tag} for form, tag in (("the", "D"), ("dog", "N"), ("the", "D"))]
    data = read_samples([{"words": words, "label": 1}, {"words": words[:1], "label": 0}], SENTENCE)
    word = data.forest.tables["Word"]
    assert word.previous.tolist() == [-1, 0, 1, -1]
    assert word.next.tolist() == [1, 2, -1, -1]
    begin, entries = data.forest.tables["Sentence"].lists["words"]
    assert begin.tolist() == [0, 3, 4] and entries.tolist() == [0, 1, 2, 3]
    assert data.vocabularies["tags"].words == ("D", "N")
    assert word.data["tag"].tolist() == [0, 1, 0, 0]
    assert word.data["form"].tolist() == [1, 2, 1, 1]


def test_empty_list_is_a_leaf() -> None:
    data = read_samples([{"word": "a", "children": [{"word": "b", "children": []}]}], ARITY)
    assert data.forest.tables["Tree"].parent.tolist() == [1, -1]


def test_shared_vertex_and_missing_optional_child() -> None:
    sample = {
        "Gate": {
            "arm": ["Source", "Join", "Join"],
            "x": [[1, 2.5], [0, 0], [0, 1]],
            "target": [0.5, 1, -2],
            "a": [None, 0, 1],
            "b": [None, None, 0],
        },
        "root": 2,
    }
    gate = read_samples([sample], GATES).forest.tables["Gate"]
    assert gate.children["a"].tolist() == [-1, 0, 1]
    assert gate.children["b"].tolist() == [-1, -1, 0]
    assert gate.data["x"].tolist() == [[1, 2.5], [0, 0], [0, 1]]
    assert gate.data["target"].tolist() == [[0.5], [1], [-2]]


def test_parent_of_a_shared_vertex_is_the_first_in_the_file() -> None:
    """Also where the file has parents before their children, and the tables another order."""
    sample = {
        "Gate": {
            "arm": ["Join", "Join", "Source", "Join", "Source"],
            "x": [[row, 0] for row in range(5)],
            "target": [0, 0, 0, 0, 0],
            "a": [3, 4, None, 2, None],
            "b": [1, 2, None, 4, None],
        },
        "root": 0,
    }
    later = {"Gate": {key: column[2:3] for key, column in sample["Gate"].items()}, "root": 0}
    gate = read_samples([later, sample], GATES).forest.tables["Gate"]
    parents = {
        x: gate.data["x"][at, 0] if at >= 0 else None
        for x, at in zip(gate.data["x"][:, 0].tolist(), gate.parent.tolist(), strict=True)
    }
    assert parents == {0: None, 1: 0, 2: 1, 3: 0, 4: 1}


@pytest.mark.parametrize("missing", [{}, {"b": None}])
def test_optional_child_may_be_null_or_left_out(missing: dict) -> None:
    source = {"x": [1, 2], "target": 0}
    gate = read_samples([{"a": source, "x": [3, 4], "target": 1} | missing], GATES).forest.tables["Gate"]
    assert gate.arm.tolist() == [0, 1] and gate.children["b"].tolist() == [-1, -1]


def test_arm_key_says_which() -> None:
    one = {"value": 1}
    expression = {"arm": "Product", "a": one, "b": {"arm": "Sum", "a": one, "b": one}}
    assert read_samples([expression], TWINS).forest.tables["Expr"].arm.tolist() == [0, 0, 0, 1, 2]


def test_frames_of_numbers() -> None:
    frame = {"x": [1, 2, 3e-50], "energy": 7}
    table = read_samples([{"frames": [frame], "label": 0}], SPEECH).forest.tables["Frame"]
    assert table.data["x"].shape == (1, 3) and table.data["energy"].tolist() == [[7]]


def test_mutual_structs_in_both_forms() -> None:
    noun = {"word": "a"}
    inner = {"nouns": [{"word": "b"}], "label": 1}
    nested = {"nouns": [noun, {"word": "c", "clause": inner}], "then": {"nouns": [], "label": 2}, "label": 0}
    flat = {
        "Noun": {"word": ["a", "c", "b"], "clause": [None, 1, None]},
        "Clause": {"nouns": [[0, 1], [2], []], "then": [2, None, None], "label": [0, 1, 2]},
        "root": 0,
    }
    assert contents(read_samples([flat], MUTUAL).forest) == contents(read_samples([nested], MUTUAL).forest)


def test_unlabelled_data() -> None:
    bare = {"left": {"word": "a"}, "right": {"word": "b", "label": None}}
    with pytest.raises(DiagnosticError, match="field 'label' is missing"):
        read_samples([bare], TREE)
    table = read_samples([bare], TREE, labels_required=False).forest.tables["Tree"]
    assert table.data["label"].tolist() == [-1, -1, -1]
    flat = {"Tree": {**FLAT["Tree"], "label": [None, 1, None, None, None]}, "root": 4}
    table = read_samples([flat], TREE, labels_required=False).forest.tables["Tree"]
    assert table.data["label"].tolist() == [-1, 1, -1, -1, -1]


def test_tokens_as_numbers() -> None:
    data = read_samples([{"word": 7, "label": 1}, {"word": 2, "label": 1}], TREE)
    assert data.vocabularies["vocab"].words is None and len(data.vocabularies["vocab"]) == 8
    assert data.forest.tables["Tree"].data["word"].tolist() == [7, 2]


def test_fixed_token_dimension_keeps_the_most_frequent() -> None:
    small = program(struct("Word", Word=[token("form", Dimension("vocab", 3))]))
    data = read_samples([{"form": form} for form in "cbacbaba"], small)
    assert data.vocabularies["vocab"].words == ("<unk>", "a", "b")
    assert data.forest.tables["Word"].data["form"].tolist() == [0, 2, 1, 0, 2, 1, 2, 1]


def test_a_field_may_be_called_root() -> None:
    odd = program(struct("Word", Word=[token("root")]))
    assert read_samples([{"root": "a"}, {"Word": {"root": ["b"]}, "root": 0}], odd).samples == 2


@pytest.mark.parametrize("deep", [100_000])
def test_deep_chain(tmp_path: Path, deep: int) -> None:
    flat = {
        "Tree": {"word": ["w"] * deep, "children": [[], *([index] for index in range(deep - 1))]},
        "root": deep - 1,
    }
    data = read(write(tmp_path / "deep.jsonl", flat), ARITY)
    assert data.forest.tables["Tree"].parent[:3].tolist() == [1, 2, 3]
    flat["Tree"]["children"] = [*([index + 1] for index in range(deep - 1)), []]
    flat["root"] = 0
    assert contents(read_samples([flat], ARITY).forest) == contents(data.forest)
    assert f"depth of Tree: mean {deep - 1}.0, at most {deep - 1}" in summarize(data)


@pytest.mark.parametrize("name", ALL_PROGRAMS)
def test_examples_read_back(tmp_path: Path, name: str) -> None:
    model = ALL_PROGRAMS[name]
    nested, flat = examples(model)
    assert nested in describe(model) and flat in describe(model)
    one, other = read(write(tmp_path / "n", nested), model), read(write(tmp_path / "f", flat), model)
    assert contents(one.forest) == contents(other.forest)
    assert len(one.forest.tables[model.root]) >= 1


def test_description() -> None:
    assert describe(SENTENCE).splitlines() == [
        "Data: one sample a line, as JSON.",
        "  Word = Word(form: token<vocab>, tag: class<tags>)",
        "  Sentence (root) = Sentence(words: [Word], label: class<classes = 5>)",
        "Nested form:",
        '  {"words": [{"form": "a", "tag": 1}, {"form": "good", "tag": 1}], "label": 1}',
        "Flat form (any depth, shared vertices; children are indices):",
        '  {"Word": {"form": ["a", "good"], "tag": [1, 1]}, '
        '"Sentence": {"words": [[0, 1]], "label": [1]}, "root": 0}',
    ]


def test_examples_show_every_arm() -> None:
    shape = struct(
        "Shape",
        Dot=[token("word")],
        Pair=[child("a", "Shape"), child("b", "Shape")],
        Hull=[children("all", "Shape")],
    )
    shapes = program(shape, struct("Top", Top=[child("top", "Shape"), child("bottom", "Shape")]))
    nested = (
        '{"top": {"a": {"all": [{"word": "a"}, {"word": "good"}]}, "b": {"word": "film"}}, '
        '"bottom": {"word": "with"}}'
    )
    assert examples(shapes)[0] == nested


def test_the_size_of_a_dimension_without_a_name_is_said_once() -> None:
    numbered = struct("Word", Word=[attrs.evolve(label(), dimension=Dimension("3", 3))])
    assert "Word (root) = Word(label: class<3>)" in describe(program(numbered))


def test_endless_struct_has_no_example() -> None:
    endless = program(
        struct("Tree", Node=[optional("word", "Tree")]), struct("Top", Top=[children("x", "Tree")])
    )
    assert examples(endless)[0] == '{"x": [{"word": {}}, {}]}'
    with pytest.raises(DiagnosticError, match="struct Pair has no finite instance"):
        examples(_endless())


def _endless() -> Program:
    return program(struct("Pair", Pair=[child("a", "Pair"), label()]))


def test_summary() -> None:
    data = read_samples([NESTED, {"word": "z", "label": 1}], TREE, name="t.jsonl")
    assert summarize(data).splitlines() == [
        "t.jsonl: 2 samples",
        "  Tree: 6 vertices (Leaf 4, Node 2)",
        "  depth of Tree: mean 1.0, at most 2",
        "  vocab: 4 words, <unk> included",
    ]


@pytest.mark.parametrize(
    "sample, message",
    [
        ({"Word": [{"form": "a"}], "label": 1}, "Sentence has no field 'Word'; did you mean 'words'?"),
        (
            {"Word": {"form": ["a"]}, "Sentence": {}, "label": 1, "root": 0},
            "the program has no struct 'label'",
        ),
        ({"Word": {"form": ["a"]}, "Sentence": {}}, "'root' is missing"),
        ({"root": 0, "labels": 1}, "the program has no struct 'labels'"),
    ],
)
def test_a_sample_is_in_the_form_that_its_other_keys_have(sample: dict, message: str) -> None:
    """A field with the name of a struct made a nested sample a flat one, whose keys were no structs."""
    with pytest.raises(DiagnosticError, match=re.escape(f"samples:1: error: {message}")):
        read_samples([sample], SENTENCE)
