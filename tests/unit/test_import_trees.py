"""Importing trees and tags: brackets, CoNLL-U, SICK, `word|TAG`. Real data where they are at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dnc.diagnostics import DiagnosticError
from dnc.runtime.data import read
from dnc.runtime.importers import import_file
from dnc.runtime.importers.sick import distribution
from tests.support.data_programs import TREE
from tests.support.importing import TAGGED, UD, imported, mistake, program
from tests.support.real_data import data_folder, real_file

# ---- bracket trees ---------------------------------------------------------------------------------


def test_trees(tmp_path: Path) -> None:
    text = "(3 (2 not) (4 bad))\n\n(2 a\\/b)\r\n (0 (1 x\u00a0y)(2 -LRB-) ) \n"
    summary, samples = imported(tmp_path, "ptb-trees", text)
    assert summary == (
        "3 samples, 7 vertices, 5 different words, 5 different labels; left out: 1 blank lines"
    )
    assert samples == [
        {"left": {"word": "not", "label": 2}, "right": {"word": "bad", "label": 4}, "label": 3},
        {"word": "a\\/b", "label": 2},
        {"left": {"word": "x\u00a0y", "label": 1}, "right": {"word": "-LRB-", "label": 2}, "label": 0},
    ]
    assert read(tmp_path / "out.jsonl", TREE).samples == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "source.txt"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "(2 a)\n(3 (2 b))",
            "2:1: error: a node holds one word or two subtrees, found 0 words and 1 subtrees",
        ),
        (
            "(3 (2 b) (2 c) (2 d))",
            "1:1: error: a node holds one word or two subtrees, found 0 words and 3 subtrees",
        ),
        (
            "(3 (2 b c) (2 d))",
            "1:4: error: a node holds one word or two subtrees, found 2 words and 0 subtrees",
        ),
        ("(3 (b) (2 c))", "1:4: error: a node starts with its label, a number, found 'b'"),
        ("((2 b) (2 c))", "1:1: error: a node starts with its label, a number"),
        ("(2 a", "1:5: error: the line ends inside 1 open '('; a tree has to be on one line"),
        ("(2 a) (2 b)", "1:7: error: '(' after the end of the tree"),
        ("word", "1:1: error: expected '(', found 'word'"),
        ("(1 " * 501 + ")" * 501, "1:1501: error: a tree of more than 500 levels"),
        ("\n\n", " error: the file holds no samples; left out: 2 blank lines"),
        ("9" * 99, f"1:1: error: expected '(', found '{'9' * 40}...'"),
    ],
)
def test_mistakes_in_trees(tmp_path: Path, text: str, message: str) -> None:
    assert mistake(tmp_path, "ptb-trees", text) == f"source.txt:{message}"


# ---- CoNLL-U ---------------------------------------------------------------------------------------


def test_dependency_trees(tmp_path: Path) -> None:
    summary, samples = imported(tmp_path, "conllu-trees", UD, fields={"tag": "label"})
    assert summary == (
        "2 samples, 8 vertices, 8 different words, 8 different labels; left out: 1 comments, "
        "1 rows of multiword tokens (as 1-2), 1 empty nodes (as 8.1)"
    )
    first = samples[0]
    assert (first["word"], first["label"]) == ("see", "VERB")
    assert [child["word"] for child in first["children"]] == ["Anna", "does", "n't", "ship"]
    assert [child["word"] for child in first["children"][3]["children"]] == ["the", "old"]
    assert samples[1] == {"word": "Yes", "label": "INTJ", "children": []}
    found = read(tmp_path / "out.jsonl", program("childsum.dn", embed=4, hidden=4, classes=17))
    assert found.samples == 2


def test_dependency_trees_as_words(tmp_path: Path) -> None:
    fields = {"relation": "role", "lemma": "lemma"}
    _, samples = imported(tmp_path, "conllu-words", UD, fields=fields)
    assert samples[1]["words"] == [{"form": "Yes", "tag": "INTJ", "lemma": "yes", "role": "root"}]
    assert [word["form"] for word in samples[0]["words"]] == [
        "Anna",
        "does",
        "n't",
        "see",
        "the",
        "old",
        "ship",
    ]
    imported(tmp_path, "conllu-words", UD)
    assert read(tmp_path / "out.jsonl", program("bilstm_tagger.dn", embed=4, hidden=4)).samples == 2


def row(number: int, head: object, form: str = "a") -> str:
    return f"{number}\t{form}\t_\tX\t_\t_\t{head}\t_\t_\t_\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\ta\n", "1: error: found 2 columns (separated by tabs), expected 10"),
        (row(1, 0) + row(3, 1), "2:1: error: found word '3', expected 2"),
        (row(1, 2), "1:13: error: found the head '2', expected 0 to 1"),
        (row(1, "_"), "1:13: error: found the head '_', expected 0 to 1"),
        (row(1, 0) + row(2, 0), "2: error: a second word with the head 0"),
        ("\n" + row(1, 2) + row(2, 1), "2: error: no word of the sentence has the head 0"),
        (row(1, 0) + row(2, 3) + row(3, 2), "2: error: word 2 is not below the root: its heads go round"),
        ("".join(row(at + 1, at) for at in range(251)), "1: error: a tree of more than 250 levels"),
        ("# nothing\n", " error: the file holds no samples; left out: 1 comments"),
        (row(1, 0, " "), "1:3: error: the form of word 1 is blank, expected a text or _"),
        (row(1, 0).replace("X", ""), "1:7: error: the tag of word 1 is blank, expected a text or _"),
        (row(1, "9" * 5000), f"1:13: error: found the head '{'9' * 40}...', expected 0 to 1"),
    ],
)
def test_mistakes_in_dependencies(tmp_path: Path, text: str, message: str) -> None:
    assert mistake(tmp_path, "conllu-trees", text) == f"source.txt:{message}"


def test_the_deepest_tree_can_be_read(tmp_path: Path) -> None:
    text = "".join(row(at + 1, at) for at in range(250))
    imported(tmp_path, "conllu-trees", text, fields={"tag": "label"})
    assert read(tmp_path / "out.jsonl", program("childsum.dn", embed=4, hidden=4)).samples == 1


# ---- SICK ------------------------------------------------------------------------------------------

SICK = {
    "a.toks": "a man sings\nit rains .\n",
    "a.parents": "2 3 0\n2 0 -1\n",
    "b.toks": "nobody sings\nit snows\n",
    "b.parents": "2 0\n2 0\n",
    "sim.txt": "3.6\n5\n",
}
PAIRS = """
model Pairs(vocab, hidden = 4, classes = 5)
struct Tree = Tree(word: token<vocab>, children: [Tree])
struct Pair = Pair(left: Tree, right: Tree, score: float, target: vector<classes>)
param E: table[vocab, hidden]
fn encode(t: Tree) -> [hidden] = tanh(E[t.word] + sum(encode(k) for k in t.children))
loss sum(p in root) squared_error(sum(encode(p.left) * encode(p.right)), p.score) + sum(p.target)
"""


def sick(tmp_path: Path, **files: str) -> tuple[str, list[Any]]:
    for name, text in (SICK | {key.replace("_", "."): text for key, text in files.items()}).items():
        (tmp_path / name).write_text(text)
    report = import_file("sick", tmp_path, tmp_path / "out.jsonl")
    return str(report), [json.loads(line) for line in (tmp_path / "out.jsonl").open()]


def test_pairs_of_sentences(tmp_path: Path) -> None:
    summary, samples = sick(tmp_path)
    assert summary.endswith(
        "2 samples, 11 vertices, 7 different words; left out: 1 words in no tree (head -1)"
    )
    assert samples[0]["left"] == {
        "word": "sings",
        "children": [{"word": "man", "children": [{"word": "a", "children": []}]}],
    }
    assert samples[0]["score"] == 3.6 and samples[0]["target"] == pytest.approx([0, 0, 0.4, 0.6, 0])
    assert samples[1]["target"] == [0, 0, 0, 0, 1]
    assert read(tmp_path / "out.jsonl", program(PAIRS)).samples == 2


@pytest.mark.parametrize("score", [1, 1.25, 2.9, 4, 4.999, 5])
def test_the_mean_of_the_target_is_the_score(score: float) -> None:
    found = distribution(score, 5)
    assert sum(found) == pytest.approx(1) and min(found) >= 0
    assert sum(p * at for at, p in enumerate(found, 1)) == pytest.approx(score)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"sim_txt": "3.6\n"}, "sim.txt:2: error: found 1 lines, expected 2 as in a.toks"),
        ({"sim_txt": "3.6\n5.1\n"}, "sim.txt:2: error: found the score '5.1', expected 1 to 5"),
        ({"sim_txt": "3.6\nx\n"}, "sim.txt:2: error: found the score 'x', expected 1 to 5"),
        (
            {"b_parents": "2 0\n0\n"},
            "b.parents:2: error: found 1 heads, expected one for each of the 2 words",
        ),
        (
            {"b_parents": "2 0\n0 3\n"},
            "b.parents:2: error: found the head '3', expected 0 to 2, or -1 for a word in no tree",
        ),
        (
            {"b_parents": f"2 0\n0 {'9' * 5000}\n"},
            f"b.parents:2: error: found the head '{'9' * 40}...', "
            "expected 0 to 2, or -1 for a word in no tree",
        ),
        ({"a_parents": "2 3 0\n3 0 -1\n"}, "a.parents:2: error: a word's head is in no tree"),
        (
            {"a_parents": "2 1 0\n2 0 0\n"},
            "a.parents:1: error: word 1 is not below the root: its heads go round",
        ),
    ],
)
def test_mistakes_in_pairs(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        sick(tmp_path, **files)
    assert str(caught.value) == f"{tmp_path}/{message}"


def test_a_file_of_the_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        import_file("sick", tmp_path, tmp_path / "out.jsonl")
    assert str(caught.value) == f"{tmp_path}/a.toks: error: there is no such file"


# ---- tagged words ----------------------------------------------------------------------------------


def test_tagged_words(tmp_path: Path) -> None:
    summary, samples = imported(tmp_path, "tagged", TAGGED)
    assert summary == (
        "2 samples, 7 vertices, 4 different words, 2 different labels; left out: 1 blank lines"
    )
    assert samples[0]["words"][0] == {"form": "Vienna", "tag": "I-LOC"}
    assert samples[0]["words"][2] == {"form": "a|b", "tag": "O"}
    assert read(tmp_path / "out.jsonl", program("bilstm_tagger.dn", embed=4, hidden=4)).samples == 2
    _, samples = imported(tmp_path, "tagged", "a_DT b_c_NN", separator="_")
    assert samples == [{"words": [{"form": "a", "tag": "DT"}, {"form": "b_c", "tag": "NN"}]}]


def test_mistakes_in_tagged_words(tmp_path: Path) -> None:
    found = mistake(tmp_path, "tagged", "a|O b\n")
    assert found == "source.txt:1:5: error: expected word|TAG, found 'b'"
    assert "expected word|TAG, found '|O'" in mistake(tmp_path, "tagged", "|O")
    assert "expected word|TAG, found 'a|'" in mistake(tmp_path, "tagged", "a|")
    assert mistake(tmp_path, "tagged", "a|O\nEU B-ORG\n") == (
        "source.txt:2:1: error: expected word|TAG, found 'EU'; "
        "of a word and its tags a line: dnc import conll"
    )
    assert mistake(tmp_path, "tagged", "a|O b|O\na|O b\tc|O\n") == (
        "source.txt:2:6: error: found a tab, but blanks separate words, and '|' begins their tags; "
        "of a word and its tags a line: dnc import conll"
    )
    assert ":1:3: error: found a tab" in mistake(tmp_path, "tagged", "EU\tB-ORG", separator="-")


# ---- real data -------------------------------------------------------------------------------------


def needs(name: str) -> Path:
    """A file of the real data; the test is skipped without it."""
    path = real_file(name)
    if path is None:
        pytest.skip(f"no {name} in {data_folder()} (set DNC_DATA)")
    return path


def test_sentiment_treebank(tmp_path: Path) -> None:
    report = import_file("ptb-trees", needs("sst/train.txt"), tmp_path / "train.jsonl")
    assert (report.samples, report.vertices, report.vocabulary) == (8_544, 318_582, 18_280)
    import_file("ptb-trees", needs("sst/dev.txt"), tmp_path / "dev.jsonl")
    train = read(tmp_path / "train.jsonl", TREE)
    dev = read(tmp_path / "dev.jsonl", TREE, train.vocabularies)
    assert (train.samples, dev.samples) == (8_544, 1_101)
    assert (train.forest.tables["Tree"].arm == 0).sum() == 163_563
    assert len(train.vocabularies["vocab"]) == 18_281
    assert any("\u00a0" in word for word in train.vocabularies["vocab"].words or ())


def test_universal_dependencies(tmp_path: Path) -> None:
    source = needs("ud_ewt/dev.conllu")
    report = import_file("conllu-trees", source, tmp_path / "ud.jsonl", fields={"tag": "label"})
    rows = [line.split("\t")[0] for line in source.open(encoding="utf-8") if "\t" in line]
    words = sum(number.isdecimal() for number in rows)
    assert (report.samples, report.vertices, report.labels) == (2_001, words, 17)
    assert sum(count for what, count in report.left_out if what != "comments") == len(rows) - words
    found = read(tmp_path / "ud.jsonl", program("childsum.dn", embed=4, hidden=4, classes=17))
    assert found.samples == 2_001


def test_wikiner(tmp_path: Path) -> None:
    report = import_file("tagged", needs("wikiner/train.txt"), tmp_path / "wiki.jsonl")
    assert (report.samples, report.vertices - report.samples) == (10_000, 248_038)
    assert (report.vocabulary, report.labels, report.left_out) == (25_719, 9, ())
