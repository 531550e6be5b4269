"""`Math` of `dnc.ir.opdef` as TIRx expressions.

In: scalar float32 expressions. Out: scalar float32 expressions, accurate to a few units in the
last place (no fast-math): the library functions of the target on CUDA, polynomials on the CPU.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx.script.builder import ir as T

Expr = Any


class TirMath:
    """Scalar functions for targets whose exp, log and tanh are good: CUDA."""

    def constant(self, value: float) -> Expr:
        """A float32 literal."""
        return T.float32(value)

    def exp(self, a: Expr) -> Expr:
        """e to the a."""
        return T.exp(a)

    def log(self, a: Expr) -> Expr:
        """The natural logarithm."""
        return T.log(a)

    def tanh(self, a: Expr) -> Expr:
        """The hyperbolic tangent."""
        return T.tanh(a)

    def sigmoid(self, a: Expr) -> Expr:
        """1 / (1 + exp(-a))."""
        return T.float32(1.0) / (T.float32(1.0) + T.exp(T.float32(0.0) - a))

    def maximum(self, a: Expr, b: Expr) -> Expr:
        """The larger one."""
        return T.max(a, b)

    def greater(self, a: Expr, b: Expr) -> Expr:
        """a > b."""
        return a > b

    def equal(self, a: Expr, b: Expr) -> Expr:
        """a == b."""
        return a == b

    def select(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        """`a` where the condition holds, else `b`."""
        return T.Select(condition, a, b)

    def to_float(self, a: Expr) -> Expr:
        """An int32 as float32."""
        return T.cast(a, "float32")
