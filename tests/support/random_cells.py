"""Hypothesis strategies for random, valid cells."""

import numpy as np
from hypothesis import strategies as st

from dnc.ir.builder import Builder
from dnc.ir.types import INDEX, SCALAR, TensorType

SMOOTH = ("neg", "sigmoid", "tanh")
BINARY = ("add", "sub", "mul")
WIDTH = 4
TYPES = (SCALAR, TensorType((WIDTH,)), TensorType((2 * WIDTH,)), TensorType((WIDTH, WIDTH)))


@st.composite
def cells(draw, most=14):
    """A cell with at least one f32 result; smooth, and bounded on small arguments."""
    build = Builder()
    for type in (*TYPES, INDEX):
        for number in range(draw(st.integers(1, 2))):
            build.input(type, f"x{number}")
    values = [value for value in build.inputs if value.type != INDEX]
    labels = [value for value in build.inputs if value.type == INDEX]

    def pick(*ranks):
        return draw(st.sampled_from([v for v in values if len(v.type.shape) in ranks]))

    for _ in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(("unary", "binary", "scale", "view", "product", "reduce", "constant")))
        if kind == "unary":
            values.append(build.op(draw(st.sampled_from(SMOOTH)), pick(0, 1, 2)))
        elif kind == "binary":
            a = pick(0, 1, 2)
            b = draw(st.sampled_from([v for v in values if v.type in (a.type, SCALAR)]))
            pair = (a, b) if draw(st.booleans()) else (b, a)
            values.append(build.op(draw(st.sampled_from(BINARY)), *pair))
        elif kind == "scale":
            values.append(build.op("scale", pick(0, 1, 2), factor=draw(st.floats(-1, 1))))
        elif kind == "view":
            x = pick(1)
            width = x.type.shape[0]
            if width > 1 and draw(st.booleans()):
                begin = draw(st.integers(0, width - 1))
                values.append(build.op("slice", x, begin=begin, end=draw(st.integers(begin + 1, width))))
            elif width < 16 and draw(st.booleans()):
                total = width + draw(st.integers(0, 3))
                values.append(build.op("pad", x, begin=draw(st.integers(0, total - width)), size=total))
            elif width < 16:
                values.append(build.op("concat", x, pick(1)))
        elif kind == "product":
            a = pick(2)
            opcode = draw(st.sampled_from(("matmul", "matmul_t", "matmul_nt")))
            rank = 2 if opcode == "matmul_nt" else draw(st.sampled_from((1, 2)))
            fits = [v for v in values if len(v.type.shape) == rank and v.type.shape[0] == WIDTH]
            values.append(build.op(opcode, a, draw(st.sampled_from(fits))))
        elif kind == "reduce":
            opcode = draw(
                st.sampled_from(("sum", "mean", "softmax", "log_softmax", "logsumexp", "cross_entropy"))
            )
            if opcode == "cross_entropy":
                fits = [v for v in values if len(v.type.shape) == 1 and v.type.shape[0] >= WIDTH]
                values.append(build.op(opcode, draw(st.sampled_from(fits)), draw(st.sampled_from(labels))))
            else:
                values.append(build.op(opcode, pick(1)))
        else:
            values.append(build.constant(draw(st.sampled_from((0.0, 1.0, 0.5, -2.0)))))
    results = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
    return build.finish(results)


def arguments(cell, seed):
    """Random arguments for a cell, small so that sums of products stay tame."""
    random = np.random.default_rng(seed)
    return [
        np.asarray(random.integers(-1, WIDTH) if v.type == INDEX else random.uniform(-0.5, 0.5, v.type.shape))
        for v in cell.inputs
    ]
