"""Copies of what leaves a stage without being computed there.

In: a stage. Out: its cell, with an operation behind everything that is stored. Guaranteed: the results mean
the same; transposed products are stored where they arise, without a copy.
"""

from __future__ import annotations

from collections import Counter

import attrs

from dnc.ir.cell import Cell, Op, Value
from dnc.ir.program import SlotOutput, Stage, TableSlotOutput


def with_copies(stage: Stage) -> Cell:
    """The stage's cell with every result computed by an operation that may store it.

    Inputs, constants and slices that leave the cell are copied (scaled by one); parts of a
    transposed product that go to gradient slots are not. Every term that such a part is added to may get
    a slot of its own, so it is copied likewise.
    """
    made = _Definitions(stage)
    terms: dict[Value, dict[Value, Op]] = {}  # copies by the sum that reads them
    added: list[Op] = []
    results = []
    for index, (value, output) in enumerate(zip(stage.cell.results, stage.outputs, strict=True)):
        slot = isinstance(output, SlotOutput | TableSlotOutput)
        summed = made.terms(value) if slot else []
        if any(made.is_part(term) for _, term in summed):
            for total, term in summed:
                if not made.is_computed(term):
                    terms.setdefault(total, {})[term] = _copy(term, f"{index}.{total.name}")
        if made.is_part(value):
            stored = slot
        else:
            stored = made.source(value) == value and made.is_computed(value)
        if stored:
            results.append(value)
        else:
            added.append(_copy(value, str(index)))
            results.append(added[-1].result)
    ops: list[Op] = []
    for op in stage.cell.ops:
        copies = terms.get(op.result, {})
        ops += copies.values()
        operands = tuple(copies[v].result if v in copies else v for v in op.operands)
        ops.append(attrs.evolve(op, operands=operands))
    return Cell(stage.cell.inputs, (*ops, *added), tuple(results))


class _Definitions:
    """What makes the values of a stage."""

    def __init__(self, stage: Stage) -> None:
        self.ops = stage.cell.definitions()
        read = (value for op in stage.cell.ops for value in op.operands)
        self.uses = Counter([*stage.cell.results, *read])

    def source(self, value: Value) -> Value:
        """What a value is a slice of; itself, if it is none."""
        while value in self.ops and self.ops[value].opcode == "slice":
            value = self.ops[value].operands[0]
        return value

    def is_part(self, value: Value) -> bool:
        """Whether it is a transposed product, or a slice of one."""
        op = self.ops.get(self.source(value))
        return op is not None and op.opcode == "matmul_t"

    def is_computed(self, value: Value) -> bool:
        """Whether it is made of something by an operation, or a slice of that."""
        op = self.ops.get(self.source(value))
        return op is not None and bool(op.operands)

    def terms(self, value: Value) -> list[tuple[Value, Value]]:
        """(sum, term) of every term of a sum that nothing else reads; none for what is no sum."""
        op = self.ops.get(value)
        if op is None or op.opcode != "add" or self.uses[value] > 1:
            return []
        if any(v.type != value.type for v in op.operands):
            return []
        return [pair for v in op.operands for pair in self.terms(v) or [(value, v)]]


def _copy(value: Value, name: str) -> Op:
    return Op("scale", (value,), Value(f"copy.{name}.{value.name}", value.type), (("factor", 1.0),))
