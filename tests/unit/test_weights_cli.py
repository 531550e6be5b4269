"""dnc import-weights and export-weights: files, vocabularies, every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import dnc
from tests.support.models import EXAMPLES

TREE_MAP = """[parameters]
W = { from = "leaf", gates = "i o u -> i o u" }
b_w = "leaf_bias"
V = { keep = true }
b_v = { constant = 0 }
"""


def tree_tensors(rows: int = 4) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"E": (rows, 4), "leaf": (12, 4), "leaf_bias": (12,), "U": (20, 8), "b_u": (20,)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_the_commands(command, workplace) -> None:
    save_file(tree_tensors(), "m.safetensors")
    Path("map.toml").write_text(TREE_MAP)
    Path("words.txt").write_text("bad\n[UNK]\nfilm\ngood\n")
    start = "import-weights m.safetensors --map map.toml"
    done = command(f"{start} --vocabulary vocab=words.txt --unknown [UNK]")
    assert (done.code, done.out) == (0, ""), done.error
    folder = next(Path("runs").iterdir())
    assert done.error.splitlines() == [
        "E [4, 4]: E", "W [12, 4]: leaf", "b_w [12]: leaf_bias", "U [20, 8]: U", "b_u [20]: b_u",
        "b_v [5]: a constant", "first values as declared: V", f"wrote {folder}",
    ]  # fmt: skip
    words = json.loads((folder / "vocabulary.json").read_text())["vocab"]
    assert words == {"words": ["bad", "<unk>", "film", "good"], "size": 4, "unknown": True}
    measured = command("run build --data dev.jsonl --device vm --eval")
    assert measured.code == 0 and json.loads(measured.out)["samples"] == 5
    model = dnc.load("build", "vm", checkpoint=folder / "last.safetensors")
    unknown, known = model.predict([{"word": "never"}, {"word": "<unk>"}])["p"]
    assert np.array_equal(unknown, known)
    trained = command(
        "run build --data train.jsonl --device vm --run-dir t --checkpoint", f"{folder}/last.safetensors"
    )
    assert trained.code == 0, trained.error
    resumed = command(f"run --resume {folder} --data train.jsonl --device vm --epochs 2")
    assert resumed.code == 0 and [e["event"] for e in resumed.events][-1] == "end", resumed.error
    Path("left").mkdir()
    Path("left/metrics.jsonl").write_text("")  # what a full disk leaves
    assert command(f"{start} --vocabulary vocab=words.txt --run-dir left").code == 0
    again = command(f"{start} --run-dir", str(folder))
    assert again.code == 2 and f"holds a run already\n  dnc run --resume {folder} goes" in again.error


def test_a_metric_of_named_classes_asks_for_their_names(command, workplace) -> None:
    text = (EXAMPLES / "ner_tagger.dn").read_text()
    Path("tagger.dn").write_text(text)
    assert command("compile tagger.dn -o tagger --set hidden=4,embed=4,tags=3").code == 0
    model = dnc.load("tagger", "vm")
    tags = ["O", "B-PER", "I-PER"]
    model.attach([{"words": [{"form": tag, "tag": tag} for tag in tags]}])
    model.save("tagged.safetensors")
    assert command("export-weights tagged.safetensors -o plain.safetensors").code == 0
    Path("words.txt").write_text("\n".join(model.vocabularies["vocab"].words))
    start = "import-weights plain.safetensors --build tagger --vocabulary vocab=words.txt"
    done = command(f"{start} --run-dir without")
    assert done.code == 2 and not Path("without").exists()
    assert done.error.startswith(
        "error: metric 'f1' has to know what its classes are called, and no labels are"
    )
    (tagged,) = set(model.vocabularies) - {"vocab"}
    Path("tags.txt").write_text("\n".join(model.vocabularies[tagged].words))
    assert command(f"{start} --vocabulary {tagged}=tags.txt --run-dir with").code == 0


def test_words_of_which_none_stands_for_others(command, workplace) -> None:
    """Other words are refused, in predictions too, where nobody would see them read as nothing."""
    save_file(tree_tensors(3), "m.safetensors")
    Path("map.toml").write_text(TREE_MAP)
    Path("words.txt").write_text("bad\nUNK\ngood\n")
    Path("new.jsonl").write_text('{"word": "god"}\n')
    done = command("import-weights m.safetensors --map map.toml --vocabulary vocab=words.txt --run-dir one")
    said = "'<unk>' is not among the words of 'vocab': data with other words will be refused (--unknown WORD)"
    assert done.code == 0 and said in done.error.splitlines()
    predict = "run build --device vm --data new.jsonl --predict out.jsonl --run-dir"
    found = command(f"{predict} one")
    assert found.code == 2 and not Path("out.jsonl").exists()
    assert (
        "new.jsonl:1: error: field 'word' is \"god\", which is no word of 'vocab', and none of "
        "them stands for others; did you mean 'good'?" in found.error
    )
    done = command(
        "import-weights m.safetensors --map map.toml --vocabulary vocab=words.txt --unknown UNK --run-dir two"
    )
    assert done.code == 0 and "refused" not in done.error and command(f"{predict} two").code == 0


def test_words_as_json_and_from_another_run(command, workplace) -> None:
    save_file(tree_tensors(3), "m.safetensors")
    Path("map.toml").write_text(TREE_MAP)
    Path("words.json").write_text('{"good": 2, "bad": 0, "film": 1}')
    start = "import-weights m.safetensors --map map.toml"
    assert command(f"{start} --vocabulary vocab=words.json --run-dir one").code == 0
    assert command(f"{start} --vocabulary one/vocabulary.json --run-dir two").code == 0
    Path("words.json").rename("words")
    assert command(f"{start} --vocabulary vocab=words --run-dir unnamed").code == 0
    one, two, unnamed = (
        json.loads(Path(name, "vocabulary.json").read_text()) for name in ("one", "two", "unnamed")
    )
    assert one == two == unnamed == {"vocab": {"words": ["bad", "film", "good"], "size": 3, "unknown": False}}
    done = command(f"{start} --run-dir three")
    assert json.loads(Path("three/vocabulary.json").read_text())["vocab"]["words"] is None, done.error
    hint = "'vocab' has no words: data with words will be refused (--vocabulary vocab=words.txt)"
    assert hint in done.error.splitlines()
    for told in ("vocab=3", "three/vocabulary.json"):
        done = command(f"{start} --vocabulary {told} --run-dir {told[:4]}")
        assert done.code == 0 and "refused" not in done.error
    done = command("export-weights one -o back.safetensors --map map.toml")
    assert done.code == 0 and "V" not in load_file("back.safetensors")  # its map keeps it
    back = command("export-weights one -o back.safetensors")
    assert back.code == 0 and load_file("back.safetensors")["W"].shape == (12, 4)
    assert back.error.splitlines()[-1] == "wrote back.safetensors, the weights of one/last.safetensors"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("none.safetensors", "none.safetensors: there is no such file"),
        ("train.jsonl", "train.jsonl: not a safetensors file"),
        ("m.safetensors --map none.toml", "none.toml: there is no such file"),
        ("m.safetensors --build none", "none: there is no such build; make one with dnc compile"),
        (
            "m.safetensors --vocabulary words=w",
            "vocabulary of 'words': there is no such dimension of tokens or classes",
        ),
        ("m.safetensors --vocabulary vocab=w", "w: error: there is no such file"),
        (
            "m.safetensors --vocabulary vocab=",
            "--vocabulary: found 'vocab=', expected a dimension and a file",
        ),
        ("m.safetensors --vocabulary vocab=1 --vocabulary vocab=2", "--vocabulary: vocab is named twice"),
        (
            "m.safetensors --vocabulary vocab=7 --map map.toml",
            "m.safetensors: 'E' has 4 rows, expected one for each of the 7 numbers of 'vocab'",
        ),
        ("m.safetensors --vocabulary vocab=0", "the vocabulary of 'vocab' has 0 entries, expected 1 to 2147"),
        (f"m.safetensors --vocabulary vocab={'9' * 5000}", "--vocabulary: vocab has 5000 digits, expected"),
        ("m.safetensors --vocabulary vocab=empty.txt", "empty.txt: holds no words"),
        (
            "rest.safetensors",
            "the size of 'vocab' is open: give its words or their number\n  --vocabulary vocab=words.txt",
        ),
        ("m.safetensors --vocabulary vocab=twice.txt", "twice.txt: 'a' is in it more than once"),
        (
            "m.safetensors --vocabulary vocab=twice.txt --unknown a",
            "twice.txt: 'a' is in it more than once",
        ),
        (
            "m.safetensors --vocabulary vocab=one.txt --unknown UKN",
            "'UKN', which is to stand for all others, is not among the words of 'vocab'; did you mean 'UNK'?",
        ),
        (
            "m.safetensors --vocabulary vocab=two.json --unknown a",
            "two.json: holds '<unk>' beside 'a', and only one can stand for all others",
        ),
        (
            "m.safetensors --vocabulary twice.txt",
            "twice.txt: error: not a vocabulary file: JSON is malformed: invalid character (byte 0)\n"
            "  words alone are those of a dimension: vocab=twice.txt\n",
        ),
        (
            "m.safetensors --vocabulary vocab=gap.json",
            "gap.json: 'b' has the number 2; expected 0..1, each once",
        ),
        ("m.safetensors --vocabulary vocab=no.json", "no.json: holds a number, expected an array of words"),
        (
            "m.safetensors --vocabulary vocab=saved.json",
            "saved.json: holds an object, expected an array of words, or their numbers by word\n"
            "  the vocabulary.json of a run stands alone: --vocabulary saved.json\n",
        ),
        (
            "m.safetensors --vocabulary classes=6",
            "the vocabulary of 'classes' has 6 entries; the build has 5",
        ),
        (
            "m.safetensors --vocabulary vocab=4 --vocabulary classes=two.json --map map.toml",
            "the vocabulary of 'classes' has 2 entries; the build has 5",
        ),
        (
            "m.safetensors --vocabulary vocab=null.json",
            "null.json: entry 1 is null, expected a word",
        ),
        (
            "m.safetensors --map below.toml",
            "below.toml: parameters.ignore is an array, expected the name of a tensor or a table\n"
            "  it stands in front of [parameters]\n",
        ),
        (
            "half.safetensors --map map.toml",
            "half.safetensors: not a safetensors file: Error while deserializing: incomplete metadata, file "
            "not fully covered\n",
        ),
        ("nan.safetensors --map map.toml", "nan.safetensors: leaf holds numbers that are not finite"),
        (
            "m.safetensors --map cut.toml",
            "error: cut.toml: parameters.W.gates: 2 parts are wanted, but W has 3 * hidden rows\n",
        ),
        ("m.safetensors", "m.safetensors: nothing for W [12, 4]: no tensor has this name, and the map says"),
        ("inf.safetensors --map map.toml", "inf.safetensors: E holds numbers that are not finite"),
        ("m.safetensors --map map.toml --run-dir build/run", "build/run: lies in the build"),
    ],
)
def test_mistakes_on_the_command_line(command, workplace, arguments: str, message: str) -> None:
    save_file(tree_tensors(), "m.safetensors")
    save_file({**tree_tensors(), "E": np.full((4, 4), np.inf, np.float32)}, "inf.safetensors")
    save_file({**tree_tensors(), "leaf": np.full((12, 4), np.nan, np.float32)}, "nan.safetensors")
    Path("half.safetensors").write_bytes(Path("m.safetensors").read_bytes()[:-8])
    Path("null.json").write_text('["a", null]')
    Path("below.toml").write_text("[parameters]\nignore = ['x']\n")
    Path("map.toml").write_text(TREE_MAP)
    save_file({"U": np.zeros((20, 8), np.float32)}, "rest.safetensors")
    Path("empty.txt").write_text("")
    Path("twice.txt").write_text("a\nb\na\n")
    Path("one.txt").write_text("bad\nUNK\ngood\n")
    Path("gap.json").write_text('{"a": 0, "b": 2}')
    Path("no.json").write_text("3")
    Path("saved.json").write_text('{"vocab": {"words": ["a"], "size": 1, "unknown": false}}')
    Path("cut.toml").write_text('[parameters]\nW = { from = "W", gates = "o i -> i o" }\n')
    Path("two.json").write_text('["a", "<unk>"]')
    done = command(f"import-weights {arguments}")
    assert done.code == 2 and message in done.error, done.error
    assert not Path("runs").exists()


def test_a_damaged_checkpoint_is_no_source(command, workplace) -> None:
    """Its weights would be taken by name; what is changed in a file of others cannot be seen."""
    assert command("run build --data train.jsonl --device vm --run-dir run").code == 0
    content = bytearray(Path("run/last.safetensors").read_bytes())
    Path("map.toml").write_text('ignore = ["optimizer/*"]')
    start = "import-weights m.safetensors --map map.toml --vocabulary run/vocabulary.json --run-dir"
    Path("m.safetensors").write_bytes(content)
    assert command(f"{start} whole").code == 0
    for at in (len(content) - 2, content.index(b"learning_rate") + 19):
        changed = bytearray(content)
        changed[at] ^= 1
        Path("m.safetensors").write_bytes(changed)
        done = command(f"{start} broken")
        assert done.code == 2 and not Path("broken").exists(), done.error
        assert done.error == "error: m.safetensors: damaged: it does not hold what was written\n"


def test_mistakes_of_the_export(command, workplace) -> None:
    save_file(tree_tensors(), "m.safetensors")
    save_file({**tree_tensors(), "steps": np.zeros(1, np.int64)}, "steps.safetensors")
    Path("map.toml").write_text(TREE_MAP)
    assert command("import-weights m.safetensors --map map.toml --run-dir run").code == 0
    for arguments, message in (
        ("steps.safetensors -o x", "error: steps.safetensors: not a checkpoint"),
        ("none -o x", "error: none: there is no such file"),
        ("build -o x", "error: build: holds no checkpoint"),
        ("m.safetensors -o x", "error: m.safetensors: not a checkpoint"),
        ("run -o run/last.safetensors", "error: run/last.safetensors: is read here too and would be lost"),
        ("run -o none/x", "error: none/x: there is no directory none"),
    ):
        done = command(f"export-weights {arguments}")
        assert done.code == 2 and done.error.startswith(message), done.error
    assert not Path("x").exists()


def test_floats_that_numpy_has_not(command, workplace) -> None:
    """Of 16 bits it has some, too, where another library told it of them; then this is no checkpoint."""
    unread = [
        "error: m.safetensors: holds floats of 8 bits, or of 16 that NumPy does not have",
        "  dnc import-weights reads bfloat16",
    ]
    other = [
        "error: m.safetensors: not a checkpoint",
        "  dnc import-weights makes a run folder of weights alone",
    ]
    for kind, size, answers in (("BF16", 2, (unread, other)), ("F8_E4M3", 1, (unread,))):
        header = json.dumps({"V": {"dtype": kind, "shape": [2], "data_offsets": [0, 2 * size]}}).encode()
        Path("m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(2 * size))
        done = command("run build --data dev.jsonl --device vm --eval --checkpoint m.safetensors")
        assert done.code == 2 and done.error.splitlines()[-2:] in answers, done.error
