"""Losses. A class of -1 means "unlabelled": its loss and its gradient are zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dnc.ir.cell import Op, Value
from dnc.ir.opdef import (
    ELEMENTWISE,
    INDEXED,
    REDUCTION,
    SURFACE,
    Array,
    Attributes,
    Expression,
    OpDef,
    floats,
    index,
    indexed_value,
    size,
)
from dnc.ir.ops.vectors import log_softmax
from dnc.ir.types import SCALAR, Type

if TYPE_CHECKING:
    from dnc.ir.builder import Builder


def _cross_entropy(types: tuple[Type, ...], attributes: Attributes) -> Type:
    floats(types[0], "logits", 1)
    index(types[1], "class")
    return SCALAR


def _cross_entropy_grad(types: tuple[Type, ...], attributes: Attributes) -> Type:
    floats(types[1], "largest", 0)
    floats(types[2], "scale", 0)
    index(types[3], "class")
    return floats(types[0], "logits", 1)


def _squared_error(types: tuple[Type, ...], attributes: Attributes) -> Type:
    a, b = floats(types[0], "first operand"), floats(types[1], "second operand")
    if a.shape != b.shape:
        raise ValueError(f"found {a} and {b}, expected equal shapes")
    return SCALAR


def _cross_entropy_value(operands: Sequence[Array], attributes: Attributes) -> Array:
    logits, label = operands[0], int(operands[1])
    return np.asarray(0.0 if label < 0 else -log_softmax(logits)[label])


def _cross_entropy_grad_element(
    m: Expression, i: Expression, logit: Expression, top: Expression, scale: Expression, label: Expression
) -> Expression:
    """Element i."""
    hot = m.select(m.equal(i, label), m.constant(1.0), m.constant(0.0))
    missing = m.greater(label * 0, label)  # an integer zero
    return m.select(missing, m.constant(0.0), m.exp(logit - top) * scale - hot)


def _cross_entropy_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    logits, label = op.operands
    parts = build.op("max", logits), build.op("softmax_scale", logits)
    return [build.op("mul", grad, build.op("cross_entropy_grad", logits, *parts, label)), None]


def _squared_error_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    by_a = build.op("mul", build.op("scale", grad, factor=2.0), build.op("sub", *op.operands))
    return [by_a, build.op("neg", by_a)]


def _kl_divergence(types: tuple[Type, ...], attributes: Attributes) -> Type:
    target, logits = floats(types[0], "first operand", 1), floats(types[1], "second operand", 1)
    if target != logits:
        raise ValueError(f"found {target} and {logits}, expected equal shapes")
    return SCALAR


def _kl_divergence_value(operands: Sequence[Array], attributes: Attributes) -> Array:
    target, logits = operands
    some = target > 0
    return np.asarray(np.sum(target[some] * (np.log(target[some]) - log_softmax(logits)[some])))


def _kl_divergence_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    logits, target = op.operands[1], build.op("relu", op.operands[0])
    surprise = build.op("sub", build.op("log", target), build.op("log_softmax", logits))
    by_target = build.op("add", surprise, build.constant(1.0))
    found = build.op("mul", build.op("sum", target), build.op("softmax", logits))
    return [build.op("mul", grad, by_target), build.op("mul", grad, build.op("sub", found, target))]


ENTRIES = (
    OpDef(  # sum of target * (log target - log softmax(logits)), where the target is not zero
        name="kl_divergence",
        arity=2,
        infer=_kl_divergence,
        evaluate=_kl_divergence_value,
        gradient=_kl_divergence_gradient,
        flops=lambda types, result: 12 * size(types[0]),
        traits=frozenset({REDUCTION, SURFACE}),
    ),
    OpDef(  # -log softmax(logits)[class]
        name="cross_entropy",
        arity=2,
        infer=_cross_entropy,
        evaluate=_cross_entropy_value,
        gradient=_cross_entropy_gradient,
        flops=lambda types, result: 8 * size(types[0]),
        traits=frozenset({REDUCTION, SURFACE}),
    ),
    OpDef(  # softmax(logits) - onehot(class), as exp(logits - max) * scale
        name="cross_entropy_grad",
        arity=4,
        infer=_cross_entropy_grad,
        evaluate=indexed_value(_cross_entropy_grad_element),
        scalar=_cross_entropy_grad_element,
        flops=lambda types, result: 6 * size(types[0]),
        traits=frozenset({ELEMENTWISE, INDEXED}),
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
