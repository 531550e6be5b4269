"""run.toml makes its run again, to the same bits, or its first line says that it does not, and why."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import dnc
from dnc import api
from dnc.runtime.run_config import HEAD, NOT_AGAIN, read_config

AGAIN = HEAD.format(name="run.toml")
VECTORS = "good 1 2 3 4\nbad 4 3 2 1\n"
SAMPLES = [json.dumps({"word": word, "label": 1}) for word in ("good", "bad", "film")]


@pytest.fixture
def earlier(workplace):
    """Vectors of words, other data, and the run of other weights over the same words."""
    Path("vectors.txt").write_text(VECTORS)
    Path("words.txt").write_text("unheard\nunseen\n")
    Path("other.jsonl").write_text("\n".join(SAMPLES))
    model = dnc.load("build", "vm", seed=5)
    model.train("train.jsonl", batch=4, run_dir="earlier")
    save_file({"E": model.parameters()["E"]}, "rows.safetensors")
    save_file({"b_u": np.full(20, 0.5, np.float32)}, "rest.safetensors")
    return workplace


def head(run):
    return Path(run, "run.toml").read_text().split("\n", 1)[0] + "\n"


def bits(run):
    return Path(run, "last.safetensors").read_bytes()


def trained(prepare, run="run", **options):
    """A run of a model that was prepared."""
    model = dnc.load("build", "vm", seed=3)
    prepare(model)
    model.train("train.jsonl", dev="dev.jsonl", epochs=2, batch=4, run_dir=run, **options)
    return model


def changed(model):
    model.set_parameters({"E": model.parameters()["E"] * 2})


def attach(model, **options):
    data = model.attach("train.jsonl", **options)
    assert len(data.vocabularies["vocab"]) < 4 or not options


def steps(model, count=2):
    list(model.steps([[0, 1]] * count))


LAST = "earlier/last.safetensors"
MADE = {
    "nothing": [],
    "attached": [attach],
    "rarer words": [lambda m: attach(m, min_count=9)],
    "words beside": [lambda m: m.attach("train.jsonl", vocabulary={"vocab": "words.txt"})],
    "a data set of another model": [lambda m: m.attach(dnc.load("build", "vm").read("train.jsonl"))],
    "vectors": [attach, lambda m: m.load_embeddings("E", "vectors.txt")],
    "vectors twice": [attach, *[lambda m: m.load_embeddings("E", "vectors.txt")] * 2],
    "weights": [attach, lambda m: m.load_weights(LAST)],
    "weights, vectors": [
        attach,
        lambda m: m.load_weights(LAST),
        lambda m: m.load_embeddings("E", "vectors.txt"),
    ],
    "another optimizer": [lambda m: m.configure("adam", 0.01, clip=1.0)],
    "a checkpoint that weights follow": [
        lambda m: m.restore(LAST),
        lambda m: m.load_weights("rows.safetensors"),
    ],
    "saved behind steps": [attach, steps, lambda m: m.save("saved.safetensors")],
    "saved with other values": [attach, changed, lambda m: m.save("saved.safetensors")],
    "saved, then weights": [
        attach,
        steps,
        lambda m: m.save("saved.safetensors"),
        lambda m: m.load_weights("rows.safetensors"),
    ],
    "restored behind steps": [attach, steps, changed, lambda m: m.restore(LAST)],
}


@pytest.mark.parametrize("name", MADE)
def test_what_options_do_is_made_again(earlier, command, name):
    trained(lambda model: [each(model) for each in MADE[name]])
    assert head("run") == AGAIN
    done = command("run --config run/run.toml --run-dir again --device vm")
    assert done.code == 0 and "note:" not in done.error
    assert bits("again") == bits("run") and head("again") == AGAIN
    assert Path("again/best.safetensors").read_bytes() == Path("run/best.safetensors").read_bytes()


LOST = {
    "began with words that were listed in Python": [
        lambda m: m.attach("train.jsonl", vocabulary={"vocab": ["unheard"]}),
    ],
    "began with parameters that were set in Python": [attach, changed],
    "began behind steps that no checkpoint has": [attach, steps],
    "began with the words of other data": [lambda m: m.attach("dev.jsonl")],
    "began with weights of several files, one over the other": [
        attach,
        lambda m: m.load_embeddings("E", "vectors.txt"),
        lambda m: m.load_weights(LAST),
    ],
    "began with weights of a file that does not say whose rows they are": [
        attach,
        lambda m: m.load_weights("rows.safetensors"),
    ],
    "began with vectors of words over those of a checkpoint": [
        attach,
        lambda m: m.save("saved.safetensors"),
        lambda m: m.restore("saved.safetensors"),
        lambda m: m.load_embeddings("E", "vectors.txt"),
    ],
    "began with a checkpoint that is gone": [
        attach,
        steps,
        lambda m: m.save("saved.safetensors"),
        lambda m: m.restore("saved.safetensors"),
        lambda m: Path("saved.safetensors").unlink(),
    ],
}


@pytest.mark.parametrize("why", LOST)
def test_what_no_option_does_is_said(earlier, command, why):
    trained(lambda model: [each(model) for each in LOST[why]])
    assert head("run") == f"{NOT_AGAIN}{why}\n"
    done = command("run --config run/run.toml --run-dir again --device vm")
    note = f"note: the run of run/run.toml {why}, and this one is another\n"
    assert (done.code == 0 or "gone" in why) and note in done.error


def test_data_of_no_file_are_said(earlier):
    samples = [json.loads(line) for line in Path("train.jsonl").read_text().splitlines()]
    dnc.load("build", "vm").train(samples, run_dir="data")
    assert head("data") == f"{NOT_AGAIN}was trained on samples of no file\n"
    dnc.load("build", "vm").train("train.jsonl", dev=samples, run_dir="dev")
    assert head("dev") == f"{NOT_AGAIN}was measured on samples of no file\n"


def test_the_share_of_a_device_is_kept(earlier, command):
    model = dnc.load("build", "vm", replicas=2, workers=3, memory_bytes=2**26)
    model.train("train.jsonl", batch=4, run_dir="run")
    config = read_config("run/run.toml")
    assert (config.replicas, config.workers, config.memory) == (2, 3, 64)
    assert command("run --config run/run.toml --run-dir again --device vm").code == 0
    assert bits("again") == bits("run")
    model = dnc.load("build", "vm", memory_bytes=2**26 + 4)
    model.train("train.jsonl", batch=4, run_dir="odd")
    assert head("odd") == f"{NOT_AGAIN}had memory of no whole number of MiB\n"


def test_training_that_goes_on_in_another_folder_begins_with_the_checkpoint(earlier, command):
    model = trained(attach)
    model.train("train.jsonl", epochs=4, batch=4, run_dir="more")
    assert read_config("more/run.toml").checkpoint == str(earlier / "run" / "last.safetensors")
    assert head("more") == AGAIN
    assert command("run --config more/run.toml --run-dir again --device vm").code == 0
    assert bits("again") == bits("more")
    model = dnc.load("build", "vm", checkpoint="run/last.safetensors")
    model.train("train.jsonl", epochs=5, batch=4, run_dir="from")
    assert command("run --config from/run.toml --run-dir from-again --device vm").code == 0
    assert bits("from-again") == bits("from")


# ---- runs that go on -----------------------------------------------------------------------------


def test_a_run_that_goes_on_in_python_keeps_its_beginning(earlier, command):
    begin = [lambda m: attach(m, min_count=9), lambda m: m.load_embeddings("E", "vectors.txt")]
    trained(lambda model: [each(model) for each in begin])
    last = Path("run/last.safetensors")
    model = dnc.load("build", "vm", checkpoint=last)
    model.train("train.jsonl", dev="dev.jsonl", epochs=3, batch=4, run_dir="run", resumed=last)
    config = read_config("run/run.toml")
    assert config.min_count == 9 and config.embeddings and config.checkpoint is None
    assert head("run") == AGAIN
    assert command("run --config run/run.toml --run-dir again --device vm").code == 0
    assert bits("again") == bits("run")


RUN = "run build --data train.jsonl --dev dev.jsonl --device vm --batch 4 --epochs 2"


@pytest.mark.parametrize(
    "first, then, why",
    [
        ("--lr 0.05", "--epochs 4 --lr 0.001", "had lr 0.05 up to step 6"),
        ("", "--epochs 4 --clip 1 --batch 3", "had batch 4, no clip up to step 6"),
        ("--schedule cosine", "--epochs 4", "had epochs 2 up to step 6"),
        ("--patience 9", "--epochs 4 --patience 8", "had patience 9 up to step 6"),
        ("", "--epochs 4 --data other.jsonl", "had other data up to step 6"),
        ("", "--epochs 4 --dev other.jsonl", "had another dev set up to step 6"),
        ("", "--epochs 4 --replicas 2", "ran on reference VM, 1 x 1 workers up to step 6"),
    ],
)
def test_a_run_that_goes_on_otherwise_says_so(earlier, command, first, then, why):
    assert command(f"{RUN} {first} --run-dir run").code == 0
    assert head("run") == AGAIN
    assert command(f"run --resume run {then}").code == 0
    assert head("run") == f"{NOT_AGAIN}{why}\n"
    assert command("run --resume run --epochs 5").code == 0  # and it stays so
    assert head("run") == f"{NOT_AGAIN}{why}\n"


def test_a_run_that_goes_on_as_it_began_is_made_again(earlier, command):
    assert command(f"{RUN} --schedule step --patience 7 --run-dir run").code == 0
    assert command("run --resume run --epochs 4 --patience 8 --log-every 1 --save-every 1").code == 0
    assert head("run") == AGAIN
    assert command("run --config run/run.toml --run-dir again").code == 0
    assert bits("again") == bits("run")


def test_a_run_of_python_that_the_command_line_goes_on_with(earlier, command):
    """It writes defaults that Python leaves out, and the other way round."""
    trained(attach)
    assert command("run --resume run --epochs 3 --device vm").code == 0
    assert head("run") == AGAIN
    last = "run/last.safetensors"
    model = dnc.load("build", "vm", checkpoint=last)
    known = {"dev": "dev.jsonl", "batch": 4, "run_dir": "run"}
    model.train("train.jsonl", epochs=4, resumed=last, **known)
    assert head("run") == AGAIN
    assert command("run --config run/run.toml --run-dir again --device vm").code == 0
    assert bits("again") == bits("run")


def test_other_weights_in_the_same_folder_are_said(earlier):
    trained(attach)
    model = dnc.load("build", "vm", checkpoint="run/last.safetensors")
    changed(model)
    known = {"dev": "dev.jsonl", "batch": 4, "run_dir": "run"}
    model.train("train.jsonl", epochs=3, resumed="run/last.safetensors", **known)
    assert head("run") == f"{NOT_AGAIN}had other weights up to step 6\n"


def test_a_run_that_begins_anew_is_told_of_what_it_began_with(earlier, command):
    """It was killed before its first checkpoint; what begins now is made again."""
    trained(lambda model: [attach(model), changed(model)])
    Path("run/last.safetensors").unlink()
    Path("run/metrics.jsonl").write_text("")
    done = command("run --resume run --device vm")
    why = "began with parameters that were set in Python"
    assert done.code == 0 and f"note: the run of run/run.toml {why}, and this one is another\n" in done.error
    assert head("run") == AGAIN


def test_weights_of_a_file_by_name_are_made_again(earlier, command):
    assert command(f"{RUN} --weights rest.safetensors --min-count 2 --run-dir run").code == 0
    assert command("run --config run/run.toml --run-dir again").code == 0
    assert head("run") == AGAIN and bits("again") == bits("run")
    model = dnc.load("build", "vm")
    api.start_by_name(model, "rest.safetensors", "train.jsonl", trains=True)
    model.train("dev.jsonl", run_dir="other")
    assert head("other") == f"{NOT_AGAIN}began with the words of other data\n"
