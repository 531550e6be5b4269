"""Sums, means and maxima over children, and their gradients: one element of every child.

In: a list operation and the scalars of one element; a list is (count, child -> scalar). Out: a scalar
or a list. Guaranteed: unit cells and vertex cells of all targets share these; children count in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.tirx.script.builder import ir as T

from dnc.codegen.emit import Expr, any_of, floats, let, local, loop, put, when
from dnc.ir.cell import Op


def list_op(op: Op, operands: list[Any], zero: Expr) -> Any:
    """A list operation on one element: operands are scalars, lists are (count, child -> scalar)."""
    if op.opcode in ("list_sum", "list_mean"):
        count, read = operands[0]
        total = local("total", *floats(0.0, zero))
        with loop("child", count) as child:
            put(total, 0, total[0] + read(child))
        if op.opcode == "list_sum":
            return let("list_sum", total[0])
        return let("list_mean", total[0] / T.cast(T.max(count, 1), "float32"))
    if op.opcode == "list_max":
        count, read = operands[0]
        return let("list_max", _largest(count, read, zero)[0])
    grad, (count, read) = operands[0], operands[1]
    if op.opcode == "list_sum_grad":
        return count, lambda child: grad
    if op.opcode == "list_mean_grad":
        share = let("share", grad / T.cast(T.max(count, 1), "float32"))
        return count, lambda child: share
    assert op.opcode == "list_max_grad", op.opcode
    first = let("first", _largest(count, read, zero)[1])
    return count, lambda child: T.Select(child == first, grad, zero)


def _largest(count: Expr, read: Callable[[Expr], Expr], zero: Expr) -> tuple[Expr, Expr]:
    """The largest element of a list, and the first child that has it: zero and -1 of none."""
    best, first = local("best", "float32", zero), local("first", "int32", -1)
    with loop("child", count) as child:
        found = let("found", read(child))
        with when(any_of(child == 0, found > best[0])):
            put(best, 0, found)
            put(first, 0, child)
    return best[0], first[0]
