"""What docs/pytorch.md shows and names beside its own snippets, which `tests/docs` runs."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

from dnc.compiler import compile_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_example_learns(tmp_path, monkeypatch, capsys):
    """Convolution, Tree-LSTM and output layer together."""
    build = str(tmp_path / "build")
    compile_model(ROOT / "examples" / "token_vectors.dn", build, ("cpu",), {"width": 64, "hidden": 16})
    spec = importlib.util.spec_from_file_location("example", ROOT / "examples" / "torch_treelstm.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    data = [str(ROOT / "examples" / "data" / f"sentiment-{part}.jsonl") for part in ("train", "dev")]
    monkeypatch.setattr("sys.argv", ["torch_treelstm.py", build, *data, "--epochs", "3", "--device", "cpu"])
    example.main()
    losses = [float(each) for each in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert len(losses) == 3 and losses[2] < 0.9 * losses[0]


def test_the_map_shown_is_the_one_shipped():
    shown = tomllib.loads(next(text for kind, text in BLOCKS if kind == "toml"))
    assert shown == tomllib.loads((ROOT / "examples/weights/treelstm.toml").read_text())
