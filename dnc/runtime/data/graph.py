"""The graph of one flat sample: is it whole, without cycles, and in which order do its vertices go.

In: edges from vertices to their children, by struct. Out: per struct the vertices, children first.
Guaranteed: a vertex on a cycle, or one that the root does not reach, is a `Problem` that names it.
The order of the file is kept where it has children first already; else it is a post-order.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

import attrs

from dnc.runtime.data.problems import Problem


@attrs.define(eq=False)
class Edges:
    """The edges of a sample. sizes: vertices per struct. groups: (struct, target, from, to)."""

    sizes: dict[str, int]
    groups: list[tuple[str, str, Sequence[int], Sequence[int]]] = attrs.field(factory=list)

    def add(self, struct: str, target: str, rows: Sequence[int], children: Sequence[int]) -> None:
        """An edge from every row to the child beside it."""
        self.groups.append((struct, target, rows, children))

    def add_lists(self, struct: str, target: str, rows: Sequence[int], lists: Sequence[Any]) -> None:
        """Edges from every row to the children in the list beside it."""
        owners = list(chain.from_iterable(map(repeat, rows, map(len, lists))))
        self.groups.append((struct, target, owners, list(chain.from_iterable(lists))))


def post_order(edges: Edges, root_struct: str, root: int) -> dict[str, Sequence[int]]:
    """Per struct its vertices in an order that has children before those who refer to them."""
    if _is_ordered(edges):
        reached: dict[str, set[int]] = {name: set() for name in edges.sizes}
        reached[root_struct].add(root)
        for _, target, _, children in edges.groups:
            reached[target].update(children)
        # Without cycles, going up from a vertex ends at one to which nothing refers: the root.
        if all(len(reached[name]) == size for name, size in edges.sizes.items()):
            return {name: range(size) for name, size in edges.sizes.items()}
    return _search(edges, root_struct, root)


def _is_ordered(edges: Edges) -> bool:
    """Whether the file has children first, and structs refer to other structs without a cycle."""
    others: dict[str, set[str]] = {}
    for struct, target, rows, children in edges.groups:
        if struct == target:
            if not all(map(operator.lt, children, rows)):
                return False
        else:
            others.setdefault(struct, set()).add(target)
    while others:
        ends = [name for name, targets in others.items() if not any(each in others for each in targets)]
        if not ends:
            return False
        for name in ends:
            del others[name]
    return True


def _search(edges: Edges, root_struct: str, root: int) -> dict[str, Sequence[int]]:
    """Depth first from the root. A vertex is new, open (above the current one) or done."""
    new, opened, done = 0, 1, 2
    offsets: dict[str, int] = {}
    total = 0
    for name, size in edges.sizes.items():
        offsets[name] = total
        total += size
    below: list[list[int]] = [[] for _ in range(total)]
    for struct, target, rows, children in edges.groups:
        start, shift = offsets[struct], offsets[target]
        for row, child in zip(rows, children, strict=True):
            below[start + row].append(shift + child)

    def name_of(vertex: int) -> str:
        owner = next(name for name, start in offsets.items() if 0 <= vertex - start < edges.sizes[name])
        return f"{owner}[{vertex - offsets[owner]}]"

    state = bytearray(total)
    order: list[int] = []
    stack = [offsets[root_struct] + root]
    while stack:
        vertex = stack[-1]
        if state[vertex] == new:
            state[vertex] = opened
            for child in reversed(below[vertex]):
                if state[child] == new:
                    stack.append(child)
                elif state[child] == opened:
                    lower, upper = name_of(vertex), name_of(child)
                    where = "itself" if child == vertex else f"{upper}, which is above it"
                    raise Problem(f"cycle: {lower} refers to {where}")
        else:
            stack.pop()
            if state[vertex] == opened:
                state[vertex] = done
                order.append(vertex)
    if len(order) != total:
        others = f" (and {total - len(order) - 1} more)" if total - len(order) > 1 else ""
        lost = name_of(state.index(new))
        raise Problem(f"{lost}{others} cannot be reached from the root; leave it out")
    return {
        name: [vertex - start for vertex in order if start <= vertex < start + edges.sizes[name]]
        for name, start in offsets.items()
    }
