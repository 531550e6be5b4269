"""Sentences a second of training on one GPU, and on several of a host that train together.

    dnc compile examples/treelstm.dn -o BUILD --target cuda --set hidden=256,embed=256
    python benchmarks/data_parallel.py BUILD DATA.jsonl [--also BUILD] [--gpus 1 2] [--batches 32,128]

In: builds with a loss, and samples. Out: by batch (samples of all GPUs together) and GPUs sentences a second
over epochs behind each other, host work included, in turns, medians over repeats. First it checks that two
runs on all GPUs give the same bits, and the losses of one GPU but for the order of sums.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
from benchmarks import common
from dnc.api import Model

BATCHES, CHECKED, TOLERANCE, WARM_UP, LEARNING_RATE = (8, 32, 128, 256, 512, 1024), 12, 1e-4, 6, 0.002


def main() -> None:
    options = arguments()
    result: dict[str, Any] = common.stamp("", options.commit) | {"builds": {}}
    for build in (options.build, *options.also):
        models = {count: load(build, options.data, count) for count in options.gpus}
        result["device"] = models[options.gpus[0]].device
        found: dict[str, Any] = {"devices": {n: model.device for n, model in models.items()}, "points": []}
        found["check"] = checked(build, options.data, models)
        print(build, found["check"], flush=True)
        for size in options.batches:
            rates: dict[int, list[float]] = {count: [] for count in models}
            for repeat in range(options.repeats + 1):
                for count, model in models.items():
                    rates[count].append(rate(model, size, options.seconds, repeat))
            medians = {count: statistics.median(each[1:]) for count, each in rates.items()}
            found["points"].append({"batch": size, "runs": rates, "median": medians})
            told = ", ".join(f"{count} GPUs {each:,.0f}" for count, each in medians.items())
            print(f"batch {size}: {told}", flush=True)
        result["builds"][build.name] = found
    common.write(options.out or common.default_out(result["device"], "data-parallel"), result)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--also", type=Path, action="append", default=[], help="another build to measure")
    parser.add_argument("--gpus", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--seconds", type=float, default=1.5, help="the most that one repeat takes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    return parser.parse_args()


def load(build: Path, data: Path, gpus: int) -> Model:
    """A model on the first GPUs, with the training data attached."""
    model = dnc.load(build, "cuda:" + ",".join(map(str, range(gpus))))
    model.configure("sgd", LEARNING_RATE)
    model.attach(data)
    return model


def batches_of(model: Model, size: int, seed: int) -> list[Any]:
    """Sample numbers of a shuffled epoch."""
    order = np.random.default_rng(seed).permutation(model.encoder(model._training_data()).prepared.samples)
    return [order[begin : begin + size].astype(np.int32) for begin in range(0, len(order), size)]


def checked(build: Path, data: Path, models: dict[int, Model]) -> dict[str, Any]:
    """The largest relative difference of losses to those of one GPU; AssertionError where that is large, or
    two runs differ."""
    sizes = (1, 7, 32, 128)
    first = next(iter(models.values()))
    batches = [batches_of(first, size, 5)[at] for size in sizes for at in range(CHECKED // len(sizes))]
    found = {}
    for count in models:
        runs = []
        for _ in range(2):
            model = load(build, data, count)
            losses = list(model.steps(batches))
            runs.append((losses, model.parameters()))
        assert runs[0][0] == runs[1][0], (count, runs[0][0], runs[1][0])
        for name, value in runs[0][1].items():
            assert np.array_equal(value.view(np.int32), runs[1][1][name].view(np.int32)), (count, name)
        found[count] = runs[0][0]
    right = np.array(next(iter(found.values())))
    worst = max(float(np.abs(np.array(losses) / right - 1).max()) for losses in found.values())
    assert worst < TOLERANCE, worst
    return {"steps": len(batches), "same_bits_twice": True, "largest_difference_of_losses": worst}


def rate(model: Model, size: int, seconds: float, seed: int) -> float:
    """Sentences a second of shuffled epochs behind each other, for so long."""
    done, begin = 0, time.perf_counter()

    def in_time() -> Iterator[Any]:
        nonlocal done, begin
        for epoch in range(1 << 20):
            for number, batch in enumerate(batches_of(model, size, seed * 1000 + epoch)):
                if epoch == 0 and number == WARM_UP:
                    done, begin = 0, time.perf_counter()
                if len(batch) == size and time.perf_counter() - begin > seconds:
                    return
                done += len(batch)
                yield batch

    for _ in model.steps(in_time()):
        pass
    return done / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
