"""Numbers for the uses of random numbers of a program.

In: the cells of a program while they are built. Out: a number for every use. Guaranteed: whatever is
dropped is dropped by itself; equal expressions at one vertex are one draw, as a call is evaluated once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import count

import attrs

from dnc.ir.builder import Builder
from dnc.ir.cell import Value
from dnc.ir.program import Input


@attrs.define(eq=False)
class Sites:
    """Of one program."""

    _unused: Iterator[int] = attrs.field(factory=count)
    _expressions: dict[Hashable, int] = attrs.field(factory=dict)
    _drawn: dict[int, int] = attrs.field(factory=dict)

    def new(self) -> int:
        """A number that no other use has."""
        return next(self._unused)

    def drawn_from(self, value: Value, builder: Builder, bindings: dict[Input, Value]) -> int:
        """The number of all draws from what `value` of a cell is; bindings: what its inputs stand for."""
        numbers = {known: self._number(bound) for bound, known in bindings.items()}
        for op in builder.ops:
            operands = tuple(numbers[operand] for operand in op.operands)
            numbers[op.result] = self._number((op.opcode, operands, op.attributes))
        number = numbers[value]
        if number not in self._drawn:
            self._drawn[number] = self.new()
        return self._drawn[number]

    def _number(self, expression: Hashable) -> int:
        """Equal expressions have one number."""
        return self._expressions.setdefault(expression, len(self._expressions))
