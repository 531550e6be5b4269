"""The shipped sample data: made by their scripts, read by the shipped programs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.runtime.data import examples, read, read_samples
from dnc.runtime.importers import import_file

EXAMPLES = Path(__file__).parents[2] / "examples"
PAIRS = {
    "treelstm": "sentiment",
    "lstm_classifier": "sentences",
    "lstm2": "sentences",
    "bilstm_tagger": "words",
    "childsum": "dependencies",
}


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / "data" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["make_sentiment", "make_words", "make_dags", "make_dependencies", "make_pairs"]
)
def test_files_are_what_the_script_makes(name: str) -> None:
    for file, content in script(name).files():
        assert (EXAMPLES / "data" / file).read_text(encoding="utf-8") == content
        assert len(content.encode()) < 300_000


@pytest.mark.parametrize("program", PAIRS)
def test_program_reads_its_data(program: str) -> None:
    path = EXAMPLES / f"{program}.dn"
    model, _ = load_program(Source(str(path), path.read_text()), {})
    train = read(EXAMPLES / "data" / f"{PAIRS[program]}-train.jsonl", model)
    dev = read(EXAMPLES / "data" / f"{PAIRS[program]}-dev.jsonl", model, train.vocabularies)
    assert train.samples > dev.samples >= 40
    words = [
        dev.forest.tables[name].data[field][dev.forest.tables[name].arm == 0]
        for name, field in (("Tree", "word"), ("Word", "form"))
        if name in dev.forest.tables
    ]
    assert all((each == 0).mean() < 0.05 for each in words), "few unknown words"


def test_pairs(tmp_path: Path) -> None:
    """The folders are imported, and the program for pairs reads what comes out."""
    path = EXAMPLES / "similarity.dn"
    model, _ = load_program(Source(str(path), path.read_text()), {})
    for name, count in (("train", 400), ("dev", 100)):
        report = import_file("sick", EXAMPLES / "data" / f"pairs-{name}", tmp_path / f"{name}.jsonl")
        assert (report.samples, report.left_out) == (count, ())
    train = read(tmp_path / "train.jsonl", model)
    dev = read(tmp_path / "dev.jsonl", model, train.vocabularies)
    table = dev.forest.tables["Pair"]
    means = table.data["target"] @ np.arange(1, 6)
    np.testing.assert_allclose(means, table.data["score"][:, 0], rtol=1e-6)
    assert 1 <= means.min() < 2 and means.max() == 5


def test_dags() -> None:
    path = EXAMPLES / "dag.dn"
    model, _ = load_program(Source(str(path), path.read_text()), {})
    gate = read(EXAMPLES / "data" / "dags.jsonl", model).forest.tables["Gate"]
    held = [child for name in ("a", "b") for child in gate.children[name].tolist() if child >= 0]
    assert len(held) > len(set(held)), "some vertices are shared"
    assert (abs(gate.data["target"]) <= 1).all()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.dn")), ids=lambda path: path.stem)
def test_example_lines_of_every_program(path: Path) -> None:
    model, _ = load_program(Source(str(path), path.read_text()), {})
    for line in examples(model):
        assert read_samples([json.loads(line)], model).samples == 1


def test_prediction_needs_no_targets() -> None:
    path = EXAMPLES / "dag.dn"
    model, _ = load_program(Source(str(path), path.read_text()), {"width": 2})
    sample = {"a": {"x": [1, 2]}, "x": [3, 4], "target": None}
    gate = read_samples([sample], model, labels_required=False).forest.tables["Gate"]
    assert gate.data["target"].tolist() == [[0], [0]]
    flat = {"Gate": {"arm": ["Source"], "x": [[1, 2]]}, "root": 0}
    assert read_samples([flat], model, labels_required=False).samples == 1
    with pytest.raises(DiagnosticError, match="Source: field 'x' is missing"):
        read_samples([{"arm": "Source"}], model, labels_required=False)
    with pytest.raises(DiagnosticError, match="Source: field 'target' is missing"):
        read_samples([{"x": [1, 2]}], model)


def test_empty_sentence() -> None:
    path = EXAMPLES / "lstm_classifier.dn"
    model, _ = load_program(Source(str(path), path.read_text()), {})
    with pytest.raises(DiagnosticError, match="list 'words' is empty, but the program reads"):
        read_samples([{"words": [], "label": 0}], model)
