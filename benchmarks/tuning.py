"""How far the planner's first choice, and the best of a few, are from the best of all candidates.

    python benchmarks/tuning.py cpu OUT.json
    python benchmarks/tuning.py cuda OUT.json --builds FOLDER --data NAME=FILE ...

Every candidate of the space is timed at several points (model x batch); `first` is the time of the one
that the cost model ranks first over that of the fastest, `best` that of the fastest among the first five
(GRNN reports 1.03 and 1.02). On the GPU the builds hold their candidates (`dnc tune BUILD --emit 99`), so
that neither TVM nor a toolkit is needed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attrs import asdict

from benchmarks.common import ROOT, stamp, write

EXAMPLES, DATA = ROOT / "examples", ROOT / "examples" / "data"
BEST = 5
EVERY = 10**6
# What the CPU runs: an example, its settings, its data.
CPU_MODELS = {
    "treelstm": ({"hidden": 64, "embed": 64}, "sentiment-train.jsonl"),
    "lstm_classifier": ({"hidden": 64, "embed": 64}, "sentences-train.jsonl"),
    "gru_classifier": ({"hidden": 96, "embed": 64}, "sentences-train.jsonl"),
    "bilstm_tagger": ({"hidden": 32, "embed": 32}, "words-train.jsonl"),
}
CPU_BATCHES = (1, 8, 64)
GPU_BATCHES = (1, 8, 32, 128)


def point(build: Path, data: Path, batch: int, device: str, rounds: int) -> dict[str, Any]:
    """All candidates of a build at a batch size."""
    from dnc.api.tuning import tune

    found = tune(build, str(data), batch=batch, best=EVERY, device=device, rounds=rounds, keeps=False)
    timed = [each for each in found.entries if each.measured is not None]
    order = sorted(timed, key=lambda each: each.rank)
    fastest = min(each.measured for each in timed)
    result = {
        "model": build.name,
        "batch": batch,
        "candidates": len(timed),
        "fastest_us": round(fastest, 2),
        "first": round(order[0].measured / fastest, 4),
        "best": round(min(each.measured for each in order[:BEST]) / fastest, 4),
        "build": round(next(each.measured for each in timed if each.current) / fastest, 4),
        "times": [
            {
                **asdict(each.candidate),
                "predicted_us": round(each.predicted, 2),
                "measured_us": round(each.measured, 2),
            }
            for each in order
        ],
        "left_out": sorted({each.problem for each in found.entries if each.problem}),
    }
    shown = (
        f"{result['candidates']} candidates, first {result['first']:.2f}, best of {BEST} {result['best']:.2f}"
    )
    print(f"{build.name} batch {batch}: {shown}, {fastest:,.1f} us", flush=True)
    return result


def main() -> None:
    """Runs all points, then writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--builds", type=Path, help="a folder of builds that hold their candidates")
    parser.add_argument("--data", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit")
    given = parser.parse_args()
    points = []
    if given.device == "cuda":
        for item in given.data:
            name, _, path = item.partition("=")
            points += [(given.builds / name, Path(path), batch) for batch in GPU_BATCHES]
    else:
        from dnc.compiler import compile_model

        folder = given.builds or Path(tempfile.mkdtemp())
        for name, (settings, data) in CPU_MODELS.items():
            compile_model(EXAMPLES / f"{name}.dn", folder / name, ("cpu",), settings)
            points += [(folder / name, DATA / data, batch) for batch in CPU_BATCHES]
    found, result = [], stamp(device_name(given.device), given.commit)
    for each in points:
        found.append(point(*each, given.device, given.rounds))
        write(given.out, {**result, **summary(found), "points": found})
    print(summary(found))


def summary(points: list[dict[str, Any]]) -> dict[str, Any]:
    """Over all points; `build` is what the build does without tuning."""
    found = {}
    for what in ("first", "best", "build"):
        values = [each[what] for each in points]
        found[what] = {
            "mean": round(statistics.mean(values), 4),
            "median": round(statistics.median(values), 4),
            "worst": max(values),
        }
    return found


def device_name(device: str) -> str:
    """The GPU's name, or "CPU"."""
    if device == "cpu":
        return "CPU"
    from dnc.runtime.cuda_driver import open_device

    return str(open_device().name)


if __name__ == "__main__":
    main()
