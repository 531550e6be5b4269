"""Operations on the children in a list field: sum, mean and maximum, element by element, and attention.

Of no children all of them are zeros. The gradient of the maximum goes, for every element, to the
first child that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dnc.ir.opdef import LIST, WHOLE, Array, Attributes, Gradient, OpDef, elements, floats
from dnc.ir.types import SCALAR, ListType, Type


def _reduced(types: tuple[Type, ...], attributes: Attributes) -> Type:
    return elements(types[0], "operand").element


def _spread(types: tuple[Type, ...], attributes: Attributes) -> Type:
    """(dy: element, xs: list) -> a gradient per child."""
    grad, xs = floats(types[0], "gradient"), elements(types[1], "children")
    if grad != xs.element:
        raise ValueError(f"found {grad}, expected {xs.element} as in {xs}")
    return xs


def _mean(operands: Sequence[Array], attributes: Attributes) -> Array:
    xs = operands[0]
    return np.asarray(xs.sum(axis=0) / max(len(xs), 1))


def _max(operands: Sequence[Array], attributes: Attributes) -> Array:
    xs = operands[0]
    return np.asarray(xs.max(axis=0) if len(xs) else np.zeros(xs.shape[1:]))


def _sum_grad(operands: Sequence[Array], attributes: Attributes) -> Array:
    grad, xs = operands
    return np.broadcast_to(grad, xs.shape).copy()


def _mean_grad(operands: Sequence[Array], attributes: Attributes) -> Array:
    grad, xs = operands
    return np.asarray(np.broadcast_to(grad, xs.shape) / max(len(xs), 1))


def _max_grad(operands: Sequence[Array], attributes: Attributes) -> Array:
    # Of a list that is worked out anew the maximum may have other last bits, so none is compared with.
    grad, xs = operands
    if not len(xs):
        return np.zeros(xs.shape)
    numbers = np.arange(len(xs)).reshape(-1, *([1] * (xs.ndim - 1)))
    return np.where(numbers == xs.argmax(axis=0), grad, 0.0)


def _pair(
    name: str,
    value: Callable[[Sequence[Array], Attributes], Array],
    spread: Callable[[Sequence[Array], Attributes], Array],
) -> tuple[OpDef, OpDef]:
    """The reduction `name` of a list, and `name`_grad(dy, xs), its gradient per child."""
    return (
        OpDef(
            name=name,
            arity=1,
            infer=_reduced,
            evaluate=value,
            gradient=lambda build, op, grad: [build.op(f"{name}_grad", grad, op.operands[0])],
            traits=frozenset({LIST}),
        ),
        OpDef(
            name=f"{name}_grad",
            arity=2,
            infer=_spread,
            evaluate=spread,
            traits=frozenset({LIST}),
        ),
    )


# ---- attention: a scalar per child ---------------------------------------------------------------


def _scalars(type: Type, what: str) -> ListType:
    found = elements(type, what)
    if found.element.shape:
        raise ValueError(f"{what}: found {found}, expected a list of scalars")
    return found


def _dot(types: tuple[Type, ...], attributes: Attributes) -> Type:
    query, xs = floats(types[0], "query", 1), elements(types[1], "children")
    if query != xs.element:
        raise ValueError(f"found {query}, expected {xs.element} as in {xs}")
    return ListType(SCALAR)


def _softmax(types: tuple[Type, ...], attributes: Attributes) -> Type:
    return _scalars(types[0], "operand")


def _softmax_grad(types: tuple[Type, ...], attributes: Attributes) -> Type:
    _scalars(types[1], "weights")
    return _scalars(types[0], "gradient")


def _weighted(types: tuple[Type, ...], attributes: Attributes) -> Type:
    _scalars(types[0], "weights")
    return elements(types[1], "children").element


def _scaled(types: tuple[Type, ...], attributes: Attributes) -> Type:
    _scalars(types[0], "weights")
    return ListType(floats(types[1], "operand", 1))


def _softmax_value(operands: Sequence[Array], attributes: Attributes) -> Array:
    scores = operands[0]
    if not len(scores):
        return np.zeros(0)
    found = np.exp(scores - scores.max())
    return np.asarray(found / found.sum())


def _softmax_grad_value(operands: Sequence[Array], attributes: Attributes) -> Array:
    grad, weights = operands
    return np.asarray(weights * (grad - np.sum(grad * weights)))


def _attention(
    name: str,
    arity: int,
    infer: Callable[[tuple[Type, ...], Attributes], Type],
    evaluate: Callable[[Sequence[Array], Attributes], Array],
    gradient: Gradient | None = None,
) -> OpDef:
    return OpDef(
        name=name,
        arity=arity,
        infer=infer,
        evaluate=evaluate,
        gradient=gradient,
        traits=frozenset({LIST, WHOLE}),
    )


ENTRIES = (
    _attention(  # the product of a vector and every child
        "list_dot",
        2,
        _dot,
        lambda operands, attributes: operands[1] @ operands[0],
        lambda build, op, grad: [
            build.op("list_weighted", grad, op.operands[1]),
            build.op("list_scaled", grad, op.operands[0]),
        ],
    ),
    _attention(  # exp of every child over their sum
        "list_softmax",
        1,
        _softmax,
        _softmax_value,
        lambda build, op, grad: [build.op("list_softmax_grad", grad, op.result)],
    ),
    _attention("list_softmax_grad", 2, _softmax_grad, _softmax_grad_value),
    _attention(  # the sum of the children, each times its weight
        "list_weighted",
        2,
        _weighted,
        lambda operands, attributes: np.tensordot(operands[0], operands[1], 1),
        lambda build, op, grad: [
            build.op("list_dot", grad, op.operands[1]),
            build.op("list_scaled", op.operands[0], grad),
        ],
    ),
    _attention(  # a vector times the weight of every child
        "list_scaled", 2, _scaled, lambda operands, attributes: np.multiply.outer(operands[0], operands[1])
    ),
    *_pair("list_sum", lambda operands, attributes: operands[0].sum(axis=0), _sum_grad),
    *_pair("list_mean", _mean, _mean_grad),
    *_pair("list_max", _max, _max_grad),
)
