"""Metrics over a whole set, launch by launch.

In: the sums of evaluation launches, and what lies in the pool behind them. Out: every metric by name,
in the order of the program. Guaranteed: metrics that follow from a mean come from the sums alone; the
rows of others are read behind each launch, which is then the only one under way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.forest import Forest, Ints
from dnc.ir.measures import CLASS, MEASURES, Rows, in_lists
from dnc.ir.plan import Plan
from dnc.ir.program import MetricOutput, Program
from dnc.runtime.backend import Backend
from dnc.runtime.encoder import Encoder
from dnc.runtime.predictions import read_result
from dnc.runtime.schedule import Schedule

Array = NDArray[Any]


def measured(program: Program) -> dict[str, str]:
    """The metrics of a program with the measure of each."""
    return {
        output.metric: output.measure
        for stage in program.stages
        for output in stage.outputs
        if isinstance(output, MetricOutput)
    }


def class_metrics(program: Program) -> list[str]:
    """The metrics that have to know what their classes are called."""
    return [name for name, measure in measured(program).items() if CLASS in MEASURES[measure].operands]


@attrs.define(eq=False)
class Measurements:
    """The rows seen so far. classes: by metric the names of its classes, where it has any."""

    plan: Plan
    classes: Mapping[str, Sequence[str]]
    columns: dict[str, list[Array]] = attrs.field(factory=dict)
    sequences: dict[str, list[Ints]] = attrs.field(factory=dict)
    places: dict[tuple[int, str], tuple[Ints, Ints]] = attrs.field(factory=dict)
    forests: list[Forest] = attrs.field(factory=list)
    _lists: int = 0

    @property
    def need_rows(self) -> bool:
        """Whether `add` has to be called behind every launch."""
        return any(result.kind == "column" for result in self.plan.results)

    def add(self, backend: Backend, data: Encoder, schedule: Schedule) -> None:
        """Takes in the rows of a launch that is over."""
        most = 0
        for result in self.plan.results:
            if result.kind != "column":
                continue
            vertex = data.prepared.spaces[result.space].vertex[schedule.positions[result.space]]
            forest, struct = data.prepared.forest, self.plan.program.space(result.space).struct
            sequence, place = self._places(forest, struct)
            order = np.argsort(place[vertex], kind="stable")
            self.columns.setdefault(result.name, []).append(read_result(backend, schedule, result)[order])
            if result.name.endswith(".0"):  # no list goes on in another launch
                own = sequence[vertex[order]]
                self.sequences.setdefault(result.name[:-2], []).append(own + self._lists)
                most = max(most, int(sequence.max(initial=-1)) + 1)
        self._lists += most

    def _places(self, forest: Forest, struct: str) -> tuple[Ints, Ints]:
        key = (id(forest), struct)
        if key not in self.places:
            self.forests.append(forest)  # so that its id stays its own
            self.places[key] = in_lists(forest, struct)
        return self.places[key]

    def metrics(self, sums: Mapping[str, tuple[float, int]]) -> dict[str, float]:
        """All metrics; sums: per result of the launches its sum, and over how many rows."""
        found = {}
        for name, measure in measured(self.plan.program).items():
            of_mean = MEASURES[measure].of_mean
            if of_mean is not None:
                total, rows = sums.get(f"metric:{name}", (0.0, 0))
                found[name] = of_mean(total / rows) if rows else math.nan
            else:
                parts = [
                    np.concatenate(self.columns[f"{name}.{position}"])
                    for position in range(len(MEASURES[measure].operands))
                ]
                sequence = np.concatenate(self.sequences[name])
                found[name] = MEASURES[measure](Rows(tuple(parts), sequence, self.classes.get(name, ())))
        return found
