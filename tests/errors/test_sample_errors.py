"""Mistakes in samples that are handed in from memory, or for a model that knows others, with the message."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dnc.diagnostics import DiagnosticError
from dnc.ir.structure import Dimension
from dnc.runtime.data import read_samples
from dnc.runtime.data.usage import layout_of
from tests.support.data_programs import SPEECH, TREE, WORD, children, label, program, struct, token

NEEDED = "\n  for labels that the training data lack: dnc run --vocabulary tags=FILE, as training begins"
TAGGED = program(
    struct("Word", Word=[token("form"), label("tag", Dimension("tags", 5))]),
    struct("Sentence", Sentence=[children("words", "Word"), label()]),
)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ((1, 9, 8, 7), "words[1].tag is 9, but class<tags> has 0..4"),
        ((1, 1.5, [], {}), "words[1].tag must be a whole number or a label, found a fractional number"),
        ((1, None, None, 1), "words[1]: Word: field 'tag' is null"),
        (("X", 3, 4, 5), "words[1].tag holds a string elsewhere in this file, found a number"),
        ((3, "X", "Y", "Z"), "words[1].tag holds a number elsewhere in this file, found a string"),
    ],
)
def test_of_several_wrong_vertices_the_first(tags: tuple, message: str) -> None:
    words = [{"form": "a", "tag": tag} for tag in tags]
    with pytest.raises(DiagnosticError) as caught:
        read_samples([{"words": words, "label": 0}] * 2, TAGGED)
    assert str(caught.value).split(" (and")[0] == f"samples:1: error: {message}"


def test_of_several_wrong_vectors_the_first() -> None:
    for wrong, message in (
        ([[1, 2]] * 2, "must be a list of 3 numbers, found 2"),
        ([[1, 2, "a"], [1, 2, None]], "must be a list of 3 numbers, found a string in it"),
        ([[1, 2, 1e300], [1, 2, 2e300]], "is 1e+300, too large for 32-bit floats"),
    ):
        frames = [{"x": x, "energy": 1} for x in ([1, 2, 3], *wrong)]
        with pytest.raises(DiagnosticError) as caught:
            read_samples([{"frames": frames, "label": 1}], SPEECH)
        assert str(caught.value) == f"samples:1: error: frames[1].x {message}"


def test_of_several_wrong_subtrees_the_first() -> None:
    wrong = {"left": {"word": "a", "label": 2}, "right": {"word": 1.5, "label": 2}, "label": 2}
    with pytest.raises(DiagnosticError) as caught:
        read_samples([{"left": wrong, "right": wrong, "label": 2}], TREE)
    assert str(caught.value).startswith("samples:1: error: left.right.word must be a word or a whole number")
    with pytest.raises(DiagnosticError) as caught:
        read_samples([{"left": {"left": 3}, "right": {"wrod": "a"}, "label": 2}], TREE)
    assert str(caught.value).startswith("samples:1: error: left: ")


def test_labels_that_are_unknown_and_how_many_there_are() -> None:
    known = read_samples([{"form": "a", "tag": "Noun"}], program(WORD)).vocabularies
    with pytest.raises(DiagnosticError, match=r"which is no label of 'tags'; its labels are 'Noun'\n"):
        read_samples([{"form": "a", "tag": "?"}], program(WORD), known)
    many = read_samples([{"form": "a", "tag": f"T{i}"} for i in range(11)], program(WORD)).vocabularies
    with pytest.raises(DiagnosticError, match=r"which is no label of 'tags'; it has 11 labels\n"):
        read_samples([{"form": "a", "tag": "?"}], program(WORD), many)


def test_no_samples() -> None:
    """Where there is no file, none is empty."""
    for nothing in ([], iter(())):
        with pytest.raises(DiagnosticError) as caught:
            read_samples(nothing, TREE)
        assert str(caught.value) == "samples: error: there are none, expected one or more"


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (
            {"form": "a", "tag": "Nuon"},
            "field 'tag' is \"Nuon\", which is no label of 'tags'; did you mean 'Noun'?" + NEEDED,
        ),
        (
            {"form": "a", "tag": "?"},
            "field 'tag' is \"?\", which is no label of 'tags'; its labels are 'Noun', 'Verb'" + NEEDED,
        ),
        ({"form": 1, "tag": "Noun"}, "field 'form' is a number, but the model knows 'vocab' as strings"),
    ],
)
def test_not_the_training_vocabulary(sample: dict, message: str) -> None:
    train = [{"form": "a", "tag": "Noun"}, {"form": "b", "tag": "Verb"}]
    known = read_samples(train, program(WORD)).vocabularies
    with pytest.raises(DiagnosticError) as caught:
        read_samples([sample], program(WORD), known)
    assert str(caught.value) == f"samples:1: error: {message}"


def test_half_of_a_character() -> None:
    """It is refused where it would enter a vocabulary, which is saved; another word is an unknown one."""
    good, half = {"form": "a", "tag": "Noun"}, "\ud800"
    for field in ("form", "tag"):
        with pytest.raises(DiagnosticError) as caught:
            read_samples([good, {**good, field: half + "b"}], program(WORD))
        text = "half of a character, and the other half is missing"
        assert str(caught.value) == f"samples:2: error: field '{field}' holds \"\\ud800\", {text}"
    known = read_samples([good], program(WORD)).vocabularies
    assert read_samples([{**good, "form": half}], program(WORD), known).samples == 1
    with pytest.raises(DiagnosticError, match=r"field 'tag' is \"\\ud800\", which is no label"):
        read_samples([{**good, "tag": half}], program(WORD), known)


def test_keys_that_are_no_strings() -> None:
    """Numbers count as their digits, as in JSON; anything else is named with its sample."""
    good = {"form": "a", "tag": "Noun"}
    for sample, message in (
        ({**good, 3: 1}, "Word has no field '3'; its fields are 'form', 'tag'"),
        ({**good, None: 1}, "holds what JSON has not: Only dicts with str-like or number-like keys are"),
        ({b"form": 1}, "holds what JSON has not: Only dicts with str-like or number-like keys are supported"),
        (
            {**good, "more": [({b"form": 1},)]},
            "holds what JSON has not: Only dicts with str-like or number-like",
        ),
    ):
        with pytest.raises(DiagnosticError) as caught:
            read_samples([good, sample], program(WORD))
        assert str(caught.value).startswith(f"samples:2: error: {message}"), str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


def test_a_sample_that_holds_itself() -> None:
    sample: dict[str, Any] = {"form": "a", "tag": "Noun"}
    sample["more"] = [sample, sample]
    with pytest.raises(DiagnosticError) as caught:
        read_samples([sample], program(WORD))
    assert str(caught.value) == "samples:1: error: nested too deeply; write it in the flat form"


def test_one_sample() -> None:
    with pytest.raises(DiagnosticError) as caught:
        read_samples({"form": "a", "tag": "Noun"}, program(WORD))  # type: ignore[arg-type]
    assert str(caught.value) == "error: found one sample, expected a path, a data set, or a list of samples"


def test_words_for_a_model_of_numbers() -> None:
    known = read_samples([{"form": 1, "tag": 1}], program(WORD)).vocabularies
    with pytest.raises(DiagnosticError) as caught:
        read_samples([{"form": "a", "tag": 2}], program(WORD), known)
    assert str(caught.value).split("\n") == [
        "samples:1: error: field 'form' is a string, but the model knows 'vocab' as numbers",
        "samples:1: error: field 'tag' is 2, but class<tags> has 0..1, as training had; "
        "dnc compile --set tags=3 has room for it",
    ]


def test_labels_for_a_model_of_numbers_where_an_arm_has_none() -> None:
    """Also if no vertex of the other arm is in the data."""
    pair = '{"left": {"word": 0, "label": 1}, "right": {"word": 1, "label": 0}, "label": 1}'
    known = read_samples([json.loads(pair)], TREE).vocabularies
    with pytest.raises(DiagnosticError) as caught:
        read_samples([{"word": 0, "label": "x"}], TREE, known)
    message = "samples:1: error: field 'label' is a string, but the model knows 'classes' as numbers"
    assert str(caught.value) == message


def test_reserved_field_name() -> None:
    with pytest.raises(DiagnosticError) as caught:
        layout_of(program(struct("Body", Body=[token("arm")])))
    assert str(caught.value) == "error: struct Body: a field cannot be called 'arm', data files use that key"


class Kept:
    """An array that is not handed out."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __dlpack__(self, **options: object) -> None:
        raise self.error("it is elsewhere")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_numpy_in_samples_of_memory() -> None:
    none = "holds what JSON has not: a Kept of which no list can be made"
    given = {"x": np.arange(3, dtype=np.float32), "energy": np.float32(0.5)}
    dataset = read_samples([{"frames": [given], "label": np.int64(1)}], SPEECH)
    assert dataset.forest.tables["Frame"].data["x"].tolist() == [[0, 1, 2]]
    for wrong, message in (
        ({**given, "x": np.array([1.0, np.nan, 2.0])}, "frames[0].x is nan, numbers are finite"),
        ({**given, "energy": float("inf")}, "frames[0].energy is inf, numbers are finite"),
        ({**given, "x": np.zeros((1, 3))}, "frames[0].x must be a list of 3 numbers, found 1"),
        ({**given, "energy": b"1"}, "frames[0].energy must be a number, found bytes"),
        ({**given, "energy": object()}, "holds what JSON has not: a object"),
        ({**given, "energy": Kept(BufferError)}, f"{none}: it is elsewhere"),
        ({**given, "energy": Kept(RuntimeError)}, f"{none}: it is elsewhere"),
    ):
        with pytest.raises(DiagnosticError) as caught:
            read_samples([{"frames": [wrong], "label": 1}], SPEECH)
        assert str(caught.value) == f"samples:1: error: {message}"
