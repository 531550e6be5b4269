"""What the stages of a launch take, beside what their multiplications and their memory allow.

    python -m benchmarks.roofline BUILDS TIMELINES.json

In: builds, and what `benchmarks.timelines` has measured of them. Out: a table in Markdown for every point: by
stage its time on the busiest replica (behind the recursion, where all workers share the work, from the first
worker's begin to the last one's end), and its floor: multiplications at the rate of the units that make them,
or what an update moves at the rate of the L2 cache, on the workers that may take part. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

import dnc
from dnc.ir import isa
from dnc.ir.optimizers import OPTIMIZERS
from dnc.ir.plan import FP32, Plan

# Of an H200: multiplications (and additions) a second of all 132 processors, by FMAs and by tensor cores in
# tf32, and bytes a second between the L2 cache and them, as experiments here have measured.
PROCESSORS, FMA, CORES, L2 = 132, 33.5e12, 247e12, 5.5e12
BARRIERS = {isa.REPLICA_BARRIER: "exchanges of a replica", isa.GRID_BARRIER: "exchanges of all workers"}


@attrs.define
class Stage:
    """us: as measured; floor: by multiplications, or by bytes. times: instructions."""

    us: float = 0.0
    floor: float = 0.0
    times: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("builds", type=Path)
    parser.add_argument("timelines", type=Path)
    options = parser.parse_args()
    for point in json.loads(options.timelines.read_text())["points"]:
        model = dnc.load(options.builds / point["build"], "vm", encoders=0)
        launch, *lines = point["instructions"]
        print(f"{point['build']}, batch {point['batch']}: {launch['us']:,.0f} us\n")
        print("| stage | instructions | us | floor, us |\n| --- | --- | --- | --- |")
        for name, stage in stages(model.plan, lines).items():
            floor = f"{stage.floor:,.1f}" if stage.floor else "-"
            print(f"| {name} | {stage.times} | {stage.us:,.1f} | {floor} |")
        print()


def stages(plan: Plan, lines: list[dict[str, Any]]) -> dict[str, Stage]:
    """The stages of a launch in order; instructions that all workers share between two exchanges are one."""
    found: dict[str, Stage] = {}
    own, shared = {segment.name for segment in plan.segments}, list[dict[str, Any]]()
    tiling = plan.tiling
    assert tiling is not None

    def add(name: str, us: float, floor: float) -> None:
        stage = found.setdefault(name, Stage())
        stage.us, stage.floor, stage.times = stage.us + us, stage.floor + floor, stage.times + 1

    def add_shared() -> None:
        if shared:
            us = max(line["end"] for line in shared) - min(line["begin"] for line in shared)
            workers = PROCESSORS // tiling.workers * tiling.workers
            floor = sum(_floor(plan, line, workers) for line in shared)
            add(" + ".join(dict.fromkeys(_short(line["name"]) for line in shared)), us, floor)
            shared.clear()

    for line in lines:
        if line["name"] in own:
            add(line["name"].partition("/")[0], line["longest"], _floor(plan, line, tiling.workers))
        elif line["name"] in BARRIERS:
            add_shared()
            # Who comes first to an exchange of all workers waits for the slowest: that is no part of it.
            add(
                BARRIERS[line["name"]],
                line["longest" if line["name"] == isa.REPLICA_BARRIER else "median"],
                0.0,
            )
        else:
            shared.append(line)
    add_shared()
    return found


def _short(name: str) -> str:
    return name.partition(" #")[0].removeprefix(f"{isa.OUTER} ")


def _floor(plan: Plan, line: dict[str, Any], workers: int) -> float:
    """Microseconds of a line on so many workers."""
    name, rows, share = line["name"], line["rows"] or 0, workers / PROCESSORS
    if name.partition(" ")[0] in OPTIMIZERS:
        states = len(OPTIMIZERS[name.partition(" ")[0]].states)
        table = next((t for t in plan.table_gradients if name.endswith(f" {t.parameter}")), None)
        floats = rows * (1 if table is None else table.width)
        return floats * 4 * (3 + 2 * states) / (L2 * share) * 1e6
    rate = FMA if plan.precision == FP32 else CORES
    return rows * sum(_matrices(plan, name)) / (rate * share) * 1e6


def _matrices(plan: Plan, name: str) -> Iterator[int]:
    """Elements of the matrices that an instruction multiplies a row by."""
    parameters: list[str] = []
    for segment in plan.segments:
        if segment.name == name:
            parameters += [product.parameter for product in (*segment.products, *segment.transposed)]
    for gradient in plan.dense_gradients:
        if name in (gradient.name, f"{isa.OUTER} {gradient.name}") and gradient.pieces:
            parameters.append(gradient.parameter)
    for table in plan.table_gradients:
        if name == f"gradient {table.parameter}":
            parameters += [product.parameter for product in table.products]
    for parameter in parameters:
        yield math.prod(plan.program.parameter(parameter).type.shape)


if __name__ == "__main__":
    main()
