"""Launches of a bidirectional tagger with both directions on replicas of their own, and on the same ones.

    python benchmarks/parts.py BUILDS OUT.json [--commit COMMIT]

In: builds of `benchmarks.applications` (`bilstm_tagger`). Out: the median of launches by batch size, in
turns, on the same batches: as the encoder decides (`dnc/runtime/encoder/parts.py`), and together, as it did
before.
Needs a GPU.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
from benchmarks import common
from benchmarks.applications.ablation import launches
from benchmarks.applications.data import DataSets
from dnc.runtime.encoder.parts import PartBurdens

BUILD, DATA, SAMPLES = "bilstm_tagger", "tagged sentences", 2048
BATCHES, TURNS = (1, 8, 32, 128, 256), 3
TOGETHER, DECIDED = "together", "as decided"


def main() -> None:
    """All batch sizes, both ways, in turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("builds", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    given = parser.parse_args()
    never = lambda burdens, together, apart: np.zeros(len(apart), bool)  # noqa: E731
    found: dict[str, dict[int, list[float]]] = {
        way: {size: [] for size in BATCHES} for way in (TOGETHER, DECIDED)
    }
    for _ in range(TURNS):
        for way, times in found.items():
            model = dnc.load(given.builds / BUILD, "cuda", encoders=0)
            DataSets(None).attach(model, DATA, SAMPLES)
            device = model.device
            with patch.object(PartBurdens, "wins", never) if way == TOGETHER else nullcontext():
                for size in BATCHES:
                    times[size].append(launches(model, size)["kernel_us"])
            del model
            gc.collect()
    medians = {
        way: {size: statistics.median(us) for size, us in times.items()} for way, times in found.items()
    }
    for size in BATCHES:
        print(f"batch {size:4}:", *(f"{medians[way][size]:9.1f} us {way}" for way in found))
    result = {"what": f"us of a launch of {BUILD}", "runs": found, "median": medians}
    common.write(given.out, common.stamp(device, given.commit) | result)


if __name__ == "__main__":
    main()
