"""Element-wise operations on every child in a list: `each_tanh` is `tanh` of every child.

In: the entries of `elementwise`. Out: for each of them that has a gradient, or is part of one, an entry that
takes lists alone; of lists of scalars and of vectors a scalar goes with every element. `list_repeat` makes a
list of what every child sees alike. Guaranteed: shape rule, meaning, gradient and cost are those of the
element-wise operation, once for every child.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from dnc.ir.cell import Attribute, Op, Value
from dnc.ir.opdef import (
    ELEMENTWISE,
    INDEXED,
    LIST,
    NUMPY_MATH,
    WHOLE,
    Array,
    Attributes,
    OpDef,
    elements,
    floats,
)
from dnc.ir.ops import elementwise
from dnc.ir.types import ListType, Type

if TYPE_CHECKING:
    from dnc.ir.builder import Builder

EACH, REPEAT = "each_", "list_repeat"
NOT_LIFTED = ("equal", "index_to_float", "fill")  # of classes, or not of equal shapes


def per_child_sum(build: Builder, children: Value) -> Value:
    """Of a list of vectors the sum of every one: a list of scalars."""
    return build.op("list_dot", build.constant(1.0, children.tensor.shape), children)


class _EachBuilder:
    """Builds for every child in a list what a gradient builds for one value."""

    def __init__(self, build: Builder, children: Value) -> None:
        self.build, self.children = build, children

    def op(self, opcode: str, *operands: Value, **attributes: Attribute) -> Value:
        """The operation on every child."""
        lists = [
            value if isinstance(value.type, ListType) else self.build.op(REPEAT, value, self.children)
            for value in operands
        ]
        return self.build.op(EACH + opcode, *lists, name=None, span=None, **attributes)

    def constant(self, value: float) -> Value:
        """A number, which every child sees."""
        return self.build.constant(value)


def _lifted(base: OpDef) -> OpDef:
    def infer(types: tuple[Type, ...], attributes: Attributes) -> Type:
        found = [elements(type, "operand").element for type in types]
        for type in found:
            if len(type.shape) > 1:
                raise ValueError(f"operand: found a list of {type}, expected one of scalars or vectors")
        element = base.infer(tuple(found), attributes)
        return ListType(element.tensor)

    def evaluate(operands: Sequence[Array], attributes: Attributes) -> Array:
        rank = max(operand.ndim for operand in operands)
        alike = [operand.reshape(operand.shape + (1,) * (rank - operand.ndim)) for operand in operands]
        assert base.scalar is not None
        return np.asarray(base.scalar(NUMPY_MATH, *alike, **attributes), np.float64)

    def gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
        assert base.gradient is not None
        of_each = cast("Builder", _EachBuilder(build, op.operands[0]))
        found = base.gradient(of_each, op, grad)
        return [
            by if by is None or by.type == operand.type else per_child_sum(build, by)
            for operand, by in zip(op.operands, found, strict=True)
        ]

    return OpDef(
        name=EACH + base.name,
        arity=base.arity,
        infer=infer,
        evaluate=evaluate,
        gradient=None if base.gradient is None else gradient,
        attributes=base.attributes,
        flops=base.flops,
        traits=frozenset({LIST, WHOLE}),
    )


def _repeated(types: tuple[Type, ...], attributes: Attributes) -> Type:
    elements(types[1], "children")
    return ListType(floats(types[0], "operand"))


def _repeat(operands: Sequence[Array], attributes: Attributes) -> Array:
    value, children = operands
    return np.broadcast_to(value, (len(children), *value.shape)).copy()


LIFTED = {
    EACH + base.name: base
    for base in elementwise.ENTRIES
    if base.has(ELEMENTWISE) and not base.has(INDEXED) and base.name not in NOT_LIFTED
}
"""By the names of operations on every child those that they are."""

ENTRIES = (
    *map(_lifted, LIFTED.values()),
    OpDef(  # a value, for every child of a list
        name=REPEAT,
        arity=2,
        infer=_repeated,
        evaluate=_repeat,
        gradient=lambda build, op, grad: [build.op("list_sum", grad), None],
        flops=lambda types, result: 0,
        traits=frozenset({LIST, WHOLE}),
    ),
)
