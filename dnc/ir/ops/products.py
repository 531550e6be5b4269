"""Products: matrix times vector or matrix, with each operand transposed where gradients need it.

Shapes: matmul [m,k]@[k] -> [m], [m,k]@[k,n] -> [m,n]; matmul_t(a, b) = aᵀ@b; matmul_nt(a, b) = a@bᵀ;
outer [m],[k] -> [m,k].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dnc.ir.cell import Op, Value
from dnc.ir.opdef import PRODUCT, SURFACE, Attributes, OpDef, floats
from dnc.ir.types import TensorType, Type

if TYPE_CHECKING:
    from dnc.ir.builder import Builder


def _right(type: Type) -> TensorType:
    found = floats(type, "right operand")
    if len(found.shape) not in (1, 2):
        raise ValueError(f"right operand: found {found}, expected a vector f32[k] or a matrix f32[k x n]")
    return found


def _product(a: TensorType, b: TensorType, rows: int, inner: int) -> TensorType:
    """The type when a's dimension `inner` meets b's first one and a's dimension `rows` stays."""
    if a.shape[inner] != b.shape[0]:
        raise ValueError(
            f"found {a} and {b}, expected equal inner dimensions ({a.shape[inner]} is not {b.shape[0]})"
        )
    return TensorType((a.shape[rows], *b.shape[1:]))


def _matmul(types: tuple[Type, ...], attributes: Attributes) -> Type:
    return _product(floats(types[0], "left operand", 2), _right(types[1]), 0, 1)


def _matmul_t(types: tuple[Type, ...], attributes: Attributes) -> Type:
    return _product(floats(types[0], "left operand", 2), _right(types[1]), 1, 0)


def _matmul_nt(types: tuple[Type, ...], attributes: Attributes) -> Type:
    a, b = floats(types[0], "left operand", 2), floats(types[1], "right operand", 2)
    return _product(a, TensorType((b.shape[1], b.shape[0])), 0, 1)


def _outer(types: tuple[Type, ...], attributes: Attributes) -> Type:
    a, b = floats(types[0], "left operand", 1), floats(types[1], "right operand", 1)
    return TensorType((a.shape[0], b.shape[0]))


def _by_pair(build: Builder, a: Value, b: Value) -> Value:
    """a bᵀ: of two vectors or of two matrices with equal second dimensions."""
    rank = len(floats(b.type, "operand").shape)
    return build.op("outer" if rank == 1 else "matmul_nt", a, b)


def _matmul_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    a, b = op.operands
    return [_by_pair(build, grad, b), build.op("matmul_t", a, grad)]


def _matmul_t_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    a, b = op.operands
    return [_by_pair(build, b, grad), build.op("matmul", a, grad)]


def _matmul_nt_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    a, b = op.operands
    return [build.op("matmul", grad, b), build.op("matmul_t", grad, a)]


def _outer_gradient(build: Builder, op: Op, grad: Value) -> Sequence[Value | None]:
    a, b = op.operands
    return [build.op("matmul", grad, b), build.op("matmul_t", grad, a)]


def _flops(types: tuple[Type, ...], result: Type) -> int:
    """Two a multiplication: every element of the left matrix meets every column of the right one."""
    left, out = floats(types[0], "left"), floats(result, "result")
    columns = out.shape[1] if len(out.shape) == 2 else 1
    return 2 * left.size * columns


ENTRIES = (
    OpDef(
        name="matmul",
        arity=2,
        infer=_matmul,
        evaluate=lambda operands, attributes: operands[0] @ operands[1],
        gradient=_matmul_gradient,
        flops=_flops,
        traits=frozenset({PRODUCT}),
    ),
    OpDef(
        name="matmul_t",
        arity=2,
        infer=_matmul_t,
        evaluate=lambda operands, attributes: operands[0].T @ operands[1],
        gradient=_matmul_t_gradient,
        flops=_flops,
        traits=frozenset({PRODUCT}),
    ),
    OpDef(
        name="matmul_nt",
        arity=2,
        infer=_matmul_nt,
        evaluate=lambda operands, attributes: operands[0] @ operands[1].T,
        gradient=_matmul_nt_gradient,
        flops=_flops,
        traits=frozenset({PRODUCT}),
    ),
    OpDef(
        name="outer",
        arity=2,
        infer=_outer,
        evaluate=lambda operands, attributes: np.outer(operands[0], operands[1]),
        gradient=_outer_gradient,
        traits=frozenset({PRODUCT, SURFACE}),
    ),
)
