"""What samples are called: an id is read beside the fields, and stands in front of predictions."""

import json
from pathlib import Path

import numpy as np
import pytest

from dnc.diagnostics import DiagnosticError
from dnc.runtime.data import read, read_samples
from tests.support.data_programs import TREE, child, label, program, struct, token, write

LEAF = {"word": "a", "label": 1}
FLAT = {"Tree": {"arm": ["Leaf"], "word": ["a"], "label": [1]}, "root": 0}


def test_of_both_forms(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"id": "s1", **LEAF}, LEAF, {**FLAT, "id": 7}, {"id": None, **LEAF})
    data = read(path, TREE)
    assert data.samples == 4 and data.ids == ("s1", None, 7, None)
    assert data.select(np.array([2, 0, 2])).ids == (7, "s1", 7)
    assert data.digest() == read(write(tmp_path / "u.jsonl", LEAF, LEAF, FLAT, LEAF), TREE).digest()
    assert read_samples([LEAF, FLAT], TREE).ids == ()
    assert read_samples([LEAF, FLAT], TREE).select(np.array([1])).ids == ()


def test_samples_in_memory_keep_theirs() -> None:
    sample = {"id": np.int64(3), **LEAF}
    assert read_samples([sample, sample], TREE).ids == (3, 3)
    assert sample["id"] == 3


@pytest.mark.parametrize(
    "value, found",
    [([1], "an array"), (True, "a truth value"), (1.5, "a fractional number"), ({}, "an object")],
)
def test_of_another_kind(value: object, found: str) -> None:
    with pytest.raises(DiagnosticError, match=f"samples:2: error: an id must be .*, found {found}$"):
        read_samples([{"id": "x", **LEAF}, {"id": value, **LEAF}], TREE)


def test_of_half_a_character() -> None:
    with pytest.raises(DiagnosticError, match="an id holds half of a character"):
        read_samples([{"id": "a\ud800", **LEAF}], TREE)


def test_a_struct_that_is_called_so_is_a_struct() -> None:
    user = program(struct("id", id=[token("name")]), struct("User", User=[child("of", "id")]))
    data = read_samples([{"id": {"name": ["anna"]}, "User": {"of": [0]}, "root": 0}], user)
    assert data.ids == () and data.vocabularies["vocab"].words == ("<unk>", "anna")


def test_only_the_sample_has_one() -> None:
    inner = {"left": {"id": "x", **LEAF}, "right": LEAF, "label": 0}
    with pytest.raises(DiagnosticError, match="left: Leaf has no field 'id'"):
        read_samples([inner], TREE)


def test_a_field_that_is_called_so_is_a_field() -> None:
    user = program(struct("User", User=[token("id"), label("label")]))
    data = read_samples([{"id": "anna", "label": 1}], user)
    assert data.ids == () and data.vocabularies["vocab"].words == ("<unk>", "anna")


def test_predictions_find_their_way_back(command, workplace) -> None:
    samples = [{"id": "second", "word": "bad"}, {"word": "good"}, {"id": 1, "word": "bad"}]
    write(workplace / "plain.jsonl", *samples)
    assert command("run build --data train.jsonl --device vm --batch 2 --run-dir r").code == 0
    predict = "run build --data plain.jsonl --device vm --run-dir r --predict"
    assert command(f"{predict} out.jsonl").code == 0
    found = [json.loads(line) for line in (workplace / "out.jsonl").read_text().splitlines()]
    assert [list(each) for each in found] == [["id", "label", "p"], ["label", "p"], ["id", "label", "p"]]
    assert found[0].pop("id") == "second" and found[2].pop("id") == 1 and found[0] == found[2]
    assert command(f"{predict} -").out == (workplace / "out.jsonl").read_text()
    write(workplace / "plain.jsonl", *({"word": each["word"]} for each in samples))
    assert command(f"{predict} -").out == "".join(
        json.dumps(each, separators=(",", ":")) + "\n" for each in found
    )


def test_an_output_that_is_called_so(command, workplace) -> None:
    (workplace / "own.dn").write_text(
        "model Own(vocab, classes = 2)\n"
        "struct Word = Word(word: token<vocab>, label: class<classes>)\n"
        "param E: table[vocab, classes] = normal(0.05)\n"
        "loss sum(t in root) cross_entropy(E[t.word], t.label)\n"
        "output id = argmax(E[root.word]), other = argmax(E[root.word])\n"
    )
    assert command("compile own.dn -o own").code == 0
    write(workplace / "own.jsonl", {"id": "x", "word": "a", "label": 1})
    assert command("run own --data own.jsonl --device vm --run-dir r").code == 0
    predict = "run own --data own.jsonl --device vm --run-dir r --predict -"
    done = command(predict)
    assert done.code == 2 and not done.out
    assert "error: samples have an 'id', and an output is called so: call it otherwise" in done.error
    write(workplace / "own.jsonl", {"word": "a", "label": 1})
    (found,) = map(json.loads, command(predict).out.splitlines())
    assert set(found) == {"id", "other"} and found["id"] == found["other"]
