"""Words and labels that are known beside those of the training data: `--vocabulary NAME=FILE`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import dnc
from dnc.compiler import compile_model
from dnc.diagnostics import DiagnosticError
from dnc.runtime.data.vocabulary import build_vocabulary
from dnc.runtime.run_config import read_config

MODEL = """model M(vocab, tags = 3, embed = 2)
struct W = W(form: token<vocab>, tag: class<tags>)
struct S = S(ws: [W])
frozen param E: table[vocab, embed] = normal(0.05)
param V: [tags, embed]
fn score(w: W) = V @ E[w.form]
loss sum(w in all(W)) cross_entropy(score(w), w.tag)
metric accuracy = mean(w in all(W)) argmax(score(w)) == w.tag
output tags = [argmax(score(w)) for w in all(W)]
"""
TRAIN = [("a", "X"), ("a", "X"), ("b", "Y"), ("c", "X")]
DEV = [("a", "Z"), ("new", "Y")]
RUN = "run tagger --data words.jsonl --device vm"
NEEDED = "  for labels that the training data lack: dnc run --vocabulary tags=FILE, as training begins"


@pytest.fixture
def tagger(workplace: Path) -> Path:
    """The workplace with a build `tagger`, its data, and files of words and of labels."""
    (workplace / "m.dn").write_text(MODEL)
    compile_model("m.dn", "tagger", ("cpu",))
    for name, words in (("words", TRAIN), ("new", DEV)):
        sample = {"ws": [{"form": form, "tag": tag} for form, tag in words]}
        (workplace / f"{name}.jsonl").write_text(json.dumps(sample) + "\n")
    (workplace / "tags.txt").write_text("Z\nX\n")
    (workplace / "vocab.txt").write_text("new\na\nother\n")
    return workplace


def words_of(run: str, name: str) -> list[str]:
    return json.loads((Path(run) / "vocabulary.json").read_text())[name]["words"]


def test_they_come_behind_those_of_the_data_and_are_never_left_out() -> None:
    strings = ["b", "a", "c", "c", "d"]
    built = build_vocabulary("d", strings, unknown=True, beside=("z", "a", "<unk>", "y"))
    assert built.words == ("<unk>", "c", "a", "b", "d", "z", "y")
    built = build_vocabulary("d", strings, unknown=True, min_count=2, beside=("z", "a"))
    assert built.words == ("<unk>", "c", "a", "z")
    built = build_vocabulary("d", strings, unknown=True, limit=4, beside=("z", "d"))
    assert built.words == ("<unk>", "c", "d", "z")
    built = build_vocabulary("d", strings, unknown=True, limit=3, beside=("z", "y", "x"))
    assert built.words == ("<unk>", "z", "y", "x")  # who builds it says that these are too many
    assert build_vocabulary("d", ["b"], unknown=False, beside=("<unk>", "b")).words == ("b", "<unk>")


def test_a_label_of_the_dev_set_that_training_lacks(command, tagger: Path) -> None:
    done = command(f"{RUN} --dev new.jsonl")
    where = "new.jsonl:1: error: ws[0].tag is \"Z\", which is no label of 'tags'; its labels are 'X', 'Y'"
    assert done.code == 2 and done.error.splitlines()[-2:] == [where, NEEDED]
    done = command(f"{RUN} --dev new.jsonl --vocabulary tags=tags.txt --run-dir runs/a")
    assert done.code == 0, done.error
    assert words_of("runs/a", "tags") == ["X", "Y", "Z"]
    assert read_config("runs/a/run.toml").vocabulary == {"tags": str(tagger / "tags.txt")}
    assert command("run tagger --data new.jsonl --eval --run-dir runs/a --device vm").code == 0
    assert command("run --config runs/a/run.toml --run-dir runs/b").code == 0
    last = (tagger / "runs/a/last.safetensors").read_bytes()
    assert (tagger / "runs/b/last.safetensors").read_bytes() == last


def test_frozen_vectors_of_words_outside_of_the_training_data(command, tagger: Path) -> None:
    (tagger / "glove.txt").write_text("a 1 2\nnew 3 4\n")
    given = "--vocabulary vocab=vocab.txt --embeddings E=glove.txt --vocabulary tags=tags.txt"
    done = command(f"{RUN} {given} --run-dir r")
    assert done.code == 0 and "glove.txt: 2 of 6 rows of E" in done.error
    assert words_of("r", "vocab") == ["<unk>", "a", "b", "c", "new", "other"]
    assert load_file("r/last.safetensors")["E"][[1, 4]].tolist() == [[1, 2], [3, 4]]


def test_a_run_that_goes_on_has_its_own(command, tagger: Path) -> None:
    assert command(f"{RUN} --vocabulary tags=tags.txt --run-dir r").code == 0
    before = {path: path.read_bytes() for path in Path("r").iterdir()}
    (tagger / "more.txt").write_text("Q\n")
    for more in ("tags=more.txt", "tags=tags.txt --vocabulary vocab=vocab.txt"):
        done = command(f"run --resume r --epochs 2 --vocabulary {more}")
        assert done.code == 2 and {path: path.read_bytes() for path in Path("r").iterdir()} == before
        assert "--resume and --vocabulary exclude each other: r has begun already" in done.error
    (tagger / "tags.txt").unlink()  # the checkpoint has them
    assert command("run --resume r --epochs 2 --vocabulary tags=tags.txt").code == 0
    assert words_of("r", "tags") == ["X", "Y", "Z"]
    assert read_config("r/run.toml").vocabulary == {"tags": str(tagger / "tags.txt")}


def test_a_checkpoint_has_its_own(command, tagger: Path) -> None:
    assert command(f"{RUN} --run-dir r").code == 0
    done = command(f"{RUN} --checkpoint r/last.safetensors --vocabulary tags=tags.txt")
    assert "--vocabulary and --checkpoint exclude each other: a checkpoint has its own words" in done.error
    done = command(f"{RUN} --weights r/last.safetensors --vocabulary tags=tags.txt")
    known = "tags.txt: \"Z\" is not in the vocabulary of 'tags', which the model has already"
    assert done.code == 2 and known in done.error and not Path("runs").exists()
    for mode in ("--eval", "--predict out"):
        done = command(f"{RUN} {mode} --vocabulary tags=tags.txt")
        assert done.code == 2 and "--vocabulary is for training" in done.error


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("tags=none.txt", None, "none.txt: error: there is no such file"),
        ("tag=f.txt", "X\n", "vocabulary of 'tag': there is no such dimension of tokens or classes; did you"),
        ("embed=f.txt", "X\n", "vocabulary of 'embed': there is no such dimension of tokens or classes"),
        ("tags", None, "--vocabulary: found 'tags', expected a dimension and a file, as tags=tags.txt"),
        ("tags=f.txt --vocabulary tags=g.txt", None, "--vocabulary: tags is named twice"),
        ("tags=f.txt", "", "f.txt: holds no words"),
        ("tags=f.txt", "X\n\nY\n", "f.txt: entry 2 is empty, expected a word or a label"),
        ("tags=f.txt", "X\nZ\nX\n", "f.txt: 'X' is in it more than once"),
        (
            "tags=f.txt",
            "P\nQ\nX\n",
            "f.txt: with its entries 'tags' has 4 labels, but it is 3\n"
            '  for as many: dnc compile --set tags=4\n  not in the data: "P", "Q"\n',
        ),
        ("tags=f.txt", "A \nB\nC\nD\n", 'not in the data: "A ", "B", "C", ...\n'),
    ],
)
def test_mistakes(command, tagger: Path, option: str, text: str | None, message: str) -> None:
    if text is not None:
        (tagger / "f.txt").write_text(text)
    done = command(f"{RUN} --vocabulary {option}")
    assert done.code == 2 and message in done.error and not Path("runs").exists()


def test_too_many_labels_of_the_data_alone_are_no_matter_of_the_file(command, tagger: Path) -> None:
    sample = {"ws": [{"form": "a", "tag": tag} for tag in "PQRST"]}
    (tagger / "words.jsonl").write_text(json.dumps(sample))
    done = command(f"{RUN} --vocabulary tags=tags.txt")
    assert done.code == 2 and "words.jsonl:1: error: ws[4].tag has" in done.error


def test_of_a_dimension_of_fixed_size_the_rarest_words_make_room(command, tagger: Path) -> None:
    compile_model("m.dn", "small", ("cpu",), {"vocab": 4})
    run = "run small --data words.jsonl --device vm --vocabulary vocab=f.txt"
    (tagger / "f.txt").write_text("new\nc\n")
    assert command(f"{run} --run-dir r").code == 0
    assert words_of("r", "vocab") == ["<unk>", "a", "c", "new"]
    (tagger / "f.txt").write_text("new\nc\nd\ne\n")
    done = command(f"{run} --run-dir q")
    message = "f.txt: with its entries 'vocab' has 5 words with <unk>, but it is 4"
    assert done.code == 2 and message in done.error and "dnc compile --set vocab=5" in done.error


def test_data_that_hold_numbers(command, tagger: Path) -> None:
    (tagger / "words.jsonl").write_text('{"ws":[{"form":"a","tag":1}]}')
    done = command(f"{RUN} --vocabulary tags=tags.txt")
    message = "tags.txt: 'tags' has numbers in words.jsonl, not words or labels"
    assert done.code == 2 and message in done.error


def test_in_python(tagger: Path) -> None:
    model = dnc.load("tagger", "vm")
    model.attach("words.jsonl", vocabulary={"tags": ["Z"], "vocab": Path("vocab.txt")})
    assert model.vocabularies is not None
    assert model.vocabularies["tags"].words == ("X", "Y", "Z")
    assert model.vocabularies["vocab"].words == ("<unk>", "a", "b", "c", "new", "other")
    assert np.isfinite(model.evaluate("new.jsonl").loss)
    model.attach("words.jsonl", vocabulary={"tags": "tags.txt"})  # they are known
    for given, message in (
        ({"tags": ["Q"]}, "vocabulary of 'tags': \"Q\" is not in the vocabulary of 'tags', which"),
        ({"tags": 3}, "vocabulary of 'tags': found int, expected a file, or a list of words"),
        ({"tags": ["Q", 1]}, "vocabulary of 'tags': found list, expected a file, or a list of words"),
        ({"tags": ["Q", "Q"]}, "vocabulary of 'tags': \"Q\" is in it more than once"),
        ({"tags": ["\ud800"]}, "half of a character"),
        ("tags.txt", "vocabulary: found str, expected files of words by dimension"),
        ({0: ["Q"]}, "vocabulary: found 0, expected the name of a dimension"),
    ):
        with pytest.raises(DiagnosticError, match=message):
            dnc.load("tagger", "vm").attach("new.jsonl", vocabulary=given)  # type: ignore[arg-type]
            model.attach("words.jsonl", vocabulary=given)  # type: ignore[arg-type]
