"""Random cells: print and parse, simplify, differentiate."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dnc.ir.builder import Builder
from dnc.ir.interpreter import evaluate_cell, interpret
from dnc.ir.parser import parse_cell, parse_program
from dnc.ir.printer import print_cell, print_program
from dnc.ir.program import (
    DENSE,
    FieldInput,
    Initializer,
    LossOutput,
    Parameter,
    ParameterInput,
    Program,
    Space,
    Stage,
)
from dnc.ir.structure import CLASS, Arm, Dimension, Field, Struct
from dnc.ir.types import INDEX, SCALAR
from dnc.ir.verifier import cell_errors, verify
from dnc.passes.canonicalize import Canonicalize
from dnc.passes.differentiate import Differentiate
from dnc.passes.hoist import Hoist
from dnc.passes.simplify import simplify_cell
from tests.support.forests import ForestGrower
from tests.support.random_cells import WIDTH, arguments, cells

MANY = settings(max_examples=60, deadline=None)
FEW = settings(max_examples=25, deadline=None)


@MANY
@given(cells())
def test_print_and_parse(cell):
    assert cell_errors(cell) == ()
    assert parse_cell(print_cell(cell)) == cell


@MANY
@given(cells(), st.integers(0, 1000))
def test_simplified_cells_have_the_same_results(cell, seed):
    simple = simplify_cell(cell)
    assert cell_errors(simple) == ()
    given_arguments = arguments(cell, seed)
    before, after = evaluate_cell(cell, given_arguments), evaluate_cell(simple, given_arguments)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-9, atol=1e-12)


def loss_program(cell):
    """A program whose loss is the sum of everything `cell` returns; its arguments are parameters."""
    struct = Struct("Thing", (Arm("Thing", (Field("label", CLASS, Dimension("classes", WIDTH)),)),))
    inputs, parameters = [], []
    for value in cell.inputs:
        if value.type == INDEX:
            inputs.append(FieldInput("label"))
        else:
            dims = tuple(Dimension(str(dim), dim) for dim in value.type.shape)
            parameters.append(Parameter(value.name, DENSE, dims, Initializer("zeros")))
            inputs.append(ParameterInput(value.name))
    build = Builder(cell.inputs, cell.ops)
    sums = [r if r.type == SCALAR else build.op("sum", r) for r in cell.results]
    total = build.total(sums)
    stage = Stage("loss", "all", None, tuple(inputs), build.finish([total]), (LossOutput(),))
    spaces = (Space("all", "Thing", ("Thing",)),)
    return Program("Random", (), (struct,), "Thing", tuple(parameters), (), spaces, (stage,))


@FEW
@given(cells(most=8), st.integers(0, 1000))
def test_gradients(cell, seed):
    program = loss_program(cell)
    verify(program)
    changed = Canonicalize()(Differentiate()(Hoist()(Canonicalize()(program))))
    verify(changed)
    assert parse_program(print_program(changed)) == changed
    forest = ForestGrower(program, seed).grow(samples=2, size=1)
    values = dict(zip((v.name for v in cell.inputs), arguments(cell, seed), strict=True))
    parameters = {parameter.name: values[parameter.name] for parameter in program.parameters}
    found = interpret(changed, forest, parameters).gradients
    random = np.random.default_rng(seed)
    directions = {name: random.normal(size=np.shape(array)) for name, array in parameters.items()}
    ahead, behind = (
        interpret(program, forest, {n: x + side * 1e-5 * directions[n] for n, x in parameters.items()}).loss
        for side in (1, -1)
    )
    exact = sum(float((found[name] * directions[name]).sum()) for name in found)
    numeric = (ahead - behind) / 2e-5
    assert abs(exact - numeric) <= 1e-6 * max(1.0, abs(numeric), abs(ahead))
