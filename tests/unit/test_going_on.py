"""Training that goes on in the process in which it stopped, as it does from a checkpoint."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import dnc
from dnc.cli.progress import Progress
from dnc.runtime.results import Evaluation
from dnc.runtime.tensors import read_tensors
from tests.support.command_line import command, finished_build, workplace

__all__ = ["command", "finished_build", "workplace"]


def stopped(folder, data="train.jsonl", **options):
    """A model that was stopped behind two batches."""
    model, asked = dnc.load("build", device="vm"), itertools.count(1)
    options = {"epochs": 2, "batch": 4, "stop": lambda: next(asked) > 2} | options
    model.train(data, run_dir=folder, **options)
    assert model.position.batch == 2
    return model


@pytest.mark.parametrize(
    "data, batch, message",
    [
        ("train.jsonl", 2, "inside an epoch with batches of 4, not 2"),
        ("dev.jsonl", 4, "inside an epoch over 12 samples; dev.jsonl has 5"),
    ],
)
def test_inside_an_epoch_with_other_batches_or_data(workplace, data, batch, message):
    model = stopped("first")
    with pytest.raises(dnc.DiagnosticError, match=message):
        model.train(data, epochs=2, batch=batch, run_dir="second")


def test_a_checkpoint_that_is_saved_inside_an_epoch(workplace):
    model = stopped("first")
    model.save("mine.safetensors")
    again = dnc.load("build", device="vm", checkpoint="mine.safetensors")
    for each, folder in ((model, "second"), (again, "third")):
        each.train("train.jsonl", epochs=2, batch=4, run_dir=folder)
    for name, value in model.parameters().items():
        assert np.array_equal(value, again.parameters()[name])


def test_patience_counts_from_the_best_epoch_of_the_process(workplace, monkeypatch):
    """Not from that of the checkpoint which it began with."""
    scores = iter([0.1, 0.2, 0.3, 0.4, 0.3, 0.2])
    measured = lambda *arguments: Evaluation(5, 1.0, {"accuracy": next(scores)})  # noqa: E731
    monkeypatch.setattr("dnc.runtime.session.Session.evaluate", measured)
    known = {"dev": "dev.jsonl", "batch": 4}
    dnc.load("build", device="vm").train("train.jsonl", epochs=1, run_dir="first", **known)
    model = dnc.load("build", device="vm", checkpoint="first/last.safetensors")
    model.train("train.jsonl", epochs=4, patience=2, run_dir="second", **known)
    assert model.course.best == 0.4 and model.course.best_epoch == 4
    model.train("train.jsonl", epochs=9, patience=2, run_dir="third", **known)
    assert model.position.epoch == 6


def test_a_checkpoint_in_the_middle_of_a_stream_of_steps_has_all_of_them(workplace):
    model = dnc.load("build", device="vm")
    model.attach("train.jsonl")
    next(model.steps([[at] for at in range(12)]))
    model.save("mine.safetensors")
    again = dnc.load("build", device="vm", checkpoint="mine.safetensors")
    assert again.position.step == again.session.steps_done == model.session.steps_done > 1


def test_another_dev_set_has_a_best_of_its_own(workplace, monkeypatch):
    """And who has nothing left to train still leaves what there is."""
    scores = iter([0.9, 0.8, 0.2, 0.3])
    measured = lambda *arguments: Evaluation(5, 1.0, {"accuracy": next(scores)})  # noqa: E731
    monkeypatch.setattr("dnc.runtime.session.Session.evaluate", measured)
    model = dnc.load("build", device="vm")
    model.train("train.jsonl", dev="dev.jsonl", epochs=9, batch=4, patience=1, run_dir="first")
    assert model.position.epoch == 2
    same = model.train("train.jsonl", dev="dev.jsonl", epochs=9, batch=4, patience=1, run_dir="second")
    assert model.position.epoch == 2 and (same / "last.safetensors").exists()
    model.train("train.jsonl", dev="train.jsonl", epochs=4, batch=4, patience=1, run_dir="third")
    assert model.position.epoch == 4 and model.course.best == 0.3


def test_so_it_has_behind_a_checkpoint_which_knows_the_samples(workplace, monkeypatch):
    """Not the name of their file."""
    scores = iter([0.9, 0.8, 0.2, 0.3])
    measured = lambda *arguments: Evaluation(5, 1.0, {"accuracy": next(scores)})  # noqa: E731
    monkeypatch.setattr("dnc.runtime.session.Session.evaluate", measured)
    known, last = {"batch": 4, "run_dir": "first"}, "first/last.safetensors"
    dnc.load("build", device="vm").train("train.jsonl", dev="dev.jsonl", epochs=1, **known)
    for dev, epochs, best in (
        ("dev.jsonl", 2, 0.9),
        ("train.jsonl", 3, 0.2),
        (workplace / "train.jsonl", 4, 0.3),
    ):
        model = dnc.load("build", device="vm", checkpoint=last)
        model.train("train.jsonl", dev=dev, epochs=epochs, resumed=last, **known)
        assert model.course.best == best
    samples = [json.loads(line) for line in Path("train.jsonl").read_text().splitlines()]
    model = dnc.load("build", device="vm", checkpoint=last)
    assert model.read(samples).digest() == model.course.dev != model.read(samples[1:]).digest()


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.step([0]),
        lambda model: next(model.steps([[0]])),
        lambda model: model.train("train.jsonl", run_dir="inner"),
        lambda model: model.restore("first/last.safetensors"),
        lambda model: model.set_parameters(model.parameters()),
        lambda model: model.load_embeddings("E", "vectors.txt"),
        lambda model: model.forward("dev.jsonl") and model.backward(),
        lambda model: model.configure("adam"),
    ],
)
def test_what_training_calls_changes_no_weights(workplace, call):
    """It may measure the model and predict; what it must not do is refused, and training can go on."""
    known = {"epochs": 1, "batch": 4}
    dnc.load("build", device="vm").train("train.jsonl", run_dir="first", **known)
    model = dnc.load("build", device="vm")

    def report(event):
        if event["event"] == "step":
            assert model.evaluate("dev.jsonl").samples and model.predict("dev.jsonl")
            call(model)

    with pytest.raises(dnc.DiagnosticError, match="the model is being trained"):
        model.train("train.jsonl", run_dir="second", log_every=1, report=report, **known)
    model.train("train.jsonl", run_dir="third", **known)
    assert model.position.epoch == 1


def test_a_checkpoint_is_read_once(command, workplace, monkeypatch):
    """Whether a model is where it is, and whose it is, its metadata say; a damaged one is not passed over."""
    assert command("run build --data train.jsonl --device vm --run-dir runs/a").code == 0
    assert command("run build --data train.jsonl --device vm --run-dir runs/b").code == 0
    read = []
    monkeypatch.setattr(
        "dnc.runtime.checkpoint.read_tensors", lambda path: (read.append(path), read_tensors(path))[1]
    )
    assert command("run --resume runs/a --epochs 2 --device vm").code == 0
    assert read == [Path("runs/a/last.safetensors")]
    assert command("run build --data dev.jsonl --device vm --eval").code == 0
    assert read[1:] == [Path("runs/a/last.safetensors")]
    content = bytearray(Path("runs/a/last.safetensors").read_bytes())
    content[-1] ^= 1
    Path("runs/a/last.safetensors").write_bytes(content)
    done = command("run build --data dev.jsonl --device vm --eval")
    assert done.code == 2 and "runs/a/last.safetensors: damaged" in done.error


@pytest.mark.parametrize("other", [slice(None, None, -1), slice(7)])
def test_other_data_between_two_epochs_are_meant_or_refused(command, workplace, other):
    """Who goes on is promised the bits of a run that never stopped; who names data, no longer."""
    lines = Path("train.jsonl").read_text().splitlines(keepends=True)
    assert command("run build --data train.jsonl --device vm --batch 4 --run-dir r").code == 0
    assert command("run --resume r --epochs 2").code == 0
    before = {path: path.read_bytes() for path in Path("r").iterdir()}
    Path("train.jsonl").write_text("".join(lines[other]))
    done = command("run --resume r --epochs 3")
    assert done.code == 2 and {path: path.read_bytes() for path in Path("r").iterdir()} == before
    named = "to go on with them all the same, name them: --data"
    path = Path("train.jsonl").resolve()
    expected = f"error: {path}: holds other samples than training went over so far\n  {named} {path}\n"
    assert done.error.endswith(expected)
    done = command("run --resume r --epochs 3 --data train.jsonl")
    assert done.code == 0 and done.events[0]["other_samples"] is True
    done = command("run --resume r --epochs 4")  # these are those of before now
    assert done.code == 0 and "other_samples" not in done.events[0]


@pytest.mark.parametrize(
    "option",
    ["--weights w.safetensors", "--embeddings E=no.txt", "--vocabulary vocab=no.txt", "--min-count 2"],
)
def test_a_run_that_goes_on_has_begun(command, workplace, option):
    """What it would begin with was passed over in silence, and written to run.toml."""
    assert command("run build --data train.jsonl --device vm --batch 4 --run-dir r").code == 0
    Path("w.safetensors").write_bytes(Path("r/last.safetensors").read_bytes())
    before = {path: path.read_bytes() for path in Path("r").iterdir()}
    done = command(f"run --resume r --epochs 2 {option}")
    assert done.code == 2 and {path: path.read_bytes() for path in Path("r").iterdir()} == before
    assert f"--resume and {option.split()[0]} exclude each other: r has begun already" in done.error


def test_a_checkpoint_has_its_own_words(command, workplace):
    assert command("run build --data train.jsonl --device vm --batch 4 --run-dir r").code == 0
    done = command("run build --data train.jsonl --device vm --checkpoint r/last.safetensors --min-count 2")
    assert done.code == 2 and not Path("runs").exists()
    assert "--min-count and --checkpoint exclude each other: a checkpoint has its own words" in done.error


def test_the_first_command_of_a_run_goes_on_with_it(command, workplace):
    """With the weights that it began with, from wherever their path counts."""
    assert command("run build --data train.jsonl --device vm --batch 4 --run-dir first").code == 0
    begun = "--weights first/last.safetensors --min-count 1 --device vm"
    assert (
        command(f"run build --data train.jsonl {begun} --checkpoint first/last.safetensors --epochs 2").code
        == 0
    )
    [run] = Path("runs").iterdir()
    assert command(f"run --resume {run} {begun} --epochs 3").code == 0


def test_what_helps_where_nothing_is_left_to_train(workplace):
    model = dnc.load("build", device="vm")
    model.train("train.jsonl", batch=4, run_dir="first")
    with pytest.raises(dnc.DiagnosticError) as raised:
        model.train("train.jsonl", batch=4, run_dir="second")
    assert str(raised.value).endswith(
        "nothing to train: 1 of 1 epochs are done\n"
        "  epochs count from the first one, those before a checkpoint included: a larger number goes on\n"
        "  to count anew with these weights: --weights FILE, or load_weights of a new model"
    )
    model.train("train.jsonl", epochs=2, batch=4, run_dir="second")
    assert model.position.epoch == 2
    again = dnc.load("build", device="vm")
    again.attach("train.jsonl")
    again.load_weights("first/last.safetensors")
    again.train("train.jsonl", batch=4, run_dir="third")
    assert again.position.epoch == 1


def test_a_person_is_told_of_other_data(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with Progress(7, 2) as progress:
        progress.report({"event": "start", "first_epoch": 2, "data": "more.jsonl", "other_samples": True})
    assert "more.jsonl: other samples than those of the epochs before" in capsys.readouterr().out
