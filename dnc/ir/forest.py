"""Structures as flat arrays: what the data reader produces and every executor consumes.

A `Forest` holds the vertices of any number of samples, one `VertexTable` per struct, vertices of
a sample side by side and samples in order. Indices count rows of the target's table; -1 means
"absent". The whole data set is one forest; a batch is `select`ed from it by sample numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.program import ROOT, Program, Space
from dnc.ir.structure import (
    CHILD,
    FIRST,
    LAST,
    LIST,
    NEXT,
    OPTIONAL,
    PARENT,
    PREVIOUS,
    Path,
    Struct,
    unless_path,
)

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

_NONE = np.iinfo(np.int32).max


@attrs.frozen(eq=False)
class VertexTable:
    """All vertices of one struct, n rows.

    arm: int8[n], index of the arm. begin: int32[samples + 1], rows of each sample. data: token and
    class fields int32[n] (-1 where missing), vector fields float32[n, width] (zeros where
    missing). children: int32[n] per child or optional field. lists: per list field (begin
    int32[n + 1], entries int32[m]). previous, next, parent: int32[n].
    """

    arm: NDArray[np.int8]
    begin: Ints
    data: dict[str, NDArray[np.generic]]
    children: dict[str, Ints]
    lists: dict[str, tuple[Ints, Ints]]
    previous: Ints
    next: Ints
    parent: Ints

    def __len__(self) -> int:
        return len(self.arm)


def target_of(struct: Struct, field: str) -> str:
    """The struct that a vertex field of `struct` refers to (the same in every arm that has it)."""
    for arm in struct.arms:
        found = arm.field(field)
        if found is not None and found.target is not None:
            return found.target
    raise KeyError(f"{struct.name} has no vertex field {field}")


def holders(structs: Mapping[str, Struct], struct: str) -> list[tuple[str, str]]:
    """The structs that refer to `struct`, with the kind of every such field of an arm."""
    return [
        (holder.name, field.kind)
        for holder in structs.values()
        for arm in holder.arms
        for field in arm.fields
        if field.target == struct
    ]


def parent_struct(structs: dict[str, Struct], struct: str) -> str | None:
    """The struct of a vertex's parent: its own one if that refers to itself, else the only other
    one that refers to it; None if there are none or several."""
    names = {name for name, _ in holders(structs, struct)}
    if struct in names:
        return struct
    return names.pop() if len(names) == 1 else None


def path_struct(structs: dict[str, Struct], struct: str, path: Path) -> str:
    """The struct at the end of `path` seen from `struct` (the element's struct for a list)."""
    for step in path:
        if step == PARENT:
            struct = parent_struct(structs, struct) or struct
        elif step not in (PREVIOUS, NEXT, FIRST, LAST) and unless_path(step) is None:
            struct = target_of(structs[struct], step)
    return struct


def _pick(table: NDArray[np.int32], rows: Ints) -> Ints:
    """table[rows], with -1 staying -1."""
    if len(table) == 0:
        return np.full(len(rows), -1, np.int32)
    return np.where(rows >= 0, table[rows], np.int32(-1))


def _spans(begin: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Begin and end of the entries of each of `rows`; none where a row is absent."""
    if len(begin) == 1:  # no vertex at all
        return np.zeros_like(rows), np.zeros_like(rows)
    safe = np.maximum(rows, 0)
    return begin[safe], np.where(rows >= 0, begin[safe + 1], begin[safe])


@attrs.frozen(eq=False)
class Forest:
    """The vertices of `samples` samples. roots: int32[samples], rows of the root struct's table.

    given: by struct vertices on which nothing runs, because that was done before: what others read of
    them is in the data, and `known`: by function the rows of such vertices and the records of their
    states, float32[rows, words of a record].
    """

    structs: dict[str, Struct]
    root: str
    tables: dict[str, VertexTable]
    roots: Ints
    given: Mapping[str, Ints] = attrs.field(factory=dict)
    known: Mapping[str, tuple[Ints, Floats]] = attrs.field(factory=dict)

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return len(self.roots)

    def vertices(self, space: Space) -> Ints:
        """Rows of the struct's table that belong to `space`, in order; none that are given."""
        rows = self._vertices(space)
        given = self.given.get(space.struct)
        return rows if given is None else rows[~np.isin(rows, given)]

    def _vertices(self, space: Space) -> Ints:
        struct = self.structs[space.struct]
        table = self.tables[space.struct]
        wanted = np.array([arm.name in space.arms for arm in struct.arms])
        if space.selection == ROOT:
            rows = self.roots if space.struct == self.root else np.zeros(0, np.int32)
            kept: Ints = rows[wanted[table.arm[rows]]]
            return kept
        if wanted.all():
            return np.arange(len(table), dtype=np.int32)
        return np.flatnonzero(wanted[table.arm]).astype(np.int32)

    def resolve(self, struct: str, path: Path, rows: Ints) -> Ints:
        """The vertex at `path` seen from each of `rows` of `struct`; -1 where it is absent."""
        position = 0
        while position < len(path):
            step, table = path[position], self.tables[struct]
            if step == PREVIOUS:
                rows = _pick(table.previous, rows)
            elif step == NEXT:
                rows = _pick(table.next, rows)
            elif step == PARENT:
                rows = _pick(table.parent, rows)
                struct = parent_struct(self.structs, struct) or struct
            elif (other := unless_path(step)) is not None:
                rows = np.where(self.resolve(struct, other, rows) < 0, rows, np.int32(-1))
            elif step in table.lists:
                begin, end = _spans(table.lists[step][0], rows)
                position += 1
                at = np.where(begin == end, -1, begin if path[position] == FIRST else end - 1)
                rows = _pick(table.lists[step][1], at.astype(np.int32))
                struct = target_of(self.structs[struct], step)
            else:
                rows = _pick(table.children[step], rows)
                struct = target_of(self.structs[struct], step)
            position += 1
        return rows

    def resolve_list(self, struct: str, path: Path, rows: Ints) -> tuple[Ints, Ints]:
        """The children in the list at `path`, per row: (begin int32[n + 1], entries)."""
        rows = self.resolve(struct, path[:-1], rows)
        for step in path[:-1]:
            struct = path_struct(self.structs, struct, (step,))
        all_begins, entries = self.tables[struct].lists[path[-1]]
        begin, end = _spans(all_begins, rows)
        counts = end - begin
        out = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=out[1:])
        source = np.repeat(begin - out[:-1], counts) + np.arange(out[-1], dtype=np.int32)
        return out, entries[source].astype(np.int32)

    def select(self, samples: Ints) -> Forest:
        """The forest of the given samples, in the given order (a sample may occur twice)."""
        samples = np.asarray(samples, np.int32)
        shift: dict[str, Ints] = {}
        rows_of: dict[str, Ints] = {}
        begins: dict[str, Ints] = {}
        for name, table in self.tables.items():
            counts = table.begin[samples + 1] - table.begin[samples]
            begin = np.zeros(len(samples) + 1, np.int32)
            np.cumsum(counts, out=begin[1:])
            change = table.begin[samples] - begin[:-1]  # old row = new row + change
            rows_of[name] = np.repeat(change, counts).astype(np.int32) + np.arange(begin[-1], dtype=np.int32)
            shift[name], begins[name] = change.astype(np.int32), begin
        tables = {}
        for name, table in self.tables.items():
            rows = rows_of[name]
            counts = begins[name][1:] - begins[name][:-1]

            def moved(values: Ints, target: str, counts: Ints = counts) -> Ints:
                return np.where(values >= 0, values - np.repeat(shift[target], counts), np.int32(-1)).astype(
                    np.int32
                )

            lists = {}
            for field, (begin, entries) in table.lists.items():
                sizes = begin[rows + 1] - begin[rows]
                out = np.zeros(len(rows) + 1, np.int32)
                np.cumsum(sizes, out=out[1:])
                at = np.repeat(begin[rows] - out[:-1], sizes) + np.arange(out[-1], dtype=np.int32)
                target = target_of(self.structs[name], field)
                moves = np.repeat(np.repeat(shift[target], counts), sizes)
                lists[field] = (out, (entries[at] - moves).astype(np.int32))
            tables[name] = VertexTable(
                arm=table.arm[rows],
                begin=begins[name],
                data={field: values[rows] for field, values in table.data.items()},
                children={
                    field: moved(values[rows], target_of(self.structs[name], field))
                    for field, values in table.children.items()
                },
                lists=lists,
                previous=moved(table.previous[rows], name),
                next=moved(table.next[rows], name),
                parent=moved(table.parent[rows], parent_struct(self.structs, name) or name),
            )
        roots = (self.roots[samples] - shift[self.root]).astype(np.int32)
        return Forest(self.structs, self.root, tables, roots)


def neighbours(
    structs: dict[str, Struct],
    children: dict[str, dict[str, Ints]],
    lists: dict[str, dict[str, tuple[Ints, Ints]]],
    sizes: dict[str, int],
    positions: Mapping[str, Ints] | None = None,
) -> dict[str, tuple[Ints, Ints, Ints]]:
    """previous, next and parent of every vertex, from the declared fields.

    The parent is the vertex of `parent_struct` that refers to a vertex (the first one in the order of
    the data where several do); previous and next are the neighbours in the list that holds it.
    positions: where vertices stood in the data, for structs where tables have another order.
    """
    parents = {name: parent_struct(structs, name) for name in structs}
    places = {name: np.arange(size, dtype=np.int32) for name, size in sizes.items()} | dict(positions or {})
    found = {
        name: (np.full(sizes[name], -1, np.int32), np.full(sizes[name], -1, np.int32)) for name in structs
    }
    above = {name: np.full(sizes[name], _NONE, np.int32) for name in structs}
    for name, struct in structs.items():
        for field, kind in ((name, each.kind) for name, each in struct.fields.items()):
            if kind not in (CHILD, OPTIONAL, LIST):
                continue
            target = target_of(struct, field)
            previous, after = found[target]
            if kind == LIST:
                begin, entries = lists[name][field]
                owner = np.repeat(np.arange(sizes[name], dtype=np.int32), np.diff(begin))
                inner = np.flatnonzero(owner[1:] == owner[:-1])
                after[entries[inner]] = entries[inner + 1]
                previous[entries[inner + 1]] = entries[inner]
                used, refers = owner, entries
            else:
                used = np.flatnonzero(children[name][field] >= 0).astype(np.int32)
                refers = children[name][field][used]
            if parents[target] == name:
                np.minimum.at(above[target], refers, places[name][used])
    rows = {
        name: np.append(np.argsort(places[parent or name]), -1).astype(np.int32)
        for name, parent in parents.items()
    }
    return {
        name: (*both, rows[name][np.minimum(above[name], len(rows[name]) - 1)])
        for name, both in found.items()
    }


def program_structs(program: Program) -> dict[str, Struct]:
    """The program's structs by name."""
    return {struct.name: struct for struct in program.structs}
