"""Importing other formats, and reading what came out. Real data where they are at hand."""

from __future__ import annotations

import json
import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import dnc.kernel_cache
from dnc.cli.importing import import_command
from dnc.compiler import compile_model
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.runtime.data import read
from dnc.runtime.importers import FORMATS, import_file
from dnc.runtime.importers.sick import distribution
from tests.support.data_programs import TREE
from tests.support.models import EXAMPLES
from tests.support.real_data import data_folder, real_file


def imported(tmp_path: Path, format: str, text: str, **options: Any) -> tuple[str, list[Any]]:
    """What the report says behind the names, and the samples."""
    source = tmp_path / "source.txt"
    source.write_bytes(text.encode())
    report = import_file(format, source, tmp_path / "out.jsonl", **options)
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    return str(report).removeprefix(f"{source} -> {tmp_path}/out.jsonl: "), [
        json.loads(line) for line in lines
    ]


def mistake(tmp_path: Path, format: str, text: str, **options: Any) -> str:
    """The message of an import that fails, without the folder; it writes nothing."""
    with pytest.raises(DiagnosticError) as caught:
        imported(tmp_path, format, text, **options)
    assert not (tmp_path / "out.jsonl").exists()
    return str(caught.value).replace(f"{tmp_path}/", "")


def program(text: str, **sizes: int):
    """A program of the given text, or of an example."""
    path = EXAMPLES / text
    source = Source(text, path.read_text()) if text.endswith(".dn") else Source("test.dn", text)
    return load_program(source, sizes)[0]


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
        ("(2 a", "1:5: error: the line ends inside 1 open '('"),
        ("(2 a) (2 b)", "1:7: error: '(' after the end of the tree"),
        ("word", "1:1: error: expected '(', found 'word'"),
        ("(1 " * 501 + ")" * 501, "1:1501: error: a tree of more than 500 levels"),
        ("\n\n", " error: the file holds no samples"),
    ],
)
def test_mistakes_in_trees(tmp_path: Path, text: str, message: str) -> None:
    assert mistake(tmp_path, "ptb-trees", text) == f"source.txt:{message}"


# ---- CoNLL-U ---------------------------------------------------------------------------------------

UD = """\
# text = Anna doesn't see the old ship
1\tAnna\tAnna\tPROPN\tNNP\t_\t4\tnsubj\t_\t_
2-3\tdoesn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdoes\tdo\tAUX\tVBZ\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tsee\tsee\tVERB\tVB\t_\t0\troot\t_\t_
4.1\tsees\tsee\tVERB\tVB\t_\t_\t_\t_\t_
5\tthe\tthe\tDET\tDT\t_\t7\tdet\t_\t_
6\told\told\tADJ\tJJ\t_\t7\tamod\t_\t_
7\tship\tship\tNOUN\tNN\t_\t4\tobj\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""


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
        ("# nothing\n", " error: the file holds no samples"),
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

TAGGED = "Vienna|I-LOC is|O a|b|O\n\n.|O  is|O\n"


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


# ---- plain text ------------------------------------------------------------------------------------

FOLLOWED = {"target": "target"}


def forms(sample: Any) -> list[str]:
    return [word["form"] for word in sample["words"]]


def test_sentences_of_text(tmp_path: Path) -> None:
    text = "the cat\tsat\n\nok\n"
    summary, samples = imported(tmp_path, "text", text)
    assert summary == "2 samples, 10 vertices, 4 different words; left out: 1 blank lines"
    assert list(map(forms, samples)) == [["<s>", "the", "cat", "sat", "</s>"], ["<s>", "ok", "</s>"]]
    _, samples = imported(tmp_path, "text", text, marks=False)
    assert list(map(forms, samples)) == [["the", "cat", "sat"], ["ok"]]
    _, samples = imported(tmp_path, "text", text, fields=FOLLOWED)
    assert [list(word.values()) for word in samples[1]["words"]] == [["<s>", "ok"], ["ok", "</s>"]]
    summary, samples = imported(tmp_path, "text", text, fields=FOLLOWED, marks=False)
    assert [word["target"] for word in samples[0]["words"]] == ["cat", "sat"] and len(samples) == 1
    assert "1 sentences of one word, which none follows" in summary


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("marks", [False, True])
def test_pieces_of_one_length(tmp_path: Path, length: int, followed: bool, marks: bool) -> None:
    """Put together again they are the text, and what is left over is counted."""
    text = "a b c\nd\n\ne f g h i\n"
    stream = " ".join(f"{line} <eos>" if marks else line for line in text.split("\n") if line).split()
    fields = FOLLOWED if followed else {}
    summary, samples = imported(tmp_path, "text", text, length=length, fields=fields, marks=marks)
    assert {len(forms(sample)) for sample in samples} == {length}
    taken = length * len(samples)
    assert list(chain(*map(forms, samples))) == stream[:taken]
    if followed:
        targets = [word["target"] for sample in samples for word in sample["words"]]
        assert targets == stream[1 : taken + 1]
    rest = len(stream) - followed - taken
    assert rest < length and ("tokens at the end" in summary) == (rest > 0)
    assert not rest or f"{rest} tokens at the end, too few for a piece" in summary


def test_tokens(tmp_path: Path) -> None:
    _, samples = imported(tmp_path, "text", "ab c\nd\n", tokens="characters", length=3)
    assert list(map(forms, samples)) == [["a", "b", " "], ["c", "\n", "d"]]
    _, samples = imported(tmp_path, "text", "It's 5 o’clock, ok?", tokens="words", marks=False)
    assert forms(samples[0]) == ["It's", "5", "o’clock", ",", "ok", "?"]


def test_a_language_model_reads_it(tmp_path: Path) -> None:
    model = """
model Lm(vocab = 6, hidden = 4)
struct Word = Word(form: token<vocab>, target: class<vocab>)
struct Text = Text(words: [Word])
param E: table[vocab, hidden], U: [hidden, hidden], V: [vocab, hidden]
fn forward(w: Word) -> [hidden] = tanh(E[w.form] + U @ forward(w.prev))
loss sum(w in all(Word)) cross_entropy(V @ forward(w), w.target)
"""
    imported(tmp_path, "text", "a b a b a c\na b d e f\n", fields=FOLLOWED)
    found = read(tmp_path / "out.jsonl", program(model))
    assert found.vocabularies["vocab"].words == ("<unk>", "a", "b", "</s>", "<s>", "c")


# ---- tables ----------------------------------------------------------------------------------------

CSV = 'text,stars,label\n"Fine, ""really""\nfine",5,pos\n,1,neg\n\nbad,1,neg\nso so,3,\n'


def test_tables(tmp_path: Path) -> None:
    summary, samples = imported(tmp_path, "csv", CSV)
    assert summary == (
        "2 samples, 6 vertices, 4 different words, 2 different labels; left out: "
        "1 rows without a text, 1 blank lines, 1 rows without a label"
    )
    assert samples[0]["label"] == "pos"
    assert [word["form"] for word in samples[0]["words"]] == ["Fine,", '"really"', "fine"]
    assert read(tmp_path / "out.jsonl", program("lstm_classifier.dn", embed=4, hidden=4)).samples == 2
    _, samples = imported(tmp_path, "csv", CSV, columns=("text", "stars"), numeric=True)
    assert [sample["label"] for sample in samples] == [5.0, 1.0, 3.0]
    _, samples = imported(tmp_path, "csv", "1\tgood film\n0\tbad\n", columns=("2", "1"), delimiter="tab")
    assert [(len(s["words"]), s["label"]) for s in samples] == [(2, "1"), (1, "0")]
    _, samples = imported(tmp_path, "csv", "text\ngood\n", columns=("text",))
    assert samples == [{"words": [{"form": "good"}]}]
    _, samples = imported(tmp_path, "csv", f"text,label\n{'a ' * 100_000},x\n")
    assert len(samples[0]["words"]) == 100_000


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "txt,label\na,b\n",
            {},
            "source.txt:1: error: there is no column 'text'; did you mean 'txt'? (--columns TEXT,LABEL)",
        ),
        ("text,label\na\n", {}, "source.txt:2: error: found 1 cells, expected 2"),
        ("a,b\n", {"columns": ("1", "3")}, "source.txt:1: error: found 2 cells, expected 3"),
        ('text,label\n"a,b\n', {}, "source.txt:2: error: this row cannot be read: unexpected end of data"),
        (
            "text,label\na,x\n",
            {"numeric": True},
            'source.txt:2: error: found the label "x", expected a number',
        ),
        ("text,label\n", {}, "source.txt: error: the file holds no samples"),
    ],
)
def test_mistakes_in_tables(tmp_path: Path, text: str, options: Any, message: str) -> None:
    assert mistake(tmp_path, "csv", text, **options) == message


# ---- derived structures ----------------------------------------------------------------------------


def test_pyramids_join_neighbours(tmp_path: Path) -> None:
    text = "text,label\na b c d,x\ne,y\n"
    summary, samples = imported(tmp_path, "csv", text, structure="pyramid", fields={"Span": "Vertex"})
    assert summary.startswith("2 samples, 13 vertices, 5 different words")
    first = samples[0]
    assert first["Sentence"] == {"top": [9], "label": ["x"]} and first["root"] == 0
    table = first["Vertex"]
    assert table["arm"] == ["Word"] * 4 + ["Pair"] * 6
    assert table["word"] == ["a", "b", "c", "d", *[None] * 6]

    def covers(at: int) -> tuple[int, int]:
        if table["arm"][at] == "Word":
            return at, at
        left, right = covers(table["left"][at]), covers(table["right"][at])
        assert (left[0] + 1, left[1] + 1) == right  # neighbours of one layer
        return left[0], right[1]

    spans = [covers(at) for at in range(10)]
    assert spans[9] == (0, 3) and len(set(spans)) == 10
    assert samples[1] == {
        "Vertex": {"arm": ["Word"], "word": ["e"], "left": [None], "right": [None]},
        "Sentence": {"top": [0], "label": ["y"]},
        "root": 0,
    }


TIME_DELAY = """
model TimeDelay(vocab, hidden = 4, classes = 2)
struct Span = Word(word: token<vocab>) | Pair(left: Span, right: Span)
struct Sentence = Sentence(top: Span, label: class<classes>)
param E: table[vocab, hidden], W: [hidden, 2 * hidden], V: [classes, hidden]
fn encode(n: Span) -> [hidden] = match n:
    Word(word)        -> E[word]
    Pair(left, right) -> tanh(W @ concat(encode(left), encode(right)))
loss sum(s in root) cross_entropy(V @ encode(s.top), s.label)
output label = argmax(V @ encode(root.top))
"""
CLASSIFIED = "text,label\na b c d,x\ne,y\nb c a,x\n"


@pytest.mark.parametrize("structure", ["pyramid", "balanced", "random"])
def test_a_derived_structure_is_trained(
    tmp_path: Path, structure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    fields = {} if structure == "pyramid" else {"tree": "top"}
    imported(tmp_path, "csv", CLASSIFIED, structure=structure, fields=fields)
    (tmp_path / "model.dn").write_text(TIME_DELAY)
    compile_model(tmp_path / "model.dn", tmp_path / "build", ("cpu",))
    model = dnc.load(tmp_path / "build", "vm")
    data = model.attach(tmp_path / "out.jsonl")
    pairs = {"pyramid": 6 + 3, "balanced": 3 + 2, "random": 3 + 2}[structure]
    assert len(data.forest.tables["Span"]) == 8 + pairs
    model.configure("adagrad", 0.3)
    losses = list(model.steps([[0, 1, 2]] * 12))
    assert losses[-1] < 0.5 * losses[0]


def leaves(tree: Any) -> list[str]:
    return [tree["word"]] if "word" in tree else leaves(tree["left"]) + leaves(tree["right"])


def height(tree: Any) -> int:
    return 0 if "word" in tree else 1 + max(height(tree["left"]), height(tree["right"]))


def test_trees_over_words(tmp_path: Path) -> None:
    words = [str(at) for at in range(32)]
    _, (complete,) = imported(tmp_path, "text", " ".join(words), structure="balanced")
    assert leaves(complete) == words and height(complete) == 5
    lines = "\n".join([" ".join(words)] * 20)
    _, first = imported(tmp_path, "text", lines, structure="random")
    assert all(leaves(tree) == words for tree in first) and len({height(tree) for tree in first}) > 2
    assert imported(tmp_path, "text", lines, structure="random", seed=1)[1] == first
    assert imported(tmp_path, "text", lines, structure="random", seed=2)[1] != first


def test_rare_words_are_spelled_out(tmp_path: Path) -> None:
    summary, samples = imported(tmp_path, "tagged", "a|X a|Y bc|X\na|X\n", rare=2)
    assert "1 words spelled out" in summary
    assert samples[0]["words"] == [
        {"form": "a", "tag": "X"},
        {"form": "a", "tag": "Y"},
        {"letters": [{"letter": "b"}, {"letter": "c"}], "tag": "X"},
    ]
    (tmp_path / "train.txt").write_text("bc|X bc|X a|X\n")
    _, samples = imported(tmp_path, "tagged", "a|X bc|Y d|X", rare=2, counted_in=tmp_path / "train.txt")
    assert [next(iter(word)) for word in samples[0]["words"]] == ["letters", "form", "letters"]
    model = """
model Speller(vocab, alphabet, hidden = 4, tags = 2)
struct Char = Char(letter: token<alphabet>)
struct Word = Known(form: token<vocab>, tag: class<tags>) | Spelled(letters: [Char], tag: class<tags>)
struct Sentence = Sentence(words: [Word])
param E: table[vocab, hidden], C: table[alphabet, hidden], V: [tags, hidden]
fn look(w: Word) -> [hidden] = match w:
    Known(form, ...)         -> E[form]
    Spelled(letters, ...) -> read(letters.last)
fn read(c: Char) -> [hidden] = tanh(C[c.letter] + read(c.prev))
loss sum(w in all(Word)) cross_entropy(V @ look(w), w.tag)
"""
    assert read(tmp_path / "out.jsonl", program(model)).samples == 1


def test_long_sentences_are_left_out(tmp_path: Path) -> None:
    summary, samples = imported(tmp_path, "tagged", "a|X b|X c|X\na|X b|X\n", longest=2)
    assert len(samples) == 1 and "1 sentences of more than 2 words" in summary


# ---- fields and options ----------------------------------------------------------------------------


def test_fields_are_renamed_or_left_out(tmp_path: Path) -> None:
    fields = {"words": "tokens", "form": "w", "tag": ""}
    _, samples = imported(tmp_path, "tagged", "a|X b|Y", fields=fields)
    assert samples == [{"tokens": [{"w": "a"}, {"w": "b"}]}]
    fields = {"left": "right", "right": "left"}
    _, samples = imported(tmp_path, "ptb-trees", "(0 (1 a) (2 b))", fields=fields)
    assert samples[0]["right"] == {"word": "a", "label": 1}


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        (
            "tagged",
            {"fields": {"frm": "x"}},
            "--fields: the format 'tagged' has no field 'frm'; did you mean 'form'?",
        ),
        (
            "tagged",
            {"fields": {"lemma": "x"}},
            "--fields: the format 'tagged' has no field 'lemma'; its fields are 'form', 'tag', 'words'",
        ),
        (
            "tagged",
            {"fields": {"form": "a b"}},
            "--fields: found 'a b' for form, expected the name of a field",
        ),
        ("tagged", {"fields": {"form": "tag"}}, "--fields: form and tag are both called 'tag'"),
        (
            "tagged",
            {"length": 5},
            "--length does not go with the format 'tagged'; its options are: --separator, --structure, "
            "--seed, --rare, --counted-in, --longest",
        ),
        (
            "ptb-trees",
            {"counted_in": "x"},
            "--counted-in does not go with the format 'ptb-trees'; its options are: none",
        ),
        ("text", {"structure": "pyramids"}, "--structure: found 'pyramids'; did you mean 'pyramid'?"),
        ("text", {"tokens": "bytes"}, "--tokens: found 'bytes', expected one of spaces, words, characters"),
        ("text", {"length": "5"}, "--length: found '5', expected a whole number"),
        ("text", {"length": 0}, "--length: found 0, expected 1 or more"),
        ("text", {"rare": 2, "structure": "random"}, "--rare goes with --structure sequence alone"),
        (
            "text",
            {"counted_in": "x"},
            "--counted-in says where words are counted for --rare, which is not given",
        ),
        ("csv", {"delimiter": ";;"}, "--delimiter: found ';;', expected one character, or tab"),
        (
            "csv",
            {"columns": ("1", "stars")},
            "--columns: found '1,stars', expected the text's and the label's, as review,stars "
            "(or, without a header, 2,1)",
        ),
        ("tagged", {"separator": " "}, "--separator: found ' ', expected characters without a blank"),
    ],
)
def test_mistakes_in_options(tmp_path: Path, format: str, options: Any, message: str) -> None:
    assert mistake(tmp_path, format, "a|O", **options) == f"error: {message}"


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        import_file("ptb-tree", tmp_path / "a", tmp_path / "b")
    assert str(caught.value) == "error: unknown format 'ptb-tree'; did you mean 'ptb-trees'?"


def test_the_help_names_every_format() -> None:
    argument = import_command.__annotations__["format"]
    assert all(format in argument for format in FORMATS)


def test_no_source_and_no_place(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        import_file("ptb-trees", tmp_path / "a", tmp_path / "b")
    assert str(caught.value) == f"{tmp_path}/a: error: there is no such file"
    (tmp_path / "a").write_text("(2 a)")
    with pytest.raises(DiagnosticError) as caught:
        import_file("ptb-trees", tmp_path / "a", tmp_path / "no" / "b")
    assert str(caught.value) == f"error: {tmp_path}/no/b: there is no directory {tmp_path}/no"


@pytest.mark.parametrize("format", ["ptb-trees", "conllu-trees", "conllu-words", "tagged", "text", "csv"])
def test_damaged_files_give_messages(tmp_path: Path, format: str) -> None:
    """Random damage to a right file: it is read, or there is one message with the file's name."""
    whole = {"ptb-trees": "(3 (2 not) (4 bad))\n", "tagged": TAGGED, "text": "a b\nc d\n", "csv": CSV}
    text, choice, refused = whole.get(format, UD), random.Random(5), 0
    for _ in range(150):
        damaged = list(text)
        for _ in range(choice.randint(1, 4)):
            at = choice.randrange(len(damaged))
            damaged[at] = choice.choice(
                ["", "\n", "\t", "|", "(", ")", '"', ",", " ", "0", "9", "\x00", "\u00a0", "é"]
            )
        try:
            imported(tmp_path, format, "".join(damaged))
        except DiagnosticError as error:
            refused += 1
            assert str(error).startswith(f"{tmp_path}/source.txt:") and "\n" not in str(error)
    assert refused or format in ("text",)


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
