"""The nested form: a sample is an object whose children are objects inside it.

In: a decoded JSON object. Out: its vertices in `Columns`. Guaranteed: no recursion, one look at
every vertex; a null counts as a missing key; the first mistake is reported with the way to its vertex.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from dnc.ir.structure import ARM, DATA_KINDS, LIST, OPTIONAL
from dnc.runtime.data.columns import Columns, StructColumns
from dnc.runtime.data.layout import Layout
from dnc.runtime.data.problems import Problem, kind_of


@attrs.frozen(eq=False)
class _Link:
    """A field that refers to vertices: where its rows go (`counts` for lists)."""

    key: str
    kind: str
    column: list[int]
    counts: list[int]
    target: _Reader


@attrs.frozen(eq=False)
class _Plan:
    """What to do with an object with certain keys."""

    arm: int
    data: tuple[tuple[str, Callable[[Any], None]], ...]
    missing: tuple[tuple[Callable[[Any], None], Any], ...]
    links: tuple[_Link, ...]


@attrs.define(eq=False)
class _Reader:
    """Knows the plan for every set of keys of one struct that was seen."""

    table: StructColumns
    layout: Layout
    readers: dict[str, _Reader]
    plans: dict[tuple[str, ...], _Plan] = attrs.field(factory=dict)

    def plan(self, value: dict[str, Any]) -> _Plan:
        """The plan for an object that is not in `plans`, or that has nulls."""
        keys = tuple(key for key, each in value.items() if each is not None)
        found = self.plans.get(keys)
        if found is None:
            arm = value.get(ARM)
            found_keys, nulls = frozenset(keys) - {ARM}, value.keys() - set(keys)
            index = self.layout.choose(self.table.struct, found_keys, arm, nulls)
            found = self._make(index, frozenset(keys))
            if arm is None:
                self.plans[keys] = found
        return found

    def _make(self, index: int, keys: frozenset[str]) -> _Plan:
        columns = self.table.columns[index]
        data, missing, links = [], [], []
        for field in columns.arm.fields:
            column = columns.values[field.name]
            if field.name not in keys:
                missing.append((column.append, -1 if field.kind == OPTIONAL else None))
            elif field.kind in DATA_KINDS:
                data.append((field.name, column.append))
            elif field.target is not None:
                counts = columns.counts.get(field.name, [])
                links.append(_Link(field.name, field.kind, column, counts, self.readers[field.target]))
        return _Plan(index, tuple(data), tuple(missing), tuple(links))


@attrs.frozen(eq=False)
class NestedReader:
    """Reads nested samples into `columns`."""

    columns: Columns
    readers: dict[str, _Reader]

    def read(self, sample: dict[str, Any]) -> None:
        """Append the vertices of a sample."""
        holder = [0]
        root = self.readers[self.columns.layout.root]
        stack: list[tuple[dict[str, Any], _Reader, list[int], int]] = [(sample, root, holder, 0)]
        wrong: tuple[Any, Problem] | None = None
        while stack:
            value, reader, column, at = stack.pop()
            try:
                plan = reader.plans.get(tuple(value))
                if plan is None or None in value.values():
                    plan = reader.plan(value)
                arms = reader.table.arms
                column[at] = len(arms)
                arms.append(plan.arm)
                for key, append in plan.data:
                    append(value[key])
                for append, nothing in plan.missing:
                    append(nothing)
                for link in plan.links:
                    child = value[link.key]
                    at = len(link.column)
                    if link.kind == LIST:
                        self._check_list(reader, link, child)
                        link.counts.append(len(child))
                        link.column.extend([-1] * len(child))
                        for element in child:
                            stack.append((element, link.target, link.column, at))
                            at += 1
                    elif type(child) is dict:
                        link.column.append(-1)
                        stack.append((child, link.target, link.column, at))
                    else:
                        raise Problem(f"field '{link.key}' {_expected(link)}, found {kind_of(child)}")
            except Problem as problem:
                wrong = value, problem  # what comes later here stands before it in the file
        if wrong is not None:
            way, message = _way(sample, wrong[0]), wrong[1].message
            raise Problem(f"{way}: {message}" if way else message, note=wrong[1].note)
        self.columns.roots.append(holder[0])

    def _check_list(self, reader: _Reader, link: _Link, elements: Any) -> None:
        if type(elements) is not list:
            raise Problem(f"field '{link.key}' must be a list, found {kind_of(elements)}")
        for index, element in enumerate(elements):
            if type(element) is not dict:
                raise Problem(f"{link.key}[{index}] {_expected(link)}, found {kind_of(element)}")
        if not elements and (reader.table.struct.name, link.key) in self.columns.layout.never_empty:
            raise Problem(f"list '{link.key}' is empty, but the program reads its first or last element")


def nested_reader(columns: Columns) -> NestedReader:
    """A reader that appends to `columns`."""
    readers: dict[str, _Reader] = {}
    for name, table in columns.structs.items():
        readers[name] = _Reader(table, columns.layout, readers)
    return NestedReader(columns, readers)


def _expected(link: _Link) -> str:
    return f"must be an object ({link.target.table.struct.name})"


def _way(sample: Any, wanted: Any) -> str:
    """How to get from the sample to the object `wanted` inside it, as left.words[2]; "" for itself."""
    stack: list[tuple[Any, str]] = [(sample, "")]
    while stack:
        value, way = stack.pop()
        if value is wanted:
            return way
        if isinstance(value, dict):
            stack.extend((each, f"{way}.{key}" if way else key) for key, each in value.items())
        elif isinstance(value, list):
            stack.extend((each, f"{way}[{index}]") for index, each in enumerate(value))
    return ""
