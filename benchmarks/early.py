"""Launches with weight gradients of levels that have ended made early, and with all behind the recursion.

    python benchmarks/early.py BUILDS OUT.json [--commit COMMIT]

In: builds of `benchmarks.applications`, and what `dnc compile` makes of examples, by their names. Out: the
median of launches by batch size, in turns, on the same batches: as the encoder decides
(`dnc/runtime/encoder/early.py`), and behind the recursion, on all replicas.
Needs a GPU.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
from benchmarks import common
from benchmarks.applications.ablation import launches
from benchmarks.applications.data import DataSets
from dnc.runtime.encoder.early import Earlier

LONG = "sentences of 100 words"
DATA = {"lstm": LONG, "gru_classifier": LONG, "lstm2": LONG, "bilstm_tagger": "tagged sentences"}
BATCHES, TURNS, SAMPLES = (1, 2, 4, 8, 12, 16, 24, 32, 64), 3, 512
BEHIND, DECIDED = "behind", "as decided"


def main() -> None:
    """All builds that are there, all batch sizes, both ways, in turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("builds", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    given = parser.parse_args()
    names = [name for name in DATA if (given.builds / name).exists()]
    found: dict[str, dict[str, dict[int, list[float]]]] = {
        name: {way: {size: [] for size in BATCHES} for way in (BEHIND, DECIDED)} for name in names
    }
    for name in names * TURNS:
        for way, times in found[name].items():
            device = measure(given.builds / name, DATA[name], way == BEHIND, times)
    medians = {
        name: {
            way: {size: statistics.median(us) for size, us in times.items()} for way, times in ways.items()
        }
        for name, ways in found.items()
    }
    for name, ways in medians.items():
        for size in BATCHES:
            print(f"{name:16} batch {size:4}:", *(f"{ways[way][size]:9.1f} us {way}" for way in ways))
    result = {"what": "us of a launch", "runs": found, "median": medians}
    common.write(given.out, common.stamp(device, given.commit) | result)


def measure(build: Path, data: str, behind: bool, times: dict[int, list[float]]) -> str:
    """Adds to the times of every batch size; the name of the device."""
    with ExitStack() as stack:
        if behind:
            stack.enter_context(patch.object(Earlier, "choose", lambda *given: None))
            stack.enter_context(patch("dnc.runtime.encoder.fewest", lambda batches, costs, count: count))
        model = dnc.load(build, "cuda", encoders=0)
        DataSets(None).attach(model, data, SAMPLES)
        for size, own in times.items():
            own.append(launches(model, size)["kernel_us"])
        device: str = model.device
        del model
        gc.collect()
    return device


if __name__ == "__main__":
    main()
