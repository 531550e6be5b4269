"""Texts before and after, and unchanged values and gradients of whole programs."""

import numpy as np
import pytest

from dnc.ir.interpreter import interpret
from dnc.ir.parser import parse_cell, parse_program
from dnc.ir.printer import print_cell, print_program
from dnc.ir.program import SavedOutput
from dnc.ir.verifier import verify
from dnc.passes.canonicalize import Canonicalize
from dnc.passes.differentiate import Differentiate
from dnc.passes.hoist import Hoist
from dnc.passes.simplify import simplify_cell
from tests.support.ir_models import MODELS, instance

INPUTS = "%x: f32[4], %y: f32[4], %z: f32[4], %s: f32[], %m: f32[3x4], %k: f32[4x4], %r: f32[1x4]"
CASES = {
    "equal expressions": (
        ["%a: f32[4] = tanh(%x)", "%b: f32[4] = tanh(%x)", "%c: f32[4] = mul(%a, %b)"],
        ["%a: f32[4] = tanh(%x)", "%c: f32[4] = mul(%a, %a)"],
        "%c",
        "%c",
    ),
    "dead code": (["%a: f32[4] = tanh(%x)", "%c: f32[4] = neg(%x)"], ["%c: f32[4] = neg(%x)"], "%c", "%c"),
    "constants fold": (
        [
            "%two: f32[] = constant() {value = 2.0, shape = []}",
            "%e: f32[] = mul(%two, %two)",
            "%c: f32[4] = add(%x, %e)",
        ],
        ["%constant: f32[] = constant() {value = 4.0, shape = []}", "%c: f32[4] = add(%x, %constant)"],
        "%c",
        "%c",
    ),
    "constants that float32 does not hold": (
        [
            "%large: f32[] = constant() {value = 1e+30, shape = []}",
            "%e: f32[] = mul(%large, %large)",
            "%l: f32[] = neg(%large)",
            "%n: f32[] = log(%l)",
            "%a: f32[4] = scale(%x) {factor = 1e+30}",
            "%b: f32[4] = scale(%a) {factor = 1e+30}",
            "%small: f32[4] = scale(%y) {factor = 1e-30}",
            "%smaller: f32[4] = scale(%small) {factor = 1e-30}",
            "%c: f32[4] = add(%b, %e)",
            "%d: f32[4] = add(%smaller, %n)",
            "%f: f32[4] = add(%c, %d)",
        ],
        [
            "%large: f32[] = constant() {value = 1e+30, shape = []}",
            "%scale: f32[] = scale(%large) {factor = 1e+30}",
            "%constant: f32[] = constant() {value = -1e+30, shape = []}",
            "%n: f32[] = log(%constant)",
            "%a: f32[4] = scale(%x) {factor = 1e+30}",
            "%b: f32[4] = scale(%a) {factor = 1e+30}",
            "%small: f32[4] = scale(%y) {factor = 1e-30}",
            "%smaller: f32[4] = scale(%small) {factor = 1e-30}",
            "%c: f32[4] = add(%b, %scale)",
            "%d: f32[4] = add(%smaller, %n)",
            "%f: f32[4] = add(%c, %d)",
        ],
        "%f",
        "%f",
    ),
    "products with computed matrices": (
        [
            "%n: f32[3x4] = neg(%m)",
            "%a: f32[3] = matmul(%n, %x)",
            "%t: f32[3x4] = scale(%m) {factor = 2.0}",
            "%b: f32[3] = matmul(%t, %x)",
            "%u: f32[3x4] = mul(%s, %m)",
            "%d: f32[3] = matmul(%u, %x)",
            "%v: f32[3x4] = div(%m, %s)",
            "%e: f32[3] = matmul(%v, %x)",
            "%w: f32[3x4] = matmul(%m, %k)",
            "%f: f32[3] = matmul(%w, %x)",
            "%j: f32[4x4] = concat(%m, %r)",
            "%g: f32[4] = matmul(%j, %x)",
            "%c: f32[19] = concat(%a, %b, %d, %e, %f, %g)",
        ],
        [
            "%matmul: f32[3] = matmul(%m, %x)",
            "%neg: f32[3] = neg(%matmul)",
            "%scale: f32[3] = scale(%matmul) {factor = 2.0}",
            "%mul: f32[3] = mul(%s, %matmul)",
            "%div: f32[3] = div(%matmul, %s)",
            "%matmul_4: f32[4] = matmul(%k, %x)",
            "%matmul_5: f32[3] = matmul(%m, %matmul_4)",
            "%matmul_7: f32[1] = matmul(%r, %x)",
            "%concat_1: f32[19] = concat(%neg, %scale, %mul, %div, %matmul_5, %matmul, %matmul_7)",
        ],
        "%c",
        "%concat_1",
    ),
    "a computed matrix that is no multiple": (
        ["%a: f32[3x4] = tanh(%m)", "%b: f32[3x4] = mul(%m, %a)", "%c: f32[3] = matmul(%b, %x)"],
        ["%a: f32[3x4] = tanh(%m)", "%b: f32[3x4] = mul(%m, %a)", "%c: f32[3] = matmul(%b, %x)"],
        "%c",
        "%c",
    ),
    "times one": (
        ["%one: f32[] = constant() {value = 1.0, shape = []}", "%c: f32[4] = mul(%one, %x)"],
        [],
        "%c",
        "%x",
    ),
    "plus zero must keep the shape": (
        ["%o: f32[4] = constant() {value = 0.0, shape = [4]}", "%c: f32[4] = add(%s, %o)"],
        ["%o: f32[4] = constant() {value = 0.0, shape = [4]}", "%c: f32[4] = add(%s, %o)"],
        "%c",
        "%c",
    ),
    "times a number": (
        [
            "%two: f32[] = constant() {value = 2.0, shape = []}",
            "%a: f32[4] = mul(%x, %two)",
            "%c: f32[4] = scale(%a) {factor = 1.5}",
        ],
        ["%scale_1: f32[4] = scale(%x) {factor = 3.0}"],
        "%c",
        "%scale_1",
    ),
    "slice of a slice": (
        ["%a: f32[3] = slice(%x) {begin = 1, end = 4}", "%c: f32[1] = slice(%a) {begin = 1, end = 2}"],
        ["%slice: f32[1] = slice(%x) {begin = 2, end = 3}"],
        "%c",
        "%slice",
    ),
    "slice of a concat": (
        ["%a: f32[8] = concat(%x, %y)", "%c: f32[4] = slice(%a) {begin = 4, end = 8}"],
        [],
        "%c",
        "%y",
    ),
    "slice across a concat": (
        ["%a: f32[8] = concat(%x, %y)", "%c: f32[2] = slice(%a) {begin = 3, end = 5}"],
        [
            "%slice: f32[1] = slice(%x) {begin = 3, end = 4}",
            "%slice_1: f32[1] = slice(%y) {begin = 0, end = 1}",
            "%concat: f32[2] = concat(%slice, %slice_1)",
        ],
        "%c",
        "%concat",
    ),
    "concat of concats": (
        ["%a: f32[8] = concat(%x, %y)", "%c: f32[12] = concat(%a, %z)"],
        ["%concat: f32[12] = concat(%x, %y, %z)"],
        "%c",
        "%concat",
    ),
    "a vector cut and joined again": (
        [
            "%a: f32[1] = slice(%x) {begin = 0, end = 1}",
            "%b: f32[3] = slice(%x) {begin = 1, end = 4}",
            "%c: f32[4] = concat(%a, %b)",
        ],
        [],
        "%c",
        "%x",
    ),
    "pads that tile": (
        [
            "%a: f32[12] = pad(%y) {begin = 4, size = 12}",
            "%b: f32[12] = pad(%z) {begin = 8, size = 12}",
            "%d: f32[12] = pad(%x) {begin = 0, size = 12}",
            "%e: f32[12] = add(%a, %b)",
            "%c: f32[12] = add(%e, %d)",
        ],
        ["%concat: f32[12] = concat(%x, %y, %z)"],
        "%c",
        "%concat",
    ),
    "pads with a gap": (
        [
            "%a: f32[12] = pad(%x) {begin = 0, size = 12}",
            "%b: f32[12] = pad(%y) {begin = 8, size = 12}",
            "%c: f32[12] = add(%a, %b)",
        ],
        [
            "%constant: f32[4] = constant() {value = 0.0, shape = [4]}",
            "%concat: f32[12] = concat(%x, %constant, %y)",
        ],
        "%c",
        "%concat",
    ),
}


def cell(lines, result):
    body = "".join(f"  {line}\n" for line in lines)
    return parse_cell(f"cell({INPUTS}) {{\n{body}  return {result}\n}}")


@pytest.mark.parametrize("case", CASES)
def test_cells(case):
    before, after, result, new_result = CASES[case]
    assert print_cell(simplify_cell(cell(before, result))) == print_cell(cell(after, new_result))


def test_sums_in_which_a_sum_is_twice_stay():
    """Of this one 2 to the power of 200 terms would be seen together."""
    lines = ["%a0: f32[4] = add(%x, %y)"]
    lines += [f"%a{i}: f32[4] = add(%a{i - 1}, %a{i - 1})" for i in range(1, 200)]
    text = cell(lines, "%a199")
    assert simplify_cell(text) == text


@pytest.mark.parametrize("start", [["%a0: f32[4x4] = matmul(%k, %k)"], ["%a0: f32[4x4] = neg(%k)"]])
def test_powers_of_powers_of_a_matrix_stay_few(start):
    """The last one is the product of 2 to the power of 12 matrices: going around all would take as many."""
    lines = start + [f"%a{i}: f32[4x4] = matmul(%a{i - 1}, %a{i - 1})" for i in range(1, 13)]
    simple = simplify_cell(cell([*lines, "%b: f32[4] = matmul(%a12, %x)"], "%b"))
    for _ in range(30):
        simple, before = simplify_cell(simple), simple
        assert len(simple.ops) < 20
    assert simple == before


def test_a_matrix_that_is_computed_anyway_is_multiplied_by():
    lines = [
        "%a: f32[4x4] = matmul(%k, %k)",
        "%n: f32[4x4] = neg(%a)",
        "%t: f32[4x4] = tanh(%n)",
        "%b: f32[4] = matmul(%n, %x)",
        "%c: f32[4] = matmul(%t, %b)",
    ]
    assert simplify_cell(cell(lines, "%c")) == cell(lines, "%c")
    assert simplify_cell(cell(lines[:2], "%n")) == cell(lines[:2], "%n")
    stored = cell([*lines[:2], lines[3]], "%n, %b")
    assert simplify_cell(stored) == stored


def test_a_product_for_more_vectors_than_it_has_rows_is_computed():
    lines = ["%a: f32[4x4] = matmul(%k, %k)", "%x0: f32[4] = matmul(%a, %x)"]
    lines += [f"%x{i}: f32[4] = matmul(%a, %x{i - 1})" for i in range(1, 5)]
    assert simplify_cell(cell(lines, "%x4")) == cell(lines, "%x4")
    around = simplify_cell(cell(lines[:-1], "%x3"))
    assert [op.operands[0].name for op in around.ops] == ["k"] * 8


@pytest.mark.parametrize("link", ["neg(%a{i})", "mul(%s, %a{i})", "matmul(%k, %a{i})", "concat(%a{i}, %r)"])
def test_long_chains_of_matrices(link):
    """Every link is done to a vector, without a call within a call for each."""
    lines, rows = ["%a0: f32[4x4] = div(%k, %s)"], 4
    for i in range(400):
        rows += link.startswith("concat")
        lines.append(f"%b{i}: f32[{rows}x4] = " + link.format(i=i))
        lines.append(f"%a{i + 1}: f32[{rows}x4] = div(%b{i}, %s)")
    simple = simplify_cell(cell([*lines, f"%c: f32[{rows}] = matmul(%a400, %x)"], "%c"))
    assert {op.opcode for op in simple.ops} == {"matmul", "div", link.split("(")[0]}
    assert all(op.opcode != "matmul" or op.operands[0].name in "kr" for op in simple.ops)
    assert all(len(op.result.type.shape) == 1 for op in simple.ops)


def test_pads_that_overlap_stay():
    lines = [
        "%a: f32[6] = pad(%x) {begin = 0, size = 6}",
        "%b: f32[6] = pad(%y) {begin = 2, size = 6}",
        "%c: f32[6] = add(%a, %b)",
    ]
    assert simplify_cell(cell(lines, "%c")) == cell(lines, "%c")


@pytest.mark.parametrize("model", MODELS)
def test_values_and_gradients_stay(model):
    program, forest, parameters = instance(model)
    program = Differentiate()(Hoist()(program))
    changed = Canonicalize()(program)
    verify(changed)
    assert Canonicalize()(changed) == changed
    before, after = (interpret(p, forest, parameters) for p in (program, changed))
    assert after.loss == pytest.approx(before.loss)
    for name, gradient in before.gradients.items():
        np.testing.assert_allclose(after.gradients[name], gradient, rtol=1e-10, atol=1e-14)
    assert not any(op.opcode == "pad" for stage in changed.stages for op in stage.cell.ops)


def test_unread_values_and_stages_go():
    program = instance("tree")[0]
    text = print_program(program)
    text = text.replace("  state h = %mul_1\n", "  state h = %mul_1\n  saved nothing = %tanh\n", 1)
    assert Canonicalize()(parse_program(text)) == Canonicalize()(program)
    without_loss = parse_program(
        print_program(Hoist()(instance("bilstm")[0])).replace("saved forward.pre mul", "field never at ()")
    )
    assert not any(
        isinstance(output, SavedOutput) and stage.name == "forward.pre"
        for stage in Canonicalize()(without_loss).stages
        for output in stage.outputs
    )
