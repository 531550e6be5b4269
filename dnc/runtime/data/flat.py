"""The flat form: a sample is one table of columns per struct, children are indices.

In: a decoded JSON object {struct: {column: [...]}, "root": index}. Out: its vertices in
`Columns`. Guaranteed: any depth, shared vertices allowed; every index is in range, there is no
cycle, and every vertex is reached from the root, or a `Problem` names the vertex as Struct[index].
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import attrs

from dnc.ir.structure import ARM, DATA_KINDS, LIST, ROOT, Field, Struct
from dnc.runtime.data.columns import Columns
from dnc.runtime.data.graph import Edges, post_order
from dnc.runtime.data.layout import Layout, as_optional, field_names
from dnc.runtime.data.problems import Problem, kind_of, names, shortened, shown, suggestion


def is_flat(sample: Mapping[str, Any], layout: Layout) -> bool:
    """Whether a sample is in flat form: its keys are structs and "root", not the root's fields.

    One with mistakes may have some of both; "root" decides then, and a struct where no field is the root's.
    """
    structs = any(key in layout.structs and key not in layout.root_fields for key in sample)
    fields = any(key in layout.root_fields for key in sample)
    return (structs or not fields) if ROOT in sample else (structs and not fields)


@attrs.frozen(eq=False)
class _Table:
    """A struct's columns in the sample. arms: per vertex; rows: per arm its vertices."""

    struct: Struct
    columns: dict[str, list[Any]]
    arms: list[int]
    rows: list[list[int]]


def read_flat(sample: Mapping[str, Any], columns: Columns) -> None:
    """Append the vertices of a sample."""
    layout = columns.layout
    for key in sample:
        if key != ROOT and key not in layout.structs:
            hint = suggestion(key, layout.structs) or f"; its structs are {names(layout.structs)}"
            raise Problem(f"the program has no struct '{shortened(key)}'{hint}")
    tables = {name: _table(struct, sample.get(name), layout) for name, struct in layout.structs.items()}
    root = _index(sample.get(ROOT), "'root'", tables[layout.root])
    base = {name: len(table.arms) for name, table in columns.structs.items()}
    edges = Edges({name: len(table.arms) for name, table in tables.items()})
    for name, table in tables.items():
        for own, rows in zip(columns.structs[name].columns, table.rows, strict=True):
            for field in own.arm.fields:
                entries = _entries(table, field, rows, layout)
                values = own.values[field.name]
                if field.kind in DATA_KINDS:
                    values.extend(entries)
                    continue
                target = tables[str(field.target)]
                shift = base[target.struct.name]
                _check_links(table, field, rows, entries, target, layout)
                if field.kind == LIST:
                    own.counts[field.name].extend(map(len, entries))
                    values.extend(map(shift.__add__, chain.from_iterable(entries)))
                    edges.add_lists(name, target.struct.name, rows, entries)
                elif None in entries:
                    values.extend(-1 if each is None else each + shift for each in entries)
                    kept = [(row, each) for row, each in zip(rows, entries, strict=True) if each is not None]
                    edges.add(name, target.struct.name, [row for row, _ in kept], [each for _, each in kept])
                else:
                    values.extend(map(shift.__add__, entries))
                    edges.add(name, target.struct.name, rows, entries)
        columns.structs[name].arms.extend(table.arms)
    _check_neighbours(tables, layout)
    columns.roots.append(base[layout.root] + root)
    for name, order in post_order(edges, layout.root, root).items():
        columns.structs[name].order[len(columns.lines) - 1] = order


def _table(struct: Struct, value: Any, layout: Layout) -> _Table:
    """A struct's columns, of one length, with the arm of every vertex."""
    if value is None:
        return _Table(struct, {}, [], [[] for _ in struct.arms])
    if type(value) is not dict:
        raise Problem(f"'{struct.name}' must be an object of columns, found {kind_of(value)}")
    known = [*struct.fields, ARM]
    columns: dict[str, list[Any]] = {}
    for key, column in value.items():
        if key not in known:
            raise Problem(layout.unknown_field(struct, struct.name, key, known))
        if column is None:
            continue
        if type(column) is not list:
            raise Problem(f"{struct.name}: column '{key}' must be an array, found {kind_of(column)}")
        columns[key] = column
        first = next(iter(columns))
        if len(column) != len(columns[first]):
            lengths = f"'{first}' has {len(columns[first])} entries, '{key}' has {len(column)}"
            raise Problem(f"{struct.name}: columns differ in length: {lengths}")
    size = len(next(iter(columns.values()))) if columns else 0
    if ARM in columns:
        if not set(map(type, columns[ARM])) <= {str}:
            wrong = next(each for each in columns[ARM] if type(each) is not str)
            raise Problem(f"{struct.name}: column 'arm' must hold names, found {kind_of(wrong)}")
        index = {name: layout.arm_index(struct, name) for name in dict.fromkeys(columns[ARM])}
        arms = [index[name] for name in columns[ARM]]
    elif len(struct.arms) == 1 or not size:
        arms = [0] * size
    else:
        known = [arm.name for arm in struct.arms]
        raise Problem(f"{struct.name}: column 'arm' is missing (its entries are {names(known)})")
    rows = [[row for row, each in enumerate(arms) if each == arm] for arm in range(len(struct.arms))]
    for arm, own in zip(struct.arms, rows, strict=True):
        for name in columns.keys() - field_names(arm) - {ARM}:
            for row, entry in zip(own, _pick(columns[name], own), strict=True):
                if entry is not None:
                    raise Problem(f"{struct.name}[{row}] is a {arm.name}, which has no field '{name}'")
    return _Table(struct, columns, arms, rows)


def _pick(column: list[Any], rows: list[int]) -> list[Any]:
    return column if len(rows) == len(column) else list(map(column.__getitem__, rows))


def _entries(table: _Table, field: Field, rows: list[int], layout: Layout) -> list[Any]:
    """The entries of one field for the vertices of one arm."""
    may_miss = layout.may_miss(table.struct.name, field)
    column = table.columns.get(field.name)
    if column is None:
        if rows and not may_miss:
            raise Problem(f"{table.struct.name}: column '{field.name}' is missing", note=as_optional(field))
        return [None] * len(rows)
    entries = _pick(column, rows)
    if not may_miss and None in entries:
        row = rows[entries.index(None)]
        raise Problem(f"{table.struct.name}[{row}].{field.name} is missing", note=as_optional(field))
    return entries


def _index(value: Any, what: str, target: _Table) -> int:
    """`value` as a vertex of `target`."""
    size = len(target.arms)
    if type(value) is not int:
        found = "is missing" if value is None else f"must be the index of a vertex, found {kind_of(value)}"
        raise Problem(f"{what} {found}")
    if not 0 <= value < size:
        limits = f"has 0..{size - 1}" if size else "has no vertices"
        raise Problem(f"{what} is {shown(value)}, but {target.struct.name} {limits}")
    return value


def _check_links(
    table: _Table, field: Field, rows: list[int], entries: list[Any], target: _Table, layout: Layout
) -> None:
    """Every entry is a vertex of `target` (or absent, or a list of such)."""
    size = len(target.arms)
    if field.kind != LIST and set(map(type, entries)) == {int} and min(entries) >= 0 and max(entries) < size:
        return
    nonempty = (table.struct.name, field.name) in layout.never_empty
    for row, entry in zip(rows, entries, strict=True):
        what = f"{table.struct.name}[{row}].{field.name}"
        if field.kind == LIST:
            if type(entry) is not list:
                raise Problem(f"{what} must be a list, found {kind_of(entry)}")
            if nonempty and not entry:
                raise Problem(f"{what} is empty, but the program reads its first or last element")
            for position, each in enumerate(entry):
                if type(each) is not int or not 0 <= each < size:
                    _index(each, f"{what}[{position}]", target)
        elif entry is not None:
            _index(entry, what, target)


def _check_neighbours(tables: Mapping[str, _Table], layout: Layout) -> None:
    """Where the program reads prev or next, a vertex stands in one list, once."""
    seen: set[tuple[str, int]] = set()
    for table in tables.values():
        for field in table.struct.fields.values():
            if field.kind == LIST and field.target in layout.ordered:
                for entry in table.columns.get(field.name, []):
                    for vertex in entry or []:
                        if (field.target, vertex) in seen:
                            place = f"{field.target}[{vertex}] stands in lists more than once"
                            raise Problem(f"{place}, but the program reads its prev or next")
                        seen.add((field.target, vertex))
