"""Greedy decoding as a loop on the host: what it finds is what the model finds most probable."""

from __future__ import annotations

import importlib.util

import pytest

import dnc
import dnc.kernel_cache
from dnc.compiler import compile_model
from tests.support.models import EXAMPLES

PAIRS = [("a b c", "x y </s>"), ("b", "y y x </s>"), ("c a", "</s>")]


def sample(source: str, target: str) -> dict[str, list[dict[str, str]]]:
    return {
        name: [{"form": word} for word in text.split()]
        for name, text in (("source", source), ("target", target))
    }


@pytest.mark.parametrize("example", ["encoder_decoder", "attention"])
def test_greedy(example, tmp_path, monkeypatch):
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    sizes = {"embed": 4, "hidden": 5, "targets": 4}
    compile_model(EXAMPLES / f"{example}.dn", tmp_path / "build", ("cpu",), sizes)
    model = dnc.load(tmp_path / "build", "vm", seed=7)
    model.attach([sample(*pair) for pair in PAIRS])
    model.configure("adagrad", 0.5)
    for _ in range(40):
        model.step([0, 1])
    model.sync()
    spec = importlib.util.spec_from_file_location("greedy_decode", EXAMPLES / "greedy_decode.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = script.greedy(model, ["a", "b", "c"], "</s>", limit=6)
    assert found == ["x", "y"]
    assert script.greedy(model, ["b"], "</s>", limit=2) == ["y", "y"]
