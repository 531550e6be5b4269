"""Operations by formulas that are written down apart from the table, and what every entry has to have."""

import re

import numpy as np
import pytest

from dnc.frontend.calls import CALLS_ELSEWHERE
from dnc.frontend.declarations import BUILTINS
from dnc.ir.opdef import ELEMENTWISE, INDEXED, SURFACE
from dnc.ir.ops import OPS
from dnc.ir.types import INDEX, ListType
from tests.support.programs import program_of
from tests.unit.test_ops import CASES, label, sample

DRAWN = ("dropout", "gumbel")  # of random numbers: `tests/unit/test_noise.py` and `tests/cpu/test_drawn.py`
FLAT = ("sign", "step", "equal")  # derivatives are zero
CHOICES = ("argmax", "row_argmax", "gumbel")
PARTS = (  # of gradients and of choices: nobody goes through them backwards
    "constant", "index_to_float", "one_hot", "softmax_scale", "row_spread", "cross_entropy_grad",
    "list_softmax_grad", "list_scaled", "list_sum_grad", "list_mean_grad", "list_max_grad",
)  # fmt: skip
PROGRAMS = 300


def logsumexp(x, axis=None):
    return np.log(np.sum(np.exp(x), axis=axis))


def softmax(x):
    return np.exp(x) / np.sum(np.exp(x))


def one_hot(i, size):
    return np.eye(size)[i]


def largest(xs):
    return (xs == xs.max(axis=0)).astype(float)


def spread(x, chosen, size):
    return x[:, None] * np.eye(size)[chosen.astype(int)]


ELEMENTS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.fmax,
    "minimum": np.fmin,
    "neg": np.negative,
    "abs": np.abs,
    "sigmoid": lambda x: 0.5 * (1 + np.tanh(0.5 * x)),
    "tanh": lambda x: 1 - 2 / (np.exp(2 * x) + 1),
    "relu": lambda x: x * (x > 0),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "sign": np.sign,
    "step": lambda x: np.heaviside(x, 0),
    "scale": lambda x, factor: factor * x,
}
FORMULAS = {
    **ELEMENTS,
    "matmul": np.dot,
    "matmul_t": lambda a, b: np.dot(a.T, b),
    "matmul_nt": lambda a, b: np.dot(a, b.T),
    "outer": np.outer,
    "fill": lambda x, shape: np.full(shape, x),
    "constant": lambda value, shape: np.full(shape, value),
    "equal": lambda a, b: float(a == b),
    "index_to_float": float,
    "sum": np.sum,
    "mean": np.mean,
    "softmax": softmax,
    "log_softmax": lambda x: np.log(softmax(x)),
    "logsumexp": logsumexp,
    "max": np.max,
    "softmax_scale": lambda x: 1 / np.sum(np.exp(x - np.max(x))),
    "argmax": np.argmax,
    "concat": lambda *parts: np.concatenate(parts),
    "slice": lambda x, begin, end: x[begin:end],
    "pad": lambda x, begin, size: np.concatenate(
        [np.zeros((begin, *x.shape[1:])), x, np.zeros((size - begin - len(x), *x.shape[1:]))]
    ),
    "cross_entropy": lambda x, i: -np.log(softmax(x)[i]),
    "cross_entropy_grad": lambda x, top, scale, i: np.exp(x - top) * scale - one_hot(i, len(x)),
    "row": lambda x, i: x[i],
    "one_hot": one_hot,
    "kl_divergence": lambda p, x: np.sum(p * (np.log(p) - np.log(softmax(x)))),
    "transpose": np.transpose,
    "row_max": lambda m: np.max(m, axis=1),
    "row_logsumexp": lambda m: logsumexp(m, axis=1),
    "row_argmax": lambda m: np.argmax(m, axis=1),
    "row_spread": spread,
    "squared_error": lambda a, b: np.sum((a - b) ** 2),
    "list_sum": lambda xs: np.sum(xs, axis=0),
    "list_mean": lambda xs: np.mean(xs, axis=0),
    "list_max": lambda xs: np.max(xs, axis=0),
    "list_sum_grad": lambda g, xs: np.array([g for _ in xs]),
    "list_mean_grad": lambda g, xs: np.array([g / len(xs) for _ in xs]),
    "list_max_grad": lambda g, xs: g * largest(xs),
    "list_dot": lambda a, xs: np.array([np.dot(a, x) for x in xs]),
    "list_softmax": softmax,
    "list_softmax_grad": lambda g, p: (np.diag(p) - np.outer(p, p)) @ g,
    "list_weighted": lambda weights, xs: np.dot(weights, xs),
    "list_scaled": np.outer,
    "list_repeat": lambda x, xs: np.array([x for _ in xs]),
}


def formula(opcode):
    """Of an operation; that of every child of a list is the one of a value, child by child."""
    if opcode in FORMULAS:
        return FORMULAS[opcode]
    one = ELEMENTS[opcode.removeprefix("each_")]
    return lambda *lists, **attributes: np.array(
        [one(*each, **attributes) for each in zip(*lists, strict=True)]
    )


@pytest.mark.parametrize("case", [case for case in CASES if case[0] not in DRAWN], ids=label)
def test_value(case):
    """Also of numbers far from zero, where what is bounded has its bounds."""
    opcode, types, attributes, _ = case
    positive = opcode.removeprefix("each_") in ("log", "sqrt", "kl_divergence")
    for reach in (1.0, 6.0):
        random = np.random.default_rng(3)
        operands = [
            np.asarray(
                x if x.dtype != float else x * reach * (1 if positive else random.choice([-1, 1], x.shape))
            )
            for x in (sample(type, random) for type in types)
        ]
        if opcode == "row_spread":
            operands[1] = np.asarray(random.integers(0, attributes["size"], operands[1].shape))
        if opcode == "kl_divergence":
            operands[0] = operands[0] / operands[0].sum()
        if opcode == "cross_entropy_grad":
            operands[1:3] = np.max(operands[0]), 1 / np.sum(np.exp(operands[0] - np.max(operands[0])))
        expected = formula(opcode)(*operands, **attributes)
        found = OPS[opcode].evaluate(operands, attributes)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_operation_of_numbers_has_a_gradient(name):
    """Or is known to have none: what lacks one is trained through as if it were constant."""
    wanted = name.removeprefix("each_") not in (*FLAT, *CHOICES, *PARTS)
    assert (OPS[name].gradient is not None) == wanted, (
        f"{name}: give it a gradient, or name it in FLAT, CHOICES or PARTS"
    )


@pytest.mark.parametrize("machine", ["CPU", "CUDA"])
@pytest.mark.parametrize("name", sorted(name for name, entry in OPS.items() if entry.has(ELEMENTWISE)))
def test_every_scalar_is_an_expression_for_both_targets(name, machine):
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.tirx.script.builder import ir as T

    from dnc import tirx_cpu
    from dnc.codegen.bodies.cpu_worker import CpuMath
    from dnc.codegen.math import TirMath

    types, attributes = next((case[1], case[2]) for case in CASES if case[0] == name)
    math = CpuMath() if machine == "CPU" else TirMath()
    with IRBuilder(), T.prim_func(s_tir=True):
        tirx_cpu.begin_function("one")
        kinds = ["int32" if type == INDEX else "float32" for type in types]
        operands = [tirx.Var(f"x{at}", kind) for at, kind in enumerate(kinds)]
        number = [tirx.Var("i", "int32")] if OPS[name].has(INDEXED) else []
        made = OPS[name].scalar(math, *number, *operands, **attributes)
        T.evaluate(made)
    assert str(made.ty.dtype) == "float32", f"{name}: {made}"


def test_random_programs_call_every_operation_by_its_name():
    texts = "\n".join(program_of(seed) for seed in range(PROGRAMS))
    called = {name for name, entry in OPS.items() if entry.has(SURFACE)}
    missing = {name for name in called if not re.search(rf"\b{name}\(", texts)}
    assert not missing, "add a line to PRODUCTIONS in tests/support/programs/values.py"


def test_what_programs_can_call_is_not_told_to_be_written_otherwise():
    assert not CALLS_ELSEWHERE.keys() & BUILTINS


def test_lists_are_cases_of_their_own():
    each = {opcode for opcode, *_ in CASES if opcode.startswith("each_")}
    assert each == {name for name in OPS if name.startswith("each_")}
    assert all(isinstance(types[0], ListType) for opcode, types, *_ in CASES if opcode in each)
