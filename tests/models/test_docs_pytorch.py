"""What docs/pytorch.md shows and names beside its own snippets, which `tests/docs` runs."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import dnc

pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

from dnc.compiler import compile_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


DATA = [str(ROOT / "examples" / "data" / f"sentiment-{part}.jsonl") for part in ("train", "dev")]


def example_of(file):
    spec = importlib.util.spec_from_file_location("example", ROOT / "examples" / file)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def test_two_processes_make_the_steps_of_one(tmp_path, monkeypatch):
    """Gradients meet between PyTorch's processes."""
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    compile_model(ROOT / "examples" / "treelstm.dn", tmp_path / "build", ("cpu",), {"embed": 8, "hidden": 8})
    arguments = [str(tmp_path / "build"), *DATA, "--epochs", "1", "--batch", "80", "--save"]
    program = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = str(ROOT / "examples" / "torch_distributed.py")
    subprocess.run([sys.executable, *program, script, *arguments, str(two)], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", **place}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", [script, *arguments, str(one)])
    example_of("torch_distributed.py").main()
    found, expected = (safetensors.numpy.load_file(path) for path in (two, one))
    begun = dnc.load(tmp_path / "build", "cpu", seed=1)
    begun.attach(DATA[0])
    for name, values in begun.parameters().items():
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)
        assert not np.allclose(found[name], values, atol=1e-4), f"{name} has not moved"


def test_the_example_learns(tmp_path, monkeypatch, capsys):
    """Convolution, Tree-LSTM and output layer together."""
    build = str(tmp_path / "build")
    compile_model(ROOT / "examples" / "token_vectors.dn", build, ("cpu",), {"width": 64, "hidden": 16})
    monkeypatch.setattr("sys.argv", ["torch_treelstm.py", build, *DATA, "--epochs", "3", "--device", "cpu"])
    example_of("torch_treelstm.py").main()
    losses = [float(each) for each in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert len(losses) == 3 and losses[2] < 0.9 * losses[0]


def test_the_map_shown_is_the_one_shipped():
    shown = tomllib.loads(next(text for kind, text in BLOCKS if kind == "toml"))
    assert shown == tomllib.loads((ROOT / "examples/weights/treelstm.toml").read_text())
