"""Compares an example with its reference: loss, declared outputs, every gradient.

    python -m tests.models.compare [NAME ...]    # at the sizes of the examples; writes docs/models.json

In: an example. Out: the largest differences, relative to the norm of what the reference says. dnc runs
through its public API: a step of SGD changes every parameter by a multiple of its gradient. Both sides
start from the same random parameters; the reference computes in float64.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

import dnc
from benchmarks import common, model_data
from benchmarks.model_data import Sizes
from dnc.api import Model
from dnc.compiler import compile_model
from dnc.ir.noise import SITES, step_noise, uniform, vertex_keys
from tests.models import graphs, pairs, sequences, taggers, trees
from tests.models.cells import Choice, Dropout, Parameters, Result, Sample, nothing_dropped
from tests.support.models import EXAMPLES

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "models.json"
SEED, SAMPLES, BATCH = 3, 7, (5, 0, 6, 2)
RATE = 256.0
"""Of the step whose change is the gradient: large, so that little of a small one is lost in rounding."""
TINY = 1e-12
"""The norm below which an expected array counts as zero, so that the difference itself is taken."""

Run = Callable[[Parameters, Sample, Dropout], Result]

REFERENCES: dict[str, Run] = {
    "attention": pairs.attention,
    "bilstm_tagger": taggers.bilstm_tagger,
    "char_rnn": sequences.char_rnn,
    "char_tagger": taggers.char_tagger,
    "childsum": trees.childsum,
    "dag": graphs.dag,
    "encoder_decoder": pairs.encoder_decoder,
    "gru_classifier": sequences.gru_classifier,
    "language_model": sequences.language_model,
    "lstm2": sequences.lstm2,
    "lstm_classifier": sequences.lstm_classifier,
    "mvrnn": trees.mvrnn,
    "nary_treelstm": trees.nary_treelstm,
    "rvnn": trees.rvnn,
    "similarity": pairs.similarity,
    "td_lstm": graphs.td_lstm,
    "td_rnn": graphs.td_rnn,
    "top_down": trees.top_down,
    "tree_fc": trees.tree_fc,
    "treelstm": trees.treelstm,
}

DROPPED: dict[str, Callable[[Sample], Sequence[Sample]]] = {"char_rnn": lambda sample: sample["letters"]}
"""The vertices of a sample, in order, at which a model drops something."""


@attrs.frozen
class Differences:
    """Relative differences. values: the largest of loss and outputs; gradients: by parameter."""

    values: float
    gradients: Mapping[str, float]

    @property
    def worst(self) -> str:
        """The parameter whose gradient differs most."""
        return max(self.gradients, key=lambda name: self.gradients[name])


def settings(name: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """`sizes` for the dimensions of an example that have a default."""
    head = re.search(r"^model \w+\(([^)]*)\)", (EXAMPLES / f"{name}.dn").read_text(), re.MULTILINE)
    assert head is not None
    return {found: sizes[found] for found in re.findall(r"(\w+) = \d+", head[1])}


def compare(name: str, build: Path, sizes: Sizes, device: str = "cpu") -> Differences:
    """Loss and outputs in evaluation, loss and gradients of a training step, of a compiled example."""
    model = dnc.load(build, device, seed=SEED)
    data = model_data.samples(name, model.program, SAMPLES, sizes)
    model.attach(data)
    first = _parameters(model)
    model.set_parameters(first)
    batch = [data[number] for number in BATCH]
    values = _outputs(model, REFERENCES[name], first, batch)
    model.configure("sgd", RATE)
    model.step(list(BATCH))
    loss = model.sync()
    leaves = {key: torch.tensor(value, dtype=torch.float64) for key, value in first.items()}
    trained = {p.name for p in model.program.parameters if not p.frozen}
    for key, leaf in leaves.items():
        leaf.requires_grad_(key in trained)
    dropout = _dropout([v for sample in data for v in DROPPED[name](sample)]) if name in DROPPED else None
    results = [REFERENCES[name](Parameters(**leaves), s, dropout or nothing_dropped) for s in batch]
    expected = torch.stack([result.loss for result in results]).mean()
    expected.backward()
    values.append(relative(loss, expected))
    after = model.parameters()
    gradients = {}
    for key, leaf in leaves.items():
        found = (first[key].astype(np.float64) - after[key]) / RATE
        gradients[key] = relative(found, torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
    return Differences(max(values), gradients)


def _parameters(model: Model) -> dict[str, Any]:
    """Random values: vectors and tables of moderate size, matrices that keep the size of a vector."""
    random = np.random.default_rng(SEED)
    tables = {p.name for p in model.program.parameters if p.kind == "table"}
    return {
        name: random.normal(
            scale=0.5 if value.ndim == 1 or (name in tables and value.ndim == 2) else value.shape[-1] ** -0.5,
            size=value.shape,
        ).astype(np.float32)
        for name, value in model.parameters().items()
    }


def _outputs(model: Model, run: Run, first: Mapping[str, Any], batch: list[Sample]) -> list[float]:
    """Differences of loss and outputs in evaluation."""
    values = Parameters(**{key: torch.tensor(value, dtype=torch.float64) for key, value in first.items()})
    expected = [run(values, sample, nothing_dropped) for sample in batch]
    loss = torch.stack([result.loss for result in expected]).mean()
    found, differences = model.predict(list(BATCH)), [relative(model.evaluate(list(BATCH)).loss, loss)]
    assert set(found) == set(expected[0].outputs), f"outputs: {sorted(found)}"
    for key, outputs in found.items():
        for output, result in zip(outputs, expected, strict=True):
            differences.append(_output_difference(output, result.outputs[key]))
    return differences


def _output_difference(found: Any, expected: Tensor | Choice | Sequence[Choice]) -> float:
    if isinstance(expected, Tensor):
        return relative(found, expected)
    if isinstance(expected, Choice):
        logits = expected.logits
        return float((logits.max() - logits[int(found)]) / logits.norm())
    return max(_output_difference(*each) for each in zip(found, expected, strict=True))


def relative(found: Any, expected: Tensor) -> float:
    """The norm of the difference over that of what is expected."""
    wanted = expected.detach().numpy()
    array = np.asarray(found, np.float64)
    assert array.shape == wanted.shape, f"found {array.shape}, expected {wanted.shape}"
    norm = float(np.linalg.norm(wanted))
    return float(np.linalg.norm(array - wanted)) / (norm if norm > TINY else 1.0)


def _dropout(vertices: Sequence[Sample]) -> Dropout:
    """What the first step of a run drops, as docs/language.md says; `vertices`: all of the data."""
    keys = vertex_keys(np.asarray(step_noise(SEED, 1)), np.arange(len(vertices)))
    number = {id(vertex): place for place, vertex in enumerate(vertices)}

    def drop(vertex: Sample, site: int, x: Tensor, rate: float) -> Tensor:
        random = uniform(keys[number[id(vertex)]], np.arange(len(x)) + site * SITES)
        kept = torch.tensor(random >= round(rate * 2**24) / 2**24)
        return torch.where(kept, x / (1 - rate), torch.zeros_like(x))

    return drop


# ---- the record ---------------------------------------------------------------------------------

RECORDED = Sizes(
    words=(1, 30), leaves=(1, 28), pyramid=(1, 20), complete=(0, 6), steps=(1, 64), vertices=(1, 32)
)


def measure(name: str) -> dict[str, Any]:
    """What docs/models.json says about an example, at the sizes that it has by default."""
    with tempfile.TemporaryDirectory() as folder:
        compile_model(EXAMPLES / f"{name}.dn", Path(folder) / "build")
        found = compare(name, Path(folder) / "build", RECORDED)
    return {"values": found.values, "gradients": found.gradients[found.worst], "of": found.worst}


def main(names: Sequence[str]) -> None:
    """Measures the named examples, by default all; the others stay as they were."""
    known = json.loads(RECORD.read_text(encoding="utf-8"))["models"] if RECORD.exists() else {}
    for name in names or sorted(REFERENCES):
        known[name] = measure(name)
        print(f"{name}: {known[name]}", flush=True)
    stamp = common.stamp("CPU", None) | {"torch": torch.__version__}
    stamp["command"] = " ".join(["python -m tests.models.compare", *names])
    common.write(RECORD, stamp | {"models": {name: known[name] for name in sorted(known)}})


if __name__ == "__main__":
    main(sys.argv[1:])
