"""Sizes that data ask for: where a program leaves them open, and where it has more classes than they."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnc.compiler import compile_model

MODEL = """model M(vocab, tags, rels, embed = 2)
struct W = W(form: token<vocab>, tag: class<tags>, rel: class<rels>)
param E: table[vocab, embed]
param V: [tags, embed], R: [rels, embed]
fn scores(w: W) = V @ E[w.form]
loss sum(w in root) cross_entropy(scores(w), w.tag)
loss sum(w in root) cross_entropy(R @ E[w.form], w.rel)
output tag = argmax(scores(root))
"""
DATA = '{"form":"a","tag":"X","rel":3}\n{"form":"b","tag":"Y","rel":0}\n{"form":"c","tag":"X","rel":1}\n'


@pytest.fixture
def place(workplace: Path) -> Path:
    (workplace / "m.dn").write_text(MODEL)
    (workplace / "words.jsonl").write_text(DATA)
    return workplace


def test_open_sizes_are_read_from_the_data(command, place: Path) -> None:
    done = command("check m.dn --data words.jsonl")
    assert done.code == 2
    assert "'tags' is open but shapes parameter V" in done.error
    assert "\n  words.jsonl has 2 labels: --set tags=2\n" in done.error
    assert "\n  words.jsonl has 4 numbers: --set rels=4\n" in done.error
    done = command("check m.dn --data words.jsonl --set rels=4")
    assert "--set tags=2" in done.error and "--set rels" not in done.error
    assert command("check m.dn --data words.jsonl --set rels=4,tags=2").code == 0
    done = command("check m.dn --data words.jsonl --json")
    assert "words.jsonl has 2 labels: --set tags=2" in done.out


def test_words_count_with_the_one_that_stands_for_others(command, place: Path) -> None:
    (place / "m.dn").write_text(MODEL.replace("table[vocab, embed]", "[vocab, embed]"))
    done = command("check m.dn --data words.jsonl --set rels=4,tags=2")
    assert "\n  words.jsonl has 4 words with <unk>: --set vocab=4\n" in done.error


@pytest.mark.parametrize(
    ("program", "data"),
    [(MODEL, "{}"), (MODEL, None), (MODEL.replace("argmax(scores(root))", "argmax(score(root))"), DATA)],
)
def test_nothing_is_said_of_other_mistakes(command, place: Path, program: str, data: str | None) -> None:
    (place / "m.dn").write_text(program)
    (place / "words.jsonl").unlink()
    if data is not None:
        (place / "words.jsonl").write_text(data)
    done = command("check m.dn --data words.jsonl")
    assert done.code == 2 and done.error == command("check m.dn").error


def test_more_classes_than_labels_are_noted_as_training_begins(command, place: Path) -> None:
    compile_model("m.dn", "m", ("cpu",), {"tags": 3, "rels": 5})
    note = "note: 'tags' is 3, but the data have 2 labels: other classes would be predicted as numbers "
    note += "(dnc compile --set tags=2, or --vocabulary tags=FILE)\n"
    run = "run m --data words.jsonl --device vm"
    done = command(f"{run} --run-dir r")
    assert done.code == 0 and done.error.count("note: ") == done.error.count(note) == 1
    assert "note: " not in command("run --resume r --epochs 2").error
    (place / "tags.txt").write_text("Z\n")
    assert "note: " not in command(f"{run} --vocabulary tags=tags.txt").error
