"""Metrics over a whole set, launch by launch.

In: the sums of evaluation launches, and the rows of columns. Out: every metric by name, in the order of
the program. Guaranteed: metrics that follow from a mean come from the sums alone; only others need rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.forest import Forest, Ints, path_struct
from dnc.ir.measures import MEASURES, Rows, in_lists, is_summed
from dnc.ir.plan import Plan
from dnc.ir.program import MetricOutput, Program
from dnc.ir.structure import Path
from dnc.runtime.encoder import Encoder
from dnc.runtime.schedule import Schedule

Array = NDArray[Any]


def measured(program: Program) -> dict[str, tuple[MetricOutput, str]]:
    """The metrics of a program by name: the first output of each, and the struct it goes over."""
    return {
        output.metric: (output, program.space(stage.space).struct)
        for stage in program.stages
        for output in stage.outputs
        if isinstance(output, MetricOutput) and output.position == 0
    }


def class_metrics(program: Program) -> list[str]:
    """The metrics that have to know what their classes are called."""
    return [name for name, (output, _) in measured(program).items() if MEASURES[output.measure].in_lists]


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

    def add(self, data: Encoder, schedule: Schedule, columns: Mapping[str, Array]) -> None:
        """Takes in the columns of a launch, by name; rows in its order."""
        forest, most = data.prepared.forest, 0
        spaces = {each.name: each.space for each in self.plan.results if each.kind == "column"}
        for name, (output, struct) in measured(self.plan.program).items():
            if is_summed(output):
                continue
            space = spaces[f"{name}.0"]
            vertex = data.prepared.spaces[space].vertex[schedule.positions[space]]
            sequence, place = self._places(forest, struct)
            order = np.argsort(place[vertex], kind="stable")
            for field, path in output.known:
                order = order[_is_known(forest, struct, field, path, vertex[order])]
            for position in range(len(MEASURES[output.measure].operands)):
                column = f"{name}.{position}"
                self.columns.setdefault(column, []).append(columns[column][order])
            # No list goes on in another launch.
            self.sequences.setdefault(name, []).append(sequence[vertex[order]] + self._lists)
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
        for name, (output, _) in measured(self.plan.program).items():
            measure = MEASURES[output.measure]
            if is_summed(output):
                assert measure.of_mean is not None
                total, rows = sums.get(f"metric:{name}", (0.0, 0))
                found[name] = measure.of_mean(total / rows) if rows else math.nan
            else:
                parts = [
                    np.concatenate(self.columns[f"{name}.{position}"])
                    for position in range(len(measure.operands))
                ]
                sequence = np.concatenate(self.sequences[name])
                found[name] = measure(Rows(tuple(parts), sequence, self.classes.get(name, ())))
        return found


def _is_known(forest: Forest, struct: str, field: str, path: Path, rows: Array) -> NDArray[np.bool_]:
    """Where the class or token at `path` of vertices is there."""
    at = forest.resolve(struct, path, rows.astype(np.int32))
    values = forest.tables[path_struct(forest.structs, struct, path)].data[field]
    return (at >= 0) & (values[at].astype(np.int64) >= 0) if len(values) else np.zeros(len(rows), bool)
