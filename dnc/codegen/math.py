"""`Math` of `dnc.ir.opdef` as TIRx expressions.

In: scalar float32 expressions. Out: scalar float32 expressions, accurate to a few units in the
last place (no fast-math): the library functions of the target on CUDA, polynomials on the CPU.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.emit import lanes
from dnc.ir import noise

Expr = Any


class TirMath:
    """Scalar functions for CUDA, whose exp, log and tanh are good."""

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
        return cuda.SIGMOID(a)

    def sqrt(self, a: Expr) -> Expr:
        """The square root."""
        return T.sqrt(a)

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

    def random(self, key: Expr, counter: Expr) -> Expr:
        """A number in [0, 1)."""
        return random(key, counter)


def random(key: Expr, counter: Expr) -> Expr:
    """`uniform` of `dnc.ir.noise` on integers of any width; the counter may be a vector."""
    width = lanes(counter)

    def number(value: int) -> Expr:
        constant = tirx.const(value, "uint32")
        return constant if width == 1 else tirx.Broadcast(constant, width)

    def whole(value: Expr) -> Expr:
        value = value if lanes(value) == width else tirx.Broadcast(value, width)
        return tirx.Cast("uint32" if width == 1 else f"uint32x{width}", value)

    x = T.Bind(whole(key) ^ (whole(counter) * number(noise.GOLDEN)))
    x = T.Bind((x ^ (x >> number(16))) * number(noise.FIRST))
    x = T.Bind((x ^ (x >> number(13))) * number(noise.SECOND))
    x = T.Bind((x ^ (x >> number(16))) >> number(8))
    floats = tirx.Cast("float32" if width == 1 else f"float32x{width}", x)
    scale = tirx.const(2.0**-24, "float32")
    return floats * (scale if width == 1 else tirx.Broadcast(scale, width))
