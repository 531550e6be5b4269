"""Losses. A class of -1 means "unlabelled": its loss and its gradient are zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dnc.ir.cell import Op, Value
from dnc.ir.opdef import REDUCTION, SURFACE, Array, Attributes, OpDef, floats, index, size
from dnc.ir.ops.vectors import log_softmax, softmax
from dnc.ir.types import SCALAR, Type

if TYPE_CHECKING:
    from dnc.ir.builder import Builder


def _cross_entropy(types: tuple[Type, ...], attributes: Attributes) -> Type:
    floats(types[0], "logits", 1)
    index(types[1], "class")
    return SCALAR


def _cross_entropy_grad(types: tuple[Type, ...], attributes: Attributes) -> Type:
    index(types[1], "class")
    return floats(types[0], "logits", 1)


def _squared_error(types: tuple[Type, ...], attributes: Attributes) -> Type:
    a, b = floats(types[0], "first operand"), floats(types[1], "second operand")
    if a.shape != b.shape:
        raise ValueError(f"found {a} and {b}, expected equal shapes")
    return SCALAR


def _cross_entropy_value(operands: Sequence[Array], attributes: Attributes) -> Array:
    logits, label = operands[0], int(operands[1])
    return np.asarray(0.0 if label < 0 else -log_softmax(logits)[label])


def _cross_entropy_grad_value(operands: Sequence[Array], attributes: Attributes) -> Array:
    logits, label = operands[0], int(operands[1])
    if label < 0:
        return np.zeros_like(logits)
    out = softmax(logits)
    out[label] -= 1.0
    return out


def _cross_entropy_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    return [build.op("mul", grad, build.op("cross_entropy_grad", *op.operands)), None]


def _squared_error_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    by_a = build.op("mul", build.op("scale", grad, factor=2.0), build.op("sub", *op.operands))
    return [by_a, build.op("neg", by_a)]


ENTRIES = (
    OpDef(  # -log softmax(logits)[class]
        name="cross_entropy",
        arity=2,
        infer=_cross_entropy,
        evaluate=_cross_entropy_value,
        gradient=_cross_entropy_gradient,
        flops=lambda types, result: 8 * size(types[0]),
        traits=frozenset({REDUCTION, SURFACE}),
    ),
    OpDef(  # softmax(logits) - onehot(class)
        name="cross_entropy_grad",
        arity=2,
        infer=_cross_entropy_grad,
        evaluate=_cross_entropy_grad_value,
        flops=lambda types, result: 8 * size(types[0]),
        traits=frozenset({REDUCTION}),
    ),
    OpDef(  # sum of (a - b)²
        name="squared_error",
        arity=2,
        infer=_squared_error,
        evaluate=lambda operands, attributes: np.asarray(np.sum((operands[0] - operands[1]) ** 2)),
        gradient=_squared_error_gradient,
        flops=lambda types, result: 3 * size(types[0]),
        traits=frozenset({REDUCTION, SURFACE}),
    ),
)
