"""Compares an example with its reference: loss, declared outputs, every gradient.

    python -m tests.models.compare [NAME ...]    # at the sizes of the examples; writes docs/models.json

In: an example. Out: the largest differences, relative to the norm of what the reference says. dnc runs
through its public API: a step of SGD changes every parameter by a multiple of its gradient. Both sides
start from the same random parameters; the reference computes in float64.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

import dnc
from benchmarks import common, model_data
from benchmarks.model_data import Sizes, numbered, program_of
from dnc.api import Model
from dnc.compiler import compile_model
from dnc.ir.noise import SITES, step_noise, uniform, vertex_keys
from tests.models.cells import Dropout, Parameters, Result, Sample, nothing_dropped
from tests.models.differences import output_differences, relative
from tests.models.references import DROPPED, PULLED, REFERENCES
from tests.support.models import EXAMPLES

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "models.json"
SEED, SAMPLES, BATCH = 3, 7, (5, 0, 6, 2)
RATE = 256.0
"""Of the step whose change is the gradient: large, so that little of a small one is lost in rounding."""


@attrs.frozen
class Differences:
    """Relative differences. values: the largest of loss and outputs; gradients: by parameter."""

    values: float
    gradients: Mapping[str, float]

    @property
    def worst(self) -> str:
        """The parameter whose gradient differs most."""
        return max(self.gradients, key=lambda name: self.gradients[name])


@attrs.frozen(eq=False)
class Trained:
    """A training step. values: differences so far; expected: what it minimised, by the reference;
    handed: gradients that dnc gave back, beside what the reference took the gradient by; results: what
    the reference says about every sample."""

    values: list[float]
    expected: Tensor
    handed: Mapping[str, Sequence[tuple[Any, Tensor]]] = attrs.field(factory=dict)
    results: Sequence[Result] = ()


def compare(name: str, build: Path, sizes: Sizes, device: str = "cpu") -> Differences:
    """Loss and outputs in evaluation, loss and gradients of a training step, of a compiled example."""
    model = dnc.load(build, device, seed=SEED)
    data = model_data.samples(name, model.program, SAMPLES, sizes)
    model.attach(data)
    model.set_parameters(_parameters(model))
    first = model.parameters()  # of sparse ones what is kept
    model.configure("sgd", RATE)
    trained = {p.name for p in model.program.parameters if p.trained}
    leaves = {
        key: torch.tensor(value, dtype=torch.float64, requires_grad=key in trained)
        for key, value in first.items()
    }
    train = _train_inside if name in PULLED else _train
    step = train(model, name, Parameters(**leaves), numbered(model.program, model.vocabularies, data))
    step.expected.backward()
    after = model.parameters()
    sparse = {p.name for p in model.program.parameters if p.is_sparse}
    gradients = {
        key: relative((first[key].astype(np.float64) - after[key]) / RATE, _gradient(leaf, key in sparse))
        for key, leaf in leaves.items()
    }
    for key, moved in _moved(first, step.results).items():
        gradients[key] = relative(after[key] - first[key].astype(np.float64), moved)
    for key, handed in step.handed.items():
        gradients[key] = max(relative(found, _gradient(leaf)) for found, leaf in handed)
    return Differences(max(step.values), gradients)


def _moved(first: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Tensor]:
    """By how much a step moves every running parameter: `rate` of the way to the mean of what it follows."""
    moved = {}
    for key, (rate, _) in results[0].followed.items() if results else ():
        start = torch.tensor(first[key], dtype=torch.float64)
        sums, counts = torch.zeros_like(start), torch.zeros(len(start), 1, dtype=torch.float64)
        for result in results:
            for number, value in result.followed[key][1]:
                sums[number] += value.detach()
                counts[number] += 1
        moved[key] = torch.where(counts > 0, rate * (sums / counts.clamp(min=1) - start), torch.zeros(()))
    return moved


def _gradient(leaf: Tensor, sparse: bool = False) -> Tensor:
    """sparse: what is zero stays so."""
    if leaf.grad is None:
        return torch.zeros_like(leaf)
    return torch.where(leaf == 0, torch.zeros_like(leaf), leaf.grad) if sparse else leaf.grad


def _train(model: Model, name: str, p: Parameters, data: list[Sample]) -> Trained:
    """Evaluation, prediction and a step on a batch."""
    run, batch = REFERENCES[name], [data[number] for number in BATCH]
    with torch.no_grad():
        evaluated = [run(p, sample, nothing_dropped) for sample in batch]
    values = [relative(model.evaluate(list(BATCH)).loss, _mean_loss(evaluated))]
    values += output_differences(model.predict(list(BATCH)), evaluated)
    model.step(list(BATCH))
    loss = model.sync()
    dropout = _dropout([v for sample in data for v in DROPPED[name](sample)]) if name in DROPPED else None
    results = [run(p, sample, dropout or nothing_dropped) for sample in batch]
    expected = _mean_loss(results)
    return Trained([*values, relative(loss, expected)], expected, results=results)


def _train_inside(model: Model, name: str, p: Parameters, data: list[Sample]) -> Trained:
    """The same inside another net: random vectors are pulled, and random gradients come back."""
    random, (field, vertices) = np.random.default_rng(SEED), PULLED[name]
    own = field.partition(".")[2]
    width = max(f.width for s in model.program.structs for arm in s.arms for f in arm.fields if f.name == own)
    batch = [copy.deepcopy(data[number]) for number in BATCH]
    for sample in batch:
        for vertex in vertices(sample):
            x = random.normal(size=width).astype(np.float32)
            vertex[own] = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    pulled = [[vertex[own] for vertex in vertices(sample)] for sample in batch]
    expected = [REFERENCES[name](p, sample, nothing_dropped) for sample in batch]
    found = model.forward(list(BATCH), {field: [[x.detach().numpy() for x in xs] for xs in pulled]})
    values = output_differences(found, expected)
    pushed = {key: [random.normal(size=np.shape(each)) for each in outputs] for key, outputs in found.items()}
    loss, gradients = model.backward(pushed)
    minimised = [
        (torch.tensor(np.asarray(gradient, np.float32)).double() * result.outputs[key]).sum()
        for key, each in pushed.items()
        for gradient, result in zip(each, expected, strict=True)
    ]
    own_loss = _mean_loss(expected)
    handed = [
        pair
        for array, xs in zip(gradients[field], pulled, strict=True)
        for pair in zip(array, xs, strict=True)
    ]
    return Trained([*values, relative(loss, own_loss)], own_loss + sum(minimised), {field: handed})


def _mean_loss(results: Sequence[Result]) -> Tensor:
    return torch.stack([result.loss for result in results]).mean()


def _parameters(model: Model) -> dict[str, Any]:
    """Random values: vectors and tables of moderate size, matrices that keep the size of a vector."""
    random = np.random.default_rng(SEED)
    rows = {p.name for p in model.program.parameters if p.kind in ("table", "stack")}
    found = {
        name: random.normal(
            scale=0.5 if value.ndim == 1 or (name in rows and value.ndim == 2) else value.shape[-1] ** -0.5,
            size=value.shape,
        ).astype(np.float32)
        for name, value in model.parameters().items()
    }
    # Of a running variance the root is taken.
    running = {p.name for p in model.program.parameters if p.running}
    return {name: np.abs(value) + 0.5 if name in running else value for name, value in found.items()}


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
    words=(1, 30),
    leaves=(1, 28),
    pyramid=(1, 20),
    complete=(0, 6),
    steps=(1, 64),
    vertices=(1, 32),
    grid=(1, 8),
)


def measure(name: str) -> dict[str, Any]:
    """What docs/models.json says about an example, at the sizes that it has by default."""
    with tempfile.TemporaryDirectory() as folder:
        compile_model(EXAMPLES / f"{program_of(name)}.dn", Path(folder) / "build")
        found = compare(name, Path(folder) / "build", RECORDED)
    stamp = common.stamp("CPU", None)
    return {
        "values": found.values,
        "gradients": found.gradients[found.worst],
        "of": found.worst,
        "torch": torch.__version__,
        **{key: stamp[key] for key in ("date", "processor", "commit")},
    }


def main(names: Sequence[str]) -> None:
    """Measures the named examples, by default all; the others stay as they were."""
    known = json.loads(RECORD.read_text(encoding="utf-8"))["models"] if RECORD.exists() else {}
    for name in names or sorted(REFERENCES):
        known[name] = measure(name)
        print(f"{name}: {known[name]}", flush=True)
    ordered = {name: known[name] for name in sorted(known)}
    common.write(RECORD, {"command": "python -m tests.models.compare", "models": ordered})


if __name__ == "__main__":
    main(sys.argv[1:])
