"""The rewrites of `canonicalize` inside one cell.

In: a cell. Out: a cell with the same inputs and results. Each rule looks at one operation and the
definitions of its operands, and answers with the value that takes its place, or None. Adding a
rewrite is adding a rule to `RULES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from dnc.ir.builder import infer_type
from dnc.ir.cell import Attribute, Cell, Op, Value
from dnc.ir.ops import OPS
from dnc.ir.transform import substitute, used_ops
from dnc.ir.types import TensorType, fits_float

# A product of two matrices is computed where more vectors than so many are multiplied by it.
MOST_VECTORS = 64
# What makes a matrix of matrices that can be multiplied by vectors in its place.
LINEAR = ("concat", "matmul", "neg", "scale", "mul", "div")


def simplify_cell(cell: Cell) -> Cell:
    """The cell with every rule applied and equal expressions computed once."""
    rewriter = Rewriter(cell)
    replaced: dict[Value, Value] = {}
    for op in cell.ops:
        found = rewriter.emit(substitute(op, replaced))
        if found != op.result:
            replaced[op.result] = found
    results = tuple(replaced.get(result, result) for result in cell.results)
    return Cell(cell.inputs, used_ops(tuple(rewriter.ops), results), results)


class Rewriter:
    """The new cell while it grows, and what the rules may ask of it."""

    def __init__(self, cell: Cell) -> None:
        self.ops: list[Op] = []
        self.definitions: dict[Value, Op] = {}
        self.known: dict[tuple[object, ...], Value] = {}
        self.names = {value.name for value in (*cell.inputs, *(op.result for op in cell.ops))}
        self.added_again = {operand for op in cell.ops if op.opcode == "add" for operand in op.operands}
        self.computed = computed_matrices(cell)

    def emit(self, op: Op) -> Value:
        """The value of `op`: what a rule makes of it, an equal one computed before, or its result."""
        for rule in RULES:
            found = rule(self, op)
            if found is not None:
                return found
        key = (op.opcode, op.operands, op.attributes)
        if key not in self.known:
            self.known[key] = op.result
            self.definitions[op.result] = op
            self.ops.append(op)
        return self.known[key]

    def new(self, like: Op, opcode: str, *operands: Value, **attributes: Attribute) -> Value:
        """The value of a new operation, at the place in the source of `like`."""
        type = infer_type(opcode, tuple(operand.type for operand in operands), attributes)
        name, count = opcode, 0
        while name in self.names:
            count += 1
            name = f"{opcode}_{count}"
        self.names.add(name)
        ordered = tuple((key, attributes[key]) for key in OPS[opcode].attributes)
        return self.emit(Op(opcode, operands, Value(name, type), ordered, like.span))

    def made_by(self, value: Value, opcode: str) -> Op | None:
        """The operation that defines `value`, if it is an `opcode`."""
        op = self.definitions.get(value)
        return op if op is not None and op.opcode == opcode else None

    def number(self, value: Value) -> float | None:
        """The number in every element of a constant, else None."""
        op = self.made_by(value, "constant")
        return None if op is None else real(op, "value")


Rule = Callable[[Rewriter, Op], Value | None]


def real(op: Op, name: str) -> float:
    """A real attribute."""
    value = op.attribute(name)
    assert isinstance(value, int | float)
    return float(value)


def whole(op: Op, name: str) -> int:
    """An integer attribute."""
    value = op.attribute(name)
    assert isinstance(value, int)
    return value


def width(value: Value) -> int:
    """The number of elements of a vector, or of rows of a matrix."""
    return value.tensor.shape[0]


def zeros(cell: Rewriter, op: Op, count: int) -> Value:
    """So many zeros, or rows of zeros, of a piece of what `op` makes."""
    return cell.new(op, "constant", value=0.0, shape=(count, *op.result.tensor.shape[1:]))


def rank(value: Value) -> int:
    """The number of dimensions of a tensor."""
    assert isinstance(value.type, TensorType)
    return len(value.type.shape)


def fold_constants(cell: Rewriter, op: Op) -> Value | None:
    """An operation on constants whose result has one number in every element, which float32 holds."""
    numbers = [cell.number(operand) for operand in op.operands]
    result = op.result.type
    if not numbers or not isinstance(result, TensorType) or result.dtype != "f32":
        return None
    arrays = []
    for operand, number in zip(op.operands, numbers, strict=True):
        if number is None or not isinstance(operand.type, TensorType):
            return None
        arrays.append(np.full(operand.type.shape, number))
    with np.errstate(all="ignore"):  # what is not finite stays for the kernel to compute
        value = np.asarray(OPS[op.opcode].evaluate(arrays, dict(op.attributes)))
    if not fits_float(float(value.flat[0])) or (value != value.flat[0]).any():
        return None
    return cell.new(op, "constant", value=float(value.flat[0]), shape=result.shape)


def remove_identities(cell: Rewriter, op: Op) -> Value | None:
    """x + 0, x - 0, x * 1, x / 1, scale by 1, - -x, and views of everything; x * number is a scale."""
    found: Value | None = None
    if op.opcode in ("add", "mul", "sub", "div"):
        a, b = op.operands
        neutral = 0.0 if op.opcode in ("add", "sub") else 1.0
        if cell.number(b) == neutral:
            found = a
        elif op.opcode in ("add", "mul") and cell.number(a) == neutral:
            found = b
    elif op.opcode == "neg":
        inner = cell.made_by(op.operands[0], "neg")
        found = inner.operands[0] if inner is not None else None
    elif op.opcode == "scale":
        found = op.operands[0] if real(op, "factor") == 1.0 else None
    elif op.opcode in ("slice", "pad", "concat") and len(op.operands) == 1:
        found = op.operands[0]
    return found if found is not None and found.type == op.result.type else None


def multiply_by_numbers(cell: Rewriter, op: Op) -> Value | None:
    """x * number becomes a scale; a scale of a scale becomes one, if float32 holds its factor."""
    if op.opcode == "mul":
        for x, factor in (op.operands, op.operands[::-1]):
            number = cell.number(factor)
            if number is not None and x.type == op.result.type:
                return cell.new(op, "scale", x, factor=number)
    if op.opcode == "scale":
        inner = cell.made_by(op.operands[0], "scale")
        if inner is not None:
            product = real(op, "factor") * real(inner, "factor")
            if fits_float(product):
                return cell.new(op, "scale", inner.operands[0], factor=product)
    return None


def products_of_matrices(cell: Rewriter, op: Op) -> Value | None:
    """(-W) @ x, (s * W) @ x, (W / s) @ x, concat(V, W) @ x, (V @ W) @ x: products with the matrices alone.

    What would be done to a whole matrix at every vertex is done to a vector, and the gradient of the matrix
    is a product of two vectors. A matrix that is computed anyway is multiplied by as it is.
    """
    if not is_product(op) or op.operands[0] in cell.computed:
        return None
    if not linear_parts(cell.definitions.get(op.operands[0])):
        return None
    # What is to be multiplied, and by what: the vector that was made last if by None. Behind the products
    # with its parts stands the operation itself.
    waiting: list[tuple[Value | Op, Value | None]] = [(op.operands[0], op.operands[1])]
    made: list[Value] = []
    while waiting:
        item, given = waiting.pop()
        if isinstance(item, Op):
            parts = linear_parts(item)
            vectors = dict(zip(parts, made[-len(parts) :], strict=True))
            del made[-len(parts) :]
            operands = (vectors.get(operand, operand) for operand in item.operands)
            made.append(cell.new(op, item.opcode, *operands, **dict(item.attributes)))
            continue
        x = made.pop() if given is None else given
        inner = None if item in cell.computed else cell.definitions.get(item)
        parts = linear_parts(inner)
        if inner is None or not parts:
            made.append(cell.new(op, "matmul", item, x))
        elif inner.opcode == "matmul":
            waiting += [(parts[0], None), (parts[1], x)]
        else:
            waiting += [(inner, None), *((part, x) for part in reversed(parts))]
    return made.pop()


TURNED: Mapping[str, Mapping[int, str]] = {
    "matmul": {0: "matmul_t", 1: "matmul_nt"},
    "matmul_t": {0: "matmul"},
    "matmul_nt": {1: "matmul"},
}
"""Of a product the one that it is when the operand at a place is transposed."""


def products_of_transposes(cell: Rewriter, op: Op) -> Value | None:
    """A product with a transpose is one with the matrix; the transpose of a transpose is the matrix."""
    if op.opcode == "transpose":
        inner = cell.definitions.get(op.operands[0])
        if inner is not None and inner.opcode == "transpose":
            return inner.operands[0]
        if inner is not None and inner.opcode == "outer":
            return cell.new(op, "outer", *reversed(inner.operands))
        return None
    for place, turned in TURNED.get(op.opcode, {}).items():
        inner = cell.made_by(op.operands[place], "transpose")
        if inner is not None:
            operands = list(op.operands)
            operands[place] = inner.operands[0]
            return cell.new(op, turned, *operands)
    return None


def is_product(op: Op) -> bool:
    """Whether an operation is a product of a matrix and a vector."""
    return op.opcode == "matmul" and (rank(op.operands[0]), rank(op.operands[1])) == (2, 1)


def linear_parts(op: Op | None) -> tuple[Value, ...]:
    """The matrices whose products with vectors give those of the matrix that `op` makes; or none."""
    if op is None or op.opcode not in LINEAR or rank(op.result) != 2:
        return ()
    if op.opcode == "mul":
        factors = tuple(operand for operand in op.operands if rank(operand) > 0)
        return factors if len(factors) == 1 else ()
    if op.opcode == "div":
        return op.operands[:1] if rank(op.operands[1]) == 0 else ()
    return op.operands


def saves_work(op: Op, vectors: int) -> bool:
    """Whether (V @ W) @ x should be V @ (W @ x) for so many vectors: it takes fewer multiplications."""
    left, right = (operand.type for operand in op.operands)
    assert isinstance(left, TensorType) and isinstance(right, TensorType)
    (rows, inner), columns = left.shape, right.shape[1]
    alone, around = vectors * rows * columns, vectors * (rows + columns) * inner
    return vectors <= MOST_VECTORS and around <= rows * inner * columns + alone


def computed_matrices(cell: Cell) -> set[Value]:
    """The matrices of a cell that are computed, since they have to be or since it is less work.

    They are results, or something other than a product with a vector is made of them; or they are products of
    matrices with which many vectors are multiplied. Going around the square of a square doubles the products
    with vectors each time: without an end to it a power of a matrix takes time exponential in its depth.
    """
    computed, products = set(cell.results), Counter[Value]()
    for op in reversed(cell.ops):
        if is_product(op):
            products[op.operands[0]] += 1
            continue
        parts, vectors = linear_parts(op), products[op.result]
        if op.opcode == "matmul" and parts and not saves_work(op, vectors):
            computed.add(op.result)
        if op.result in computed:
            parts = ()
        for part in parts:
            products[part] += vectors
        computed.update(operand for operand in op.operands if operand not in parts)
    return computed


def flatten_slices(cell: Rewriter, op: Op) -> Value | None:
    """A slice of a slice, of a concat or of a pad reads what is below."""
    if op.opcode != "slice":
        return None
    begin, end = whole(op, "begin"), whole(op, "end")
    inner = cell.definitions.get(op.operands[0])
    if inner is None:
        return None
    if inner.opcode == "slice":
        shift = whole(inner, "begin")
        return cell.new(op, "slice", inner.operands[0], begin=begin + shift, end=end + shift)
    if inner.opcode == "pad":
        first = whole(inner, "begin")
        last = first + width(inner.operands[0])
        if first <= begin and end <= last:
            return cell.new(op, "slice", inner.operands[0], begin=begin - first, end=end - first)
        if end <= first or last <= begin:
            return zeros(cell, op, end - begin)
        return None
    if inner.opcode != "concat":
        return None
    pieces, position = [], 0
    for operand in inner.operands:
        low, high = max(begin - position, 0), min(end - position, width(operand))
        if low < high:
            pieces.append(cell.new(op, "slice", operand, begin=low, end=high))
        position += width(operand)
    return cell.new(op, "concat", *pieces)


def flatten_concats(cell: Rewriter, op: Op) -> Value | None:
    """A concat of concats is one; adjacent slices of one value are one slice."""
    if op.opcode != "concat":
        return None
    flat: list[Value] = []
    for operand in op.operands:
        inner = cell.made_by(operand, "concat")
        flat.extend(inner.operands if inner is not None else (operand,))
    merged: list[Value] = []
    for value in flat:
        right = cell.made_by(value, "slice")
        left = cell.made_by(merged[-1], "slice") if merged else None
        if left and right and left.operands == right.operands and whole(left, "end") == whole(right, "begin"):
            begin, end = whole(left, "begin"), whole(right, "end")
            merged[-1] = cell.new(op, "slice", left.operands[0], begin=begin, end=end)
        else:
            merged.append(value)
    return cell.new(op, "concat", *merged) if tuple(merged) != op.operands else None


def join_pads(cell: Rewriter, op: Op) -> Value | None:
    """A sum with pads that do not overlap: they become one concat, with zeros in the gaps.

    Only the outermost of nested sums is looked at, so that all its terms are seen together; one that has
    a sum in it twice, as its pads would overlap and its terms may be many, stays.
    """
    if op.opcode != "add" or op.result in cell.added_again:
        return None
    terms: list[Value] = []
    open_terms, opened = list(reversed(op.operands)), set[Value]()
    while open_terms:
        term = open_terms.pop()
        inner = cell.made_by(term, "add")
        if inner is not None and inner.result.type == op.result.type:
            if term in opened:
                return None
            opened.add(term)
            open_terms.extend(reversed(inner.operands))
        else:
            terms.append(term)
    pads = [made for made in (cell.made_by(term, "pad") for term in terms) if made is not None]
    pads.sort(key=lambda pad: whole(pad, "begin"))
    if len(pads) < 2:
        return None
    pieces, position = [], 0
    for pad in pads:
        begin = whole(pad, "begin")
        if begin < position:
            return None
        if begin > position:
            pieces.append(zeros(cell, op, begin - position))
        pieces.append(pad.operands[0])
        position = begin + width(pad.operands[0])
    if position < width(op.result):
        pieces.append(zeros(cell, op, width(op.result) - position))
    total = cell.new(op, "concat", *pieces)
    for term in terms:
        if cell.made_by(term, "pad") is None:
            total = cell.new(op, "add", total, term)
    return total


RULES: tuple[Rule, ...] = (
    fold_constants,
    remove_identities,
    multiply_by_numbers,
    products_of_transposes,
    products_of_matrices,
    flatten_slices,
    flatten_concats,
    join_pads,
)
