"""Every entry of the op table: shapes, values and gradients."""

import numpy as np
import pytest

from dnc.ir.builder import Builder, infer_type
from dnc.ir.interpreter import evaluate_cell
from dnc.ir.opdef import CONSTANT, ELEMENTWISE, SURFACE
from dnc.ir.ops import OPS
from dnc.ir.types import INDEX, SCALAR, ListType, TensorType
from tests.support.programs.values import PRODUCTIONS


def tensor(*shape):
    return TensorType(shape)


V3, V4, M34 = tensor(3), tensor(4), tensor(3, 4)
LIST = ListType(V3)
SCALARS = ListType(SCALAR)

# opcode, operand types, attributes, expected result type
CASES = [
    ("matmul", (M34, V4), {}, V3),
    ("matmul", (M34, tensor(4, 2)), {}, tensor(3, 2)),
    ("matmul_t", (M34, V3), {}, V4),
    ("matmul_t", (M34, tensor(3, 2)), {}, tensor(4, 2)),
    ("matmul_nt", (M34, tensor(2, 4)), {}, tensor(3, 2)),
    ("outer", (V3, V4), {}, M34),
    *((name, (V3, V3), {}, V3) for name in ("add", "sub", "mul", "div")),
    *((name, (SCALAR, V3), {}, V3) for name in ("add", "sub", "mul", "div")),
    *((name, (M34, SCALAR), {}, M34) for name in ("add", "sub", "mul", "div")),
    *((name, (SCALAR, SCALAR), {}, SCALAR) for name in ("add", "sub", "mul", "div")),
    *(
        (name, (type,), {}, type)
        for name in ("neg", "abs", "sigmoid", "tanh", "relu", "exp", "log", "sqrt", "sign", "step")
        for type in (V3, SCALAR, M34)
    ),
    ("scale", (V3,), {"factor": -2.5}, V3),
    ("dropout", (V3, INDEX), {"rate": 0.5, "site": 2}, V3),
    ("dropout", (M34, INDEX), {"rate": 0.25, "site": 0}, M34),
    ("gumbel", (V3, INDEX), {"site": 2}, V3),
    ("fill", (SCALAR,), {"shape": (3,)}, V3),
    ("fill", (SCALAR,), {"shape": (3, 4)}, M34),
    ("constant", (), {"value": 0.5, "shape": (3,)}, V3),
    ("equal", (INDEX, INDEX), {}, SCALAR),
    ("index_to_float", (INDEX,), {}, SCALAR),
    ("sum", (V3,), {}, SCALAR),
    ("sum", (M34,), {}, SCALAR),
    ("mean", (V3,), {}, SCALAR),
    ("softmax", (V3,), {}, V3),
    ("log_softmax", (V3,), {}, V3),
    *((name, (V3,), {}, SCALAR) for name in ("logsumexp", "max", "softmax_scale")),
    ("argmax", (V3,), {}, INDEX),
    ("concat", (V3,), {}, V3),
    ("concat", (V3, V4, V3), {}, tensor(10)),
    ("slice", (V4,), {"begin": 1, "end": 3}, tensor(2)),
    ("pad", (V3,), {"begin": 2, "size": 7}, tensor(7)),
    ("concat", (M34, tensor(2, 4)), {}, tensor(5, 4)),
    ("slice", (M34,), {"begin": 1, "end": 3}, tensor(2, 4)),
    ("pad", (M34,), {"begin": 2, "size": 7}, tensor(7, 4)),
    ("cross_entropy", (V3, INDEX), {}, SCALAR),
    ("cross_entropy_grad", (V3, SCALAR, SCALAR, INDEX), {}, V3),
    ("row", (M34, INDEX), {}, V4),
    ("row", (V3, INDEX), {}, SCALAR),
    ("one_hot", (INDEX,), {"size": 5}, tensor(5)),
    ("kl_divergence", (V3, V3), {}, SCALAR),
    *((name, (V3, other), {}, V3) for name in ("maximum", "minimum") for other in (V3, SCALAR)),
    *((name, (SCALAR, M34), {}, M34) for name in ("maximum", "minimum")),
    ("transpose", (M34,), {}, tensor(4, 3)),
    *((name, (M34,), {}, V3) for name in ("row_max", "row_logsumexp", "row_argmax")),
    ("row_spread", (V3, V3), {"size": 4}, M34),
    ("squared_error", (V3, V3), {}, SCALAR),
    ("squared_error", (SCALAR, SCALAR), {}, SCALAR),
    *((name, (LIST,), {}, V3) for name in ("list_sum", "list_mean", "list_max")),
    *((name, (V3, LIST), {}, LIST) for name in ("list_sum_grad", "list_mean_grad")),
    ("list_max_grad", (V3, LIST), {}, LIST),
    ("list_dot", (V3, LIST), {}, SCALARS),
    ("list_softmax", (SCALARS,), {}, SCALARS),
    ("list_softmax_grad", (SCALARS, SCALARS), {}, SCALARS),
    ("list_weighted", (SCALARS, LIST), {}, V3),
    ("list_scaled", (SCALARS, V3), {}, LIST),
    *(
        (f"each_{name}", (type,), {}, type)
        for name in ("neg", "abs", "sigmoid", "tanh", "relu", "exp", "log", "sqrt", "sign", "step")
        for type in (LIST, SCALARS)
    ),
    ("each_scale", (LIST,), {"factor": -2.5}, LIST),
    *(
        (f"each_{name}", types, {}, SCALARS if types == (SCALARS, SCALARS) else LIST)
        for name in ("add", "sub", "mul", "div", "maximum", "minimum")
        for types in ((LIST, LIST), (SCALARS, LIST), (LIST, SCALARS), (SCALARS, SCALARS))
    ),
    *(("list_repeat", (V3, type), {}, LIST) for type in (LIST, SCALARS)),
    ("list_repeat", (SCALAR, LIST), {}, SCALARS),
]
COUNTED = {("list_repeat", 1)}  # operands of which nothing but their number counts


def label(case):
    return f"{case[0]}-{'-'.join(map(str, case[1]))}"


def sample(type, random, children=3):
    if type == INDEX:
        return np.asarray(random.integers(0, 3))
    shape = (children, *type.element.shape) if isinstance(type, ListType) else type.shape
    return np.asarray(random.uniform(0.3, 2.0, shape))  # positive: in the domain of log and div


def test_every_entry_has_a_case():
    assert {case[0] for case in CASES} == set(OPS)


def test_random_programs_have_every_operation_that_programs_can_call():
    called = {name for name, entry in OPS.items() if entry.has(SURFACE)}
    assert called - {"argmax"} <= {each.name for each in PRODUCTIONS}  # that is part of "equal"


@pytest.mark.parametrize("case", CASES, ids=label)
def test_shape_and_value(case):
    opcode, types, attributes, expected = case
    assert infer_type(opcode, types, attributes) == expected
    random = np.random.default_rng(1)
    operands = [sample(type, random) for type in types]
    value = OPS[opcode].evaluate(operands, attributes)
    shape = (3, *expected.element.shape) if isinstance(expected, ListType) else expected.shape
    assert np.shape(value) == shape
    if isinstance(expected, TensorType) and expected.dtype == "f32":
        assert np.asarray(value).dtype == np.float64


@pytest.mark.parametrize("name", [name for name, entry in OPS.items() if entry.has(ELEMENTWISE)])
def test_elementwise_has_a_scalar(name):
    assert OPS[name].scalar is not None


def test_constant_has_a_scalar():
    assert all(entry.scalar is not None for entry in OPS.values() if entry.has(CONSTANT))


@pytest.mark.parametrize("case", [case for case in CASES if OPS[case[0]].gradient], ids=label)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gradient_against_finite_differences(case, sign):
    opcode, types, attributes, expected = case
    random = np.random.default_rng(2)
    operands = [sample(type, random) for type in types]
    if opcode.removeprefix("each_") not in ("log", "div", "sqrt", "kl_divergence"):
        operands = [np.asarray(x * sign) if x.dtype == float else x for x in operands]
    build = Builder()
    inputs = [build.input(type) for type in types]
    result = build.op(opcode, *inputs, **attributes)
    grad = build.input(expected, "grad")
    grads = OPS[opcode].gradient(build, build.ops[0], grad)
    assert len(grads) == len(inputs)
    for operand, found in zip(inputs, grads, strict=True):
        assert found is None or found.type == operand.type
    wanted = [i for i, found in enumerate(grads) if found is not None]
    assert wanted == [i for i, type in enumerate(types) if type != INDEX and (opcode, i) not in COUNTED]
    cell = build.finish([result, *(grads[i] for i in wanted)])
    weights = random.normal(size=np.shape(OPS[opcode].evaluate(operands, attributes)))
    computed = evaluate_cell(cell, [*operands, weights])[1:]
    for i, gradient in zip(wanted, computed, strict=True):
        numeric = np.zeros_like(operands[i])
        for at in np.ndindex(numeric.shape):
            sides = []
            for step in (1e-6, -1e-6):
                moved = [x.copy() for x in operands]
                moved[i][at] += step
                sides.append(np.sum(OPS[opcode].evaluate(moved, attributes) * weights))
            numeric[at] = (sides[0] - sides[1]) / 2e-6
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8)


def value(opcode, *operands, **attributes):
    return OPS[opcode].evaluate([np.asarray(x) for x in operands], attributes)


def test_kinks_and_edges():
    zero = np.zeros(1)
    assert value("relu", zero) == 0 and value("step", zero) == 0 and value("sign", zero) == 0
    assert value("sigmoid", np.asarray(-1000.0)) == 0 and value("sigmoid", np.asarray(1000.0)) == 1
    assert np.isfinite(value("softmax", np.asarray([1000.0, 0.0]))).all()
    assert value("argmax", np.asarray([1.0, 3.0, 3.0])) == 1


def test_unlabelled_costs_nothing():
    for logits in np.asarray([[1.0, 2.0], [1.0, np.inf]]):
        assert value("cross_entropy", logits, -1) == 0
        with np.errstate(invalid="ignore"):
            parts = value("max", logits), value("softmax_scale", logits)
            assert (value("cross_entropy_grad", logits, *parts, -1) == 0).all()


def test_operations_on_every_child_of_none():
    none = np.zeros((0, 3)), np.zeros(0)
    for name in ("each_add", "each_mul", "each_maximum"):
        assert value(name, none[0], none[1]).shape == value(name, none[1], none[0]).shape == (0, 3)
    assert value("list_repeat", np.ones(4), none[0]).shape == (0, 4)
    assert value("list_repeat", np.asarray(1.0), none[0]).shape == (0,)


def test_every_element_wise_operation_with_a_gradient_is_there_for_every_child():
    lifted = {name for name, entry in OPS.items() if entry.has(ELEMENTWISE) and entry.gradient is not None}
    assert lifted - {"dropout", "fill"} <= {name.removeprefix("each_") for name in OPS if name[:5] == "each_"}


@pytest.mark.parametrize("name", ["list_sum", "list_mean", "list_max"])
def test_no_children_give_zeros(name):
    none = np.zeros((0, 3))
    assert (value(name, none) == np.zeros(3)).all()
    assert value(f"{name}_grad", np.ones(3), none).shape == (0, 3)


def test_first_of_equal_children_gets_the_gradient_of_the_maximum():
    xs = np.asarray([[1.0, 5.0], [4.0, 5.0], [4.0, 2.0]])
    found = value("list_max_grad", np.asarray([10.0, 20.0]), xs)
    assert found.tolist() == [[0.0, 20.0], [10.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    "opcode, types, attributes, message",
    [
        ("matmul", (M34, V3), {}, "matmul: found f32[3x4] and f32[3], expected equal inner dimensions"),
        ("add", (V3, V4), {}, "add: found f32[3] and f32[4], expected equal shapes or a scalar"),
        ("add", (V3,), {}, "add: found 1 operands, expected 2"),
        (
            "slice",
            (V4,),
            {"begin": 1, "end": 9},
            "slice: found [1:9] of f32[4], expected 0 <= begin < end <= 4",
        ),
        ("tanh", (LIST,), {}, "tanh: operand: found list<f32[3]>, expected a tensor"),
        ("tanh", (INDEX,), {}, "tanh: operand: found i32[], expected f32"),
        ("softmax", (M34,), {}, "softmax: operand: found f32[3x4], expected a vector f32[n]"),
        ("cross_entropy", (V3, SCALAR), {}, "cross_entropy: class: found f32[], expected i32[]"),
        ("scale", (V3,), {}, "scale: found attributes (), expected (factor)"),
        ("scale", (V3,), {"factor": "x"}, "scale: attribute factor: found 'x', expected a number"),
        ("list_sum", (V3,), {}, "list_sum: operand: found f32[3], expected a list of f32 tensors"),
        ("frob", (V3,), {}, "unknown operation 'frob'"),
    ],
)
def test_messages(opcode, types, attributes, message):
    with pytest.raises(ValueError) as caught:
        infer_type(opcode, types, attributes)
    assert str(caught.value).startswith(message)
