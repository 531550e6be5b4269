"""Textual IR: what is printed parses back; mistakes are reported at their place."""

import attrs
import pytest

from dnc.diagnostics import DiagnosticError
from dnc.ir.cell import Cell, Op, Value
from dnc.ir.parser import parse_cell, parse_program
from dnc.ir.printer import print_cell, print_program
from dnc.ir.program import DENSE, Initializer, Parameter
from dnc.ir.structure import Dimension
from dnc.ir.types import TensorType
from dnc.ir.verifier import cell_errors
from dnc.passes.canonicalize import Canonicalize
from dnc.passes.differentiate import Differentiate
from dnc.passes.hoist import Hoist
from tests.support.ir_models import MODELS, instance


@pytest.mark.parametrize("model", MODELS)
def test_programs_round_trip(model):
    program = instance(model)[0]
    for step in (lambda p: p, Canonicalize(), Hoist(), Differentiate(), Canonicalize()):
        program = step(program)
        assert parse_program(print_program(program)) == program
        for stage in program.stages:
            assert parse_cell(print_cell(stage.cell)) == stage.cell


def test_odd_names_and_numbers_round_trip():
    program = instance("tree")[0]
    odd = Parameter(
        'a "b"\n',
        DENSE,
        (Dimension("3 * hidden", 6), Dimension("open", None)),
        Initializer("constant", -1e-300, (0.0, 1.5)),
        frozen=True,
    )
    slow = attrs.evolve(odd, name="rate", frozen=False, rate=0.1)
    program = attrs.evolve(program, name="seed", parameters=(*program.parameters, odd, slow, odd))
    assert parse_program(print_program(program)) == program
    for name in ("nan", "inf", "nan.inf", "nano", "infer", "inf_", "e5"):
        named = attrs.evolve(
            program, name=name, parameters=(*program.parameters, attrs.evolve(odd, name=name))
        )
        assert parse_program(print_program(named)) == named


def test_a_cell_reads_well():
    text = """\
cell(%0: f32[4], %W: f32[3x4]) {
  %z: f32[3] = matmul(%W, %0)
  %i: f32[2] = slice(%z) {begin = 0, end = 2}
  %one: f32[] = constant() {value = 1.0, shape = []}
  %t.1: f32[2] = sub(%one, %i)
  return %t.1, %0
}"""
    assert print_cell(parse_cell(text)) == text
    assert cell_errors(parse_cell(text)) == ()


@pytest.mark.parametrize(
    "line, message",
    [
        ("%y: f32[2] = tanh(%z)", "c:2:21: error: %z is not defined above"),
        ("%y: f32[2] = frob(%x)", "c:2:16: error: unknown operation 'frob'"),
        ("%x: f32[2] = tanh(%x)", "c:2:3: error: %x is defined twice"),
        ("%y: f33[2] = tanh(%x)", "c:2:7: error: found 'f33', expected a type such as f32[4]"),
        ("%y: f32[2] = tanh(%x", "c:3:3: error: found 'return', expected ','"),
        ("%y: f32[2] = tanh(%x) {a = b}", "c:2:30: error: found 'b', expected a number, a string"),
        ("%y: f32[2] = tanh(%x) ;", "c:2:25: error: unexpected character ';'"),
    ],
)
def test_messages_of_the_parser(line, message):
    with pytest.raises(DiagnosticError) as caught:
        parse_cell(f"cell(%x: f32[2]) {{\n  {line}\n  return %x\n}}", "c")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "line, message",
    [
        ("%y: f32[3] = tanh(%x)", "tanh: found f32[3] for %y, expected f32[2]"),
        ("%y: f32[2] = add(%x)", "add: found 1 operands, expected 2"),
        ("%y: f32[2] = scale(%x)", "scale: found attributes (), expected (factor)"),
    ],
)
def test_messages_of_the_verifier(line, message):
    (error,) = cell_errors(parse_cell(f"cell(%x: f32[2]) {{\n  {line}\n  return %x\n}}", "c"))
    assert error.message == message
    assert str(error).startswith("c:2:3: error:")


def test_ssa_is_checked():
    x, y, stray = (Value(name, TensorType((2,))) for name in "xyz")
    cell = Cell((x,), (Op("add", (x, stray), y), Op("tanh", (x,), y)), (Value("w", TensorType((2,))),))
    assert [error.message for error in cell_errors(cell)] == [
        "add uses %z: f32[2], which is not defined above",
        "%y is defined twice",
        "result %w: f32[2] is not defined",
    ]
