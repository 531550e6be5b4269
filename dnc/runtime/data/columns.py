"""Vertices as they are read: growing columns per struct and arm, and their assembly to a forest.

In: rows appended by the readers, in any order inside a sample, child entries as row numbers of
the target struct. Out: a `Forest`. Guaranteed: inside a sample, children stand before the
vertices that refer to them (post-order), samples in the order of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from dnc.ir.forest import Forest, Ints, VertexTable, neighbours, target_of
from dnc.ir.structure import DATA_KINDS, LIST, VECTOR, Arm, Field, Struct
from dnc.runtime.data.layout import Layout

Id = str | int | None
"""What a sample is called; None where it has no id."""


@attrs.frozen(eq=False)
class ArmColumns:
    """The columns of one arm, one entry per vertex of that arm.

    values: data fields as they stand in the file (None where missing), children as rows (-1 where
    missing), lists as all their rows one after the other. counts: the lengths of the lists.
    """

    arm: Arm
    values: dict[str, list[Any]]
    counts: dict[str, list[int]]


@attrs.frozen(eq=False)
class StructColumns:
    """The vertices of one struct: arm per row, first row per sample, the arms' columns.

    order: for samples whose rows are not in reverse post-order, their post-order (rows counted
    from the sample's first).
    """

    struct: Struct
    columns: tuple[ArmColumns, ...]
    arms: list[int] = attrs.field(factory=list)
    begin: list[int] = attrs.field(factory=list)
    order: dict[int, Sequence[int]] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class Columns:
    """All that was read: per struct its columns, per sample the root's row, the line, and the id."""

    layout: Layout
    structs: dict[str, StructColumns]
    roots: list[int] = attrs.field(factory=list)
    lines: list[int] = attrs.field(factory=list)
    ids: list[Id] = attrs.field(factory=list)

    def start_sample(self, line: int) -> None:
        """The rows that follow belong to a new sample, read from `line`."""
        self.lines.append(line)
        for each in self.structs.values():
            each.begin.append(len(each.arms))

    def place_of(self, struct: str, arm: int, position: int) -> tuple[int, str]:
        """The line in the file of the `position`-th vertex of an arm, and its name: in a flat sample as
        Word[3], in a nested one the way to it, as left.words[2], "" for the root."""
        table = self.structs[struct]
        row = int(np.flatnonzero(np.asarray(table.arms) == arm)[position])
        sample = int(np.searchsorted(table.begin, row, side="right")) - 1
        flat = sample in table.order
        vertex = f"{struct}[{row - table.begin[sample]}]" if flat else self._way(struct, row)
        return self.lines[sample], vertex

    def order_of(self, struct: str, arm: int, positions: Sequence[int]) -> list[tuple[int, int]]:
        """What sorts vertices of an arm as they stand in the file: the sample, and the place in it."""
        table = self.structs[struct]
        rows = np.flatnonzero(np.asarray(table.arms) == arm)[positions]
        samples = np.searchsorted(table.begin, rows, side="right") - 1
        flat = np.isin(samples, list(table.order))
        return list(zip(samples.tolist(), np.where(flat, rows, -rows).tolist(), strict=True))

    def _way(self, struct: str, row: int) -> str:
        steps = list[str]()
        while (above := self._above(struct, row)) is not None:
            struct, row, step = above
            steps.append(step)
        return ".".join(reversed(steps))

    def _above(self, struct: str, row: int) -> tuple[str, int, str] | None:
        """The struct and the row of the vertex that refers to one, and by which field; None for a root."""
        for name, table in self.structs.items():
            for index, columns in enumerate(table.columns):
                for field in columns.arm.fields:
                    if field.target != struct or row not in columns.values[field.name]:
                        continue
                    at, step = columns.values[field.name].index(row), field.name
                    if field.kind == LIST:
                        ends = np.cumsum(columns.counts[field.name])
                        owner = int(ends.searchsorted(at, side="right"))
                        step += f"[{at - int(ends[owner]) + columns.counts[field.name][owner]}]"
                        at = owner
                    return name, int(np.flatnonzero(np.asarray(table.arms) == index)[at]), step
        return None


def empty_columns(layout: Layout) -> Columns:
    """Columns without rows."""
    structs = {}
    for name, struct in layout.structs.items():
        arms = tuple(
            ArmColumns(
                arm,
                {field.name: [] for field in arm.fields},
                {field.name: [] for field in arm.fields if field.kind == LIST},
            )
            for arm in struct.arms
        )
        structs[name] = StructColumns(struct, arms)
    return Columns(layout, structs)


def ranges(starts: Ints, counts: Ints) -> Ints:
    """starts[0], starts[0] + 1, ... (counts[0] of them), starts[1], ..."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return (np.repeat(starts - (ends - counts), counts) + np.arange(total)).astype(np.int32)


def _order(table: StructColumns) -> Ints:
    """For every row of the forest, the row that was read."""
    rows = len(table.arms)
    begin = np.asarray([*table.begin, rows], np.int64)
    order = np.repeat(begin[:-1] + begin[1:] - 1, np.diff(begin)) - np.arange(rows)
    for sample, local in table.order.items():
        order[begin[sample] : begin[sample + 1]] = begin[sample] + np.asarray(local, np.int64)
    return order.astype(np.int32)


def _list(table: StructColumns, field: str, rows: list[Ints], order: Ints, rank: Ints) -> tuple[Ints, Ints]:
    """A list field in the forest's order: (begin, entries)."""
    counts = np.zeros(len(table.arms), np.int32)
    for columns, own in zip(table.columns, rows, strict=True):
        if field in columns.counts:
            counts[own] = columns.counts[field]
    begin = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=begin[1:])
    entries = np.zeros(begin[-1], np.int32)
    for columns, own in zip(table.columns, rows, strict=True):
        if field in columns.counts:
            entries[ranges(begin[own], counts[own])] = columns.values[field]
    sizes = counts[order]
    moved = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(sizes, out=moved[1:])
    return moved, rank[entries[ranges(begin[order], sizes)]]


def _empty(field: Field, rows: int) -> Any:
    if field.kind == VECTOR:
        return np.zeros((rows, max(field.width, 1)), np.float32)
    return np.full(rows, -1, np.int32)


def file_positions(columns: Columns) -> dict[str, Ints]:
    """Where the vertices of the forest stood in the file, for structs where that is another order.

    Per struct a number for every row; they compare inside a sample. Flat samples may have parents
    first; in a nested sample the order of the forest counts as that of the file.
    """
    found = {}
    for name, table in columns.structs.items():
        moved = {sample: rows for sample, rows in table.order.items() if not isinstance(rows, range)}
        if moved:
            positions = np.arange(len(table.arms), dtype=np.int32)
            for sample, rows in moved.items():
                first = table.begin[sample]
                positions[first : first + len(rows)] = first + np.asarray(rows, np.int32)
            found[name] = positions
    return found


def assemble(columns: Columns, converted: dict[tuple[str, int, str], Any]) -> Forest:
    """The forest of everything that was read.

    converted: data columns as arrays, by (struct, arm index, field): int32[n] or float32[n, width].
    """
    structs = columns.layout.structs
    order = {name: _order(table) for name, table in columns.structs.items()}
    rank: dict[str, Ints] = {}
    for name, rows in order.items():
        rank[name] = np.empty(len(rows), np.int32)
        rank[name][rows] = np.arange(len(rows), dtype=np.int32)
    arms: dict[str, Any] = {}
    data: dict[str, dict[str, Any]] = {}
    children: dict[str, dict[str, Ints]] = {}
    lists: dict[str, dict[str, tuple[Ints, Ints]]] = {}
    for name, table in columns.structs.items():
        arm = np.asarray(table.arms, np.int8)
        own = [np.flatnonzero(arm == index).astype(np.int32) for index in range(len(table.columns))]
        arms[name], data[name], children[name], lists[name] = arm[order[name]], {}, {}, {}
        for field in table.struct.fields.values():
            if field.kind == LIST:
                moves = rank[target_of(table.struct, field.name)]
                lists[name][field.name] = _list(table, field.name, own, order[name], moves)
                continue
            full = _empty(field, len(arm))
            for index, each in enumerate(table.columns):
                if field.name in each.values:
                    source = (name, index, field.name)
                    full[own[index]] = (
                        converted[source] if field.kind in DATA_KINDS else each.values[field.name]
                    )
            full = full[order[name]]
            if field.kind in DATA_KINDS:
                data[name][field.name] = full
            else:
                moves = np.append(rank[target_of(table.struct, field.name)], np.int32(-1))
                children[name][field.name] = moves[full]
    sizes = {name: len(rows) for name, rows in order.items()}
    near = neighbours(structs, children, lists, sizes, file_positions(columns))
    tables = {}
    for name, table in columns.structs.items():
        begin = np.asarray([*table.begin, sizes[name]], np.int32)
        previous, after, parent = near[name]
        tables[name] = VertexTable(
            arms[name], begin, data[name], children[name], lists[name], previous, after, parent
        )
    root = columns.layout.root
    return Forest(structs, root, tables, rank[root][np.asarray(columns.roots, np.int32)])
