"""Copies of what leaves a stage without being computed there, and of sums of slots that products read.

In: a stage. Out: its cell, with an operation behind everything that is stored, and behind the gradients that
products with parameters take. Guaranteed: the results mean the same; transposed products are stored where
they arise, without a copy.
"""

from __future__ import annotations

from collections import Counter

import attrs

from dnc.ir.cell import Cell, Op, Value
from dnc.ir.program import GradientInput, ParameterInput, SlotOutput, Stage, TableSlotOutput
from dnc.ir.transform import substitute


def with_copies(stage: Stage) -> Cell:
    """The stage's cell with every result computed by an operation that may store it.

    Inputs, constants and slices that leave the cell are copied (scaled by one); parts of a
    transposed product that go to gradient slots are not. Every term that such a part is added to may get
    a slot of its own, so it is copied likewise. A product reads what lies somewhere in whole, which a sum of
    slots does only when it has been made.
    """
    stage = attrs.evolve(stage, cell=_with_sums_of_slots(stage))
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


def _with_sums_of_slots(stage: Stage) -> Cell:
    """The cell in which no product with a parameter reads a gradient as its slots, also not a part of one."""
    cell, sources = stage.cell, dict(zip(stage.cell.inputs, stage.inputs, strict=True))
    wanted: set[Value] = set()
    for op in reversed(cell.ops):
        if op.opcode == "matmul" and isinstance(sources.get(op.operands[0]), ParameterInput):
            wanted.add(op.operands[1])
        elif op.result in wanted and op.opcode in ("slice", "concat"):
            wanted.update(op.operands)
    copies = {
        value: _copy(value, "slots")
        for value, source in sources.items()
        if value in wanted and isinstance(source, GradientInput)
    }
    copied = {value: op.result for value, op in copies.items()}
    return attrs.evolve(
        cell,
        ops=(*copies.values(), *(substitute(op, copied) for op in cell.ops)),
        results=tuple(copied.get(result, result) for result in cell.results),
    )


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
