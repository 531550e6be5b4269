"""Lists that are made longer as flat arrays, without reading an object for every element.

In: a forest and a list of its roots. Out: the forest in which the last element of each such list stands
several times, one behind the other. Guaranteed: what reading the longer lists gives, if these elements
hold nothing: no child, and no element of a list.
"""

from __future__ import annotations

import attrs
import numpy as np

from dnc.ir.forest import Forest, Ints, VertexTable, parent_struct, target_of


def lengthened(forest: Forest, field: str, count: int) -> Forest:
    """The forest with `count` elements for the last one in the list `field` of every root."""
    root, element = forest.root, target_of(forest.structs[forest.root], field)
    begin, entries = forest.tables[root].lists[field]
    last = entries[begin[forest.roots + 1] - 1]
    copies = np.ones(len(forest.tables[element]), np.int32)
    copies[last] = count
    ends = np.cumsum(copies, dtype=np.int32)
    first = np.append(ends - copies, np.int32(-1))  # where every old row is now; absent ones stay absent

    def moved(table: VertexTable, name: str) -> VertexTable:
        """The table with new numbers for the rows of elements that it refers to."""
        struct = forest.structs[name]

        def of(target: str | None, numbers: Ints) -> Ints:
            return first[numbers] if target == element else numbers

        return attrs.evolve(
            table,
            children={key: of(target_of(struct, key), each) for key, each in table.children.items()},
            lists={key: (b, of(target_of(struct, key), each)) for key, (b, each) in table.lists.items()},
            previous=of(name, table.previous),
            next=of(name, table.next),
            parent=of(parent_struct(forest.structs, name), table.parent),
        )

    tables = {name: moved(table, name) for name, table in forest.tables.items()}
    tables[element] = _repeated(tables[element], copies, first)
    more = np.ones(len(entries), np.int32)
    more[begin[forest.roots + 1] - 1] = count
    before = np.append(np.int32(0), np.cumsum(more, dtype=np.int32))
    inner = np.arange(before[-1], dtype=np.int32) - np.repeat(before[:-1], more)
    own = np.repeat(tables[root].lists[field][1], more) + inner
    lists = {**tables[root].lists, field: (before[begin], own)}
    tables[root] = attrs.evolve(tables[root], lists=lists)
    return attrs.evolve(forest, tables=tables)


def _repeated(table: VertexTable, copies: Ints, first: Ints) -> VertexTable:
    """Every row as often as `copies` says; copies of one are neighbours in its list."""
    source = np.repeat(np.arange(len(copies)), copies)
    number = np.arange(len(source), dtype=np.int32)
    inner = number - first[source]
    lists = {}
    for key, (begin, entries) in table.lists.items():
        sizes = np.diff(begin)[source]
        assert sizes.sum() == len(entries)  # what is repeated has none
        lists[key] = np.append(np.int32(0), np.cumsum(sizes, dtype=np.int32)), entries
    return attrs.evolve(
        table,
        arm=table.arm[source],
        begin=np.append(first[:-1], np.int32(len(source)))[table.begin],
        data={key: values[source] for key, values in table.data.items()},
        children={key: rows[source] for key, rows in table.children.items()},
        lists=lists,
        previous=np.where(inner > 0, number - 1, table.previous[source]).astype(np.int32),
        next=np.where(inner < copies[source] - 1, number + 1, table.next[source]).astype(np.int32),
        parent=table.parent[source],
    )
