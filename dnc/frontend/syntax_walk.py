"""Walks over the syntax tree.

In: a node. Out: the nodes below it, in the order of the text. Guaranteed: deep trees need no deep stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from dnc.diagnostics import Span


def children(node: Any) -> tuple[Any, ...]:
    """The nodes directly below a node, identifiers among them."""
    found: list[Any] = []
    for field in attrs.fields(type(node)):
        value = getattr(node, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if attrs.has(type(each)) and not isinstance(each, Span):
                found.append(each)
    return tuple(found)


def walk(node: Any) -> Iterator[Any]:
    """The node and everything below it."""
    todo = [node]
    while todo:
        found = todo.pop()
        yield found
        todo += reversed(children(found))
