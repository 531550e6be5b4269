"""Operations on whole vectors: reductions, softmax, and the views slice, concat and pad, which also
take the rows of matrices."""

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
    OpDef,
    floats,
    index,
    integer,
    size,
)
from dnc.ir.types import INDEX, SCALAR, TensorType, Type

if TYPE_CHECKING:
    from dnc.ir.builder import Builder


def _reduced(types: tuple[Type, ...], attributes: Attributes) -> Type:
    floats(types[0], "operand")
    return SCALAR


def _vector(types: tuple[Type, ...], attributes: Attributes) -> Type:
    return floats(types[0], "operand", 1)


def _of_vector(types: tuple[Type, ...], attributes: Attributes) -> Type:
    floats(types[0], "operand", 1)
    return SCALAR


def _argmax(types: tuple[Type, ...], attributes: Attributes) -> Type:
    floats(types[0], "operand", 1)
    return INDEX


def _rows(type: Type, what: str) -> tuple[int, tuple[int, ...]]:
    """Elements of a vector, or rows of a matrix, and the shape of one."""
    found = floats(type, what, None if isinstance(type, TensorType) and len(type.shape) == 2 else 1)
    return found.shape[0], found.shape[1:]


def _concat(types: tuple[Type, ...], attributes: Attributes) -> Type:
    found = [_rows(type, f"operand {i + 1}") for i, type in enumerate(types)]
    row = found[0][1]
    for i, (_, other) in enumerate(found):
        if other != row:
            expected = f"rows of {row[0]}, as in {types[0]}" if row else "a vector [n]"
            raise ValueError(f"operand {i + 1}: found {types[i]}, expected {expected}")
    return TensorType((sum(count for count, _ in found), *row))


def _slice(types: tuple[Type, ...], attributes: Attributes) -> Type:
    width, row = _rows(types[0], "operand")
    begin, end = integer(attributes, "begin"), integer(attributes, "end")
    if not 0 <= begin < end <= width:
        raise ValueError(f"found [{begin}:{end}] of {types[0]}, expected 0 <= begin < end <= {width}")
    return TensorType((end - begin, *row))


def _pad(types: tuple[Type, ...], attributes: Attributes) -> Type:
    width, row = _rows(types[0], "operand")
    begin, total = integer(attributes, "begin"), integer(attributes, "size")
    if not 0 <= begin <= begin + width <= total:
        raise ValueError(f"found {types[0]} at {begin} of {total}, expected 0 <= begin <= {total - width}")
    return TensorType((total, *row))


def softmax(x: Array) -> Array:
    """exp(x) over its sum, computed without overflow; the same shape."""
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())


def log_softmax(x: Array) -> Array:
    """The logarithm of softmax, computed without overflow; the same shape."""
    shifted = x - x.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def logsumexp(x: Array) -> Array:
    """The logarithm of the sum of exp(x), computed without overflow."""
    top = x.max()
    return np.asarray(top + np.log(np.exp(x - top).sum()))


def _pad_value(operands: Sequence[Array], attributes: Attributes) -> Array:
    begin, row = integer(attributes, "begin"), operands[0].shape[1:]
    out = np.zeros((integer(attributes, "size"), *row))
    out[begin : begin + len(operands[0])] = operands[0]
    return out


def _sum_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    shape = floats(op.operands[0].type, "operand").shape
    return [build.op("fill", grad, shape=shape) if shape else grad]


def _mean_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    return _sum_gradient(build, op, build.op("scale", grad, factor=1.0 / size(op.operands[0].type)))


def _softmax_scale(operands: Sequence[Array], attributes: Attributes) -> Array:
    return np.asarray(1.0 / np.exp(operands[0] - operands[0].max()).sum())


def _softmax_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    weighted = build.op("mul", grad, op.result)
    return [build.op("sub", weighted, build.op("mul", build.op("sum", weighted), op.result))]


def _log_softmax_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    return [build.op("sub", grad, build.op("mul", build.op("sum", grad), build.op("exp", op.result)))]


def _logsumexp_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    return [build.op("mul", grad, build.op("softmax", op.operands[0]))]


def _max_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    (x,) = op.operands
    hot = build.op("one_hot", build.op("argmax", x), size=size(x.type))
    return [build.op("mul", grad, hot)]


def _concat_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    grads, begin = [], 0
    for operand in op.operands:
        end = begin + _rows(operand.type, "operand")[0]
        grads.append(build.op("slice", grad, begin=begin, end=end))
        begin = end
    return grads


def _slice_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    total, _ = _rows(op.operands[0].type, "operand")
    return [build.op("pad", grad, begin=op.attribute("begin"), size=total)]


def _pad_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    begin = integer(dict(op.attributes), "begin")
    count, _ = _rows(op.operands[0].type, "operand")
    return [build.op("slice", grad, begin=begin, end=begin + count)]


def _slice_value(operands: Sequence[Array], attributes: Attributes) -> Array:
    return operands[0][integer(attributes, "begin") : integer(attributes, "end")]


def _row(types: tuple[Type, ...], attributes: Attributes) -> Type:
    _, row = _rows(types[0], "operand")
    index(types[1], "index")
    return TensorType(row)


def _row_value(operands: Sequence[Array], attributes: Attributes) -> Array:
    value, chosen = operands[0], int(operands[1])
    return np.asarray(value[chosen] if chosen >= 0 else np.zeros(value.shape[1:]))


def _row_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    value, chosen = op.operands
    hot = build.op("one_hot", chosen, size=value.tensor.shape[0])
    return [build.op("outer" if op.result.tensor.shape else "mul", hot, grad), None]


def _one_hot(types: tuple[Type, ...], attributes: Attributes) -> Type:
    index(types[0], "index")
    return TensorType((integer(attributes, "size"),))


_VIEW = frozenset({VIEW})
_NAMED = frozenset({REDUCTION, SURFACE})

ENTRIES = (
    OpDef(  # the row of a matrix, or the element of a vector, that an index chooses; zeros without one
        name="row",
        arity=2,
        infer=_row,
        evaluate=_row_value,
        gradient=_row_gradient,
        flops=lambda types, result: 0,
        traits=frozenset({REDUCTION}),
    ),
    OpDef(  # one at the index, zeros elsewhere
        name="one_hot",
        arity=1,
        infer=_one_hot,
        evaluate=lambda operands, attributes: (
            np.arange(integer(attributes, "size")) == int(operands[0])
        ).astype(np.float64),
        attributes=("size",),
        flops=lambda types, result: 0,
        traits=frozenset({REDUCTION}),
    ),
    OpDef(
        name="sum",
        arity=1,
        infer=_reduced,
        evaluate=lambda operands, attributes: np.asarray(np.sum(operands[0])),
        gradient=_sum_gradient,
        flops=lambda types, result: size(types[0]),
        traits=_NAMED,
    ),
    OpDef(
        name="mean",
        arity=1,
        infer=_reduced,
        evaluate=lambda operands, attributes: np.asarray(np.mean(operands[0])),
        gradient=_mean_gradient,
        flops=lambda types, result: size(types[0]) + 1,
        traits=_NAMED,
    ),
    OpDef(
        name="softmax",
        arity=1,
        infer=_vector,
        evaluate=lambda operands, attributes: softmax(operands[0]),
        gradient=_softmax_gradient,
        flops=lambda types, result: 8 * size(result),
        traits=_NAMED,
    ),
    OpDef(
        name="log_softmax",
        arity=1,
        infer=_vector,
        evaluate=lambda operands, attributes: log_softmax(operands[0]),
        gradient=_log_softmax_gradient,
        flops=lambda types, result: 8 * size(result),
        traits=_NAMED,
    ),
    OpDef(  # log of the sum of exp: what log_softmax takes off
        name="logsumexp",
        arity=1,
        infer=_of_vector,
        evaluate=lambda operands, attributes: logsumexp(operands[0]),
        gradient=_logsumexp_gradient,
        flops=lambda types, result: 6 * size(types[0]),
        traits=_NAMED,
    ),
    OpDef(  # its gradient goes to the first one, where several are largest; what softmax takes off
        name="max",
        arity=1,
        infer=_of_vector,
        evaluate=lambda operands, attributes: np.asarray(operands[0].max()),
        gradient=_max_gradient,
        flops=lambda types, result: size(types[0]),
        traits=_NAMED,
    ),
    OpDef(  # what softmax multiplies exp(x - max(x)) by
        name="softmax_scale",
        arity=1,
        infer=_of_vector,
        evaluate=_softmax_scale,
        flops=lambda types, result: 6 * size(types[0]),
        traits=frozenset({REDUCTION}),
    ),
    OpDef(  # the first one, where several are largest
        name="argmax",
        arity=1,
        infer=_argmax,
        evaluate=lambda operands, attributes: np.asarray(np.argmax(operands[0])),
        flops=lambda types, result: size(types[0]),
        traits=_NAMED,
    ),
    OpDef(
        name="concat",
        arity=None,
        infer=_concat,
        evaluate=lambda operands, attributes: np.concatenate(list(operands)),
        gradient=_concat_gradient,
        flops=lambda types, result: 0,
        traits=frozenset({VIEW, SURFACE}),
    ),
    OpDef(  # elements, or rows of a matrix, begin to end - 1
        name="slice",
        arity=1,
        infer=_slice,
        evaluate=_slice_value,
        gradient=_slice_gradient,
        attributes=("begin", "end"),
        flops=lambda types, result: 0,
        traits=_VIEW,
    ),
    OpDef(  # zeros of `size`, with the operand at `begin`
        name="pad",
        arity=1,
        infer=_pad,
        evaluate=_pad_value,
        gradient=_pad_gradient,
        attributes=("begin", "size"),
        flops=lambda types, result: 0,
        traits=_VIEW,
    ),
)
