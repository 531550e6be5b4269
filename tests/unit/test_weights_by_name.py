"""`dnc run --weights`: a file says nothing of words, so none are made up for its rows."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import dnc
from tests.support.command_line import TREE, write_data
from tests.support.models import EXAMPLES

TRAIN = "run build --data train.jsonl --device vm --batch 4 --epochs 2 --lr 0.1"
UNKNOWN = "which of its rows are which words or labels of 'vocab' is not known"


@pytest.fixture
def exported(command, workplace):
    """A run in `first`, and its weights alone in w.safetensors."""
    write_data(workplace / "dev.jsonl", 1, 3)
    assert command(f"{TRAIN} --run-dir first").code == 0
    assert command("export-weights first/last.safetensors -o w.safetensors").code == 0


@pytest.mark.parametrize("mode", ["--eval", "--predict out.jsonl", "", "--epochs 3"])
def test_rows_of_unknown_words_are_refused(command, workplace, exported, mode):
    done = command(f"run build --data train.jsonl --device vm {mode} --weights w.safetensors")
    assert done.code == 2 and done.out == ""
    assert f"error: w.safetensors: {UNKNOWN}; train.jsonl would number them in its own way\n" in done.error
    assert "dnc import-weights w.safetensors --build build --vocabulary vocab=words.txt" in done.error
    assert not (workplace / "out.jsonl").exists() and not (workplace / "runs").exists()


def test_a_vocabulary_from_elsewhere(command, workplace, exported):
    """What the refusal names: a checkpoint, a run, an import; all measure what the run itself does."""
    measure = "run build --data dev.jsonl --device vm --eval"
    expected = command(f"{measure} --run-dir first")
    imported = "import-weights w.safetensors --vocabulary first/vocabulary.json --run-dir imported"
    assert expected.code == 0 and command(imported).code == 0
    for ways in (
        "--weights w.safetensors --checkpoint first/last.safetensors",
        "--weights w.safetensors --run-dir first",
        "--weights first/last.safetensors",
        "--run-dir imported",
    ):
        done = command(f"{measure} {ways}")
        assert (done.code, done.out) == (0, expected.out), done.error


def test_training_on_weights_of_a_checkpoint_keeps_its_words(command, workplace, exported):
    (workplace / "one.jsonl").write_text('{"word": "film", "label": 1}\n')
    run = "run build --data one.jsonl --device vm --lr 1e-30 --run-dir second"
    assert command(f"{run} --weights first/last.safetensors").code == 0
    assert load_words("second") == load_words("first")
    before, after = (load_file(f"{run}/last.safetensors") for run in ("first", "second"))
    np.testing.assert_allclose(after["E"], before["E"], atol=1e-6)


def load_words(run):
    with open(f"{run}/vocabulary.json") as file:
        return json.load(file)["vocab"]["words"]


def test_weights_without_words(command, workplace, exported):
    """Training begins with them; measuring would need the words all the same."""
    body = {name: value for name, value in load_file("w.safetensors").items() if name != "E"}
    save_file(body, "body.safetensors")
    assert command(f"{TRAIN} --weights body.safetensors --run-dir second").code == 0
    done = command("run build --data dev.jsonl --device vm --eval --weights body.safetensors")
    assert done.code == 2 and UNKNOWN in done.error


def test_data_of_numbers(command, workplace):
    """The file says how many there are; the data measured may hold fewer."""
    for name, words in (("train", [5, 1]), ("dev", [2])):
        lines = [json.dumps({"word": word, "label": 1}) + "\n" for word in words]
        (workplace / f"{name}.jsonl").write_text("".join(lines))
    assert command(f"{TRAIN} --run-dir first").code == 0
    assert command("export-weights first/last.safetensors -o w.safetensors").code == 0
    measured = [
        command(f"run build --data dev.jsonl --device vm --eval {weights}")
        for weights in ("--weights w.safetensors", "--run-dir first")
    ]
    assert measured[0].code == 0 and measured[0].out == measured[1].out
    assert (
        command("run build --data dev.jsonl --device vm --run-dir second --weights w.safetensors").code == 0
    )
    with pytest.raises(dnc.DiagnosticError, match=r"has 0\.\.5"):
        dnc.load("build", "vm", checkpoint="second/last.safetensors").predict([{"word": 6}])


def test_what_is_no_checkpoint(command, workplace, exported):
    done = command("run build --data dev.jsonl --device vm --eval --checkpoint w.safetensors")
    message = (
        "error: w.safetensors: not a checkpoint\n  dnc import-weights makes a run folder of weights alone\n"
    )
    assert done.code == 2 and done.error.endswith(message)


def test_a_checkpoint_of_a_program_without_words(command, workplace):
    """Data say which words there are, as for a file that is no checkpoint."""
    program = EXAMPLES / "token_vectors.dn"
    assert command(f"compile {program} -o cell --target cuda --set hidden=4,width=4").code == 0
    dnc.load("cell", "vm", seed=7).save("cell.safetensors")
    still = TRAIN.replace("--lr 0.1", "--lr 1e-30")
    run = command(f"{still} --run-dir first --weights cell.safetensors")
    assert run.code == 0 and "cell.safetensors: U, W, b_u, b_w\n" in run.error
    assert set(load_words("first")) >= {"good", "bad", "film"}
    found, cell = load_file("first/last.safetensors"), load_file("cell.safetensors")
    np.testing.assert_allclose(found["U"], cell["U"], atol=1e-6)
    done = command("run build --data dev.jsonl --device vm --eval --weights cell.safetensors")
    assert done.code == 2 and UNKNOWN in done.error


def test_a_checkpoint_whose_words_are_of_another_dimension(command, workplace):
    text = TREE.read_text()
    (workplace / "forms.dn").write_text(text.replace("vocab", "forms"))
    assert command("compile forms.dn -o forms --target cuda --set embed=4,hidden=4").code == 0
    assert command(f"{TRAIN.replace('build', 'forms', 1)} --run-dir first").code == 0
    done = command(f"{TRAIN} --run-dir second --weights first/last.safetensors")
    assert done.code == 2 and UNKNOWN in done.error and not (workplace / "second").exists()
