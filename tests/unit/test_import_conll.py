"""Importing words with their tags, a word a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnc.runtime.data import read
from tests.support.importing import CONLL, imported, mistake, program


def test_words_and_tags_of_the_first_and_the_last_column(tmp_path: Path) -> None:
    summary, samples = imported(tmp_path, "conll", CONLL)
    assert summary == (
        "2 samples, 7 vertices, 5 different words, 4 different labels; left out: 2 lines of -DOCSTART-"
    )
    assert samples == [
        {
            "words": [
                {"form": "EU", "tag": "B-ORG"},
                {"form": "rejects", "tag": "O"},
                {"form": "#", "tag": "O"},
            ]
        },
        {"words": [{"form": "Peter", "tag": "B-PER"}, {"form": "Blackburn", "tag": "I-PER"}]},
    ]
    assert read(tmp_path / "out.jsonl", program("bilstm_tagger.dn", embed=4, hidden=4)).samples == 2


@pytest.mark.parametrize(
    "text",
    [
        "EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\n",
        "EU B-ORG\r\nrejects O\r\n\r\nPeter B-PER",
        "\n\nEU  B-ORG \nrejects \t O\n \t\n\n\nPeter B-PER\n\n",
        "-DOCSTART- O\nEU B-ORG\nrejects O\n-DOCSTART-\nPeter B-PER\n",
    ],
)
def test_blanks_tabs_and_lines_between_sentences(tmp_path: Path, text: str) -> None:
    _, samples = imported(tmp_path, "conll", text)
    words = [[(word["form"], word["tag"]) for word in sample["words"]] for sample in samples]
    assert words == [[("EU", "B-ORG"), ("rejects", "O")], [("Peter", "B-PER")]]


def test_other_columns(tmp_path: Path) -> None:
    _, samples = imported(tmp_path, "conll", CONLL, columns=("1", "2"))
    assert [word["tag"] for word in samples[1]["words"]] == ["NNP", "NNP"]
    _, samples = imported(tmp_path, "conll", CONLL, columns=("4", "1"), fields={"tag": "label"})
    assert samples[1]["words"][0] == {"form": "B-PER", "label": "Peter"}


def test_words_without_tags(tmp_path: Path) -> None:
    summary, samples = imported(tmp_path, "conll", "EU\nrejects\n\n10\u00a0000\n", columns=("1",))
    assert summary == "2 samples, 5 vertices, 3 different words; left out: nothing"
    assert samples[1] == {"words": [{"form": "10\u00a0000"}]}


def test_what_sentences_of_other_formats_have(tmp_path: Path) -> None:
    summary, samples = imported(tmp_path, "conll", CONLL, longest=2, structure="balanced")
    assert samples == [
        {"left": {"word": "Peter", "tag": "B-PER"}, "right": {"word": "Blackburn", "tag": "I-PER"}}
    ]
    assert summary.endswith("left out: 2 lines of -DOCSTART-, 1 sentences of more than 2 words")
    _, samples = imported(tmp_path, "conll", "a X\na X\nbc Y\n", rare=2)
    assert samples[0]["words"][2] == {"letters": [{"letter": "b"}, {"letter": "c"}], "tag": "Y"}


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (
            "-DOCSTART- O\n\na X\nb c X\n",
            (),
            "4: error: found 3 columns (separated by blanks or tabs), expected 2 as in line 3",
        ),
        (
            "a\tX\n\tX\n",
            (),
            "2: error: found 1 column (separated by blanks or tabs), expected 2 as in line 1",
        ),
        (
            "a\nb\n",
            (),
            "1: error: 'a' has no tag: found 1 column (separated by blanks or tabs), expected 2 or more "
            "(--columns 1: words without tags)",
        ),
        (
            "a X\n",
            ("1", "4"),
            "1: error: found 2 columns (separated by blanks or tabs), but --columns names column 4",
        ),
        (
            "# id 1\na _ _ O\n",
            (),
            "2: error: found 4 columns (separated by blanks or tabs), expected 3 as in line 1\n"
            "  where rows are comments: --comments '#'",
        ),
        (
            "# text = a\n" + "\t".join("a" * 10),
            (),
            "2: error: found 10 columns (separated by blanks or tabs), expected 4 as in line 1\n"
            "  where rows are comments: --comments '#'\n"
            "  of 10 columns, as those of Universal Dependencies are: dnc import conllu-words",
        ),
    ],
)
def test_mistakes(tmp_path: Path, text: str, columns: tuple[str, ...], message: str) -> None:
    options = {"columns": columns} if columns else {}
    assert mistake(tmp_path, "conll", text, **options) == f"source.txt:{message}"


def test_nothing_but_documents(tmp_path: Path) -> None:
    found = mistake(tmp_path, "conll", "-DOCSTART- -X- O\n\n")
    assert found == "source.txt: error: the file holds no samples; left out: 1 lines of -DOCSTART-"


def test_comments(tmp_path: Path, command, workplace) -> None:
    """Of as many columns as the words have they would be words, which is told of."""
    found = mistake(tmp_path, "conll", CONLL, comments=" ")
    assert found == "error: --comments: found ' ', expected what comments begin with, as '#'"
    text = "# id 7 en\nthe _ _ O\nold _ _ B-X\n\n# id 8 en\n# _ _ O\n"
    summary, samples = imported(tmp_path, "conll", text, comments="# id")
    assert summary == "2 samples, 5 vertices, 3 different words, 2 different labels; left out: 2 comments"
    assert [word["form"] for sample in samples for word in sample["words"]] == ["the", "old", "#"]
    (workplace / "ner.txt").write_text(text)
    told = (
        "note: every sentence begins with a row that begins with '#'; where rows are comments: --comments '#'"
    )
    assert told in command("import conll ner.txt -o ner.jsonl").error
    assert command("import conll ner.txt -o ner.jsonl --comments #").error == ""
    assert imported(tmp_path, "conll", CONLL)[0].endswith("left out: 2 lines of -DOCSTART-")


def test_the_command(command, workplace) -> None:
    (workplace / "ner.txt").write_text(CONLL)
    done = command("import conll ner.txt -o ner.jsonl --columns 1,3")
    assert done.code == 0 and "2 samples, 7 vertices" in done.out
    assert '"tag":"I-NP"' in (workplace / "ner.jsonl").read_text()
    done = command("import conll ner.txt -o ner.jsonl --separator |")
    assert done.code == 2 and "--separator does not go with the format 'conll'" in done.error
