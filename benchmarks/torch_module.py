"""A training step of `dnc.torch.Module` beside dnc's own, on the same batches, alternating.

    python benchmarks/torch_module.py TREELSTM TOKEN_VECTORS TREES.jsonl --device cuda [--out FILE]

In: builds of `examples/treelstm.dn` and `examples/token_vectors.dn`, trees with words and labels (SST, or
`examples/data/sentiment-train.jsonl`). Out: first a comparison of values and gradients with PyTorch in
float64 (it stops where they differ by more than 1e-4), then times, and a JSON file of all raw numbers.
Both sides make the whole step: the host's work, forward, backward, SGD on all parameters. The Tree-LSTM has
its loss in the program; the other one pulls the vectors of the leaves from a tensor that wants a
gradient, and pushes the state of the root. Every number is the median of repeats of --seconds each, with
new batches in every repeat. Needs neither TVM nor the frontend on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
import dnc.torch
from benchmarks import common
from tests.models.cells import Parameters, nothing_dropped
from tests.models.trees import leaves, token_vectors, treelstm

RATE, TOLERANCE, CHECKED, WARM_UP = 0.01, 1e-4, 12, 5
Step = Callable[[Sequence[int]], object]


def main() -> None:
    options = arguments()
    trees = [json.loads(line) for line in options.data.read_text(encoding="utf-8").splitlines()]
    programs = {"treelstm": Labelled(options, trees), "token_vectors": Between(options, trees)}
    result: dict[str, Any] = common.stamp(programs["treelstm"].native.device, options.commit)
    result |= {"what": "milliseconds of a training step", "torch": torch.__version__}
    result |= {"torch_threads": torch.get_num_threads(), "programs": {}}
    for name, program in programs.items():
        found = program.check()
        print(f"{name}: largest relative difference {max(found.values()):.1e} ({max(found, key=found.get)})")
        if not max(found.values()) < TOLERANCE:
            raise SystemExit(f"{name} is wrong: {found}")
        result["programs"][name] = {"differences": found, "points": []}
    for name, program in programs.items():
        for size in options.batches:
            point = measure(program.steps(), len(trees), size, options)
            result["programs"][name]["points"].append(point)
            medians = ", ".join(f"{key} {value:.3f}" for key, value in point["median"].items())
            ratios = ", ".join(f"{key} {value:.2f}" for key, value in point["ratio"].items())
            print(f"{name}, batch {size}: {medians} ms; to dnc: {ratios}", flush=True)
    out = options.out or common.default_out(
        programs["treelstm"].native.device if options.device == "cuda" else "cpu", "torch-module"
    )
    common.write(out, result)
    print(out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("treelstm", type=Path)
    parser.add_argument("token_vectors", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda", "vm"), default="cuda")
    parser.add_argument("--batches", type=lambda text: [int(each) for each in text.split(",")], default=None)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device != "cuda":  # the threads of PyTorch and those of dnc would wait for each other's cores
        torch.set_num_threads(1)
    options.batches = options.batches or ([1, 32, 128, 256] if options.device == "cuda" else [1, 10, 50])
    return options


# ---- time ---------------------------------------------------------------------------------------


def measure(
    steps: Mapping[str, tuple[Step, Callable[[], object]]], samples: int, size: int, options: Any
) -> dict[str, Any]:
    """Milliseconds of a step of every kind, in turns; the first one is dnc's own."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(options.repeats):
        order = np.random.default_rng(repeat).permutation(samples).astype(np.int32)
        batches = [order[at : at + size] for at in range(0, samples - size + 1, size)]
        for name, (step, wait) in steps.items():
            for batch in batches[-WARM_UP:]:
                step(batch)
            wait()
            begin, count = time.perf_counter(), 0
            while time.perf_counter() - begin < options.seconds:
                step(batches[count % len(batches)])
                count += 1
            wait()
            found[name].append((time.perf_counter() - begin) / count * 1e3)
    median = {name: statistics.median(times) for name, times in found.items()}
    first = next(iter(median.values()))
    ratio = {name: value / first for name, value in list(median.items())[1:]}
    return {"batch": size, "runs": found, "median": median, "ratio": ratio}


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# ---- a loss in the program ----------------------------------------------------------------------


class Labelled:
    """The Tree-LSTM with a loss at every vertex."""

    def __init__(self, options: Any, trees: list[Any]) -> None:
        self.trees = trees
        self.native = dnc.load(options.treelstm, options.device)
        self.native.configure("sgd", RATE)
        self.native.attach(trees)
        self.nets = {
            name: dnc.torch.Module(options.treelstm, trees, device=options.device, sparse=name == "sparse")
            for name in ("dense", "sparse")
        }

    def steps(self) -> dict[str, tuple[Step, Callable[[], object]]]:
        found: dict[str, tuple[Step, Callable[[], object]]] = {"dnc": (self.native.step, self.native.sync)}
        for name, net in self.nets.items():
            optimizer = torch.optim.SGD(net.parameters(), lr=RATE)

            def step(batch: Sequence[int], net: Any = net, optimizer: Any = optimizer) -> None:
                optimizer.zero_grad()
                net(batch)["loss"].backward()
                optimizer.step()

            found[f"torch, {name} gradient of the table"] = (step, synchronize)
        return found

    def check(self) -> dict[str, float]:
        """Loss and gradients of some trees against PyTorch in float64."""
        net = self.nets["dense"]
        net.load_state_dict(randomized(net))
        batch, expected = list(range(min(CHECKED, len(self.trees)))), doubles(net)
        loss = net(batch)["loss"]
        loss.backward()
        words = (net.dnc.vocabularies or {})["vocab"]
        numbered = [_numbered(self.trees[number], words) for number in batch]
        results = [treelstm(Parameters(**expected), tree, nothing_dropped).loss for tree in numbered]
        want = torch.stack(results).mean()
        want.backward()
        found = {"loss": difference(loss, want)}
        found |= {name: difference(value.grad, expected[name].grad) for name, value in net.named_parameters()}
        sparse = self.nets["sparse"]
        sparse.load_state_dict(net.state_dict())
        sparse(batch)["loss"].backward()
        found["E, sparse"] = difference(sparse.E.grad.to_dense(), expected["E"].grad)
        net.zero_grad()
        sparse.zero_grad()
        return found


def _numbered(tree: Any, words: Any) -> Any:
    """A tree with the numbers of its words."""
    if "word" in tree:
        return {"word": words.number(tree["word"]), "label": tree["label"]}
    return {"label": tree["label"], **{side: _numbered(tree[side], words) for side in ("left", "right")}}


# ---- between two nets ---------------------------------------------------------------------------


class Between:
    """The Tree-LSTM that pulls the vectors of the leaves and pushes the state of the root."""

    def __init__(self, options: Any, trees: list[Any]) -> None:
        self.trees = [_bare(tree) for tree in trees]
        self.native = dnc.load(options.token_vectors, options.device)
        self.native.configure("sgd", RATE)
        self.native.attach(self.trees)
        self.net = dnc.torch.Module(options.token_vectors, self.trees, device=options.device)
        self.device = self.net.W.device
        self.width, self.hidden = self.net.W.shape[1], self.net.W.shape[0] // 3
        self.sizes = np.array(self.net.sizes()["Tree.x"])
        random = np.random.default_rng(0)
        most = int(np.sort(self.sizes)[-1024:].sum())
        self.vectors = random.normal(size=(most, self.width)).astype(np.float32)
        self.gradients = random.normal(size=(len(trees), self.hidden)).astype(np.float32)

    def steps(self) -> dict[str, tuple[Step, Callable[[], object]]]:
        x = torch.from_numpy(self.vectors).to(self.device)
        g = torch.from_numpy(self.gradients).to(self.device)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=RATE)

        def native(batch: Sequence[int]) -> None:
            ends = np.cumsum(self.sizes[batch])
            arrays = np.split(self.vectors[: ends[-1]], ends[:-1])
            self.native.forward(batch, {"Tree.x": arrays})
            self.native.backward({"sentence": list(self.gradients[: len(batch)])})

        def step(batch: Sequence[int]) -> None:
            optimizer.zero_grad()
            own = x[: int(self.sizes[batch].sum())].detach().requires_grad_()
            found = self.net(batch, own)["sentence"]
            torch.autograd.backward(found, g[: len(batch)])
            optimizer.step()

        return {"dnc": (native, self.native.sync), "torch": (step, synchronize)}

    def check(self) -> dict[str, float]:
        """State and gradients of some trees against PyTorch in float64."""
        self.net.load_state_dict(randomized(self.net))
        batch, expected = list(range(min(CHECKED, len(self.trees)))), doubles(self.net)
        sizes = self.sizes[batch].tolist()
        x = torch.from_numpy(self.vectors[: sum(sizes)]).to(self.device).requires_grad_()
        wide = x.detach().double().cpu().requires_grad_()
        states = []
        for number, own in zip(batch, wide.split(sizes), strict=True):
            tree = _bare(self.trees[number])
            for leaf, vector in zip(leaves(tree), own, strict=True):
                leaf["x"] = vector
            states.append(token_vectors(Parameters(**expected), tree, nothing_dropped).outputs["sentence"])
        g = torch.from_numpy(self.gradients[: len(batch)])
        found = self.net(batch, x)["sentence"]
        found.backward(g.to(self.device))
        want = torch.stack(states)
        want.backward(g.double())
        differences = {"sentence": difference(found, want), "Tree.x": difference(x.grad, wide.grad)}
        for name, value in self.net.named_parameters():
            differences[name] = difference(value.grad, expected[name].grad)
        self.net.zero_grad()
        return differences


def _bare(tree: Any) -> Any:
    """The structure alone."""
    return {side: _bare(tree[side]) for side in ("left", "right") if side in tree}


# ---- comparison ---------------------------------------------------------------------------------


def randomized(net: Any) -> dict[str, torch.Tensor]:
    """Weights of moderate size, the same for every net."""
    make = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(value.shape, generator=make) * (value.shape[-1] ** -0.5 if value.dim() > 1 else 0.5)
        for name, value in net.state_dict().items()
    }


def doubles(net: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().double().cpu().requires_grad_() for name, value in net.named_parameters()}


def difference(found: torch.Tensor, expected: torch.Tensor | None) -> float:
    """The norm of the difference over that of what is expected."""
    assert expected is not None
    return float((found.detach().double().cpu() - expected.detach()).norm() / expected.norm())


if __name__ == "__main__":
    main()
