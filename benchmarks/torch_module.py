"""A training step of `dnc.torch.Module` beside dnc's own, on the same batches, alternating.

    python benchmarks/torch_module.py TREELSTM TOKEN_VECTORS TREES.jsonl --device cuda [--out FILE]

In: builds of `examples/treelstm.dn` and `examples/token_vectors.dn`, trees with words and labels (SST, or
`examples/data/sentiment-train.jsonl`). Out: first a comparison of values and gradients with PyTorch in
float64 (it stops where they differ by more than 1e-4, or where a batch that was encoded ahead has other
bits), then times, and a JSON file of all raw numbers. Both sides make the whole step: the host's work,
forward, backward, SGD on all parameters (`--optimizer`: how PyTorch runs it). The Tree-LSTM has its loss in
the program; the other one pulls the vectors of the leaves from a tensor that wants a gradient, and pushes
the state of the root.

What is compared, in turns, on the same batches:

- `dnc`: a batch at a time through the Python interface: `Model.step`, or `forward` and `backward`.
- `dnc, groups`: `Model.steps`, which knows the batches ahead, as training does (the Tree-LSTM only).
- `torch`: `net(batch)` with sample numbers, which are encoded when they come; with dense and with sparse
  gradients of the table.
- `torch, batches ahead`: the same, from `net.batches`, whose processes are there before the time starts.
- `torch, batches ahead, one thread`: the same, where PyTorch goes backward in the thread that calls it.
- `torch, data loader`: the same, from a data loader whose `--workers` encode (0 leaves it out).
- `PyTorch alone`: a node that computes nothing in place of a batch, with parameters of the same shapes: what
  autograd and the optimizer cost, which no program can do without.

Every number is the median of repeats of --seconds each, with new batches in every repeat. Needs neither
TVM nor the frontend on a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
import dnc.torch
from benchmarks import common
from dnc.runtime.ahead import GROUPS
from tests.models.cells import Parameters, nothing_dropped
from tests.models.trees import leaves, token_vectors, treelstm

RATE, TOLERANCE, CHECKED, WARM_UP = 0.01, 1e-4, 12, 2 * GROUPS
# Makes the steps of a measurement from an endless iterator over its batches: each `next` is one step.
Steps = Callable[[Iterator[Any]], Iterator[object]]
Wait = Callable[[], object]


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
            print(f"{name}, batch {size}, ms a step (to dnc):", flush=True)
            for key, value in point["median"].items():
                print(f"    {value:9.3f}  {point['ratio'][key]:5.2f}  {key}", flush=True)
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
    parser.add_argument("--encoders", type=int, default=None, help="processes of `net.batches`")
    parser.add_argument("--workers", type=int, default=None, help="that encode; 4, on the CPU 1")
    parser.add_argument(
        "--optimizer",
        choices=("fused", "foreach", "default"),
        help="fused, on the CPU foreach: there a fused one takes three times as long for matrices by columns",
    )
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device != "cuda":  # the threads of PyTorch and those of dnc would wait for each other's cores
        torch.set_num_threads(1)
    options.batches = options.batches or ([1, 8, 32, 128] if options.device == "cuda" else [1, 8, 32])
    options.optimizer = options.optimizer or ("fused" if options.device == "cuda" else "foreach")
    options.workers = (4 if options.device == "cuda" else 1) if options.workers is None else options.workers
    return options


# ---- time ---------------------------------------------------------------------------------------


def measure(steps: Mapping[str, tuple[Steps, Wait]], samples: int, size: int, options: Any) -> dict[str, Any]:
    """Milliseconds of a step of every kind, in turns; the first one is dnc's own."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(options.repeats):
        order = np.random.default_rng(repeat).permutation(samples).astype(np.int32)
        batches = [order[at : at + size] for at in range(0, samples - size + 1, size)]
        for name, (make, wait) in steps.items():
            running = make(itertools.cycle(batches))
            for _ in range(WARM_UP):
                next(running)
            wait()
            begin, count = time.perf_counter(), 0
            while time.perf_counter() - begin < options.seconds:
                next(running)
                count += 1
            wait()
            found[name].append((time.perf_counter() - begin) / count * 1e3)
            del running
    median = {name: statistics.median(times) for name, times in found.items()}
    first = next(iter(median.values()))
    return {
        "batch": size,
        "runs": found,
        "median": median,
        "ratio": {name: value / first for name, value in median.items()},
    }


def one_by_one(step: Callable[[Any], object]) -> Steps:
    return lambda batches: (step(batch) for batch in batches)


class Endless(torch.utils.data.Sampler[Any]):
    """Batches of sample numbers for a data loader."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return (batch.tolist() for batch in self.batches)


def batches_ahead(net: Any, step: Callable[[Any], object]) -> Steps:
    """Steps on what `net.batches` gives, once its processes help."""
    ahead = net._launches.ahead_of(net.dnc.attached)

    def steps(batches: Iterator[Any]) -> Iterator[object]:
        for batch in net.batches(batches):
            while ahead.groups > GROUPS and ahead.is_starting:
                time.sleep(0.01)
            yield step(batch)

    return steps


def in_one_thread(make: Steps) -> Steps:
    """The same steps without a thread of PyTorch's own for what runs backward."""

    def steps(batches: Iterator[Any]) -> Iterator[object]:
        with torch.autograd.set_multithreading_enabled(False):
            yield from make(batches)

    return steps


def from_loader(net: Any, step: Callable[[Any], object], workers: int) -> Steps:
    """Steps on what the workers of a data loader have encoded."""

    def steps(batches: Iterator[Any]) -> Iterator[object]:
        first = next(batches)
        encode = net.encoder(len(first))
        loader = torch.utils.data.DataLoader(
            range(1 << 30),  # type: ignore[arg-type]
            batch_sampler=Endless(batches),
            collate_fn=encode,
            num_workers=workers,
            prefetch_factor=4,
        )
        return (step(batch) for batch in loader)

    return steps


def sgd(net: Any, options: Any) -> torch.optim.Optimizer:
    how = {} if options.optimizer == "default" else {options.optimizer: True}
    return torch.optim.SGD(net.parameters(), lr=RATE, **how)


class Nothing(torch.autograd.Function):
    """A node that computes nothing; its gradients are whatever the memory holds."""

    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.parameters = parameters
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(each) for each in ctx.parameters)


def alone(net: Any, options: Any) -> tuple[Steps, Wait]:
    """Steps of PyTorch alone."""
    copies = torch.nn.ParameterList(each.detach().clone() for each in net.parameters())
    optimizer = sgd(copies, options)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        Nothing.apply(*copies).backward()
        optimizer.step()

    return one_by_one(step), synchronize


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# ---- a loss in the program ----------------------------------------------------------------------


class Labelled:
    """The Tree-LSTM with a loss at every vertex."""

    def __init__(self, options: Any, trees: list[Any]) -> None:
        self.trees, self.options = trees, options
        self.native = dnc.load(options.treelstm, options.device)
        self.native.configure("sgd", RATE)
        self.native.attach(trees)
        self.nets = {
            name: dnc.torch.Module(
                options.treelstm,
                trees,
                device=options.device,
                sparse=name == "sparse",
                encoders=options.encoders,
            )
            for name in ("dense", "sparse")
        }

    def steps(self) -> dict[str, tuple[Steps, Wait]]:
        model = self.native
        found: dict[str, tuple[Steps, Wait]] = {
            "dnc": (one_by_one(model.step), model.sync),
            "dnc, groups": (model.steps, model.sync),
        }
        for name, net in self.nets.items():
            # Fused optimizers take no sparse gradients.
            dense = name == "dense"
            optimizer = sgd(net, self.options) if dense else torch.optim.SGD(net.parameters(), lr=RATE)

            def step(batch: Any, net: Any = net, optimizer: Any = optimizer) -> None:
                optimizer.zero_grad()
                net(batch)["loss"].backward()
                optimizer.step()

            found[f"torch, {name} gradient of the table"] = (one_by_one(step), synchronize)
            ahead = batches_ahead(net, step)
            found[f"torch, batches ahead, {name} gradient of the table"] = (ahead, synchronize)
            if dense:
                found["torch, batches ahead, one thread"] = (in_one_thread(ahead), synchronize)
            if self.options.workers:
                loader = from_loader(net, step, self.options.workers)
                found[f"torch, data loader, {name} gradient of the table"] = (loader, synchronize)
        return found | {"PyTorch alone": alone(self.nets["dense"], self.options)}

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
        found["encoded ahead"] = other_bits(net, lambda given: net(given)["loss"].backward(), batch)
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
        self.trees, self.options = [_bare(tree) for tree in trees], options
        self.native = dnc.load(options.token_vectors, options.device)
        self.native.configure("sgd", RATE)
        self.native.attach(self.trees)
        self.net = dnc.torch.Module(
            options.token_vectors, self.trees, device=options.device, encoders=options.encoders
        )
        self.device = self.net.W.device
        self.width, self.hidden = self.net.W.shape[1], self.net.W.shape[0] // 3
        self.sizes = np.array(self.net.sizes()["Tree.x"])
        random = np.random.default_rng(0)
        most = int(np.sort(self.sizes)[-1024:].sum())
        self.vectors = random.normal(size=(most, self.width)).astype(np.float32)
        self.gradients = random.normal(size=(len(trees), self.hidden)).astype(np.float32)

    def steps(self) -> dict[str, tuple[Steps, Wait]]:
        x = torch.from_numpy(self.vectors).to(self.device)
        g = torch.from_numpy(self.gradients).to(self.device)
        optimizer = sgd(self.net, self.options)

        def native(batch: Sequence[int]) -> None:
            ends = np.cumsum(self.sizes[batch])
            arrays = np.split(self.vectors[: ends[-1]], ends[:-1])
            self.native.forward(batch, {"Tree.x": arrays})
            self.native.backward({"sentence": list(self.gradients[: len(batch)])})

        def step(batch: Any) -> None:
            optimizer.zero_grad()
            encoded = isinstance(batch, dnc.torch.Encoded)
            vertices = sum(batch.sizes["Tree.x"]) if encoded else self.sizes[batch].sum()
            own = x[: int(vertices)].detach().requires_grad_()
            found = self.net(batch, own)["sentence"]
            torch.autograd.backward(found, g[: len(found)])
            optimizer.step()

        steps: dict[str, tuple[Steps, Wait]] = {"dnc": (one_by_one(native), self.native.sync)}
        steps["torch"] = (one_by_one(step), synchronize)
        steps["torch, batches ahead"] = (batches_ahead(self.net, step), synchronize)
        if self.options.workers:
            steps["torch, data loader"] = (from_loader(self.net, step, self.options.workers), synchronize)
        return steps | {"PyTorch alone": alone(self.net, self.options)}

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
        want.backward(g.double().cpu())
        differences = {"sentence": difference(found, want), "Tree.x": difference(x.grad, wide.grad)}
        for name, value in self.net.named_parameters():
            differences[name] = difference(value.grad, expected[name].grad)
        g, x = g.to(self.device), x.detach()
        learn = lambda given: self.net(given, x)["sentence"].backward(g)  # noqa: E731
        differences["encoded ahead"] = other_bits(self.net, learn, batch)
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


def other_bits(net: Any, learn: Callable[[Any], object], batch: list[int]) -> float:
    """The largest difference of gradients of a batch that was encoded ahead: 0."""
    gradients = []
    for given in (batch, net.encoder(len(batch))(batch), *net.batches([batch])):
        net.zero_grad()
        learn(given)
        gradients.append([value.grad for value in net.parameters()])
    net.zero_grad()
    found = max(
        float((one - other).abs().max())
        for others in gradients[1:]
        for one, other in zip(gradients[0], others, strict=True)
    )
    return found if found == 0 else float("inf")


def difference(found: torch.Tensor, expected: torch.Tensor | None) -> float:
    """The norm of the difference over that of what is expected."""
    assert expected is not None
    return float((found.detach().double().cpu() - expected.detach()).norm() / expected.norm())


if __name__ == "__main__":
    main()
