"""Vocabularies: order, limits, unknown words, saving."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnc.diagnostics import DiagnosticError
from dnc.ir.structure import Dimension
from dnc.runtime.data import load_vocabularies, read_samples, save_vocabularies
from dnc.runtime.data.vocabulary import build_vocabulary
from tests.support.data_programs import TREE, WORD, label, program, struct, token

TAGGED = program(WORD)


def test_sorted_by_frequency_then_text() -> None:
    built = build_vocabulary("d", ["b", "a", "c", "c", "<unk>"], unknown=True)
    assert built.words == ("<unk>", "c", "a", "b")
    assert [built.number(word) for word in ("<unk>", "c", "new")] == [0, 1, 0]
    assert built.words[1] == "c"


def test_min_count_spares_labels() -> None:
    words = [{"form": form, "tag": tag} for form, tag in (("a", "X"), ("a", "X"), ("b", "Y"))]
    found = read_samples(words, TAGGED, min_count=2).vocabularies
    assert found["vocab"].words == ("<unk>", "a") and found["tags"].words == ("X", "Y")


def test_min_count_without_words() -> None:
    with pytest.raises(DiagnosticError) as caught:
        read_samples([{"form": 1, "tag": "X"}], TAGGED, min_count=2)
    assert str(caught.value) == "samples: error: min_count is 2, but no token of the data is a word"


def test_training_vocabulary_serves_other_data(tmp_path: Path) -> None:
    train = read_samples([{"form": "a", "tag": "X"}, {"form": "b", "tag": "Y"}], TAGGED)
    path = tmp_path / "vocabularies.json"
    save_vocabularies(path, train.vocabularies)
    loaded = load_vocabularies(path)
    assert loaded == train.vocabularies
    dev = read_samples([{"form": "new", "tag": "Y"}, {"form": "b", "tag": "X"}], TAGGED, loaded)
    table = dev.forest.tables["Word"]
    assert table.data["form"].tolist() == [0, 2] and table.data["tag"].tolist() == [1, 0]
    assert dev.vocabularies == train.vocabularies


def test_unknown_label_is_missing_in_prediction() -> None:
    train = read_samples([{"form": "a", "tag": "X"}], TAGGED)
    again = read_samples([{"form": "a", "tag": "?"}], TAGGED, train.vocabularies, labels_required=False)
    assert again.forest.tables["Word"].data["tag"].tolist() == [-1]


def test_numbers_keep_their_size(tmp_path: Path) -> None:
    train = read_samples([{"form": 4, "tag": 2}], TAGGED)
    save_vocabularies(tmp_path / "v", train.vocabularies)
    assert load_vocabularies(tmp_path / "v") == train.vocabularies
    assert (len(train.vocabularies["vocab"]), len(train.vocabularies["tags"])) == (5, 3)


def test_a_number_that_training_lacks() -> None:
    train = read_samples([{"form": 3, "tag": 0}], TAGGED)
    with pytest.raises(DiagnosticError) as caught:
        read_samples([{"form": 11, "tag": 0}], TAGGED, train.vocabularies)
    assert str(caught.value) == (
        "samples:1: error: field 'form' is 11, but token<vocab> has 0..3, as training had; "
        "dnc compile --set vocab=12 has room for it"
    )


def test_text_labels_for_a_set_dimension() -> None:
    three = program(struct("Word", Word=[token("form"), label("tag", Dimension("tags", 3))]))
    data = read_samples([{"form": "a", "tag": tag} for tag in "YXX"], three)
    assert data.forest.tables["Word"].data["tag"].tolist() == [1, 0, 0]
    assert data.vocabularies["tags"].words == ("X", "Y")


def test_a_dimension_of_tokens_and_labels_has_one_vocabulary() -> None:
    vocab = Dimension("vocab", None)
    language = program(struct("Word", Word=[token("form", vocab), label("following", vocab)]))
    data = read_samples([{"form": "a", "following": "b"}, {"form": "b", "following": "b"}], language)
    assert data.vocabularies["vocab"].words == ("<unk>", "b", "a")
    assert data.forest.tables["Word"].data["following"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "v.json: error: not a vocabulary file: Expected `object`, got `array`"),
        ("{", "v.json: error: not a vocabulary file: Input data was truncated"),
        (
            '{"d": {"size": 3, "unknown": true, "words": ["a", "a"]}}',
            "v.json: error: vocabulary 'd': size 3, 1 words",
        ),
    ],
)
def test_broken_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "v.json").write_text(text)
    with pytest.raises(DiagnosticError) as caught:
        load_vocabularies(tmp_path / "v.json")
    assert str(caught.value) == f"{tmp_path}/{message}"
    with pytest.raises(DiagnosticError, match="cannot read the vocabularies: No such file"):
        load_vocabularies(tmp_path / "none")


def test_order_does_not_depend_on_the_order_of_samples() -> None:
    samples = [{"word": word, "label": 0} for word in "abcabcaz"]
    one = read_samples(samples, TREE).vocabularies
    assert one == read_samples(samples[::-1], TREE).vocabularies
