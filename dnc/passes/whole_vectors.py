"""Element-wise values that are computed on whole vectors, where that saves exchanges.

In: the `Distribution` of a stage. Out: the same, with some values computed vertex by vertex that could be
shared out by units. Guaranteed: the stage has fewer steps than before, what is computed vertex by vertex
in addition costs less than the exchanges that it saves, and a worker has room for it; otherwise nothing
changes.

A mean needs whole vectors, what follows it is shared out by units again: an exchange before it and one
behind it. Where the next operation but one is another mean, both exchanges between them are saved by
staying with whole vectors. So the values of one step between two others are tried together, the best of
all steps is taken, and again, until no step is worth it.
"""

from __future__ import annotations

from typing import Protocol

from dnc.ir.cell import Op, Value
from dnc.ir.opdef import ELEMENTWISE, LIST
from dnc.ir.ops import OPS
from dnc.ir.types import ListType

MOST_FLOATS = 10_240
"""Elements of a vertex computed whole that a worker has room for beside everything else, on any GPU."""


class Classified(Protocol):
    """What is asked of a `Distribution`."""

    step: dict[Value, int]

    def classify(self, vertex: frozenset[Value]) -> None:
        """Decides on all values again, these vertex by vertex."""

    def flexible(self) -> list[Value]:
        """Values shared out by units that might as well be computed vertex by vertex."""

    def steps(self) -> int:
        """The exchanges of the stage, with the one behind its last step."""

    def vertex_floats(self) -> int:
        """The most elements that a vertex has under way, where it is computed whole."""


def may_be_whole(op: Op) -> bool:
    """Whether an operation on units might as well be computed on whole vectors."""
    traits = OPS[op.opcode].traits
    lists = any(isinstance(value.type, ListType) for value in (op.result, *op.operands))
    return not lists and LIST not in traits and (ELEMENTWISE in traits or op.opcode in ("slice", "concat"))


def save_exchanges(found: Classified, exchange_floats: int) -> frozenset[Value]:
    """Computes more values vertex by vertex, where that is worth it; these values.

    exchange_floats: elements that take as long, computed vertex by vertex, as an exchange.
    """
    chosen: frozenset[Value] = frozenset()
    while True:
        steps = found.steps()
        islands: dict[int, set[Value]] = {}
        for value in found.flexible() if steps > 1 else ():
            islands.setdefault(found.step[value], set()).add(value)
        gains = [(0, 0)]
        for step, island in islands.items():
            found.classify(chosen | island)
            if found.vertex_floats() <= MOST_FLOATS:
                gains.append(((steps - found.steps()) * exchange_floats - _floats(island), -step))
        gain, step = max(gains)
        if not gain:
            return _needed(found, chosen, steps)
        chosen |= islands[-step]
        found.classify(chosen)


def _needed(found: Classified, chosen: frozenset[Value], steps: int) -> frozenset[Value]:
    """Without the values that save nothing."""
    for value in sorted(chosen, key=lambda value: -_floats({value})):
        found.classify(chosen - {value})
        if found.steps() == steps:
            chosen -= {value}
    found.classify(chosen)
    return chosen


def _floats(values: set[Value]) -> int:
    return sum(value.type.size for value in values if not isinstance(value.type, ListType))
