"""Operations on the children in a list field: sum, mean and maximum, element by element.

Of no children all three are zeros. The gradient of the maximum goes, for every element, to the
first child that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dnc.ir.opdef import LIST, Array, Attributes, OpDef, elements, floats
from dnc.ir.types import Type


def _reduced(types: tuple[Type, ...], attributes: Attributes) -> Type:
    return elements(types[0], "operand").element


def _spread(types: tuple[Type, ...], attributes: Attributes) -> Type:
    """(dy: element, xs: list, ...) -> a gradient per child."""
    grad, xs = floats(types[0], "gradient"), elements(types[1], "children")
    for found in (grad, *types[2:]):
        if found != xs.element:
            raise ValueError(f"found {found}, expected {xs.element} as in {xs}")
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
    grad, xs, maximum = operands
    hit = xs == maximum
    first = hit & (np.cumsum(hit, axis=0) == 1)
    return np.where(first, grad, 0.0)


def _pair(
    name: str,
    value: Callable[[Sequence[Array], Attributes], Array],
    spread: Callable[[Sequence[Array], Attributes], Array],
    with_result: bool = False,
) -> tuple[OpDef, OpDef]:
    """The reduction `name` of a list, and `name`_grad(dy, xs[, y]), its gradient per child."""
    return (
        OpDef(
            name=name,
            arity=1,
            infer=_reduced,
            evaluate=value,
            gradient=lambda build, op, grad: [
                build.op(f"{name}_grad", grad, op.operands[0], *([op.result] if with_result else []))
            ],
            traits=frozenset({LIST}),
        ),
        OpDef(
            name=f"{name}_grad",
            arity=3 if with_result else 2,
            infer=_spread,
            evaluate=spread,
            traits=frozenset({LIST}),
        ),
    )


ENTRIES = (
    *_pair("list_sum", lambda operands, attributes: operands[0].sum(axis=0), _sum_grad),
    *_pair("list_mean", _mean, _mean_grad),
    *_pair("list_max", _max, _max_grad, with_result=True),
)
