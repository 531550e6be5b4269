"""Weights of PyTorch in dnc and back: the same predictions, and the same weights."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

from safetensors.numpy import load_file  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import dnc  # noqa: E402
import dnc.kernel_cache  # noqa: E402
from benchmarks import model_data  # noqa: E402
from dnc.cli import execute  # noqa: E402
from dnc.compiler import compile_model  # noqa: E402
from tests.models.foreign import FOREIGN  # noqa: E402
from tests.models.sizes import SIZES, SMALL, settings  # noqa: E402
from tests.support.models import EXAMPLES  # noqa: E402

MAPS = EXAMPLES / "weights"
VOCAB = model_data.VOCABULARY


def test_every_map_is_tested():
    assert sorted(path.stem for path in MAPS.glob("*.toml")) == sorted(FOREIGN)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    torch.manual_seed(3)
    return tmp_path


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_round_trip(name, place, capsys):
    """The command line from end to end: PyTorch's file in, predictions, PyTorch's file out."""
    example, make = FOREIGN[name]
    model = make({**SMALL, "vocab": VOCAB})
    compile_model(EXAMPLES / f"{example}.dn", place / "build", ("cpu",), settings(example, SMALL))
    save_file(model.state_dict(), place / "model.safetensors")
    toml = MAPS / f"{name}.toml"
    assert execute(["import-weights", "model.safetensors", "--map", str(toml), "--run-dir", "run"]) == 0
    loaded = dnc.load("build", "vm", checkpoint="run/last.safetensors")
    data = model_data.samples(example, loaded.program, 9, SIZES)
    check_predictions(loaded.predict(data), model, data)
    (place / "data.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in data))
    rest = ["--data", "data.jsonl", "--device", "vm", "--run-dir", "run"]
    assert execute(["run", "build", *rest, "--eval"]) == 0
    assert execute(["run", "build", *rest, "--predict", "out.jsonl"]) == 0
    assert len((place / "out.jsonl").read_text().splitlines()) == 9

    assert execute(["export-weights", "run", "-o", "back.safetensors", "--map", str(toml)]) == 0
    capsys.readouterr()
    back, given = load_file("back.safetensors"), model.state_dict()
    assert set(back) == set(given)
    for key, value in given.items():
        if "bias_ih" in key and name != "torch_gru":
            other = key.replace("_ih_", "_hh_")
            np.testing.assert_allclose(back[key], value + given[other], rtol=1e-6)
            assert not back[other].any()
        elif "bias_hh" not in key or name == "torch_gru":
            np.testing.assert_array_equal(back[key], value)
    again = make({**SMALL, "vocab": VOCAB})
    again.load_state_dict({key: torch.from_numpy(value) for key, value in back.items()})
    for sample in data:
        torch.testing.assert_close(again(sample), model(sample))


def check_predictions(found, model, data):
    with torch.no_grad():
        logits = [model(sample) for sample in data]
    if "tags" in found:
        for tags, each in zip(found["tags"], logits, strict=True):
            assert tags.tolist() == each.argmax(1).tolist()
        return
    for p, label, each in zip(found["p"], found["label"], logits, strict=True):
        np.testing.assert_allclose(p, torch.softmax(each, 0), rtol=2e-5, atol=1e-6)
        assert int(label) == int(each.argmax())


def test_training_goes_on_from_imported_weights(place, capsys):
    """A step of dnc changes what PyTorch's own step changes, and training can be exported."""
    example, make = FOREIGN["lstm_classifier"]
    model = make({**SMALL, "vocab": VOCAB})
    compile_model(EXAMPLES / f"{example}.dn", place / "build", ("cpu",), settings(example, SMALL))
    save_file(model.state_dict(), place / "model.safetensors")
    toml = str(MAPS / "lstm_classifier.toml")
    execute(["import-weights", "model.safetensors", "--map", toml, "--run-dir", "run"])
    loaded = dnc.load("build", "vm", checkpoint="run/last.safetensors")
    data = model_data.samples(example, loaded.program, 5, SIZES)
    (place / "data.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in data))
    start = ["--checkpoint", "run/last.safetensors", "--device", "vm", "--run-dir", "trained"]
    train = ["run", "build", "--data", "data.jsonl", "--batch", "5", "--optimizer", "sgd", "--lr", "0.5"]
    assert execute([*train, *start]) == 0
    assert execute(["export-weights", "trained", "-o", "back.safetensors", "--map", toml]) == 0
    capsys.readouterr()
    loss = torch.stack(
        [torch.nn.functional.cross_entropy(model(s)[None], torch.tensor([s["label"]])) for s in data]
    )
    loss.mean().backward()
    back = load_file("back.safetensors")
    for key, parameter in model.named_parameters():
        want = parameter - 0.5 * parameter.grad
        if "bias_hh" in key:
            continue
        if "bias_ih" in key:
            other = dict(model.named_parameters())[key.replace("_ih_", "_hh_")]
            want = want + other  # dnc has one bias, and its gradient once
        np.testing.assert_allclose(back[key], want.detach(), rtol=1e-4, atol=1e-6)
