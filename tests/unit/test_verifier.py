"""What the program verifier finds: one change to a valid text, one message."""

import pytest

from dnc.diagnostics import DiagnosticError
from dnc.ir.parser import parse_program
from dnc.ir.printer import print_program
from dnc.ir.verifier import program_errors, verify
from dnc.passes.differentiate import Differentiate
from dnc.passes.hoist import Hoist
from tests.support.ir_models import MODELS, instance


@pytest.mark.parametrize("model", MODELS)
def test_models_are_valid(model):
    program = instance(model)[0]
    for step in (lambda p: p, Hoist(), Differentiate()):
        program = step(program)
        verify(program)


@pytest.mark.parametrize(
    "model, old, new, message",
    [
        ("tree", "root Tree", "root Bush", "the root struct 'Bush' does not exist"),
        ("tree", "= Tree(Leaf) all", "= Tree(Loaf) all", "space 'Tree.Leaf': Tree(Loaf) does not exist"),
        ("tree", "over Tree.Node of", "over Nowhere of", "stage 'encode.Node': no space 'Nowhere'"),
        ("tree", "of encode level forward", "of decode early forward", "no function 'decode'"),
        ("tree", "= parameter W", "= parameter Q", "input %W: there is no parameter 'Q'"),
        ("tree", "= parameter W", "= parameter U", "input %W: found f32[9x4], expected f32[15x6]"),
        ("tree", "= table E word", "= table W word", "input %x: there is no table 'W'"),
        ("tree", "= table E word", "= table E ward", "input %x: struct Tree has no field 'ward'"),
        ("tree", "c at (left)", "c at (word)", "'word' of Tree is a token, expected a vertex"),
        ("tree", "c at (left)", "d at (left)", "there is no state encode.d"),
        ("tree", "  state c = %mul\n", "", "no stage over 'Tree.Leaf' makes 'c' of 'encode'"),
        ("tree", "field label at ()", "field word at ()", "input %label: arm Node has no field 'word'"),
        ("tree", "  state h = %mul_1\n", "  state h = %add\n", "result %add: found f32[9], expected f32[3]"),
        ("tree", "  state h = %mul_1\n", "  loss = %mul_1\n", "result %mul_1: found f32[3], expected f32[]"),
        (
            "bilstm",
            "at (words, last)",
            "at (words)",
            "'words' of Sentence is a list, expected first or last of it",
        ),
        ("bilstm", "= saved forward.pre mul", "= saved forward.pre z", "no stage 'forward.pre' saves 'z'"),
        (
            "bilstm",
            "of forward early",
            "of forward late",
            "'forward.pre' is late, expected level",
        ),
        ("bilstm", "saved mul = %mul", "slot forward h at () = %mul", "a slot in a forward stage"),
        ("bilstm", "(prev)", "(words)", "struct Word has no field 'words'"),
    ],
)
def test_messages(model, old, new, message):
    text = print_program(Hoist()(instance(model)[0]))
    assert old in text
    errors = program_errors(parse_program(text.replace(old, new)))
    assert any(message in error.message for error in errors), errors


def test_weight_gradients_are_checked():
    text = print_program(Differentiate()(instance("tree")[0]))
    for old, new, message in (
        ("(left)[0:3]", "(left)[0:2]", "weight gradient of 'U': found f32[15x5], expected f32[15x6]"),
        ("(left)[0:3]", "(left)[0:4]", "weight gradient of 'U': found [0:4] of f32[3], expected a part"),
        (
            "weight_gradient b_u",
            "weight_gradient b_w",
            "weight gradient of 'b_w': found f32[15], expected",
        ),
    ):
        assert old in text
        with pytest.raises(DiagnosticError) as caught:
            verify(parse_program(text.replace(old, new)))
        assert message in str(caught.value)


def test_errors_point_into_the_text():
    text = print_program(instance("tree")[0]).replace("f32[9] = matmul(", "f32[8] = matmul(")
    line = text[: text.index("matmul(")].count("\n") + 1
    first = program_errors(parse_program(text))[0]
    assert str(first).startswith(f"<program>:{line}:3: error: stage 'encode.Leaf': matmul: found f32[8]")
