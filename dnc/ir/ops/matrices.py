"""Operations on whole matrices: the transpose, and reductions of every row.

In the language a reduction is `max(M, 1)`, `logsumexp(M, 1)`, and along columns that of the transpose; a
sum is a product with ones. The gradient of a maximum goes to the first element of the row that has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dnc.ir.cell import Op, Value
from dnc.ir.opdef import (
    REDUCTION,
    SURFACE,
    VIEW,
    Array,
    Attributes,
    Evaluate,
    Gradient,
    OpDef,
    floats,
    integer,
    size,
)
from dnc.ir.types import TensorType, Type

if TYPE_CHECKING:
    from dnc.ir.builder import Builder


def _transposed(types: tuple[Type, ...], attributes: Attributes) -> Type:
    rows, columns = floats(types[0], "operand", 2).shape
    return TensorType((columns, rows))


def _of_rows(types: tuple[Type, ...], attributes: Attributes) -> Type:
    return TensorType(floats(types[0], "operand", 2).shape[:1])


def _spread(types: tuple[Type, ...], attributes: Attributes) -> Type:
    values, columns = floats(types[0], "values", 1), floats(types[1], "columns", 1)
    if values != columns:
        raise ValueError(f"found {values} and {columns}, expected equal shapes")
    return TensorType((values.shape[0], integer(attributes, "size")))


def _spread_value(operands: Sequence[Array], attributes: Attributes) -> Array:
    values, columns = operands
    hit = np.arange(integer(attributes, "size")) == columns[:, None]
    return np.where(hit, values[:, None], 0.0)


def _logsumexp(operands: Sequence[Array], attributes: Attributes) -> Array:
    top = operands[0].max(axis=1, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(operands[0] - top).sum(axis=1)))


def broadcast(build: Builder, vector: Value, columns: int) -> Value:
    """The matrix of which every column is the vector."""
    return build.op("outer", vector, build.op("constant", value=1.0, shape=(columns,)))


def _columns(op: Op) -> int:
    return floats(op.operands[0].type, "operand", 2).shape[1]


def _transpose_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    """Of a product it is one: so the gradient of a parameter stays a pair of vectors."""
    product = next((made for made in build.ops if made.result == grad and made.opcode == "outer"), None)
    if product is not None:
        return [build.op("outer", *reversed(product.operands))]
    return [build.op("transpose", grad)]


def _max_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    places = build.op("row_argmax", op.operands[0])
    return [build.op("row_spread", grad, places, size=_columns(op))]


def _logsumexp_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    matrix, columns = op.operands[0], _columns(op)
    softmax = build.op("exp", build.op("sub", matrix, broadcast(build, op.result, columns)))
    return [build.op("mul", broadcast(build, grad, columns), softmax)]


def _reduction(name: str, evaluate: Evaluate, gradient: Gradient | None, cost: int) -> OpDef:
    """An operation with a number for every row of a matrix."""
    return OpDef(
        name=name,
        arity=1,
        infer=_of_rows,
        evaluate=evaluate,
        gradient=gradient,
        flops=lambda types, result: cost * size(types[0]),
        traits=frozenset({REDUCTION}),
    )


ENTRIES = (
    OpDef(
        name="transpose",
        arity=1,
        infer=_transposed,
        evaluate=lambda operands, attributes: operands[0].T.copy(),
        gradient=_transpose_gradient,
        flops=lambda types, result: 0,
        traits=frozenset({VIEW, SURFACE}),
    ),
    _reduction("row_max", lambda operands, attributes: operands[0].max(axis=1), _max_gradient, 1),
    _reduction("row_logsumexp", _logsumexp, _logsumexp_gradient, 6),
    _reduction(  # the column of the first largest element of every row, as a number
        "row_argmax", lambda operands, attributes: operands[0].argmax(axis=1).astype(np.float64), None, 1
    ),
    OpDef(  # a number for every row, in the column that another one names; elsewhere zeros
        name="row_spread",
        arity=2,
        infer=_spread,
        evaluate=_spread_value,
        attributes=("size",),
        flops=lambda types, result: 0,
        traits=frozenset({REDUCTION}),
    ),
)
