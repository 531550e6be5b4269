"""Axes of a matrix, as `max(M, 1)`, vectors beside matrices, and parts of a value, as `x[2]`.

In: typed operands. Out: the operations of the op table that they are made of. Axis 1 goes along every row and
leaves a number a row, axis 0 along every column, and a vector goes with every row, as in NumPy and PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable

from dnc.diagnostics import Span
from dnc.frontend.report import Report
from dnc.frontend.typed import Apply, Constant, Expression, Index, describe, ir_type
from dnc.ir.builder import infer_type
from dnc.ir.cell import Attribute
from dnc.ir.types import TensorType


class _Maker:
    """Makes operations that all stand at one place of the source."""

    def __init__(self, span: Span) -> None:
        self.span = span

    def __call__(self, opcode: str, *operands: Expression, **attributes: Attribute) -> Apply:
        types = [ir_type(operand.type) for operand in operands]
        type = infer_type(opcode, tuple(each for each in types if each is not None), attributes)
        assert isinstance(type, TensorType)
        return Apply(opcode, operands, tuple(attributes.items()), type, self.span)

    def ones(self, count: int) -> Apply:
        """A vector of ones."""
        return self("constant", value=1.0, shape=(count,))


def _tensor(expression: Expression) -> TensorType:
    assert isinstance(expression.type, TensorType)
    return expression.type


def _sum(make: _Maker, matrix: Expression) -> Expression:
    return make("matmul", matrix, make.ones(_tensor(matrix).shape[1]))


def _mean(make: _Maker, matrix: Expression) -> Expression:
    return make("scale", _sum(make, matrix), factor=1.0 / _tensor(matrix).shape[1])


def _log_softmax(make: _Maker, matrix: Expression) -> Expression:
    total = make("row_logsumexp", matrix)
    return make("sub", matrix, make("outer", total, make.ones(_tensor(matrix).shape[1])))


AXES: dict[str, Callable[[_Maker, Expression], Expression]] = {
    "sum": _sum,
    "mean": _mean,
    "max": lambda make, matrix: make("row_max", matrix),
    "logsumexp": lambda make, matrix: make("row_logsumexp", matrix),
    "softmax": lambda make, matrix: make("exp", _log_softmax(make, matrix)),
    "log_softmax": _log_softmax,
}
"""What the builtins that take an axis make of every row."""


def along(report: Report, name: str, matrix: Expression, axis: Expression, span: Span) -> Expression | None:
    """`name(matrix, axis)`; None after a mistake."""
    if not isinstance(axis, Constant) or axis.value not in (0, 1):
        found = f"{axis.value:g}" if isinstance(axis, Constant) else describe(axis.type)
        hint = "; the larger of two values is maximum(a, b)" if name == "max" else ""
        report.error(f"'{name}': found {found}, expected an axis, 0 or 1{hint}", axis.span)
        return None
    if not isinstance(matrix.type, TensorType) or len(matrix.type.shape) != 2:
        found = describe(matrix.type)
        report.error(f"'{name}' along an axis: found {found}, expected a matrix", matrix.span)
        return None
    make = _Maker(span)
    if axis.value == 1:
        return AXES[name](make, matrix)
    columns = AXES[name](make, make("transpose", matrix))
    return make("transpose", columns) if len(_tensor(columns).shape) == 2 else columns


def beside(vector: Expression, matrix: Expression) -> Expression:
    """A vector that stands beside a matrix with as many columns: the matrix of which it is every row."""
    types = vector.type, matrix.type
    if not all(isinstance(type, TensorType) for type in types):
        return vector
    shape, other = _tensor(vector).shape, _tensor(matrix).shape
    if len(shape) != 1 or len(other) != 2 or shape != other[1:]:
        return vector
    make = _Maker(vector.span)
    return make("outer", make.ones(other[0]), vector)


def element(report: Report, base: Expression, index: Expression, span: Span) -> Expression | None:
    """`base[index]`, a number of a vector or a row of a matrix; zero for a class that is absent.

    The index is a whole number in the text, or a class among as many. None after a mistake.
    """
    shape, found = _tensor(base).shape, describe(base.type)
    if not shape:
        report.error(f"found {found} before '[', expected a vector or a matrix", base.span)
        return None
    make, of_vector = _Maker(span), len(shape) == 1
    if isinstance(index, Constant):
        if index.value not in range(shape[0]):
            expected = f"expected a whole number below {shape[0]}, in {found}"
            report.error(f"found {index.value:g}, {expected}", index.span)
            return None
        begin = int(index.value)
        part = make("slice", base, begin=begin, end=begin + 1)
        return make("sum", part) if of_vector else make("matmul_t", part, make.ones(1))
    if not isinstance(index.type, Index) or index.type.dimension.size != shape[0]:
        expected = f"expected a whole number or a class<{shape[0]}>, in {found}"
        report.error(f"found {describe(index.type)}, {expected}", index.span)
        return None
    return make("row", base, index)
