"""Accuracy on SST (5 classes, roots) of dnc and of PyTorch trained alike.

    python benchmarks/accuracy.py BUILD TRAIN.jsonl DEV.jsonl --device cuda [--out FILE] [--lr 0.05 0.02]

In: a build of `examples/treelstm.dn`, SST as JSONL. Out: accuracy on DEV after every epoch for
every seed, mean and standard deviation of both, and a JSON file of all raw numbers. Both start from
the same random weights of a seed and see the same batches in the same order. With several rates,
dnc trains seed 1 with each and the best is used for everything that follows. PyTorch is bound by
its host, so its seeds run in processes of their own, --jobs at a time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import common

METRIC = "accuracy"


@attrs.frozen
class Run:
    """How both are trained."""

    build: Path
    train: Path
    dev: Path
    device: str
    optimizer: str
    rate: float
    epochs: int
    batch: int
    min_count: int
    limit: int | None
    threads: int


def main() -> None:
    options = arguments()
    run = Run(
        options.build,
        options.train,
        options.dev,
        options.device,
        options.optimizer,
        options.lr[0],
        options.epochs,
        options.batch,
        options.min_count,
        options.limit,
        1 if options.device == "cuda" else max(1, common.cores() // options.jobs),
    )
    seeds = list(range(1, options.seeds + 1))
    found: dict[str, Any] = {"search": {}}
    with tempfile.TemporaryDirectory() as folder:
        if len(options.lr) > 1:
            tried = {rate: train_dnc(attrs.evolve(run, rate=rate), 1, None) for rate in options.lr}
            found["search"] = {str(rate): each["dev"] for rate, each in tried.items()}
            run = attrs.evolve(run, rate=max(options.lr, key=lambda rate: max(tried[rate]["dev"])))
        found["dnc"] = [train_dnc(run, seed, Path(folder)) for seed in seeds]
        if not options.no_torch:
            spawn = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool:
                found["torch"] = list(pool.map(train_torch, [run] * len(seeds), seeds, [folder] * len(seeds)))
    result = common.stamp(found["dnc"][0]["device"], options.commit)
    result |= {"what": "SST, 5 classes, roots of the dev set"}
    result["settings"] = {name: _plain(value) for name, value in attrs.asdict(run).items()}
    result["majority"] = found["dnc"][0]["majority"]
    result |= found
    result["summary"] = {name: summary(found[name]) for name in ("dnc", "torch") if name in found}
    out = options.out or common.default_out(result["device"] if run.device == "cuda" else "cpu", "accuracy")
    common.write(out, result)
    print(f"{result['device']}; {out}")
    print(f"{run.optimizer} {run.rate:g}, batch {run.batch}; majority class {result['majority']:.1%}")
    print("             last epoch      best epoch      time of a seed")
    for name, each in result["summary"].items():
        last, best = (f"{100 * m:5.2f} ± {100 * s:4.2f} %" for m, s in (each["last"], each["best"]))
        print(f"{name:10} {last} {best} {each['seconds']:8.1f} s")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("train", type=Path)
    parser.add_argument("dev", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda", "vm"), default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--optimizer", choices=("sgd", "adagrad"), default="adagrad")
    parser.add_argument("--lr", type=float, nargs="+", default=[0.05])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=25)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--min-count", type=int, default=1, help="rarer words are unknown")
    parser.add_argument("--limit", type=int, help="train on the first sentences only")
    parser.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    parser.add_argument("--no-torch", action="store_true")
    return parser.parse_args()


def order_of(samples: int, seed: int, epoch: int) -> Any:
    """The order of an epoch, the same for both."""
    return np.random.default_rng([seed, epoch]).permutation(samples).astype(np.int32)


def batches_of(run: Run, samples: int, seed: int, epoch: int) -> list[Any]:
    """Sample numbers of an epoch's batches."""
    order = order_of(min(samples, run.limit or samples), seed, epoch)
    return [order[begin : begin + run.batch] for begin in range(0, len(order), run.batch)]


def train_dnc(run: Run, seed: int, folder: Path | None) -> dict[str, Any]:
    """dnc with one seed. Its first weights and its words go to `folder`, for the twin."""
    import dnc

    model = dnc.load(run.build, run.device, seed=seed)
    model.configure(run.optimizer, run.rate)
    train = model.attach(run.train, min_count=run.min_count)
    dev = model.read(run.dev)
    assert model.vocabularies is not None
    if folder is not None:
        words = np.array(model.vocabularies["vocab"].words)
        np.savez(folder / f"{seed}.npz", words=words, **model.parameters())  # type: ignore[arg-type]
    root = dev.forest.tables["Tree"].data["label"][dev.forest.roots]
    accuracies, seconds = [], 0.0
    for epoch in range(run.epochs):
        begin = time.perf_counter()
        for _ in model.steps(batches_of(run, train.samples, seed, epoch)):
            pass
        seconds += time.perf_counter() - begin
        accuracies.append(model.evaluate(dev).metrics[METRIC])
    print(
        f"dnc, seed {seed}, rate {run.rate:g}: " + " ".join(f"{each:.3f}" for each in accuracies), flush=True
    )
    return {
        "seed": seed,
        "dev": accuracies,
        "seconds": seconds,
        "device": model.device,
        "majority": float(np.bincount(root).max() / len(root)),
    }


def train_torch(run: Run, seed: int, folder: str) -> dict[str, Any]:
    """The twin from the same weights, over the same batches."""
    import torch

    from tests.support.torch_treelstm import Trees, Twin, read_trees

    torch.set_num_threads(run.threads)
    torch.set_float32_matmul_precision("highest")
    with np.load(Path(folder) / f"{seed}.npz") as stored:
        parameters = dict(stored)
    words = {str(word): number for number, word in enumerate(parameters.pop("words"))}
    device = "cuda" if run.device == "cuda" else "cpu"
    train, dev = Trees(read_trees(run.train), words), Trees(read_trees(run.dev), words)
    chunks = [range(begin, min(begin + 256, dev.samples)) for begin in range(0, dev.samples, 256)]
    prepared = [dev.batch(chunk).to(device) for chunk in chunks]
    twin = Twin(parameters, run.optimizer, run.rate, device)
    accuracies, seconds = [], 0.0
    for epoch in range(run.epochs):
        begin = time.perf_counter()
        for batch in batches_of(run, train.samples, seed, epoch):
            twin.step(train.batch(batch).to(device))
        if device == "cuda":
            torch.cuda.synchronize()
        seconds += time.perf_counter() - begin
        accuracies.append(sum(twin.root_hits(batch) for batch in prepared) / dev.samples)
    print(f"torch, seed {seed}: " + " ".join(f"{each:.3f}" for each in accuracies), flush=True)
    return {"seed": seed, "dev": accuracies, "seconds": seconds}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds, after the last epoch and at each seed's best."""
    last, best = [run["dev"][-1] for run in runs], [max(run["dev"]) for run in runs]
    spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in (last, best)]
    return {
        "last": (statistics.mean(last), spread[0]),
        "best": (statistics.mean(best), spread[1]),
        "seconds": statistics.mean(run["seconds"] for run in runs),
    }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


if __name__ == "__main__":
    main()
