"""Importing other formats, and reading what came out. The real treebank where it is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dnc.diagnostics import DiagnosticError
from dnc.runtime.data import read
from dnc.runtime.importers import FORMATS, import_file
from tests.support.data_programs import TREE

DATA = Path(os.environ.get("DNC_DATA", Path(__file__).parents[3] / "shared" / "data"))


def imported(tmp_path: Path, text: str) -> str:
    source = tmp_path / "trees.txt"
    source.write_bytes(text.encode())
    report = import_file("ptb-trees", source, tmp_path / "trees.jsonl")
    return str(report).removeprefix(f"{source} -> {tmp_path}/trees.jsonl: ")


def test_trees(tmp_path: Path) -> None:
    summary = imported(tmp_path, "(3 (2 not) (4 bad))\n\n(2 a\\/b)\r\n (0 (1 x\u00a0y)(2 -LRB-) ) \n")
    assert summary == "3 samples, 7 vertices, 5 different words; left out: 1 blank lines"
    assert (tmp_path / "trees.jsonl").read_text(encoding="utf-8").splitlines() == [
        '{"left":{"word":"not","label":2},"right":{"word":"bad","label":4},"label":3}',
        '{"word":"a\\\\/b","label":2}',
        '{"left":{"word":"x\u00a0y","label":1},"right":{"word":"-LRB-","label":2},"label":0}',
    ]
    assert read(tmp_path / "trees.jsonl", TREE).samples == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trees.jsonl", "trees.txt"]


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
        ("(2 a", "1:5: error: the line ends inside 1 open '('"),
        ("(2 a) (2 b)", "1:7: error: '(' after the end of the tree"),
        ("word", "1:1: error: expected '(', found 'word'"),
        ("(1 " * 501 + ")" * 501, "1:1501: error: a tree of more than 500 levels"),
        ("\n\n", " error: the file holds no samples"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        imported(tmp_path, text)
    assert str(caught.value) == f"{tmp_path}/trees.txt:{message}"
    assert not (tmp_path / "trees.jsonl").exists()


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        import_file("ptb-tree", tmp_path / "a", tmp_path / "b")
    assert str(caught.value) == "error: unknown format 'ptb-tree'; did you mean 'ptb-trees'?"
    assert "ptb-trees" in FORMATS


def test_no_source_and_no_place(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        import_file("ptb-trees", tmp_path / "a", tmp_path / "b")
    assert str(caught.value) == f"{tmp_path}/a: error: there is no such file"
    (tmp_path / "a").write_text("(2 a)")
    with pytest.raises(DiagnosticError) as caught:
        import_file("ptb-trees", tmp_path / "a", tmp_path / "no" / "b")
    assert str(caught.value) == f"error: {tmp_path}/no/b: there is no directory {tmp_path}/no"


@pytest.mark.skipif(not (DATA / "sst").is_dir(), reason=f"no treebank in {DATA} (set DNC_DATA)")
def test_sentiment_treebank(tmp_path: Path) -> None:
    report = import_file("ptb-trees", DATA / "sst" / "train.txt", tmp_path / "train.jsonl")
    assert (report.samples, report.vertices, report.vocabulary) == (8_544, 318_582, 18_280)
    import_file("ptb-trees", DATA / "sst" / "dev.txt", tmp_path / "dev.jsonl")
    train = read(tmp_path / "train.jsonl", TREE)
    dev = read(tmp_path / "dev.jsonl", TREE, train.vocabularies)
    assert (train.samples, dev.samples) == (8_544, 1_101)
    assert (train.forest.tables["Tree"].arm == 0).sum() == 163_563
    assert len(train.vocabularies["vocab"]) == 18_281
    assert any("\u00a0" in word for word in train.vocabularies["vocab"].words or ())
