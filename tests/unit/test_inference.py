"""Builds for inference: what they answer, what they refuse, and that runs of other builds fit them."""

import json

import numpy as np
import pytest

import dnc
from dnc.diagnostics import DiagnosticError
from dnc.runtime.backend import VMBackend
from tests.support.command_line import TREE

SMALL = "--set hidden=4 --set embed=4"
TRAIN = "run build --data train.jsonl --device vm --batch 4"
REFUSED = "error: infer: was compiled with --mode infer: it neither trains nor writes checkpoints\n"


@pytest.fixture
def trained(command):
    """A run of the build that trains, and a build for inference beside it."""
    assert command(f"{TRAIN} --run-dir runs/first").code == 0
    done = command(f"compile {TREE} -o infer --mode infer --target cpu,cuda {SMALL}")
    assert done.code == 0, done.error


def test_evaluation_and_prediction_are_those_of_the_build_that_trained(command, workplace, trained):
    measured = [command(f"run {build} --data dev.jsonl --device vm --eval") for build in ("build", "infer")]
    assert measured[0].code == measured[1].code == 0
    assert measured[0].out == measured[1].out and json.loads(measured[0].out)["samples"] == 5
    for build in ("build", "infer"):
        assert command(f"run {build} --data dev.jsonl --device vm --predict {build}.jsonl").code == 0
    assert (workplace / "build.jsonl").read_text() == (workplace / "infer.jsonl").read_text()


def test_weights_by_name(command, workplace, trained):
    weights = "--weights runs/first/last.safetensors"
    plain = [
        command(f"run {build} --data dev.jsonl --device vm --eval {weights}") for build in ("build", "infer")
    ]
    assert plain[0].code == plain[1].code and plain[0].out == plain[1].out


@pytest.mark.parametrize(
    "line",
    [
        "--epochs 2",
        "--epochs 2 --checkpoint runs/first/last.safetensors",
        "--epochs 2 --weights runs/first/last.safetensors",
    ],
)
def test_training_is_refused_in_one_line(command, workplace, trained, line):
    before = sorted(workplace.rglob("*"))
    done = command(f"run infer --data train.jsonl --device vm {line}")
    assert done.code == 2 and done.out == "" and done.error.endswith(REFUSED)
    assert "Traceback" not in done.error and sorted(workplace.rglob("*")) == before


def test_whatever_trains_is_refused(workplace, trained):
    model = dnc.load("infer", "vm", checkpoint="runs/first/last.safetensors")
    model.attach("train.jsonl")
    for refused in (
        lambda: model.configure("adam"),
        lambda: model.step([0]),
        lambda: list(model.steps([[0]])),
        lambda: model.train("train.jsonl"),
        lambda: model.backward({}),
        lambda: model.save("again.safetensors"),
    ):
        with pytest.raises(DiagnosticError, match="--mode infer: it neither trains"):
            refused()
    assert len(model.predict()["label"]) == 12
    whole = dnc.load("build", "vm", checkpoint="runs/first/last.safetensors")
    for name, value in whole.parameters().items():
        assert np.array_equal(value, model.parameters()[name]), name


def test_what_is_attached_needs_no_labels(workplace, trained):
    model = dnc.load("infer", "vm", checkpoint="runs/first/last.safetensors")
    samples = [{"word": "good"}, {"left": {"word": "so"}, "right": {"word": "bad"}}]
    model.attach(samples)
    expected = model.predict(samples)["p"]
    assert np.array_equal([found["p"][0] for found in model.predictions([[0], [1]])], expected)
    with pytest.raises(DiagnosticError, match="field 'label' is missing"):
        model.evaluate()
    with pytest.raises(DiagnosticError, match="field 'label' is missing"):
        dnc.load("build", "vm", checkpoint="runs/first/last.safetensors").attach(samples)


def test_explain(command, trained):
    done = command("explain infer --schedule --data dev.jsonl")
    assert done.code == 0 and "in prediction" in done.out and "adagrad" not in done.out
    assert "backward" not in done.out and "once a batch: 3" not in done.out


def test_no_more_replicas_than_samples(workplace, trained, monkeypatch):
    """The session says what a batch is for, so that a GPU may leave replicas out."""
    asked = []
    grid = VMBackend.grid

    def noted(self, samples, trains=True, lanes=1):
        asked.append((samples, trains))
        return grid(self, samples)

    monkeypatch.setattr(VMBackend, "grid", noted)
    model = dnc.load("infer", "vm", checkpoint="runs/first/last.safetensors")
    model.predict("dev.jsonl")
    model = dnc.load("build", "vm", checkpoint="runs/first/last.safetensors")
    model.step([{"word": "good", "label": 1}])
    assert asked == [(5, False), (1, True)]
