"""First rows of tables from files of word vectors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import dnc
from dnc.diagnostics import DiagnosticError
from dnc.ir.program import TABLE, Initializer, Parameter
from dnc.ir.structure import Dimension
from dnc.runtime.data import Vocabulary
from dnc.runtime.embeddings import read_embeddings

TABLE_E = Parameter("E", TABLE, (Dimension("vocab", None), Dimension("embed", 2)), Initializer("normal", 0.1))
WORDS = Vocabulary("vocab", ("<unk>", "good", "Good", "Bad", "no way", "é"), 6, True)
FIRST = -np.ones((6, 2), np.float32)


def loaded(tmp_path: Path, text: str, words: Vocabulary | None = WORDS):
    path = tmp_path / "vectors.txt"
    path.write_bytes(text.encode())
    values, found = read_embeddings(path, TABLE_E, words, FIRST)
    return values.tolist(), str(found).removeprefix(f"{tmp_path}/")


def test_rows_by_word(tmp_path: Path) -> None:
    """Exact words before lower-case forms, the first of two vectors, words with blanks in them."""
    text = "good 1 2\nother 0 0\nbad 3 4\nno way 5 6\né 7e-1 8 \r\ngood 9 9\nat the end 0 0\n"
    values, summary = loaded(tmp_path, text)
    assert np.allclose(values, [[-1, -1], [1, 2], [1, 2], [3, 4], [5, 6], [0.7, 8]])
    assert summary == (
        "vectors.txt: 5 of 6 rows of E (2 by the lower-case form of the word); "
        "the others keep their first values"
    )
    values, _ = loaded(tmp_path, "\ufeffgood 1 2\nbad 3 4\n")
    assert values[1] == [1, 2]
    values, _ = loaded(tmp_path, "Good 5 5\ngood 1 2\n")
    assert values[1:3] == [[1, 2], [5, 5]]
    assert (FIRST == -1).all()


def test_a_line_of_counts_is_passed_over(tmp_path: Path) -> None:
    values, _ = loaded(tmp_path, "400000 2\ngood 1 2\n")
    assert values[1] == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "good\t1\t2\nno way\t5\t6\n",
        "good\t1 2\t\r\nno way\t5 6 \r\n",
        "3\t2\ngood\t1\t2\nno way\t5\t6\n",
        ". . . 0 0\nat name@domain.com 0 0\ngood 1 2\nno way 5 6\n",
        "no way 5 6\ngood 1 2\n1 1/2 0 0\n1 2 0 0\n",
        "7 5 6\ngood 1 2\nno way 5 6",
        "good  1 2\nno  way 0 0\nno way 5 6\n",
    ],
)
def test_tabs_and_words_with_blanks(tmp_path: Path, text: str) -> None:
    """As GloVe of 840 billion tokens has them, also in its first line."""
    values, summary = loaded(tmp_path, text)
    assert [values[at] for at in (1, 2, 4)] == [[1, 2], [1, 2], [5, 6]]
    assert "3 of 6 rows" in summary


def test_files_that_are_packed(tmp_path: Path) -> None:
    path = tmp_path / "v.gz"
    for content, message in (
        (gzip.compress(b"good 1 2\n", mtime=0), "is compressed with gzip; unpack it first"),
        (b"PK\x03\x04good", "is a zip archive; unpack it first"),
        ("\ufeffgood 1 2\n".encode("utf-16-le"), "is UTF-16, expected UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(DiagnosticError) as caught:
            read_embeddings(path, TABLE_E, WORDS, FIRST)
        assert str(caught.value) == f"{path}: error: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "good 1 2 3\n",
            "vectors.txt:1: error: 'good' has 3 numbers, but the rows of E have 2 (--set embed=3)",
        ),
        (
            "7 3\nthe 1 2 3\n",
            "vectors.txt:2: error: 'the' has 3 numbers, but the rows of E have 2 (--set embed=3)",
        ),
        (
            ". . . 1 2 3\n",
            "vectors.txt:1: error: '. . .' has 3 numbers, but the rows of E have 2 (--set embed=3)",
        ),
        (
            "good\t1\t2\t3\n",
            "vectors.txt:1: error: 'good' has 3 numbers, but the rows of E have 2 (--set embed=3)",
        ),
        ("a text of another kind\n", "vectors.txt:1: error: found 'another' in a vector, expected numbers"),
        ("the 1 2\nof 1\n", "vectors.txt:2: error: 'of' has 1 numbers, but the rows of E have 2"),
        ("good 1 x\n", "vectors.txt:1: error: found 'x' in a vector, expected numbers"),
        ("good 1 1e99\n", "vectors.txt:1: error: a vector holds numbers that are not finite"),
        ("the 1 2\n", "vectors.txt: error: holds none of the 6 words of 'vocab'"),
        ("", "vectors.txt: error: holds none of the 6 words of 'vocab'"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        loaded(tmp_path, text)
    assert str(caught.value).replace(f"{tmp_path}/", "") == message


def test_words_that_are_numbers(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        loaded(tmp_path, "a 1 2", Vocabulary("vocab", None, 6, True))
    assert str(caught.value) == (
        "error: embeddings: the data hold numbers for 'vocab', so the rows of E are no words"
    )


def test_the_command_starts_from_them(command, workplace) -> None:
    vectors = {"good": [1, 2, 3, 4], "bad": [-1, 0, 0.5, 2], "none": [0, 0, 0, 0]}
    text = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in vectors.items())
    (workplace / "vectors.txt").write_text(text)
    train = "run build --data train.jsonl --device vm --lr 1e-30"
    done = command(f"{train} --embeddings E=vectors.txt --run-dir one")
    assert done.code == 0 and "vectors.txt: 2 of 4 rows of E; the others keep" in done.error
    words = json.loads((workplace / "one" / "vocabulary.json").read_text())["vocab"]["words"]
    found = load_file(workplace / "one" / "last.safetensors")["E"]
    plain = dnc.load("build", "vm")
    plain.attach("train.jsonl")
    for row, word in enumerate(words):
        np.testing.assert_allclose(found[row], vectors.get(word, plain.parameters()["E"][row]), atol=1e-6)
    for more, message in (
        ("W=vectors.txt", "embeddings: W is no table; the tables are 'E'"),
        ("F=vectors.txt", "embeddings: no table is called 'F'; the tables are 'E'"),
        ("E", "--embeddings: found 'E', expected a table and a file, as E=vectors.txt"),
        ("E=v --embeddings E=w", "--embeddings: E is named twice"),
        ("E=v --eval", "--embeddings and --eval exclude each other: a checkpoint has its own vectors"),
        ("E=none.txt", "none.txt: error: there is no such file"),
    ):
        done = command(f"{train} --embeddings {more}")
        assert done.code == 2 and done.error.splitlines()[-1].removeprefix("error: ") == message
