"""Paths count from the folder in which they were given, whatever folder a process works in later."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

import dnc
from dnc.compiler import compile_model
from dnc.diagnostics import DiagnosticError
from dnc.runtime.run_config import read_config
from tests.support.models import EXAMPLES, without_kernels

SAMPLE = {"word": "a", "label": 1}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to go to; the process is in one with a build "b", and data in files."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with without_kernels(tmp_path / "cache"):
        compile_model(EXAMPLES / "treelstm.dn", "b", ("cpu",), {"embed": 3, "hidden": 3})
    for name in ("d.jsonl", "samples"):
        Path(name).write_text(json.dumps(SAMPLE))
    return tmp_path / "there"


def test_a_run_names_its_build_and_its_data(elsewhere, monkeypatch):
    model = dnc.load("b", "vm")
    data = model.attach("d.jsonl")
    monkeypatch.chdir(elsewhere)
    run = model.train(data, epochs=1, run_dir="run")
    config = read_config(Path(run) / "run.toml")
    here = elsewhere.parent / "here"
    assert (config.build, config.data) == (str(here / "b"), str(here / "d.jsonl"))


def test_attached_data_are_not_lost(elsewhere, monkeypatch):
    model = dnc.load("b", "vm")
    model.attach("d.jsonl")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(DiagnosticError, match="is read here too and would be lost"):
        model.save("../here/d.jsonl")


def test_samples_in_memory_are_no_file_of_that_name(elsewhere):
    model = dnc.load("b", "vm")
    run = model.train([SAMPLE], epochs=1, run_dir="run")
    assert read_config(Path(run) / "run.toml").data is None


def test_a_module_is_copied(elsewhere, monkeypatch):
    pytest.importorskip("torch")
    from dnc.torch import Module

    net = Module("b", data="d.jsonl", device="vm")
    monkeypatch.chdir(elsewhere)
    assert copy.deepcopy(net).dnc.vocabularies == net.dnc.vocabularies
