"""Reductions of a vertex cell: sums, softmax, and the losses made of them.

In: the cell and an operation. Out: a scalar on every lane, or a reader of elements. Guaranteed: no
exponential overflows (the maximum is taken off first), and what is small beside the maximum is not lost in
it; a missing label (-1) makes a loss of zero.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tvm.tirx.script.builder import ir as T

from dnc.codegen.cells.values import Element, Lowerings, mapped
from dnc.codegen.emit import Expr, let, smaller
from dnc.ir.cell import Op, Value

if TYPE_CHECKING:
    from dnc.codegen.cells.vertex_cell import VertexCell


def _sum(cell: VertexCell, op: Op) -> Expr:
    value = op.operands[0]
    return cell.reductions.sum(value.tensor.size, cell.vectors.get(value, partial(cell.read, value)))


def _mean(cell: VertexCell, op: Op) -> Expr:
    size = op.operands[0].tensor.size
    return let("mean", _sum(cell, op) * T.float32(1.0 / size))


def _normalizer(cell: VertexCell, logits: Value) -> tuple[Element, Expr, Expr]:
    """The logits, their maximum, and the sum of exp(logit - maximum)."""
    read, size = cell.vectors[logits], logits.tensor.size
    if logits not in cell.normalizers:
        cell.normalizers[logits] = cell.reductions.normalizer(size, read, cell.math.exp)
    return read, *cell.normalizers[logits]


def _softmax(cell: VertexCell, op: Op) -> Element:
    read, top, _ = _normalizer(cell, op.operands[0])
    scale = _softmax_scale(cell, op)
    return cell.keep(op.result, mapped(read, lambda i, x: cell.math.exp(x - top) * scale))


def _log_probabilities(cell: VertexCell, logits: Value) -> Element:
    """The logarithms of softmax."""
    read, top, total = _normalizer(cell, logits)
    rest = let("log_total", cell.math.log(total))
    return mapped(read, lambda i, x: (x - top) - rest)


def _log_softmax(cell: VertexCell, op: Op) -> Element:
    return cell.keep(op.result, _log_probabilities(cell, op.operands[0]))


def _max(cell: VertexCell, op: Op) -> Expr:
    return let("largest", _normalizer(cell, op.operands[0])[1])


def _softmax_scale(cell: VertexCell, op: Op) -> Expr:
    return let("scale", T.float32(1.0) / _normalizer(cell, op.operands[0])[2])


def _logsumexp(cell: VertexCell, op: Op) -> Expr:
    _, top, total = _normalizer(cell, op.operands[0])
    return let("logsumexp", top + cell.math.log(total))


def _cross_entropy(cell: VertexCell, op: Op) -> Expr:
    read, top, total = _normalizer(cell, op.operands[0])
    label, size = cell.scalars[op.operands[1]], op.operands[0].tensor.size
    chosen = read(T.max(smaller(label, size - 1), 0))
    return let("loss", T.Select(label >= 0, cell.math.log(total) + (top - chosen), T.float32(0.0)))


def _kl_divergence(cell: VertexCell, op: Op) -> Expr:
    target = cell.vectors[op.operands[0]]
    found = _log_probabilities(cell, op.operands[1])

    def term(i: Expr) -> Expr:
        wanted = let("wanted", target(i))
        known = cell.math.log(T.Select(wanted > 0, wanted, T.float32(1.0)))
        return T.Select(wanted > 0, wanted * (known - found(i)), T.float32(0.0))

    return cell.reductions.sum(op.operands[0].tensor.size, term)


def _squared_error(cell: VertexCell, op: Op) -> Expr:
    a, b = op.operands

    def term(i: Expr) -> Expr:
        difference = cell.read(a, i) - cell.read(b, i)
        return difference * difference

    return cell.reductions.sum(max(a.tensor.size, b.tensor.size), term)


def _argmax(cell: VertexCell, op: Op) -> Expr:
    return cell.target.argmax(op.operands[0].tensor.size, cell.vectors[op.operands[0]])


REDUCTIONS: Lowerings = {
    "sum": _sum,
    "mean": _mean,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "max": _max,
    "softmax_scale": _softmax_scale,
    "cross_entropy": _cross_entropy,
    "kl_divergence": _kl_divergence,
    "squared_error": _squared_error,
    "argmax": _argmax,
}
