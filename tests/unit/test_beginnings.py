"""What a run began with: its configuration makes it again, or says that it cannot."""

import pytest
from safetensors.numpy import save_file

import dnc
from dnc.runtime.run_config import HEAD, OVERWRITTEN, read_config

TRAIN = "run build --data train.jsonl --device vm --batch 4"


@pytest.fixture
def begun(command, workplace):
    """A run that began with the checkpoint of another one."""
    assert command(f"{TRAIN} --run-dir first").code == 0
    assert command(f"{TRAIN} --epochs 2 --checkpoint first/last.safetensors --run-dir second").code == 0
    return workplace / "second"


def test_a_run_that_began_with_a_checkpoint_is_made_again(begun, command, workplace):
    assert read_config(begun / "run.toml").checkpoint == str(workplace / "first" / "last.safetensors")
    assert command("run --config second/run.toml --run-dir third").code == 0
    last = (begun / "last.safetensors").read_bytes()
    assert (workplace / "third" / "last.safetensors").read_bytes() == last
    plain = command("run --config first/run.toml --run-dir other --epochs 2")
    assert plain.code == 0 and (workplace / "other" / "last.safetensors").read_bytes() == last


def test_a_run_killed_before_its_first_checkpoint_begins_with_the_same(begun, command):
    last = (begun / "last.safetensors").read_bytes()
    (begun / "last.safetensors").unlink()
    (begun / "metrics.jsonl").write_text("")
    done = command("run --resume second")
    assert done.code == 0 and "second has no checkpoint yet: training begins again" in done.error
    assert (begun / "last.safetensors").read_bytes() == last


def test_a_run_that_goes_on_keeps_what_it_began_with(begun, command):
    checkpoint = read_config(begun / "run.toml").checkpoint
    assert command("run --resume second --epochs 3").code == 0
    assert read_config(begun / "run.toml").checkpoint == checkpoint


def test_measuring_does_not_begin_with_it(begun, command, workplace):
    (workplace / "first" / "last.safetensors").unlink()
    done = command("run --config second/run.toml --eval --run-dir second")
    assert done.code == 0 and "weights of second/last.safetensors" in done.error


def test_python_writes_it_too(workplace):
    dnc.load("build", "vm").train("train.jsonl", batch=4, run_dir="first")
    model = dnc.load("build", "vm", checkpoint="first/last.safetensors")
    model.train("train.jsonl", batch=4, epochs=2, run_dir="second", resumed="first/last.safetensors")
    assert read_config("second/run.toml").checkpoint == str(workplace / "first" / "last.safetensors")


def test_imported_weights_that_are_trained_in_their_folder(command, workplace):
    """They are written over: no configuration makes that run again, and it says so from then on."""
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    save_file(model.parameters(), "weights.safetensors")
    model.train("train.jsonl", batch=4, run_dir="words")
    names = "".join(f'{name} = "{name}"\n' for name in model.parameters())
    (workplace / "map.toml").write_text(f"[parameters]\n{names}")
    imported = "import-weights weights.safetensors --map map.toml --build build"
    done = command(f"{imported} --vocabulary words/vocabulary.json --run-dir imported")
    assert done.code == 0, done.error
    text = workplace / "imported" / "run.toml"
    assert text.read_text().startswith(HEAD.format(name="run.toml"))
    for epochs in (1, 2):
        done = command(f"run --resume imported --data train.jsonl --device vm --batch 4 --epochs {epochs}")
        assert done.code == 0, done.error
        assert text.read_text().startswith(OVERWRITTEN)
    note = (
        "note: the run of imported/run.toml began with weights that are gone, and this one begins with random"
    )
    again = "run --config imported/run.toml --run-dir"
    assert note in command(f"{again} random").error
    told = command(f"{again} told --epochs 3 --checkpoint imported/last.safetensors")
    assert told.code == 0 and "note" not in told.error
