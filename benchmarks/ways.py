"""Launches of the same batches when an encoder decides in one way or another, in turns.

In: builds, the batch sizes, and of every way what is patched meanwhile. Out: a table of medians, and all runs
in a file. Needs a GPU.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import dnc
from benchmarks import common
from benchmarks.applications.ablation import launches
from benchmarks.applications.data import DataSets

TURNS = 3
Ways = Mapping[str, Callable[[], AbstractContextManager[object]]]


def compare(
    what: str | None, data: Mapping[str, str], samples: int, batches: Sequence[int], ways: Ways
) -> None:
    """Reads the command line (BUILDS OUT.json), measures the builds that are there, and writes the result.

    what: the docstring of the script. data: by build that of its data (`benchmarks/applications/data.py`).
    """
    parser = argparse.ArgumentParser(description=(what or "").splitlines()[0])
    parser.add_argument("builds", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--trees", type=Path, help="samples of the Tree-LSTM, where that is a build")
    parser.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    given = parser.parse_args()
    sets = DataSets(given.trees)
    names, device = [name for name in data if (given.builds / name).exists()], ""
    runs: dict[str, dict[str, dict[int, list[float]]]] = {
        name: {way: {size: [] for size in batches} for way in ways} for name in names
    }
    for name in names * TURNS:
        for way, times in runs[name].items():
            with ways[way]():
                model = dnc.load(given.builds / name, "cuda", encoders=0)
                sets.attach(model, data[name], samples)
                for size, own in times.items():
                    own.append(launches(model, size)["kernel_us"])
                device = model.device
                del model
                gc.collect()
    medians = {
        name: {way: {size: statistics.median(us) for size, us in times.items()} for way, times in own.items()}
        for name, own in runs.items()
    }
    for name, own in medians.items():
        for size in batches:
            print(f"{name:16} batch {size:4}:", *(f"{own[way][size]:9.1f} us {way}" for way in own))
    result = {"what": "us of a launch", "runs": runs, "median": medians}
    common.write(given.out, common.stamp(device, given.commit) | result)
