"""Where launches of training spend their time, instruction by instruction, on all workers.

    python -m benchmarks.timelines BUILDS RESULT.json [--trees SST.jsonl] NAME=BATCH,BATCH NAME=BATCH ...

In: builds of `benchmarks.applications` with traced kernels beside them (`NAME.traced/`, as `compile --traced`
makes them). Out: a table and its raw numbers: the launch, then for every instruction of the busiest replica
its rows, when it began and ended, and how long its workers ran it: the median worker and the longest one.
Behind the recursion, where all workers share the work, they are those of the grid. Medians over launches of
batches with the same instructions; times are us from the launch's beginning.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dnc
from benchmarks import common
from benchmarks.applications.data import DataSets
from benchmarks.applications.points import FIXED, SST, TREES, VPPS, WHOLE
from benchmarks.treelstm import attached, batches_of
from dnc.api import Model
from dnc.ir import isa
from dnc.ir.plan import Plan
from dnc.ir.stamps import nanoseconds
from dnc.runtime.schedule import header, queue
from dnc.runtime.trace.timeline import Timeline

LAUNCHES = 12
DATA = {point.build: point.data for point in (*TREES, *VPPS, *FIXED, *WHOLE)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("builds", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("points", nargs="+", help="NAME=BATCH,BATCH")
    parser.add_argument("--trees", type=Path)
    parser.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    options = parser.parse_args()
    data, found, device = DataSets(options.trees), [], ""
    for point in options.points:
        name, _, sizes = point.partition("=")
        model = dnc.load(options.builds / name, "cuda", encoders=0)
        model.configure("sgd", 1e-8)
        data.attach(model, DATA.get(name, SST))
        device = model.device
        files = {path.name: path.read_bytes() for path in (options.builds / f"{name}.traced").iterdir()}
        for size in map(int, sizes.split(",")):
            lines = timeline(model, size, files)
            found.append({"build": name, "batch": size, "instructions": lines})
            show(name, size, lines)
    result = common.stamp(device, options.commit)
    common.write(options.result, result | {"what": "us of a traced launch", "points": found})


def timeline(model: Model, size: int, files: dict[str, bytes]) -> list[dict[str, Any]]:
    """The instructions of one batch's schedule, medians over launches of that batch."""
    model.session.reserve(attached(model), size)
    batches = [batch for batch in batches_of(model, size, 79) if len(batch) == size]
    for _ in model.steps(batches[:8]):
        pass
    backend: Any = model.backend
    traced = Timeline(model.plan, backend.name, LAUNCHES, backend.trace_with(files))
    model.session.timeline = traced
    weight = attached(model).prepared.weight
    several = sorted(batches[:33], key=lambda batch: int(weight[batch].sum()))
    typical = several[len(several) // 2]
    for _ in model.steps([typical] * LAUNCHES):
        pass
    words = traced.launches[0].words
    head = header(words, model.plan)
    workers = head["workers"]
    queues = [queue(words, model.plan, replica * workers) for replica in range(head["replicas"])]
    runs = [
        [nanoseconds(run, len(queues[worker // workers])) for worker, run in enumerate(launch.runs)]
        for launch in traced.launches[LAUNCHES // 3 :]
    ]
    return instructions(model, queues, runs, workers)


def instructions(
    model: Model, queues: list[Any], runs: list[list[NDArray[np.int64]]], workers: int
) -> list[dict[str, Any]]:
    """See the module. Stamp 2i + 2 of a worker is when it began instruction i, 2i + 3 when it ended."""
    opcodes, origin = model.plan.opcodes, [min(int(times[0]) for times in run) for run in runs]
    launch = [max(int(times[-1]) for times in run) - begin for run, begin in zip(runs, origin, strict=True)]

    segments = {segment.name for segment in model.plan.segments}

    def recursion(number: int) -> float:
        own = queues[number]
        named = [opcodes[int(word[0])].name in segments for word in own]
        if not any(named):
            return 0.0
        end = max(i for i, is_one in enumerate(named) if is_one)
        first = number * workers
        return float(np.median([run[first][2 * end + 3] - run[first][0] for run in runs]))

    busiest = max(range(len(queues)), key=recursion)
    whole, own = len(queues) > 1, queues[busiest]
    lines: list[dict[str, Any]] = [{"name": "launch", "us": float(np.median(launch)) / 1e3}]
    last = max(i for i, word in enumerate(own) if opcodes[int(word[0])].name in segments)
    for index, word in enumerate(own):
        opcode = opcodes[int(word[0])]
        named = {n: int(w) for n, w in zip(opcode.fields, word[1:], strict=False)}
        shared, back = whole and index > last, index - len(own)  # all replicas end with the same instructions
        parts = []
        for run, begin in zip(runs, origin, strict=True):
            chosen = range(len(run)) if shared else range(busiest * workers, (busiest + 1) * workers)
            at = [(2 * (back if shared else index)) % (2 * len(queues[w // workers])) + 2 for w in chosen]
            parts.append(
                [(run[w][i] - begin, run[w][i + 1] - begin) for w, i in zip(chosen, at, strict=True)]
            )
        times = np.median(np.array(parts, np.float64), axis=0) / 1e3
        long = times[:, 1] - times[:, 0]
        lines.append(
            {
                "name": _name(model.plan, opcode.name, named),
                "rows": named.get("rows", named.get("count", named.get("tokens"))),
                "begin": round(float(times[:, 0].min()), 2),
                "end": round(float(times[:, 1].max()), 2),
                "median": round(float(np.median(long)), 2),
                "longest": round(float(long.max()), 2),
                "workers_at_work": int((long > 1).sum()),
            }
        )
    return lines


def _name(plan: Plan, opcode: str, fields: dict[str, int]) -> str:
    """The instruction, with the gradient that it makes."""
    return f"{opcode} {plan.dense_gradients[fields['gradient']].name}" if opcode == isa.OUTER else opcode


def show(name: str, size: int, lines: list[dict[str, Any]]) -> None:
    """The table."""
    print(f"{name}, batch {size}: {lines[0]['us']:.1f} us")
    for number, line in enumerate(lines[1:]):
        rows = "" if line["rows"] is None else line["rows"]
        print(
            f"  {number:3} {line['name']:34}{rows:>7}{line['begin']:10.1f}{line['end']:10.1f}"
            f"{line['median']:9.2f}{line['longest']:9.2f}{line['workers_at_work']:5}"
        )


if __name__ == "__main__":
    main()
