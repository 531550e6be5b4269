"""Functions of CPU kernels against NumPy in float64."""

import numpy as np
import pytest
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc import cpu_code
from dnc.codegen.bodies import cpu_math
from tests.support.cpu_functions import build

SMALL = np.geomspace(1e-30, 1, 1024)
POSITIVE = np.geomspace(1e-44, 3e38, 3072)
FUNCTIONS = {
    "exp": (cpu_math.exp, np.exp, np.linspace(-87, 88.7, 4096)),
    "tanh": (cpu_math.tanh, np.tanh, np.concatenate([np.linspace(-20, 20, 3072), SMALL])),
    "sigmoid": (cpu_math.sigmoid, lambda x: 1 / (1 + np.exp(-x)), np.linspace(-87, 87, 4096)),
    "log": (cpu_math.log, np.log, np.concatenate([POSITIVE, np.linspace(0.5, 2, 1024)])),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("lanes", [1, 16])
def test_functions(name, lanes):
    function, reference, values = FUNCTIONS[name]

    def emit(pool, lists, words):
        with T.serial(0, words[0]) as i:
            at = i if lanes == 1 else tirx.Ramp(i * lanes, 1, lanes)
            T.buffer_store(pool, function(T.Bind(pool[at])), [at])

    kernel = build(emit)
    special = np.array([0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 200.0, -200.0] * 2)
    x = cpu_code.aligned_zeros(values.size + special.size)
    x[: values.size], x[values.size :] = values, special
    with np.errstate(all="ignore"):
        expected = reference(x.astype("f8"))
        limits = expected.astype("f4")
    words = cpu_code.aligned_zeros(16, "int32")
    words[0] = x.size // lanes
    kernel(cpu_code.vector(x), cpu_code.vector(words), cpu_code.vector(words))
    np.testing.assert_allclose(x[: values.size], expected[: values.size], rtol=2.5e-7, atol=1e-38)
    np.testing.assert_allclose(x[values.size :], limits[values.size :], rtol=4e-7, atol=1e-37)


def test_tanh_ends_at_one():
    """So that 1 - tanh(x) ** 2, what a saturated cell's gradient is multiplied by, is zero."""

    def emit(pool, lists, words):
        T.buffer_store(pool, cpu_math.tanh(T.Bind(pool[tirx.Ramp(0, 1, 16)])), [tirx.Ramp(0, 1, 16)])

    x, words = cpu_code.aligned_zeros(16), cpu_code.aligned_zeros(16, "int32")
    x[:] = np.concatenate([np.linspace(9.1, 1e4, 7), [np.inf], -np.linspace(9.1, 1e4, 7), [-np.inf]])
    expected = np.sign(x)
    build(emit)(cpu_code.vector(x), cpu_code.vector(words), cpu_code.vector(words))
    np.testing.assert_array_equal(x, expected)
