"""An LSTM whose recurrent weights are sparse, for inference: what a launch takes by size and density.

    python benchmarks/sparse.py compile BUILDS        # where the compiler is installed
    python benchmarks/sparse.py run BUILDS [--out FILE]

Beside it the same program with all weights (density 1), and PyTorch's LSTM (cuDNN) with the zeros among its
weights. Values, times and options are those of `benchmarks/latency.py`: sequences of 100 words, fp32, in
microseconds; before anything is timed, probabilities are compared with PyTorch in float64. `forced`: builds
that keep U sparse where all of it fits into registers, which is faster.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
from benchmarks import common, latency

DENSE = 1.0

Point = tuple[int, float, int | None, str | None]
# Units, density, the batch that the plan is made for, a residency that is forced.
POINTS: tuple[Point, ...] = (
    (1024, DENSE, 1, None),
    (1024, DENSE, None, None),
    (1024, 0.1, 1, "sparse"),
    (1024, 0.1, None, None),
    (1024, 0.03, 1, "sparse"),
    (1792, DENSE, None, None),
    (1792, 0.2, 1, "sparse"),
    (1792, 0.1, 1, None),
    (1792, 0.1, None, None),
    (1792, 0.03, 1, None),
    (1792, 0.03, None, None),
    (3072, DENSE, None, None),
    (3072, 0.03, 1, None),
    (3072, 0.03, None, None),
)
EMBED, BATCHES = 256, (1, 2, 4, 8, 16, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("compile", "run"))
    parser.add_argument("builds", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--sizes", type=int, nargs="+", default=sorted({size for size, *_ in POINTS}))
    parser.add_argument("--steps", type=int, default=latency.STEPS)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cuda", "vm"), default="cuda")
    parser.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    (compile_builds if options.command == "compile" else run)(options)


def folder(options: argparse.Namespace, point: Point) -> Path:
    """Where the build of a point is."""
    size, density, batch, _ = point
    return Path(options.builds) / f"{size}-{density:g}-{batch or 'any'}"


def compile_builds(options: argparse.Namespace) -> None:
    """A build of every point: the LSTM classifier of the examples, with a density."""
    from dnc.compiler import PlanOptions, compile_model

    text = (common.ROOT / "examples" / "lstm_classifier.dn").read_text("utf-8")
    for point in POINTS:
        size, density, batch, residency = point
        to = folder(options, point)
        to.parent.mkdir(parents=True, exist_ok=True)
        program = to.parent / f"{to.name}.dn"
        share = "" if density == DENSE else f" density {density:g}"
        declared = "U: [4 * hidden, hidden]"
        program.write_text(text.replace(declared, f"{declared}{share}"), "utf-8")
        plan = PlanOptions(mode="infer", residency=residency, batch=batch)
        made = compile_model(program, to, ["cuda"], {"hidden": size, "embed": EMBED}, plan)
        print(f"{to}: {made.seconds:.1f} s", flush=True)


def run(options: argparse.Namespace) -> None:
    """Measures all builds and writes the result."""
    torch, points = latency.Torch(options), list[dict[str, Any]]()
    for point in POINTS:
        size, density, planned, residency = point
        if size not in options.sizes:
            continue
        model = dnc.load(folder(options, point), options.device, seed=options.seed)
        model.read([latency.sentence(list(range(latency.VOCABULARY)))])
        placed = next(p for p in model.plan.placements if p.parameter == "U")
        for batch in options.batches:
            found = {"model": "lstm", "hidden": size, "density": density, "batch": batch}
            found |= {"U": placed.residency, "forced": residency is not None}
            found |= {"planned for": planned, "steps": options.steps}
            batches = latency.sentences(options, batch)
            points.append(found | latency.measure(options, model, batches, torch, "lstm"))
            print(f"density {density:g}, planned for {planned}, {placed.residency}", end="; ")
            latency.tell(points[-1])
        device = model.device
    result = common.stamp(device, options.commit)
    result |= {"what": "inference with sparse weights, microseconds", "calls": options.calls}
    result |= {"torch": torch.version, "points": points}
    out = options.out or common.default_out(device, "sparse")
    common.write(out, result)
    print(f"{device}; {out}")


if __name__ == "__main__":
    main()
