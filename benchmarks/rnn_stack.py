"""Trains a stack of RNNs as in Persistent RNNs (Diamos et al. 2016): memory, losses, time.

    dnc compile examples/rnn_stack.dn -o BUILD --target cuda --set layers=24,hidden=1152
    python benchmarks/rnn_stack.py BUILD [--updates 3000] [--batch 4] [--steps 64] [--skip 4] [--out FILE]

In: a build of examples/rnn_stack.dn; text (by default this project's own pages), which becomes grids
through `dnc import`. Out: a JSON file with the bytes that the session was predicted to need, by purpose, the
pool that it took, and the GPU's memory in use before the model was loaded, behind that and at most, as the
driver counts it; how many residuals there are and how far they reach; the loss of every step; steps a second
behind a warm-up, with all work of the host. Needs neither TVM nor the frontend on a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import takewhile
from pathlib import Path
from typing import Any

import attrs
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
from benchmarks import common
from dnc.api import Model, import_file
from dnc.diagnostics import DiagnosticError
from dnc.ir.forest import Ints, VertexTable
from dnc.ir.optimizers import OPTIMIZERS, Hyper
from dnc.runtime.batches import groups
from dnc.runtime.encoder import DoesNotFit, Encoder
from dnc.runtime.footprint import ACTIVATIONS, PARTIAL, SCHEDULES, footprint
from dnc.runtime.memory import SLACK
from dnc.runtime.pool import static_pool

SEED, WARM_UP = 5, 20
FIELDS = {"word": "char", "target": "target"}
OPTIMIZER = "nesterov"
MARGIN = 2**16  # words of a schedule beside those that were counted
ROOM = "room for larger batches"
PRINTED = 20
"""How often a run says where it is."""


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
    parser.add_argument("--seconds", type=float, default=math.inf, help="no update starts later than that")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=64, help="characters of a sequence")
    parser.add_argument("--skip", type=int, default=4, help="layers that a residual skips")
    parser.add_argument("--samples", type=int, default=512, help="sequences, at most")
    parser.add_argument("--text", type=Path, help="a text file; by default the pages of this project")
    parser.add_argument("--learning-rate", type=float, default=0.0001, help="of the first step")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--clip", type=float, default=50.0, help="largest norm of the gradient")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", type=Path, help="a folder: goes on from what is there, and leaves more")
    parser.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The training run."""
    watch = memory_watch(options.device)
    in_use = {"before": watch.now()} if watch else {}
    with watch or nullcontext():
        model = dnc.load(options.build, options.device, seed=SEED)
        layers = model.program.parameter("W").count
        if watch:
            in_use["loaded"] = watch.now()
        with tempfile.TemporaryDirectory() as folder:
            data = model.attach(grids(Path(folder), options, layers))
        model.configure(OPTIMIZER, options.learning_rate, options.clip, momentum=options.momentum)
        encoder = model.encoder(data)
        batches = chosen(data.samples, options)
        predicted, parts = predict(model, encoder, batches)
        print(f"predicted: {sum(predicted.values()) / 2**20:,.0f} MiB, {parts} launches a step", flush=True)
        before = resumed(model, options)
        trained = train(model, encoder, batches, options, before)
        if options.resume:
            options.resume.mkdir(parents=True, exist_ok=True)
            model.save(options.resume / "model.ckpt")
            common.write(options.resume / "run.json", trained)
        pool = model.session.memory.words * 4  # evaluation may take more
        if watch:
            in_use |= {"trained": watch.now(), "peak": watch.peak}
    evaluated = model.evaluate(list(range(min(data.samples, 64))))
    parameters = model.parameters()
    return {
        "device": model.device,
        "model": {"layers": layers, "hidden": int(parameters["W"].shape[1]), **model.build.settings},
        "parameters": sum(value.size for value in parameters.values()),
        "vertices_a_sample": {
            name: len(table.arm) / data.samples for name, table in data.forest.tables.items()
        },
        "residuals_of_a_sample": residuals(data.forest.tables["Unit"]),
        "samples": data.samples,
        "memory": {
            "predicted": predicted,
            "predicted_total": sum(predicted.values()),
            "predicted_launches_a_step": parts,
            "measured_pool": pool,
            "measured_device": in_use["peak"] - in_use["before"] if watch else None,
            "in_use": in_use or None,
        },
        "grid": model.backend.grid(options.batch),
        "uniform_nats": math.log(int(parameters["V"].shape[0])),
        "accuracy_on_64_sequences": evaluated.metrics["accuracy"],
    } | trained


def chosen(samples: int, options: argparse.Namespace) -> list[Ints]:
    """The samples of every update."""
    random = np.random.default_rng(SEED)
    return [
        np.sort(random.permutation(samples)[: options.batch]).astype(np.int32) for _ in range(options.updates)
    ]


def resumed(model: Model, options: argparse.Namespace) -> dict[str, Any]:
    """What an earlier run of the same updates has done, whose model this one takes."""
    if not options.resume or not (options.resume / "run.json").exists():
        return {"losses": [], "norms": [], "seconds": 0.0, "runs": 0}
    found: dict[str, Any] = json.loads((options.resume / "run.json").read_text(encoding="utf-8"))
    model.restore(options.resume / "model.ckpt")
    model.session.steps_done = len(found["losses"])
    model.configure(OPTIMIZER, options.learning_rate, options.clip, momentum=options.momentum)
    return found


def train(
    model: Model,
    encoder: Encoder,
    batches: list[Ints],
    options: argparse.Namespace,
    before: dict[str, Any],
) -> dict[str, Any]:
    """The updates that are left: losses, norms and times; before: what an earlier run has done."""
    begin, done = time.perf_counter(), len(before["losses"])

    def in_time() -> Iterator[Ints]:
        return takewhile(lambda _: time.perf_counter() - begin <= options.seconds, batches[done:])

    losses: list[float] = before["losses"]
    norms: list[float] = before["norms"]
    launches, warm, warmed = 1, begin, done
    for found in model.session.steps(encoder, in_time(), falling(model.hyper, options.updates)):
        losses.append(found.loss / options.steps)
        norms.append(found.norm)
        launches = max(launches, found.parts)
        if len(losses) - done == min(WARM_UP, options.updates // 2):
            warm, warmed = time.perf_counter(), len(losses)
        if len(losses) % max(1, options.updates // PRINTED) == 0:
            recent = statistics.fmean(losses[-50:])
            print(f"step {len(losses)}: {recent:.3f} nats a character, norm {found.norm:.2f}", flush=True)
    end = time.perf_counter()
    return {
        "launches_a_step": launches,
        "updates": len(losses),
        "seconds": before["seconds"] + end - begin,
        "runs": before["runs"] + 1,
        "steps_per_second": (len(losses) - warmed) / (end - warm),
        "nats_first": statistics.fmean(losses[:10]),
        "nats_last": statistics.fmean(losses[-50:]),
        "losses": [round(loss, 5) for loss in losses],
        "norms": [round(norm, 4) for norm in norms],
    }


def falling(hyper: Hyper, updates: int) -> Callable[[int], Hyper]:
    """The settings of every step: the learning rate falls to a tenth."""
    return lambda step: attrs.evolve(hyper, learning_rate=hyper.learning_rate * (1 - 0.9 * step / updates))


def memory_watch(device: str) -> Any:
    """What looks at the GPU's memory; None where there is no GPU."""
    if device != "cuda":
        return None
    from benchmarks.device_memory import Watch

    return Watch()


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


def residuals(units: VertexTable) -> dict[int, int]:
    """How many residuals the first sample has, by the layers that they skip."""
    skip = units.children["skip"][units.begin[0] : units.begin[1]]
    layer = units.data["layer"]  # -1: the input below all layers
    above = np.flatnonzero(skip >= 0) + units.begin[0]
    return dict(Counter((layer[above] - layer[skip[skip >= 0]]).tolist()))


def predict(model: Model, encoder: Encoder, batches: list[Ints]) -> tuple[dict[str, int], int]:
    """Bytes that training takes, by purpose, and the launches of a step.

    Small batches are encoded several at a time: their schedules count together. A session makes room for
    batches that are larger than its first ones, which counts on its own.
    """
    plan, batch = model.plan, batches[0]
    rows, states = model.session.memory.table_rows, len(OPTIMIZERS[OPTIMIZER].states)
    replicas, workers = model.backend.grid(len(batch))
    for parts in range(1, len(batch) + 1):
        own = np.array_split(batch, parts)[0]
        together = max(len(group) for group in groups(batches)) if parts == 1 else 1
        made = Encoder(encoder.prepared, static_pool(plan, rows, 2**24, states))
        try:
            size = len(made.encode(own, replicas=replicas, workers=workers).words)
            made.pool = static_pool(plan, rows, size * together + MARGIN, states)
            found = footprint(made.encode(own, replicas=replicas, workers=workers), made.pool)
        except DoesNotFit:
            continue
        grown = sum(found[name] for name in (ACTIVATIONS, PARTIAL, SCHEDULES))
        return {**found, ROOM: round((SLACK - 1) * grown)}, parts
    raise SystemExit("a sample does not fit")


if __name__ == "__main__":
    main()
