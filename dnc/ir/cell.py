"""Cell IR: immutable SSA over shaped tensors, one `Cell` per vertex function.

A cell knows nothing of structures: what its inputs are bound to (parameters, fields, gathered
states) is said by the stage that holds it (`dnc.ir.program`). Guaranteed by the verifier: every
operand is an input or the result of an earlier operation, names are unique, types follow the
shape rules of the op table (`dnc.ir.ops`).
"""

from __future__ import annotations

import attrs

from dnc.diagnostics import Span
from dnc.ir.types import TensorType, Type

Attribute = int | float | str | bool | tuple[int, ...]


@attrs.frozen(cache_hash=True)  # passes and interpreters look values up all the time
class Value:
    """An SSA value; equal by name and type."""

    name: str
    type: Type

    @property
    def tensor(self) -> TensorType:
        """Its type; of a list that of each child's."""
        return self.type.tensor

    def __str__(self) -> str:
        return f"%{self.name}"


@attrs.frozen
class Op:
    """One operation: an entry of the op table applied to operands. All ops have one result."""

    opcode: str
    operands: tuple[Value, ...]
    result: Value
    attributes: tuple[tuple[str, Attribute], ...] = ()
    span: Span | None = attrs.field(default=None, eq=False, repr=False)

    def attribute(self, name: str) -> Attribute:
        """The attribute called `name`; KeyError if there is none."""
        return dict(self.attributes)[name]


@attrs.frozen
class Cell:
    """A function from `inputs` to `results` through `ops` in SSA order."""

    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Value, ...]

    def definitions(self) -> dict[Value, Op]:
        """The operation that defines each non-input value."""
        return {op.result: op for op in self.ops}
