"""exp, log, tanh and sigmoid as TIRx expressions that stay in vector registers.

In: a float32 expression, scalar or vector. Out: an expression of the same type; intermediate values
are bound in the function that the caller's `IRBuilder` is building. Guaranteed: relative error of at
most 4e-7 over all finite inputs whose result is a normal number, the right limits at the infinities,
NaN stays NaN. LLVM's own `exp` and `tanh` would be scalar calls into libm.

The polynomials are those of the Cephes library (exp, log) and of Eigen (tanh).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen.emit import held

Expr: TypeAlias = Any

_LOG2_E = 1.44269504088896341
_LN2_HIGH = 0.693359375  # few bits, so that n * _LN2_HIGH is exact
_LN2_LOW = -2.12194440e-4
_ROUND = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits
_ONE_BITS = 0x3F800000
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_TANH_P = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_Q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


def exp(x: Expr) -> Expr:
    """e**x; overflows to inf above 88.72, underflows to 0 below -103.9."""
    x = _bind(_clamp(x, -104.0, 89.0))
    shifted = _bind(x * _like(x, _LOG2_E) + _like(x, _ROUND))
    n = _bind(shifted - _like(x, _ROUND))
    r = _bind((x - n * _like(x, _LN2_HIGH)) - n * _like(x, _LN2_LOW))
    p = _bind(_horner(r, _EXP) * (r * r) + r + _like(x, 1.0))
    integer = _bind(_bits(shifted) - _int_like(x, 0x4B400000))
    half = _bind(integer >> _int_like(x, 1))
    return _bind(p * _power_of_two(x, half) * _power_of_two(x, integer - half))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e**-x)."""
    one = _like(x, 1.0)
    return _bind(one / (one + exp(_like(x, 0.0) - x)))


def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent: an odd rational function, the identity near zero, and 1 or -1 where that is nearer
    than what the function ends with: saturated cells have no gradient."""
    c = _bind(_clamp(x, -7.90531110763549805, 7.90531110763549805))
    square = _bind(c * c)
    ratio = _bind(c * _horner(square, _TANH_P) / _horner(square, _TANH_Q))
    one = _like(x, 1.0)
    signed = tirx.Select(x > _like(x, 0.0), one, _like(x, 0.0) - one)
    ended = _bind(tirx.Select(tirx.abs(x) > _like(x, 8.3178), signed, ratio))
    return _bind(tirx.Select(tirx.abs(x) < _like(x, 4e-4), x, ended))


def log(x: Expr) -> Expr:
    """Natural logarithm: -inf at 0, NaN below."""
    zero, one = _like(x, 0.0), _like(x, 1.0)
    subnormal = x < _like(x, 1.17549435e-38)
    scaled = _bind(tirx.Select(subnormal, x * _like(x, 2.0**23), x))
    bits = _bind(_bits(scaled))
    fraction = _bind(_floats((bits & _int_like(x, 0x007FFFFF)) | _int_like(x, 0x3F000000)))
    exponent = (bits >> _int_like(x, 23)) - _int_like(x, 126)
    exponent = tirx.Cast(x.ty, exponent) - tirx.Select(subnormal, _like(x, 23.0), zero)
    low = fraction < _like(x, 0.707106781186547524)
    e = _bind(exponent - tirx.Select(low, one, zero))
    m = _bind(tirx.Select(low, fraction + fraction, fraction) - one)
    square = _bind(m * m)
    y = _bind(_horner(m, _LOG) * m * square + e * _like(x, _LN2_LOW) - square * _like(x, 0.5))
    value = _bind(m + y + e * _like(x, _LN2_HIGH))
    infinity = _like(x, float("inf"))
    value = tirx.Select(x < infinity, value, x)  # inf and NaN
    value = tirx.Select(x == zero, zero - infinity, value)
    return _bind(tirx.Select(x < zero, _like(x, float("nan")), value))


def _bind(value: Expr) -> Expr:
    """Evaluates `value` once; floats in a stack slot (`emit.held` says why)."""
    return held(value)[0] if "float" in str(value.ty.dtype) else T.Bind(value)


def _horner(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    value = _like(x, coefficients[0])
    for c in coefficients[1:]:
        value = _bind(value * x + _like(x, c))
    return value


def _clamp(x: Expr, low: float, high: float) -> Expr:
    # The constant goes first: max(c, NaN) is lowered to `c > NaN ? c : NaN`.
    return tirx.Min(_like(x, high), tirx.Max(_like(x, low), x))


def _power_of_two(x: Expr, n: Expr) -> Expr:
    return _floats((n << _int_like(x, 23)) + _int_like(x, _ONE_BITS))


def _lanes(x: Expr) -> int:
    return int(x.ty.dtype.lanes)


def _like(x: Expr, value: float) -> Expr:
    constant = tirx.FloatImm("float32", value)
    return constant if _lanes(x) == 1 else tirx.Broadcast(constant, _lanes(x))


def _int_like(x: Expr, value: int) -> Expr:
    constant = tirx.const(value, "int32")
    return constant if _lanes(x) == 1 else tirx.Broadcast(constant, _lanes(x))


def _bits(x: Expr) -> Expr:
    return tirx.reinterpret(_vector("int32", x), x)


def _floats(x: Expr) -> Expr:
    return tirx.reinterpret(_vector("float32", x), x)


def _vector(kind: str, x: Expr) -> str:
    return kind if _lanes(x) == 1 else f"{kind}x{_lanes(x)}"
