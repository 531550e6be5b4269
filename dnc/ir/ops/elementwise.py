"""Element-wise operations: each is defined by its scalar function alone.

A scalar operand ([]) of a binary operation is used for every element; its gradient is the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dnc.ir.cell import Op, Value
from dnc.ir.noise import SITES
from dnc.ir.opdef import (
    CONSTANT,
    ELEMENTWISE,
    INDEXED,
    NUMPY_MATH,
    SURFACE,
    Array,
    Attributes,
    Expression,
    Gradient,
    OpDef,
    floats,
    index,
    indexed_value,
    integer,
    number,
    shape,
    size,
)
from dnc.ir.types import SCALAR, TensorType, Type

if TYPE_CHECKING:
    from dnc.ir.builder import Builder


def _unary(types: tuple[Type, ...], attributes: Attributes) -> Type:
    return floats(types[0], "operand")


def _binary(types: tuple[Type, ...], attributes: Attributes) -> Type:
    a, b = floats(types[0], "first operand"), floats(types[1], "second operand")
    if a.shape and b.shape and a.shape != b.shape:
        raise ValueError(f"found {a} and {b}, expected equal shapes or a scalar")
    return a if a.shape else b


def _scaled(types: tuple[Type, ...], attributes: Attributes) -> Type:
    number(attributes, "factor")
    return floats(types[0], "operand")


def _filled(types: tuple[Type, ...], attributes: Attributes) -> Type:
    floats(types[0], "operand", 0)
    return TensorType(shape(attributes))


def _constant(types: tuple[Type, ...], attributes: Attributes) -> Type:
    number(attributes, "value")
    return TensorType(shape(attributes))


def _indices_equal(types: tuple[Type, ...], attributes: Attributes) -> Type:
    index(types[0], "first operand")
    index(types[1], "second operand")
    return SCALAR


def _index_to_float(types: tuple[Type, ...], attributes: Attributes) -> Type:
    index(types[0], "operand")
    return SCALAR


def _like(build: Builder, value: Value, grad: Value) -> Value:
    """`grad` summed down to the shape of `value`, if that was broadcast."""
    return build.op("sum", grad) if value.type == SCALAR and grad.type != SCALAR else grad


def _one_minus(build: Builder, value: Value) -> Value:
    return build.op("sub", build.constant(1.0), value)


def _add(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    return [_like(build, operand, grad) for operand in op.operands]


def _sub(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    a, b = op.operands
    return [_like(build, a, grad), _like(build, b, build.op("neg", grad))]


def _mul(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    a, b = op.operands
    return [_like(build, a, build.op("mul", grad, b)), _like(build, b, build.op("mul", grad, a))]


def _div(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    a, b = op.operands
    by_a = build.op("div", grad, b)
    return [_like(build, a, by_a), _like(build, b, build.op("neg", build.op("mul", by_a, op.result)))]


def _maximum(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    """Of two equal elements the first one gets it."""
    a, b = op.operands
    return _chosen(build, op, grad, build.op("sub", b, a))


def _minimum(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    a, b = op.operands
    return _chosen(build, op, grad, build.op("sub", a, b))


def _chosen(build: Builder, op: Op, grad: Value, second: Value) -> Sequence[Value | None]:
    """The gradients of two operands, of which the second one was chosen where `second` is positive."""
    a, b = op.operands
    by_b = build.op("mul", grad, build.op("step", second))
    return [_like(build, a, build.op("sub", grad, by_b)), _like(build, b, by_b)]


def _sigmoid(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    y = op.result
    return [build.op("mul", grad, build.op("mul", y, _one_minus(build, y)))]


def _tanh(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    return [build.op("mul", grad, _one_minus(build, build.op("mul", op.result, op.result)))]


def _scale(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    return [build.op("scale", grad, factor=op.attribute("factor"))]


def _step(m: Expression, a: Expression) -> Expression:
    return m.select(m.greater(a, m.constant(0.0)), m.constant(1.0), m.constant(0.0))


def _dropout(types: tuple[Type, ...], attributes: Attributes) -> Type:
    index(types[1], "key")
    if not 0 <= number(attributes, "rate") < 1:
        raise ValueError(f"attribute rate: found {attributes['rate']}, expected at least 0 and below 1")
    integer(attributes, "site")
    return floats(types[0], "operand")


def _dropped(
    m: Expression, i: Expression, a: Expression, key: Expression, *, rate: float, site: int
) -> Expression:
    """Element i. A key of zero, as in evaluation, drops nothing."""
    rate = round(rate * 2**24) / 2**24  # a number that random can be, and float32 holds
    drops = m.greater(m.constant(rate), m.random(key, i + (site * SITES & 0x3FFFFFFF)))
    factor = m.select(drops, m.constant(0.0), m.constant(1.0 / (1.0 - rate)))
    return a * m.select(m.equal(key, key * 0), m.constant(1.0), factor)


def _noisy(types: tuple[Type, ...], attributes: Attributes) -> Type:
    index(types[1], "key")
    integer(attributes, "site")
    return floats(types[0], "operand", 1)


def _with_gumbel_noise(
    m: Expression, i: Expression, a: Expression, key: Expression, *, site: int
) -> Expression:
    """Element i. A key of zero, as in a prediction without a seed, adds nothing."""
    chance = m.maximum(m.random(key, i + (site * SITES & 0x3FFFFFFF)), m.constant(2.0**-25))
    noise = -m.log(-m.log(chance))
    return a + m.select(m.equal(key, key * 0), m.constant(0.0), noise)


def _entry(
    name: str,
    arity: int,
    scalar: Callable[..., Expression],
    gradient: Gradient | None,
    infer: Callable[[tuple[Type, ...], Attributes], Type],
    attributes: tuple[str, ...] = (),
    cost: int = 1,
    traits: frozenset[str] = frozenset(),
) -> OpDef:
    """An entry whose NumPy meaning is its scalar function."""

    def evaluate(operands: Sequence[Array], attributes: Attributes) -> Array:
        return np.asarray(scalar(NUMPY_MATH, *operands, **attributes), np.float64)

    return OpDef(
        name=name,
        arity=arity,
        infer=infer,
        evaluate=evaluate,
        gradient=gradient,
        attributes=attributes,
        scalar=scalar,
        flops=lambda types, result: cost * size(result),
        traits=traits | {ELEMENTWISE},
    )


_NAMED = frozenset({SURFACE})

ENTRIES = (
    _entry("add", 2, lambda m, a, b: a + b, _add, _binary),
    _entry("sub", 2, lambda m, a, b: a - b, _sub, _binary),
    _entry("mul", 2, lambda m, a, b: a * b, _mul, _binary),
    _entry("div", 2, lambda m, a, b: a / b, _div, _binary, cost=4),
    _entry("maximum", 2, lambda m, a, b: m.maximum(a, b), _maximum, _binary, traits=_NAMED),
    _entry("minimum", 2, lambda m, a, b: -m.maximum(-a, -b), _minimum, _binary, traits=_NAMED),
    _entry("neg", 1, lambda m, a: -a, lambda build, op, grad: [build.op("neg", grad)], _unary),
    _entry(
        "abs",
        1,
        lambda m, a: m.maximum(a, -a),
        lambda build, op, grad: [build.op("mul", grad, build.op("sign", op.operands[0]))],
        _unary,
        traits=_NAMED,
    ),
    _entry("sigmoid", 1, lambda m, a: m.sigmoid(a), _sigmoid, _unary, cost=8, traits=_NAMED),
    _entry("tanh", 1, lambda m, a: m.tanh(a), _tanh, _unary, cost=8, traits=_NAMED),
    _entry(  # its derivative at 0 is 0
        "relu",
        1,
        lambda m, a: m.maximum(a, m.constant(0.0)),
        lambda build, op, grad: [build.op("mul", grad, build.op("step", op.result))],
        _unary,
        traits=_NAMED,
    ),
    _entry(
        "exp",
        1,
        lambda m, a: m.exp(a),
        lambda build, op, grad: [build.op("mul", grad, op.result)],
        _unary,
        cost=4,
        traits=_NAMED,
    ),
    _entry(
        "log",
        1,
        lambda m, a: m.log(a),
        lambda build, op, grad: [build.op("div", grad, op.operands[0])],
        _unary,
        cost=4,
        traits=_NAMED,
    ),
    _entry(
        "sqrt",
        1,
        lambda m, a: m.sqrt(a),
        lambda build, op, grad: [build.op("div", build.op("scale", grad, factor=0.5), op.result)],
        _unary,
        cost=4,
        traits=_NAMED,
    ),
    OpDef(  # zero with the probability `rate`, else scaled up; `site` tells one dropout from another
        name="dropout",
        arity=2,
        infer=_dropout,
        evaluate=indexed_value(_dropped),
        gradient=lambda build, op, grad: [
            build.op("dropout", grad, op.operands[1], rate=op.attribute("rate"), site=op.attribute("site")),
            None,
        ],
        attributes=("rate", "site"),
        scalar=_dropped,
        flops=lambda types, result: 12 * size(result),
        traits=frozenset({ELEMENTWISE, INDEXED}),
    ),
    # With Gumbel noise the largest element is at i with the probability softmax(x)[i]. Nothing but `argmax`
    # reads it, which has no gradient.
    OpDef(
        name="gumbel",
        arity=2,
        infer=_noisy,
        evaluate=indexed_value(_with_gumbel_noise),
        attributes=("site",),
        scalar=_with_gumbel_noise,
        flops=lambda types, result: 30 * size(result),
        traits=frozenset({ELEMENTWISE, INDEXED}),
    ),
    _entry("scale", 1, lambda m, a, *, factor: a * m.constant(factor), _scale, _scaled, ("factor",)),
    _entry(  # -1, 0 or 1
        "sign", 1, lambda m, a: _step(m, a) - _step(m, -a), None, _unary
    ),
    _entry("step", 1, _step, None, _unary),  # 1 where a > 0, else 0
    _entry(
        "equal",
        2,
        lambda m, a, b: m.select(m.equal(a, b), m.constant(1.0), m.constant(0.0)),
        None,
        _indices_equal,
    ),
    _entry("index_to_float", 1, lambda m, a: m.to_float(a), None, _index_to_float),
    OpDef(  # a scalar in every element of `shape`
        name="fill",
        arity=1,
        infer=_filled,
        evaluate=lambda operands, attributes: np.full(shape(attributes), operands[0], np.float64),
        gradient=lambda build, op, grad: [build.op("sum", grad)],
        attributes=("shape",),
        scalar=lambda m, a, *, shape: a,
        flops=lambda types, result: 0,
        traits=frozenset({ELEMENTWISE}),
    ),
    OpDef(
        name="constant",
        arity=0,
        infer=_constant,
        evaluate=lambda operands, attributes: np.full(
            shape(attributes), number(attributes, "value"), np.float64
        ),
        attributes=("value", "shape"),
        scalar=lambda m, *, value, shape: m.constant(value),
        flops=lambda types, result: 0,
        traits=frozenset({CONSTANT}),
    ),
)
