"""What an operation of cell IR is: one `OpDef` holds everything the compiler knows about it.

In: the table entries of `dnc.ir.ops`. Out: shape rule, float64 meaning, gradient, scalar lowering
and cost, from which parser, printer, verifier, interpreter and code generators are derived.
Guaranteed: nothing outside an entry depends on the name of an element-wise operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.cell import Attribute, Op, Value
from dnc.ir.noise import uniform
from dnc.ir.types import ListType, TensorType, Type

if TYPE_CHECKING:
    from dnc.ir.builder import Builder

Array = NDArray[Any]
Attributes = Mapping[str, Attribute]
Expression = Any  # a scalar of a backend: a NumPy array, a TIRx expression, a piece of text

# Traits.
ELEMENTWISE = "elementwise"  # has `scalar`; element i of the result needs element i of the operands
INDEXED = "indexed"  # an element-wise operation whose `scalar` also takes the element's number, first
PRODUCT = "product"  # sums over a shared dimension of two operands
VIEW = "view"  # moves elements without arithmetic (slice, concat, pad)
REDUCTION = "reduction"  # an element of the result needs whole operands
LIST = "list"  # consumes or produces one tensor per child
WHOLE = "whole"  # a LIST operation whose elements need whole operands
CONSTANT = "constant"  # has no operands
SURFACE = "surface"  # may be called by its name in the language


class Math(Protocol):
    """Scalar functions of a backend. Its expressions also understand + - * / and unary minus.

    Conditions come from `greater` and `equal` and are only passed to `select`.
    """

    def constant(self, value: float) -> Expression:
        """The number `value` as an f32 expression."""

    def exp(self, a: Expression) -> Expression:
        """e to the a."""

    def log(self, a: Expression) -> Expression:
        """The natural logarithm."""

    def tanh(self, a: Expression) -> Expression:
        """The hyperbolic tangent."""

    def sigmoid(self, a: Expression) -> Expression:
        """1 / (1 + exp(-a))."""

    def sqrt(self, a: Expression) -> Expression:
        """The square root."""

    def maximum(self, a: Expression, b: Expression) -> Expression:
        """The larger one."""

    def greater(self, a: Expression, b: Expression) -> Expression:
        """The condition a > b."""

    def equal(self, a: Expression, b: Expression) -> Expression:
        """The condition a == b; operands are both f32 or both i32."""

    def select(self, condition: Expression, a: Expression, b: Expression) -> Expression:
        """`a` where the condition holds, else `b`."""

    def to_float(self, a: Expression) -> Expression:
        """An i32 expression as f32."""

    def random(self, key: Expression, counter: Expression) -> Expression:
        """A number in [0, 1) that depends on two integers: `uniform` of `dnc.ir.noise`."""


class NumpyMath:
    """`Math` on NumPy arrays: the meaning of element-wise operations in float64."""

    def constant(self, value: float) -> Expression:
        """A float64 number."""
        return np.float64(value)

    def exp(self, a: Expression) -> Expression:
        """Element-wise exponential."""
        return np.exp(a)

    def log(self, a: Expression) -> Expression:
        """Element-wise logarithm."""
        return np.log(a)

    def tanh(self, a: Expression) -> Expression:
        """Element-wise hyperbolic tangent."""
        return np.tanh(a)

    def sigmoid(self, a: Expression) -> Expression:
        """Element-wise logistic function; does not overflow."""
        return 0.5 * (1.0 + np.tanh(0.5 * a))

    def sqrt(self, a: Expression) -> Expression:
        """Element-wise square root."""
        return np.sqrt(a)

    def maximum(self, a: Expression, b: Expression) -> Expression:
        """Element-wise maximum."""
        return np.maximum(a, b)

    def greater(self, a: Expression, b: Expression) -> Expression:
        """Element-wise a > b."""
        return np.greater(a, b)

    def equal(self, a: Expression, b: Expression) -> Expression:
        """Element-wise a == b."""
        return np.equal(a, b)

    def select(self, condition: Expression, a: Expression, b: Expression) -> Expression:
        """Element-wise choice."""
        return np.where(condition, a, b)

    def to_float(self, a: Expression) -> Expression:
        """The same numbers as float64."""
        return np.asarray(a).astype(np.float64)

    def random(self, key: Expression, counter: Expression) -> Expression:
        """The numbers of keys and counters."""
        return uniform(key, counter)


NUMPY_MATH = NumpyMath()

Infer = Callable[[tuple[Type, ...], Attributes], Type]
Evaluate = Callable[[Sequence[Array], Attributes], Array]
Gradient = Callable[["Builder", Op, Value], Sequence[Value | None]]
Flops = Callable[[tuple[Type, ...], Type], int]


@attrs.frozen
class OpDef:
    """One operation.

    arity: number of operands, or None for one or more. attributes: their names, in printing order.
    infer(types, attributes) -> type of the result; ValueError says what was found and expected.
    evaluate(operands, attributes) -> result, in float64 for one row; a list operand is an array
    with the children along its first axis. gradient(builder, op, grad) -> the gradient by every
    operand (None: there is none), built with `builder`; None where the operation has no gradient.
    scalar(math, *operands, **attributes) -> one element of the result, for ELEMENTWISE and CONSTANT
    operations; a scalar operand is used for every element. flops(types, result) -> the cost.
    """

    name: str
    arity: int | None
    infer: Infer
    evaluate: Evaluate
    gradient: Gradient | None = None
    attributes: tuple[str, ...] = ()
    scalar: Callable[..., Expression] | None = None
    flops: Flops = lambda types, result: size(result)
    traits: frozenset[str] = frozenset()

    def has(self, trait: str) -> bool:
        """Whether the operation has the trait."""
        return trait in self.traits


def indexed_value(scalar: Callable[..., Expression]) -> Evaluate:
    """`evaluate` of an INDEXED operation. `index`, among the attributes, is for those who compute some of the
    elements only."""

    def evaluate(operands: Sequence[Array], attributes: Attributes) -> Array:
        own, wanted = dict(attributes), np.arange(operands[0].size).reshape(operands[0].shape)
        numbers = np.asarray(own.pop("index", wanted))
        return np.asarray(scalar(NUMPY_MATH, numbers, *operands, **own), np.float64)

    return evaluate


def size(type: Type) -> int:
    """Number of elements; of one child for a list."""
    return type.tensor.size


def floats(type: Type, what: str, rank: int | None = None) -> TensorType:
    """`type` as an f32 tensor of the given rank (None: any); ValueError otherwise."""
    if isinstance(type, ListType):
        raise ValueError(
            f"{what}: found {type}, expected a tensor; reduce it with list_sum, list_mean or list_max"
        )
    if type.dtype != "f32":
        raise ValueError(f"{what}: found {type}, expected f32")
    if rank is not None and len(type.shape) != rank:
        name = {0: "a scalar f32[]", 1: "a vector f32[n]", 2: "a matrix f32[m x n]"}[rank]
        raise ValueError(f"{what}: found {type}, expected {name}")
    return type


def index(type: Type, what: str) -> TensorType:
    """`type` as i32[]; ValueError otherwise."""
    if not isinstance(type, TensorType) or type.dtype != "i32" or type.shape:
        raise ValueError(f"{what}: found {type}, expected i32[]")
    return type


def elements(type: Type, what: str) -> ListType:
    """`type` as a list of f32 tensors; ValueError otherwise."""
    if not isinstance(type, ListType) or type.element.dtype != "f32":
        raise ValueError(f"{what}: found {type}, expected a list of f32 tensors")
    return type


def integer(attributes: Attributes, name: str) -> int:
    """The integer attribute `name`; ValueError if it is something else."""
    value = attributes[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"attribute {name}: found {value!r}, expected an integer")
    return value


def number(attributes: Attributes, name: str) -> float:
    """The real attribute `name`; ValueError if it is something else."""
    value = attributes[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"attribute {name}: found {value!r}, expected a number")
    return float(value)


def shape(attributes: Attributes) -> tuple[int, ...]:
    """The attribute `shape`; ValueError if it is not a tuple of positive integers."""
    value = attributes["shape"]
    if not isinstance(value, tuple) or any(isinstance(dim, bool) or dim < 1 for dim in value):
        raise ValueError(f"attribute shape: found {value!r}, expected positive integers")
    return value
