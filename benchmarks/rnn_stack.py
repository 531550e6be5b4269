"""Trains a stack of RNNs as in Persistent RNNs (Diamos et al. 2016): memory, losses, time.

    dnc compile examples/rnn_stack.dn -o BUILD --target cuda --set layers=24,hidden=1152
    python benchmarks/rnn_stack.py BUILD [--updates 3000] [--batch 4] [--steps 64] [--skip 4] [--out FILE]

In: a build of examples/rnn_stack.dn; text (by default this project's own pages), which becomes grids
through `dnc import`. Out: a JSON file with the bytes that a launch was predicted to need, by purpose, the
pool that the session took and the device memory that was missing while it ran; the loss of every step;
steps a second behind a warm-up, with all work of the host. Needs neither TVM nor the frontend on a GPU.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
from benchmarks import common
from dnc.api import Model, import_file
from dnc.diagnostics import DiagnosticError
from dnc.ir.optimizers import OPTIMIZERS, Hyper
from dnc.runtime.encoder import DoesNotFit, Encoder
from dnc.runtime.footprint import footprint
from dnc.runtime.pool import static_pool

SEED, WARM_UP = 5, 20
FIELDS = {"word": "char", "target": "target"}
OPTIMIZER = "nesterov"
MARGIN = 2**16  # words of a schedule beside those that were counted


def main() -> None:
    options = arguments()
    result: dict[str, Any] = common.stamp(options.device, options.commit)
    result["command"] = result["command"].replace(str(options.build), "BUILD")
    result |= {"what": "training of a stack of RNNs", "load": os.getloadavg()[0], "optimizer": OPTIMIZER}
    given = ("updates", "batch", "steps", "skip", "learning_rate", "momentum", "clip")
    result["settings"] = {name: getattr(options, name) for name in given}
    try:
        result |= measure(options)
    except DiagnosticError as error:
        sys.exit(str(error))
    device = result["device"] if options.device == "cuda" else "cpu"
    layers = result["model"]["layers"]
    out = options.out or common.default_out(device, f"rnn-stack-{layers}")
    common.write(out, result)
    print(f"{result['device']}; {out}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda", "vm"), default="cuda")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=64, help="characters of a sequence")
    parser.add_argument("--skip", type=int, default=4, help="layers that a residual skips")
    parser.add_argument("--samples", type=int, default=512, help="sequences, at most")
    parser.add_argument("--text", type=Path, help="a text file; by default the pages of this project")
    parser.add_argument("--learning-rate", type=float, default=0.0001, help="of the first step")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--clip", type=float, default=50.0, help="largest norm of the gradient")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The training run."""
    free = device_memory(options.device)
    before = free() if free else 0
    model = dnc.load(options.build, options.device, seed=SEED)
    layers = model.program.parameter("W").count
    with tempfile.TemporaryDirectory() as folder:
        data = model.attach(grids(Path(folder), options, layers))
    model.configure(OPTIMIZER, options.learning_rate, options.clip, momentum=options.momentum)
    encoder, random = model.encoder(data), np.random.default_rng(SEED)
    predicted, parts = predict(model, encoder, options.batch)
    print(f"predicted: {sum(predicted.values()) / 2**20:,.0f} MiB in {parts} launches a step", flush=True)

    def batches() -> Any:
        for _ in range(options.updates):
            yield np.sort(random.permutation(data.samples)[: options.batch]).astype(np.int32)

    losses, norms, launches = [], [], 1
    begin = warm = time.perf_counter()
    warmed = 0
    for found in model.session.steps(encoder, batches(), falling(model.hyper, options.updates)):
        losses.append(found.loss / options.steps)
        norms.append(found.norm)
        launches = max(launches, found.parts)
        if len(losses) == min(WARM_UP, options.updates // 2):
            warm, warmed = time.perf_counter(), len(losses)
        if len(losses) % max(1, options.updates // 20) == 0:
            recent = statistics.fmean(losses[-50:])
            print(f"step {len(losses)}: {recent:.3f} nats a character, norm {found.norm:.2f}", flush=True)
    seconds, after = time.perf_counter() - begin, free() if free else 0
    evaluated = model.evaluate(list(range(min(data.samples, 64))))
    rows = {name: len(table.arm) / data.samples for name, table in data.forest.tables.items()}
    return {
        "device": model.device,
        "model": {"layers": layers, "hidden": int(model.parameters()["W"].shape[1]), **model.build.settings},
        "parameters": sum(value.size for value in model.parameters().values()),
        "vertices_a_sample": rows,
        "samples": data.samples,
        "memory": {
            "predicted": predicted,
            "predicted_total": sum(predicted.values()),
            "predicted_launches_a_step": parts,
            "measured_pool": model.session.memory.words * 4,
            "measured_device": before - after if free else None,
            "measured_launches_a_step": launches,
        },
        "grid": model.backend.grid(options.batch),
        "seconds": seconds,
        "steps_per_second": (len(losses) - warmed) / (begin + seconds - warm),
        "nats_first": statistics.fmean(losses[:10]),
        "nats_last": statistics.fmean(losses[-50:]),
        "uniform_nats": math.log(int(model.parameters()["V"].shape[0])),
        "accuracy_on_64_sequences": evaluated.metrics["accuracy"],
        "losses": [round(loss, 5) for loss in losses],
        "norms": [round(norm, 4) for norm in norms],
    }


def falling(hyper: Hyper, updates: int) -> Callable[[int], Hyper]:
    """The settings of every step: the learning rate falls to a tenth."""
    return lambda step: attrs.evolve(hyper, learning_rate=hyper.learning_rate * (1 - 0.9 * step / updates))


def device_memory(device: str) -> Any:
    """What says how much device memory is free; None where there is no device."""
    if device != "cuda":
        return None
    from dnc.runtime.cuda_driver import open_device

    return open_device().free_memory


def grids(folder: Path, options: argparse.Namespace, layers: int) -> Path:
    """The text as samples of `steps` characters each."""
    pages = [options.text] if options.text else [common.ROOT / "README.md", *common.ROOT.glob("docs/*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(pages))
    source, found = folder / "text.txt", folder / "grids.jsonl"
    source.write_text(text[: options.samples * options.steps + 1], encoding="utf-8")
    report = import_file(
        "text",
        source,
        found,
        tokens="characters",
        length=options.steps,
        structure="grid",
        layers=layers,
        skip=options.skip,
        fields=FIELDS,
    )
    print(report, flush=True)
    return found


def predict(model: Model, encoder: Encoder, batch: int) -> tuple[dict[str, int], int]:
    """Bytes that a launch needs, by purpose, and the launches of a step."""
    plan, samples = model.plan, np.arange(batch, dtype=np.int32)
    rows, states = model.session.memory.table_rows, len(OPTIMIZERS[OPTIMIZER].states)
    replicas, workers = model.backend.grid(batch)
    for parts in range(1, batch + 1):
        own = np.array_split(samples, parts)[0]
        made = Encoder(encoder.prepared, static_pool(plan, rows, 2**24, states))
        try:
            size = len(made.encode(own, replicas=replicas, workers=workers).words)
            made.pool = static_pool(plan, rows, size + MARGIN, states)
            return footprint(made.encode(own, replicas=replicas, workers=workers), made.pool), parts
        except DoesNotFit:
            continue
    raise SystemExit("a sample does not fit")


if __name__ == "__main__":
    main()
