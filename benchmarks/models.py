"""Samples a second of training every example, at its own sizes, on random data.

    for f in examples/*.dn; do dnc compile $f -o BUILDS/$(basename $f .dn) --target cpu,cuda; done
    python benchmarks/models.py BUILDS --device cuda [--out FILE] [--models NAME ...]

In: a folder with a build for each example. Out: a line a model, and a JSON file of all raw numbers,
which docs/make_models.py reads. The data are those of benchmarks/model_data.py. Every number is the
median of repeats of about --seconds each, behind a warm-up, with all work of the host; making and
reading the data set is excluded. A program that pulls vectors runs `forward` and `backward` in turn,
with random vectors and gradients. Needs neither TVM nor the frontend on a GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
from benchmarks import common, model_data
from dnc.api import Model
from dnc.diagnostics import DiagnosticError
from dnc.runtime.outside import pulled_fields, pushed_values

WARM_UP_BATCHES, LEARNING_RATE = 16, 0.001
WARM_UP_SECONDS = 0.5

Batches = Iterator[list[int]]


def main() -> None:
    options = arguments()
    result: dict[str, Any] = common.stamp(options.device, options.commit)
    result["command"] = result["command"].replace(str(options.builds), "BUILDS")
    result["load"] = os.getloadavg()[0]
    result |= {"what": "training of every example, samples/s", "optimizer": "sgd", "points": []}
    for name in options.models:
        try:
            point, result["device"] = measure(name, options)
        except DiagnosticError as error:
            sys.exit(f"{name}: {error}")
        result["points"].append(point)
        print(f"{name}: {point['samples_per_second']:,.1f} samples/s", flush=True)
        on = result["device"] if options.device == "cuda" else "cpu"
        out = options.out or common.default_out(on, "models")
        common.write(out, result)
    print(f"{result['device']}; {out}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("builds", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda", "vm"), default="cuda")
    parser.add_argument("--models", nargs="+", help="by default all that have a build", metavar="NAME")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--samples", type=int, default=512, help="of the data set")
    parser.add_argument("--seconds", type=float, default=1.5, help="about what one repeat takes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    options = parser.parse_args()
    made = sorted(n for n in model_data.MAKERS if (options.builds / model_data.program_of(n)).is_dir())
    options.models = options.models or made
    if missing := sorted(set(options.models) - set(made)):
        parser.error(f"no build of {', '.join(missing)} in {options.builds}")
    return options


def measure(name: str, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """A point of the result, and the device."""
    model = dnc.load(options.builds / model_data.program_of(name), options.device)
    model.configure("sgd", LEARNING_RATE)
    data = model.attach(model_data.samples(name, model.program, options.samples))
    model.session.reserve(model.encoder(data), options.batch)
    train = _inside(model) if pulled_fields(model.program) else _alone(model)
    batches = shuffled(options.samples, options.batch)
    run(train, batches, WARM_UP_SECONDS, WARM_UP_BATCHES if options.device == "cuda" else 1)
    runs = [run(train, batches, options.seconds, 1) for _ in range(options.repeats)]
    replicas, workers = model.backend.grid(options.batch)
    point = {
        "model": name,
        "batch": options.batch,
        "samples_per_second": statistics.median(runs),
        "runs": runs,
        "vertices": sum(len(table.arm) for table in data.forest.tables.values()) / options.samples,
        "settings": model.build.settings,
        "replicas": replicas,
        "workers": workers,
    }
    return point, model.device


def shuffled(samples: int, size: int) -> Batches:
    """Whole batches of shuffled epochs, without end."""
    random = np.random.default_rng(model_data.SEED)
    for _ in count():
        order = random.permutation(samples)
        for begin in range(0, samples - size + 1, size):
            yield order[begin : begin + size].tolist()


def run(train: Callable[[Batches], None], batches: Batches, seconds: float, least: int) -> float:
    """Samples a second over `seconds`, and `least` batches or more."""
    done, begin = 0, time.perf_counter()

    def in_time() -> Batches:
        nonlocal done
        for number, batch in enumerate(batches):
            done += len(batch)
            yield batch
            if number + 1 >= least and time.perf_counter() - begin > seconds:
                return

    train(in_time())
    return done / (time.perf_counter() - begin)


def _alone(model: Model) -> Callable[[Batches], None]:
    """Trains, and waits for the last step."""

    def train(batches: Batches) -> None:
        for _ in model.steps(batches):
            pass

    return train


def _inside(model: Model) -> Callable[[Batches], None]:
    """Trains inside another net: made-up vectors come in, made-up gradients come back."""
    random, data = np.random.default_rng(model_data.SEED), model._training_data()
    pulled: dict[str, list[Any]] = {}
    for key, (space, field) in pulled_fields(model.program).items():
        width = data.forest.tables[space.struct].data[field].shape[1]
        rows = data.order(space).counts(np.arange(data.samples, dtype=np.int32))
        pulled[key] = [random.normal(size=(count, width)).astype(np.float32) for count in rows]

    def train(batches: Batches) -> None:
        for batch in batches:
            found = model.forward(batch, {key: [each[n] for n in batch] for key, each in pulled.items()})
            model.backward({key: found[key] for key in pushed_values(model.program)})

    return train


if __name__ == "__main__":
    main()
