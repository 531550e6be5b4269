"""A GRU with one exchange a step and with two, for inference: what GRNN's Table 3 compares.

    python benchmarks/exchanges.py compile BUILDS             # where the compiler is installed
    python benchmarks/exchanges.py run BUILDS [--out FILE]    # on a GPU

`examples/gru_classifier.dn` applies the reset gate before the product. Either workers exchange it, or every
worker makes the whole gate (`--repeat`): both are forced, for batches of one sample and of all sizes, and the
choice of `dnc compile` stands beside. Sentences of 100 words, hidden = embed; kernel alone, in microseconds:
the median of each of several rounds, in which builds take turns. Values are compared with NumPy in float64.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
from benchmarks import common
from benchmarks.latency import CLASSES, VOCABULARY, sentences
from dnc.api import Model
from dnc.runtime.predictor import Predictor

SIZES, BATCHES = (64, 128, 256), (1, 10, 20, 64, 128)
WARM_UP, TOLERANCE = 10, 1e-5
CHOICES = "choices.json"
# Of a build: samples that its plan is made for (0: all sizes), and whether every worker makes what is whole.
PLANS = {
    "one exchange, for one sample": (1, True),
    "two exchanges, for one sample": (1, False),
    "one exchange": (0, True),
    "two exchanges": (0, False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("compile", "run"):
        each = commands.add_parser(name)
        each.add_argument("builds", type=Path)
        each.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    own = commands.choices["run"]
    own.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    own.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    own.add_argument("--steps", type=int, default=100)
    own.add_argument("--calls", type=int, default=120)
    own.add_argument("--rounds", type=int, default=3)
    own.add_argument("--seed", type=int, default=1)
    own.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    own.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.command == "compile":
        compile_builds(options)
    else:
        run(options)


def folder_of(options: argparse.Namespace, size: int, name: str) -> Path:
    return Path(options.builds / f"{size} {name}".replace(",", "").replace(" ", "-"))


def compile_builds(options: argparse.Namespace) -> None:
    """A build of every size and plan."""
    from dnc.compiler import PlanOptions, compile_model

    for size in options.sizes:
        for name, (batch, repeat) in PLANS.items():
            sizes = {"hidden": size, "embed": size, "vocab": VOCABULARY, "classes": CLASSES}
            plan = PlanOptions(mode="infer", repeat=repeat, batch=batch or None)
            path = common.ROOT / "examples" / "gru_classifier.dn"
            made = compile_model(path, folder_of(options, size, name), ("cuda",), sizes, plan)
            print(f"{made.build}: {made.seconds:.1f} s", flush=True)
    choices = {size: chosen(size) for size in options.sizes}
    (options.builds / CHOICES).write_text(json.dumps(choices, indent=1) + "\n")


def run(options: argparse.Namespace) -> None:
    """Measures all builds and writes the result."""
    points: list[dict[str, Any]] = []
    device = ""
    for size in options.sizes:
        models = {
            name: dnc.load(folder_of(options, size, name), options.device, seed=options.seed)
            for name in PLANS
        }
        device = next(iter(models.values())).device
        for batch in options.batches:
            used = {name: model for name, model in models.items() if batch <= 20 or not PLANS[name][0]}
            for name, found in measure(options, used, batch).items():
                points.append({"hidden": size, "batch": batch, "plan": name} | found)
                print(*points[-1].values(), sep="; ", flush=True)
    result = common.stamp(device, options.commit)
    result |= {"what": "a GRU with one exchange and with two, microseconds of the kernel", "points": points}
    result |= {"steps": options.steps, "chosen": json.loads((options.builds / CHOICES).read_text())}
    out = options.out or common.default_out(device, "gru-exchanges")
    common.write(out, result)
    print(f"{device}; {out}")


def chosen(size: int) -> dict[str, str]:
    """What the cost model takes, and the price it expects."""
    from dnc.compiler import PlanOptions, make_plan, read_program, transform

    path = common.ROOT / "examples" / "gru_classifier.dn"
    program = read_program(path, {"hidden": size, "embed": size})[1]
    found = {}
    for name, batch in (("for one sample", 1), ("for all sizes", None)):
        options = PlanOptions(mode="infer", batch=batch)
        plan = make_plan(transform(program, options), "sm_90a", options)
        (price,) = (remark for remark in plan.remarks if remark.startswith("repeat: "))
        one = any(segment.repeated for segment in plan.segments)
        found[name] = f"{'one exchange' if one else 'two exchanges'}; {price}"
    return found


def measure(options: argparse.Namespace, models: dict[str, Model], batch: int) -> dict[str, dict[str, Any]]:
    """A point of every model."""
    batches, calls, found = sentences(options, batch), {}, dict[str, dict[str, Any]]()
    for name, model in models.items():
        error = float(np.abs(np.array(model.predict(batches[0])["p"]) - exact(model, batches[0])).max())
        assert error <= TOLERANCE, f"{name} is off by {error:g}"
        read = [model.read(each, labels_required=False) for each in batches]
        short = Predictor(model.session)
        calls[name] = [lambda data=data, short=short: short.predict(data.forest) for data in read]
        grid = list(model.backend.grid(batch, False))
        found[name] = {"grid": grid, "error": error, "kernel_us": []}
    for _ in range(options.rounds):
        for name, model in models.items():
            kernel = model.backend.time_kernels()
            for at in range(options.calls):
                calls[name][at % len(batches)]()
            if kernel:
                found[name]["kernel_us"].append(round(float(np.median(kernel[WARM_UP:])) * 1e6, 1))
            model.backend.time_kernels(False)
    return found


def exact(model: Model, batch: list[dict[str, Any]]) -> Any:
    """The probabilities in float64."""
    values = {name: np.asarray(value, np.float64) for name, value in model.parameters().items()}
    words = np.array([[word["form"] for word in sample["words"]] for sample in batch])
    h = np.zeros((len(batch), values["C"].shape[0]))

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    for step in words.T:
        xr, xz, xn = np.split(values["E"][step] @ values["W"].T + values["b"], 3, axis=1)
        ur, uz = np.split(h @ values["U"].T, 2, axis=1)
        r, z = sigmoid(xr + ur), sigmoid(xz + uz)
        n = np.tanh(xn + (r * h) @ values["C"].T)
        h = n + z * (h - n)
    logits = h @ values["V"].T + values["b_v"]
    power = np.exp(logits - logits.max(1, keepdims=True))
    return power / power.sum(1, keepdims=True)


if __name__ == "__main__":
    main()
