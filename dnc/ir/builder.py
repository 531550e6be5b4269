"""Builds cell IR one operation at a time.

In: operands, opcodes and attributes. Out: a `Cell`. Guaranteed: result types follow the op table
and names are unique; a wrong operand raises ValueError with what was found and expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dnc.diagnostics import Span
from dnc.ir.cell import Attribute, Cell, Op, Value
from dnc.ir.ops import OPS
from dnc.ir.types import ListType, Type


def infer_type(opcode: str, types: tuple[Type, ...], attributes: dict[str, Attribute]) -> Type:
    """The result type of an operation; ValueError if it does not exist or does not fit."""
    if opcode not in OPS:
        raise ValueError(f"unknown operation '{opcode}'")
    definition = OPS[opcode]
    if definition.arity is not None and len(types) != definition.arity:
        raise ValueError(f"{opcode}: found {len(types)} operands, expected {definition.arity}")
    if definition.arity is None and not types:
        raise ValueError(f"{opcode}: found no operands, expected one or more")
    if set(attributes) != set(definition.attributes):
        found, expected = ", ".join(sorted(attributes)), ", ".join(sorted(definition.attributes))
        raise ValueError(f"{opcode}: found attributes ({found}), expected ({expected})")
    try:
        return definition.infer(types, attributes)
    except ValueError as error:
        raise ValueError(f"{opcode}: {error}") from None


class Builder:
    """Collects inputs and operations. `span` is given to every operation built while it is set."""

    def __init__(self, inputs: Iterable[Value] = (), ops: Iterable[Op] = ()) -> None:
        self.inputs: list[Value] = list(inputs)
        self.ops: list[Op] = list(ops)
        self.span: Span | None = None
        self._names = {value.name for value in self.inputs} | {op.result.name for op in self.ops}
        self._counters: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """A name not used so far: the hint itself, or the hint and a number."""
        name = hint
        while name in self._names:
            self._counters[hint] = self._counters.get(hint, 0) + 1
            name = f"{hint}_{self._counters[hint]}"
        self._names.add(name)
        return name

    def input(self, type: Type, name: str = "x") -> Value:
        """A new input of the cell."""
        value = Value(self.fresh(name), type)
        self.inputs.append(value)
        return value

    def op(
        self,
        opcode: str,
        *operands: Value,
        name: str | None = None,
        span: Span | None = None,
        **attributes: Attribute,
    ) -> Value:
        """Appends an operation and returns its result. `name` is a hint for the result's name."""
        type = infer_type(opcode, tuple(operand.type for operand in operands), attributes)
        result = Value(self.fresh(name or opcode), type)
        ordered = tuple((key, attributes[key]) for key in OPS[opcode].attributes)
        self.ops.append(Op(opcode, tuple(operands), result, ordered, span or self.span))
        return result

    def constant(self, value: float, shape: tuple[int, ...] = (), name: str = "constant") -> Value:
        """The constant `value` in every element of `shape`."""
        return self.op("constant", name=name, value=float(value), shape=shape)

    def total(self, values: Sequence[Value]) -> Value:
        """The sum of one or more values of equal type, in order."""
        result = values[0]
        for value in values[1:]:
            result = self.op("each_add" if isinstance(value.type, ListType) else "add", result, value)
        return result

    def finish(self, results: Iterable[Value]) -> Cell:
        """The cell built so far, returning `results`."""
        return Cell(tuple(self.inputs), tuple(self.ops), tuple(results))
