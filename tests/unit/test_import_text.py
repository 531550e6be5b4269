"""Importing plain text and tables, and the structures that are derived from sequences."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import dnc.kernel_cache
from dnc.compiler import compile_model
from dnc.diagnostics import DiagnosticError
from dnc.runtime.data import read
from dnc.runtime.importers import import_file
from tests.support.importing import CSV, imported, mistake, program

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
    text = "हिन्दी भाषा, cafe\u0301 می\u200cروم"  # marks that combine with a letter, a joiner
    _, samples = imported(tmp_path, "text", text, tokens="words", marks=False)
    assert forms(samples[0]) == ["हिन्दी", "भाषा", ",", "cafe\u0301", "می\u200cروم"]


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


def test_tables(tmp_path: Path) -> None:
    summary, samples = imported(tmp_path, "csv", CSV)
    assert summary == (
        "2 samples, 6 vertices, 4 different words, 2 different labels; left out: "
        "1 rows without a text, 1 blank lines, 1 rows without a label"
    )
    assert samples[0]["label"] == "pos"
    assert [word["form"] for word in samples[0]["words"]] == ["Fine,", '"really"', "fine"]
    assert read(tmp_path / "out.jsonl", program("lstm_classifier.dn", embed=4, hidden=4)).samples == 2
    summary, samples = imported(tmp_path, "csv", CSV, columns=("text", "stars"), numeric=True)
    assert "3 samples, 9 vertices, 5 different words, 3 different labels" in summary
    assert [sample["label"] for sample in samples] == [5.0, 1.0, 3.0]
    _, samples = imported(tmp_path, "csv", "1\tgood film\n0\tbad\n", columns=("2", "1"), delimiter="tab")
    assert [(len(s["words"]), s["label"]) for s in samples] == [(2, "1"), (1, "0")]
    _, samples = imported(tmp_path, "csv", "text\ngood\n", columns=("text",))
    assert samples == [{"words": [{"form": "good"}]}]
    _, samples = imported(tmp_path, "csv", f"text,label\n{'a ' * 100_000},x\n")
    assert len(samples[0]["words"]) == 100_000


def test_quotes_in_tables_with_tabs(tmp_path: Path) -> None:
    """Many such files have none: what would join their rows is told of, and they are read as they are."""
    table = 'text\tlabel\n"Good movie\tpos\nbad\tneg\nfine"\tpos\n'
    source, out = tmp_path / "t.tsv", tmp_path / "t.jsonl"
    source.write_text(table)
    report = import_file("csv", source, out, delimiter="tab")
    assert report.samples == 1 and report.notes == (
        "1 row of several lines, in quotes, the first in line 2; "
        "where a quote is a sign like others: --no-quotes",
    )
    report = import_file("csv", source, out, delimiter="tab", quotes=False)
    assert report.samples == 3 and not report.notes
    assert out.read_text().startswith('{"words":[{"form":"\\"Good"},{"form":"movie"}],"label":"pos"}\n')
    assert imported(tmp_path, "csv", CSV)[1][0]["words"][1] == {"form": '"really"'}
    source.write_text('text,label\n"a\nb",x\n')
    assert not import_file("csv", source, out).notes


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            'text\tlabel\n"a\tb\n',
            {"delimiter": "tab"},
            "source.txt:2: error: this row cannot be read: unexpected end of data\n"
            "  where a quote is a sign like others: --no-quotes",
        ),
        (
            "\n\ntxt,label\na,b\n",
            {},
            "source.txt:3: error: there is no column 'text'; did you mean 'txt'? (--columns TEXT,LABEL)",
        ),
        (
            "txt,label\na,b\n",
            {},
            "source.txt:1: error: there is no column 'text'; did you mean 'txt'? (--columns TEXT,LABEL)",
        ),
        ("text,label\na\n", {}, "source.txt:2: error: found 1 cells, expected 2"),
        ("a,b\n", {"columns": ("1", "1")}, "error: --columns: 1 is named twice"),
        ("a,b\n", {"columns": ("1", "3")}, "source.txt:1: error: found 2 cells, expected 3"),
        ('text,label\n"a,b\n', {}, "source.txt:2: error: this row cannot be read: unexpected end of data"),
        (
            "text,label\na,x\n",
            {"numeric": True},
            'source.txt:2: error: found the label "x", expected a number',
        ),
        (
            "text,label\na,1_0\n",
            {"numeric": True},
            'source.txt:2: error: found the label "1_0", expected a number',
        ),
        (
            "text,label,text\na,x,b\n",
            {},
            "source.txt:1: error: the columns 1, 3 are all called 'text': name them by number",
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
    summary, samples = imported(tmp_path, "tagged", "a|X b|X c|Y\na|X b|X\n", longest=2)
    assert len(samples) == 1
    assert summary == (
        "1 samples, 3 vertices, 2 different words, 1 different labels; "
        "left out: 1 sentences of more than 2 words"
    )
    summary, _ = imported(tmp_path, "text", "a b c d\n", length=3, marks=False)
    assert summary == (
        "1 samples, 4 vertices, 3 different words; left out: 1 tokens at the end, too few for a piece"
    )


def test_a_grid_has_layers_over_every_word(tmp_path: Path) -> None:
    names = {"word": "char", "target": "target", "Hidden": "Layer"}
    summary, samples = imported(
        tmp_path,
        "text",
        "abc\n",
        tokens="characters",
        length=3,
        structure="grid",
        layers=3,
        skip=2,
        fields=names,
    )
    assert "1 samples, 16 vertices" in summary
    unit = samples[0]["Unit"]
    assert unit["arm"] == ["Input", "Layer", "Layer", "Layer"] * 3
    assert unit["char"][::4] == ["a", "b", "c"]
    assert unit["layer"] == [None, 0, 1, 2] * 3
    assert unit["below"] == [None, 0, 1, 2, None, 4, 5, 6, None, 8, 9, 10]
    assert unit["before"] == [None] * 5 + [1, 2, 3, None, 5, 6, 7]
    assert unit["skip"] == [None, None, 0, None, None, None, 4, None, None, None, 8, None]
    assert samples[0]["Step"] == {"top": [3, 7, 11], "target": ["b", "c", "\n"]}
    assert samples[0]["Text"] == {"steps": [[0, 1, 2]]}


def test_a_grid_without_residuals_and_with_one_at_every_layer(tmp_path: Path) -> None:
    for skip, expected in ((0, [None] * 3), (1, [None, 0, 1])):
        _, samples = imported(tmp_path, "text", "a\n", marks=False, structure="grid", layers=2, skip=skip)
        assert samples[0]["Unit"]["skip"] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": "grid"}, "--structure grid needs --layers"),
        ({"structure": "grid", "layers": 0}, "--layers: found 0, expected 1 or more"),
        ({"structure": "grid", "layers": 70000}, "--layers: found 70000, expected 65536 or fewer"),
        (
            {"structure": "grid", "layers": 2, "skip": 3},
            "--skip: found 3, expected at most --layers, which is 2",
        ),
        ({"layers": 2}, "--layers and --skip go with --structure grid alone"),
        ({"structure": "grid", "layers": 2, "rare": 3}, "--rare goes with --structure sequence alone"),
    ],
)
def test_options_of_a_grid(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        imported(tmp_path, "text", "a b\n", **options)
    assert message in str(caught.value)
