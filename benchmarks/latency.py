"""Latency of inference: LSTM, GRU and Tree-LSTM from builds for inference, PyTorch beside them.

    python benchmarks/latency.py compile BUILDS --target cpu,cuda        # where the compiler is installed
    python benchmarks/latency.py run BUILDS --device cuda [--trees SST.jsonl] [--out FILE]

`run` needs neither TVM nor Lark on a GPU. Sequences have 100 words, hidden = embed, the input product
included; trees are SST-like unless a file is named. Before anything is timed, the probabilities of dnc and
of PyTorch are compared with PyTorch in float64. All in microseconds, fp32 without tf32:

- dnc call: samples as Python objects in, values out; prepared: the samples were read before; kernel: the
  launch alone. First calls of every shape are in none of them but `new shapes`.
- torch graph: the replay of a CUDA graph of the whole model (cuDNN in it) alone; graph call: with word
  numbers copied there and probabilities back; call: the same without a graph. On a CPU only the last.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
from benchmarks import common
from dnc.api import Model
from dnc.api.bench import read_structures, times
from dnc.runtime.predictor import Predictor

SEQUENCES = {"lstm": "lstm_classifier", "gru": "torch_gru"}
STEPS, VOCABULARY, CLASSES = 100, 1000, 2
SIZES, BATCHES = (64, 256, 1024), (1, 10, 20)
TREE_SIZES, TREE_BATCHES = (256,), (1, 8, 32, 128, 256)
TOLERANCE = 1e-4
Sample = dict[str, Any]


def main() -> None:
    options = arguments()
    if options.command == "compile":
        compile_builds(options)
    else:
        run(options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("compile", "run"):
        each = commands.add_parser(name)
        each.add_argument("builds", type=Path)
        each.add_argument("--sizes", type=int, nargs="*", default=SIZES)
        each.add_argument("--tree-sizes", type=int, nargs="*", default=TREE_SIZES)
    commands.choices["compile"].add_argument("--target", default="cpu,cuda")
    own = commands.choices["run"]
    own.add_argument("--device", choices=("cpu", "cuda", "vm"), default="cuda")
    own.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    own.add_argument("--tree-batches", type=int, nargs="+", default=TREE_BATCHES)
    own.add_argument("--trees", type=Path, help="JSONL of trees, as of `dnc import ptb-trees`")
    own.add_argument("--steps", type=int, default=STEPS)
    own.add_argument("--calls", type=int, default=1000)
    own.add_argument("--warmup", type=int, default=100)
    own.add_argument("--seed", type=int, default=1)
    own.add_argument("--no-torch", action="store_true")
    own.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    own.add_argument("--out", type=Path)
    return parser.parse_args()


def compile_builds(options: argparse.Namespace) -> None:
    """A build for inference of every model and size."""
    from dnc.compiler import PlanOptions, compile_model

    programs = [(kind, SEQUENCES[kind], size) for kind in SEQUENCES for size in options.sizes]
    for kind, program, size in [*programs, *(("tree", "treelstm", size) for size in options.tree_sizes)]:
        folder = options.builds / f"{kind}-{size}"
        sizes = {"hidden": size, "embed": size}
        path = common.ROOT / "examples" / f"{program}.dn"
        made = compile_model(path, folder, options.target.split(","), sizes, PlanOptions(mode="infer"))
        print(f"{folder}: {made.seconds:.1f} s", flush=True)


def run(options: argparse.Namespace) -> None:
    """Measures all builds and writes the result."""
    points: list[dict[str, Any]] = []
    torch = None if options.no_torch else Torch(options)
    device = ""
    for kind in SEQUENCES:
        for size in options.sizes:
            model = dnc.load(options.builds / f"{kind}-{size}", options.device, seed=options.seed)
            device = model.device
            model.read([sentence(list(range(VOCABULARY)))])
            for batch in options.batches:
                point = {"model": kind, "hidden": size, "batch": batch, "steps": options.steps}
                batches = sentences(options, batch)
                points.append(point | measure(options, model, batches, torch, kind))
                tell(points[-1])
    for size in options.tree_sizes:
        model = dnc.load(options.builds / f"tree-{size}", options.device, seed=options.seed)
        device = model.device
        trees = made_trees(options.seed) if options.trees is None else read_structures(options.trees)
        model.read(trees)
        for batch in options.tree_batches:
            point = {"model": "tree", "hidden": size, "batch": batch}
            points.append(point | measure(options, model, tree_batches(trees, batch, options), torch, "tree"))
            tell(points[-1])
    result = common.stamp(device, options.commit)
    result |= {"what": "latency of inference, microseconds", "calls": options.calls, "points": points}
    result |= {"trees": "made up" if options.trees is None else options.trees.name}
    result["torch"] = None if torch is None else torch.version
    out = options.out or common.default_out(device if options.device == "cuda" else "cpu", "latency")
    common.write(out, result)
    print(f"{device}; {out}")


def tell(point: dict[str, Any]) -> None:
    """A line of the table."""
    shown = [f"{name} {point[name]}" for name in ("model", "hidden", "batch")]
    for name, value in point.items():
        if isinstance(value, dict) and "p50" in value:
            shown.append(f"{name} {value['p50']:,.1f} (p99 {value['p99']:,.1f})")
    print("; ".join(shown), flush=True)


# ---- data ---------------------------------------------------------------------------------------


def sentence(words: Sequence[int]) -> Sample:
    return {"words": [{"form": int(word)} for word in words], "label": 0}


def sentences(options: argparse.Namespace, batch: int) -> list[list[Sample]]:
    """Batches of sentences of one length, of other words each."""
    choice = np.random.default_rng(options.seed)
    return [
        [sentence(choice.integers(0, VOCABULARY, options.steps)) for _ in range(batch)] for _ in range(32)
    ]


def made_trees(seed: int, count: int = 512) -> list[Sample]:
    """Random binary trees; as many leaves as sentences of SST have words."""
    choice = random.Random(seed)

    def grow(leaves: int) -> Sample:
        if leaves == 1:
            return {"word": f"w{choice.randrange(VOCABULARY)}", "label": choice.randrange(5)}
        cut = choice.randint(1, leaves - 1)
        return {"left": grow(cut), "right": grow(leaves - cut), "label": choice.randrange(5)}

    return [grow(min(max(round(choice.gauss(19.3, 9.3)), 2), 52)) for _ in range(count)]


def tree_batches(trees: Sequence[Sample], batch: int, options: argparse.Namespace) -> list[list[Sample]]:
    order = np.random.default_rng(options.seed).permutation(len(trees))
    batch = min(batch, len(trees))
    count = min(64, len(trees) // batch)
    return [[trees[at] for at in order[first * batch :][:batch]] for first in range(count)]


# ---- measuring ----------------------------------------------------------------------------------


def measure(
    options: argparse.Namespace, model: Model, batches: list[list[Sample]], torch: Torch | None, kind: str
) -> dict[str, Any]:
    """One point: values first, then times."""
    found: dict[str, Any] = {"plan": list(model.backend.grid(len(batches[0]), False))}
    twin = None if torch is None else torch.twin(kind, model)
    if twin is not None:
        expected = twin.exact(batches[0])
        given = np.array(model.predict(batches[0])["p"])
        found["error"] = {
            "dnc": float(np.abs(given - expected).max()),
            "torch": float(np.abs(twin.call(twin.prepare(batches[0])) - expected).max()),
        }
        for who, error in found["error"].items():
            assert error <= TOLERANCE, f"{who} is off by {error:g}"
    start = time.perf_counter()
    for batch in batches:
        model.predict(batch)
    found["new shapes"] = round((time.perf_counter() - start) / len(batches) * 1e6, 1)
    found["dnc call"] = timed(options, [lambda batch=batch: model.predict(batch) for batch in batches])
    read = [model.read(batch, labels_required=False) for batch in batches]
    short = Predictor(model.session)
    calls = [lambda data=data: short.predict(data.forest) for data in read]
    for call in calls:
        call()
    kernel = model.backend.time_kernels()
    found["dnc prepared"] = timed(options, calls)
    if kernel:
        found["dnc kernel"] = summary(kernel[options.warmup :])
    model.backend.time_kernels(False)
    if twin is not None:
        prepared = [twin.prepare(batch) for batch in batches]
        found["torch call"] = timed(options, [lambda given=given: twin.call(given) for given in prepared])
        found |= twin.graphs(options, prepared[0])
    return found


def timed(options: argparse.Namespace, calls: Sequence[Callable[[], Any]]) -> dict[str, float]:
    """Percentiles over many calls, in turn."""
    for at in range(options.warmup):
        calls[at % len(calls)]()
    seconds = []
    for at in range(options.calls):
        start = time.perf_counter()
        calls[at % len(calls)]()
        seconds.append(time.perf_counter() - start)
    return summary(seconds)


def summary(seconds: Sequence[float]) -> dict[str, float]:
    found = times(seconds)
    return {"p50": found.p50, "p90": found.p90, "p99": found.p99, "mean": found.mean, "least": found.least}


# ---- PyTorch ------------------------------------------------------------------------------------


class Torch:
    """PyTorch on the same device; a twin has the weights of a model."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        torch.set_num_threads(common.cores())
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        self.torch, self.device = torch, "cuda" if options.device == "cuda" else "cpu"
        self.version = f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}"

    def twin(self, kind: str, model: Model) -> Any:
        return TreeTwin(self, model) if kind == "tree" else SequenceTwin(self, kind, model)


class Twin:
    """What both twins share: `forward` of prepared inputs gives probabilities on the device."""

    def __init__(self, torch: Torch) -> None:
        self.torch, self.device = torch.torch, torch.device

    def call(self, given: Any) -> Any:
        """Inputs there, the model, probabilities back."""
        with self.torch.inference_mode():
            return self.forward(self.there(given)).cpu().numpy()

    def there(self, given: Any) -> Any:
        return given.to(self.device)

    def forward(self, given: Any) -> Any:
        raise NotImplementedError

    def graphs(self, options: argparse.Namespace, given: Any) -> dict[str, Any]:
        """The replay of a CUDA graph of one batch: alone, and from host to host."""
        torch = self.torch
        if self.device != "cuda":
            return {}
        fixed = self.there(given)
        stream = torch.cuda.Stream()
        with torch.inference_mode():
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.forward(fixed)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = self.forward(fixed)
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            alone: list[float] = []

            def replay() -> None:
                before.record()
                graph.replay()
                after.record()
                after.synchronize()
                alone.append(before.elapsed_time(after) * 1e-3)

            timed(options, [replay])
            found = {"torch graph": summary(alone[options.warmup :])}
            if isinstance(fixed, torch.Tensor):
                source = given.pin_memory()

                def whole() -> Any:
                    fixed.copy_(source, non_blocking=True)
                    graph.replay()
                    return result.cpu().numpy()

                found["torch graph call"] = timed(options, [whole])
        return found


class SequenceTwin(Twin):
    """nn.LSTM or nn.GRU behind an embedding; the last state is classified."""

    def __init__(self, torch: Torch, kind: str, model: Model) -> None:
        super().__init__(torch)
        values = model.parameters()
        hidden, embed = values["U"].shape[1], values["W"].shape[1]
        self.fast = self._make(kind, values, hidden, embed).to(self.device)
        self.slow = self._make(kind, values, hidden, embed).double()
        self.words = model.vocabularies["vocab"].index if model.vocabularies["vocab"].words else None  # type: ignore[index]

    def _make(self, kind: str, values: dict[str, Any], hidden: int, embed: int) -> Any:
        torch, nn = self.torch, self.torch.nn
        cell = nn.LSTM if kind == "lstm" else nn.GRU
        net = nn.ModuleDict(
            {
                "table": nn.Embedding(*values["E"].shape),
                "cell": cell(embed, hidden, batch_first=True),
                "head": nn.Linear(hidden, values["V"].shape[0]),
            }
        )

        def gates(value: Any) -> Any:
            """i, o, u, f of the program in PyTorch's order i, f, g, o; a GRU has the same order."""
            if kind == "gru":
                return torch.tensor(value)
            i, o, u, f = np.split(value, 4)
            return torch.tensor(np.concatenate([i, f, u, o]))

        with torch.no_grad():
            net["table"].weight.copy_(torch.tensor(values["E"]))
            net["head"].weight.copy_(torch.tensor(values["V"]))
            net["head"].bias.copy_(torch.tensor(values["b_v"]))
            net["cell"].weight_ih_l0.copy_(gates(values["W"]))
            net["cell"].weight_hh_l0.copy_(gates(values["U"]))
            net["cell"].bias_ih_l0.copy_(gates(values["b"]))
            second = gates(values["d"]) if kind == "gru" else torch.zeros(4 * hidden)
            net["cell"].bias_hh_l0.copy_(second)
        return net.eval()

    def prepare(self, batch: list[Sample]) -> Any:
        return self.torch.tensor([[word["form"] for word in sample["words"]] for sample in batch])

    def forward(self, given: Any) -> Any:
        return self._net(self.fast, given)

    def exact(self, batch: list[Sample]) -> Any:
        with self.torch.inference_mode():
            return self._net(self.slow, self.prepare(batch)).numpy()

    def _net(self, net: Any, given: Any) -> Any:
        states, _ = net["cell"](net["table"](given))
        return self.torch.softmax(net["head"](states[:, -1]), -1)


class TreeTwin(Twin):
    """Level by level, with indices made ahead; see `tests/support/torch_treelstm.py`."""

    def __init__(self, torch: Torch, model: Model) -> None:
        super().__init__(torch)
        from tests.support import torch_treelstm

        self.module = torch_treelstm
        values = {name: self.torch.tensor(value) for name, value in model.parameters().items()}
        self.parameters = {name: value.to(self.device) for name, value in values.items()}
        self.slow = {name: value.double() for name, value in values.items()}
        self.words = model.vocabularies["vocab"].index  # type: ignore[index]

    def prepare(self, batch: list[Sample]) -> Any:
        return self.module.Trees(batch, self.words).batch(np.arange(len(batch)))

    def forward(self, given: Any) -> Any:
        return self._probabilities(self.parameters, given)

    def exact(self, batch: list[Sample]) -> Any:
        with self.torch.inference_mode():
            return self._probabilities(self.slow, self.prepare(batch)).numpy()

    def _probabilities(self, parameters: Any, given: Any) -> Any:
        x = parameters["E"].index_select(0, given.rows)
        logits = self.module.level_logits(parameters, x, given)
        return self.torch.softmax(logits.index_select(0, given.roots), -1)


if __name__ == "__main__":
    main()
