"""Sentences a second of Tree-LSTM training: dnc beside PyTorch, in one run, alternating.

    python benchmarks/treelstm.py BUILD TRAIN.jsonl --device cuda [--out FILE] [--also BUILD]

In: a build of `examples/treelstm.dn`, SST as JSONL (`dnc import ptb-trees`). Out: a table, and a
JSON file of all raw numbers. dnc trains over an epoch of shuffled batches through its public API,
with all work of the host, reading and preparing the data set excluded. PyTorch level-batched runs
the same model and optimizer with indices made ahead; the CUDA graph replays one batch of about mean
size. Every number is the median of repeats of at most --seconds each, warm-up excluded. Needs
neither TVM nor the frontend on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
from benchmarks import common
from dnc.api import Model
from dnc.runtime.batches import GROUP_BATCHES, GROUP_SAMPLES
from dnc.runtime.encoder import Encoder

GPU_BATCHES, CPU_BATCHES = (1, 8, 32, 128), (1, 10, 50)
ENCODED, IDLE_STEPS, WARM_UP = 40, 200, 3

Measure = Callable[[], float]
"""Runs for a while; sentences a second."""


def main() -> None:
    options = arguments()
    models = {name: load(options, path) for name, path in builds(options)}
    first = next(iter(models.values()))
    device = first.device
    result: dict[str, Any] = common.stamp(device, options.commit)
    result |= {"what": "Tree-LSTM training, sentences/s", "optimizer": options.optimizer, "points": []}
    result["plans"] = {name: plan_of(model) for name, model in models.items()}
    twins = None if options.no_torch else Torch(options, first)
    if twins is not None:
        result["torch"] = twins.version
    for size in options.batches:
        measures: dict[str, Measure] = {
            name: dnc_measure(model, size, options.seconds) for name, model in models.items()
        }
        if twins is not None:
            measures |= twins.measures(size)
        found: dict[str, list[float]] = {name: [] for name in measures}
        for _ in range(options.repeats):
            for name, measure in measures.items():
                found[name].append(measure())
        point: dict[str, Any] = {"batch": size, "runs": found}
        point["median"] = {name: statistics.median(runs) for name, runs in found.items()}
        point["encode"] = {name: encode_times(model, size) for name, model in models.items()}
        if options.device == "cuda":
            point["idle"] = {name: idle_share(model, size) for name, model in models.items()}
        result["points"].append(point)
        medians = ", ".join(f"{name} {value:,.0f}" for name, value in point["median"].items())
        print(f"batch {size}: {medians}", flush=True)
    out = options.out or common.default_out(device if options.device == "cuda" else "cpu", "treelstm")
    common.write(out, result)
    print(f"{device}; {out}")
    print_table(result)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda", "vm"), default="cuda")
    parser.add_argument("--also", type=Path, action="append", default=[], help="another build to measure")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=2.5, help="the most that one repeat takes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--optimizer", choices=("sgd", "adagrad"), default="sgd")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--threads", type=int, default=common.cores(), help="of PyTorch on the CPU")
    parser.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    parser.add_argument("--no-torch", action="store_true")
    options = parser.parse_args()
    options.batches = options.batches or (GPU_BATCHES if options.device == "cuda" else CPU_BATCHES)
    return options


def builds(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """Every build with its name in the results."""
    return [("dnc", options.build), *((f"dnc {path.name}", path) for path in options.also)]


def load(options: argparse.Namespace, path: Path) -> Model:
    """A model with the training data attached."""
    model = dnc.load(path, options.device)
    model.configure(options.optimizer, options.lr)
    model.attach(options.data)
    return model


def plan_of(model: Model) -> dict[str, Any]:
    """Which plan a build uses."""
    replicas, workers = model.backend.grid(32)
    cluster = int(getattr(model.backend, "cluster", 1))
    kind = "cluster" if cluster > 1 else "chip" if replicas == 1 else "replicas"
    return {
        "kind": kind,
        "replicas": replicas,
        "workers": workers,
        "cluster": cluster,
        "target": model.plan.target,
        "device": model.device,
        "parameters": {name: list(value.shape) for name, value in model.parameters().items()},
    }


# ---- dnc ----------------------------------------------------------------------------------------


def samples_of(model: Model) -> int:
    """How many sentences are attached."""
    return attached(model).prepared.samples


def attached(model: Model) -> Encoder:
    """The prepared training data."""
    return model.encoder(model._training_data())


def batches_of(model: Model, size: int, seed: int) -> list[Any]:
    """Sample numbers of a shuffled epoch."""
    order = np.random.default_rng(seed).permutation(samples_of(model)).astype(np.int32)
    return [order[begin : begin + size] for begin in range(0, len(order), size)]


def dnc_measure(model: Model, size: int, seconds: float) -> Measure:
    """An epoch, or what of it fits into `seconds`; each call takes another order."""
    model.session.reserve(attached(model), size)
    seed = 0

    def measure() -> float:
        nonlocal seed
        seed += 1
        batches, done, taken = batches_of(model, size, seed), 0, 0
        for _ in model.steps(batches[-WARM_UP * (1 + GROUP_SAMPLES // size) :]):
            pass
        begin = time.perf_counter()

        def in_time() -> Iterator[Any]:
            nonlocal done, taken
            for batch in batches:
                if time.perf_counter() - begin > seconds:
                    return
                done, taken = done + len(batch), taken + 1
                yield batch

        losses = sum(1 for _ in model.steps(in_time()))
        elapsed = time.perf_counter() - begin
        assert losses == taken
        return done / elapsed

    return measure


def encode_times(model: Model, size: int) -> dict[str, float]:
    """The host's work on batches not seen before: median time a batch, and words of a schedule.

    Batches are encoded as training does it: several at a time where they are small.
    """
    session = model.session
    session.reserve(attached(model), size)
    data = attached(model)
    times, words = [], []
    batches = [batch for batch in batches_of(model, size, 77) if len(batch) == size]
    count = min(GROUP_BATCHES, max(1, GROUP_SAMPLES // size))
    for begin in range(0, min(len(batches) - count, ENCODED * count), count):
        replicas, workers = model.backend.grid(size)
        group = batches[begin : begin + count]
        start = time.perf_counter()
        updates = [model.hyper.update()] * len(group)
        schedules = data.encode_group(group, replicas=replicas, workers=workers, updates=updates)
        times.append((time.perf_counter() - start) / count)
        words.append(len(schedules[0].words))
    return {"milliseconds": statistics.median(times) * 1e3, "words": statistics.median(words)}


class TimedDevice:
    """A CUDA device that puts an event before and behind every launch of its calls."""

    def __init__(self, device: Any, most: int) -> None:
        self._device, self.used = device, 0
        device.enter()
        self.events = [(device.stream.record(), device.stream.record()) for _ in range(most)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def call(self, kernel: Any, shape: Any, stream: Any) -> Any:
        made = self._device.call(kernel, shape, stream)
        launch = made.launch

        def timed() -> None:
            before, after = self.events[self.used]
            stream.mark(before)
            launch()
            stream.mark(after)
            self.used += 1

        made.launch = timed
        return made


def idle_share(model: Model, size: int, batches: list[Any] | None = None) -> dict[str, float]:
    """The share of the time between the first launch and the last in which no kernel ran.

    batches: those to run in place of an epoch's first ones.
    """
    backend: Any = model.backend
    if batches is None:
        batches = [batch for batch in batches_of(model, size, 78) if len(batch) == size]
        batches = batches[: IDLE_STEPS * (1 + GROUP_SAMPLES // size)]
    for _ in model.steps(batches[: 2 * GROUP_BATCHES]):
        pass
    device, timed = backend.device, TimedDevice(backend.device, 2 * len(batches))
    device.stream.synchronize()
    backend.device = timed
    backend.forget_calls()
    try:
        begin = time.perf_counter()
        for _ in model.steps(batches):
            pass
        wall = (time.perf_counter() - begin) * 1e6
    finally:
        backend.device = device
        backend.forget_calls()
    pairs = timed.events[: timed.used]
    kernels = [after.microseconds_since(before) for before, after in pairs]
    whole = pairs[-1][1].microseconds_since(pairs[0][0])
    return {
        "launches": timed.used,
        "kernel_us": statistics.median(kernels),
        "kernels_us": sum(kernels),
        "gpu_us": whole,
        "wall_us": wall,
        "idle_of_gpu_time": 1 - sum(kernels) / whole,
        "idle_of_wall_time": 1 - sum(kernels) / wall,
    }


# ---- PyTorch ------------------------------------------------------------------------------------


class Torch:
    """The twin on the same device, with the same first weights."""

    def __init__(self, options: argparse.Namespace, model: Model) -> None:
        import torch

        from tests.support import torch_treelstm

        torch.set_num_threads(options.threads)
        torch.set_float32_matmul_precision("highest")  # no tf32
        self.torch, self.module = torch, torch_treelstm
        self.version = f"{torch.__version__}, {options.threads} threads"
        self.device = "cuda" if options.device == "cuda" else "cpu"
        self.options, self.parameters = options, model.parameters()
        assert model.vocabularies is not None
        words = model.vocabularies["vocab"].index
        self.trees = torch_treelstm.Trees(torch_treelstm.read_trees(options.data), words)

    def twin(self) -> Any:
        """A fresh twin: each way to run starts from the same weights."""
        return self.module.Twin(self.parameters, self.options.optimizer, self.options.lr, self.device)

    def wait(self) -> None:
        """Waits for the device."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def measures(self, size: int) -> dict[str, Measure]:
        """Level-batched, and on CUDA the graph of one batch."""
        numbers = self.module.shuffled_batches(self.trees.samples, size, 1)
        twin, seconds = self.twin(), self.options.seconds
        first = [self.trees.batch(each).to(self.device) for each in numbers[: 2 * WARM_UP]]
        for batch in first[:WARM_UP]:
            twin.step(batch)
        self.wait()
        begin = time.perf_counter()
        for batch in first[WARM_UP:]:
            twin.step(batch)
        self.wait()
        each = (time.perf_counter() - begin) / max(len(first) - WARM_UP, 1)
        count = int(np.clip(seconds / each, 2, len(numbers)))
        batches = [self.trees.batch(each).to(self.device) for each in numbers[:count]]

        def level() -> float:
            for batch in first[:WARM_UP]:
                twin.step(batch)
            self.wait()
            done, begin = 0, time.perf_counter()
            for batch in batches:
                twin.step(batch)
                done += batch.samples
                if time.perf_counter() - begin > 1.5 * seconds:
                    break
            self.wait()
            return done / (time.perf_counter() - begin)

        found: dict[str, Measure] = {"torch level-batched": level}
        if self.device == "cuda":
            found["torch graph of one batch"] = self.graph_measure(numbers, size)
        return found

    def graph_measure(self, numbers: list[Any], size: int) -> Measure:
        """Replays of a batch whose number of vertices is nearest to the mean."""
        weight = np.diff(self.trees.begin)
        full = [each for each in numbers if len(each) == size]
        chosen = min(full, key=lambda each: abs(weight[each].mean() - weight.mean()))
        graph = self.module.Graph(self.twin(), self.trees.batch(chosen).to(self.device))

        def replay() -> float:
            done, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < self.options.seconds / 2:
                for _ in range(20):
                    graph.step()
                self.wait()
                done += 20 * size
            return done / (time.perf_counter() - begin)

        return replay


def print_table(result: dict[str, Any]) -> None:
    """One line a batch size: medians, ratio to level-batched, host and idle of the first build."""
    names = list(result["points"][0]["median"])
    print(" | ".join(["batch", *names, "ratio", "encode ms", "idle"]))
    for point in result["points"]:
        median = point["median"]
        cells = [str(point["batch"]), *(f"{median[name]:,.0f}" for name in names)]
        level = median.get("torch level-batched")
        cells.append(f"{median['dnc'] / level:.2f}" if level else "-")
        cells.append(f"{point['encode']['dnc']['milliseconds']:.2f}")
        idle = point.get("idle")
        cells.append(f"{idle['dnc']['idle_of_gpu_time']:.1%}" if idle else "-")
        print(" | ".join(cells))


if __name__ == "__main__":
    main()
