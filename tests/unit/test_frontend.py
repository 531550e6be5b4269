"""The frontend: examples build, settings and inference work, and no text ends in a traceback."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.frontend.declarations import BUILTINS
from dnc.frontend.initializers import RULES
from dnc.frontend.parser import parse
from dnc.ir.builder import infer_type
from dnc.ir.measures import MEASURES
from dnc.ir.program import (
    ALL,
    ROOT,
    DeclaredOutput,
    FieldInput,
    LossOutput,
    MetricOutput,
    ParameterInput,
    Program,
    StateInput,
    StateOutput,
    TableInput,
)
from dnc.ir.structure import Dimension
from dnc.ir.types import ListType, TensorType
from dnc.ir.verifier import verify

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.dn"))
MUTATIONS = 300

HEADER = """model M(vocab, d = 4, classes = 2)
struct Word = Word(form: token<vocab>, x: vector<d>, tag: class<classes>)
struct Text = Text(words: [Word], pair: Word?, weight: float, label: class<classes>)
param E: table[vocab, d], A: [d, d], v: [d], V: [classes, d]
state S = (h: [d], c: [d])
"""
LOSS = "loss sum(t in root) squared_error(t.weight, 1)\n"


def load(text: str, **settings: int) -> Program:
    program, _ = load_program(Source("test.dn", text), settings)
    return program


def example(name: str, **settings: int) -> Program:
    return load((Path(__file__).parents[2] / "examples" / f"{name}.dn").read_text(), **settings)


def test_learning_rates_of_parameters() -> None:
    text = """model M(d = 4)
struct Text = Text(x: vector<d>)
param A: [d, d] lr * 0.1, b: [d] = constant(1) lr * 2, C: [d, d]
param c: [d] = zeros lr * 1e-3
cell f(x: [d]) = tanh(A @ x + b)
loss sum(t in root) sum(C @ f(t.x) + c)
"""
    assert {p.name: p.rate for p in load(text).parameters} == {"A": 0.1, "b": 2.0, "C": 1.0, "c": 1e-3}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_build_without_warnings(path: Path) -> None:
    program, warnings = load_program(Source(path.name, path.read_text()), {})
    assert warnings == ()
    check_program(program)


def check_program(program: Program) -> None:
    """What every consumer relies on."""
    verify(program)
    assert len({space.name for space in program.spaces}) == len(program.spaces)
    for stage in program.stages:
        program.space(stage.space)
        assert len(stage.inputs) == len(stage.cell.inputs)
        assert len(stage.outputs) == len(stage.cell.results)
        assert len(set(stage.inputs)) == len(stage.inputs)
        known = set(stage.cell.inputs)
        for op in stage.cell.ops:
            assert set(op.operands) <= known
            assert op.result not in known
            types = tuple(operand.type for operand in op.operands)
            assert infer_type(op.opcode, types, dict(op.attributes)) == op.result.type
            known.add(op.result)
        assert set(stage.cell.results) <= known
        for binding, value in zip(stage.inputs, stage.cell.inputs, strict=True):
            if isinstance(binding, ParameterInput):
                assert program.parameter(binding.parameter).type == value.type
            elif isinstance(binding, StateInput):
                components = {c.name: c.type for c in program.function(binding.function).state}
                type = components[binding.component]
                assert value.type == (ListType(type) if binding.is_list else type)


def test_treelstm() -> None:
    program = example("treelstm", hidden=8)
    assert program.root == "Tree"
    assert program.dimensions[0] == Dimension("vocab", None)
    assert [stage.name for stage in program.stages] == [
        "encode.Leaf",
        "encode.Node",
        "logits",
        "loss",
        "accuracy",
        "output",
    ]
    assert program.space("encode.Node").arms == ("Node",)
    node = program.stage("encode.Node")
    assert node.outputs == (StateOutput("h"), StateOutput("c"))
    gathered = [binding for binding in node.inputs if isinstance(binding, StateInput)]
    assert {(b.function, b.component, b.path) for b in gathered} == {
        ("encode", component, (side,)) for component in "hc" for side in ("left", "right")
    }
    assert TableInput("E", "word") in program.stage("encode.Leaf").inputs
    assert program.stage("logits").inputs[1] == StateInput("encode", "h", ())
    assert program.stage("loss").outputs == (LossOutput(),)
    assert program.space("loss").selection == ALL
    assert program.stage("accuracy").outputs == (MetricOutput("accuracy"),)
    assert program.space("accuracy").selection == ROOT
    assert program.stage("output").outputs == (DeclaredOutput("label"), DeclaredOutput("p"))
    assert program.parameter("b_u").initializer.pieces == (0, 0, 0, 1, 1)
    assert program.parameter("U").type == TensorType((40, 16))


def test_functions_only_needed_at_roots_run_there() -> None:
    program = example("lstm_classifier")
    assert program.space("logits").selection == ROOT
    assert program.space("forward").selection == ALL
    assert StateInput("forward", "h", ("words", "last")) in program.stage("logits").inputs


def test_lists_of_children() -> None:
    encode = example("childsum").stage("encode")
    assert StateInput("encode", "h", ("children",), is_list=True) in encode.inputs
    assert [op.opcode for op in encode.cell.ops][:2] == ["list_sum", "list_sum"]


def test_outputs_per_vertex() -> None:
    program = example("bilstm_tagger")
    space = program.space("output")
    assert (space.struct, space.selection) == ("Word", ALL)


def test_domain_of_one_arm() -> None:
    text = example_text("treelstm").replace("sum(t in all(Tree))", "sum(t in all(Tree.Node))")
    text = text[: text.index("metric")]
    program = load(text)
    assert program.space("loss").arms == ("Node",)
    assert program.space("logits").arms == ("Node",)
    assert program.space("encode.Leaf").arms == ("Leaf",)


def example_text(name: str) -> str:
    return (Path(__file__).parents[2] / "examples" / f"{name}.dn").read_text()


def test_settings_replace_defaults_and_open_dimensions() -> None:
    program = example("treelstm", vocab=100, classes=3)
    sizes = {dimension.name: dimension.size for dimension in program.dimensions}
    assert sizes == {"vocab": 100, "embed": 256, "hidden": 256, "classes": 3}
    assert program.parameter("V").type == TensorType((3, 256))


def test_unknown_setting_names_the_known_ones() -> None:
    with pytest.raises(DiagnosticError, match="unknown dimension in --set 'width'; known: vocab, embed"):
        example("treelstm", width=3)


def test_fields_links_and_optional_children() -> None:
    text = HEADER + (
        "cell mix(a: [d], b: [d]) = tanh(A @ a) + v * b\n"
        "fn f(w: Word) -> [d] = mix(E[w.prev.form], w.x) + f(w.prev)\n"
        "fn g(t: Text) = f(t.pair) + t.words.first.x / 2\n"
        "loss 0.5 * sum(t in root) t.weight * cross_entropy(V @ g(t), t.label)\n"
    )
    program = load(text)
    assert TableInput("E", "form", ("prev",)) in program.stage("f").inputs
    g = program.stage("g")
    assert set(g.inputs) == {StateInput("f", "value", ("pair",)), FieldInput("x", ("words", "first"))}
    assert [op.opcode for op in g.cell.ops] == ["scale", "add"]
    last = program.stage("loss").cell.ops[-1]
    assert (last.opcode, last.attributes) == ("scale", (("factor", 0.5),))


def test_blocks_may_end_in_an_expression_and_functions_may_have_blocks() -> None:
    text = HEADER + (
        "fn f(w: Word):\n"
        "    before = f2(w.prev)\n"
        "    a, _ = split(E[w.form], 2)\n"
        "    sum(a) * before.h + before.c\n"
        "fn f2(w: Word) -> S:\n"
        "    h = w.x + f2(w.prev).c\n"
        "    c = h - 1\n"
        "loss sum(w in all(Word)) cross_entropy(V @ f(w), w.tag)\n"
    )
    program = load(text)
    check_program(program)
    assert program.function("f").state[0].type == TensorType((4,))


def test_repeated_calls_share_an_input() -> None:
    text = HEADER + (
        "fn f(w: Word) -> S:\n"
        "    h = f(w.prev).h + w.x\n"
        "    c = f(w.prev).h * f(w.prev).c\n"
        "loss sum(w in all(Word)) cross_entropy(V @ f(w).c, w.tag)\n"
    )
    inputs = load(text).stage("f").inputs
    assert len([binding for binding in inputs if isinstance(binding, StateInput)]) == 2


def test_lines_go_on_in_brackets_and_after_operators() -> None:
    text = HEADER + "loss sum(t in root) squared_error(t.weight,  # here\n\n    1) +\n    2\n"
    assert load(text).stage("loss").cell.ops[-1].opcode == "add"


def test_windows_line_ends() -> None:
    assert load((HEADER + LOSS).replace("\n", "\r\n")).name == "M"


def test_words_of_the_language_may_be_parts_of_names() -> None:
    assert load(HEADER + LOSS.replace("t in", "lossy in").replace("t.w", "lossy.w")).root == "Text"


@pytest.mark.parametrize(
    "expression, levels",
    [
        ("-" * 3000 + "t.weight", 3002),
        ("t.weight" + " + t.weight" * 3000, 3002),
        ("(t.weight +\n  " * 3000 + "t.weight" + ")" * 3000, 3002),
        ("tanh(" * 310 + "t.weight" + ")" * 310, 312),  # which the parser reads
    ],
)
def test_deep_nesting_is_refused_in_words(expression, levels) -> None:
    """At the deepest expression; the mistakes of other declarations are told, too, if the parser gave up."""
    text = HEADER + "loss sum(t in root) squared_error(t.weight, 1)\n"
    text += f"loss sum(t in root) {expression}\n"
    message = f"an expression is nested too deeply, in {levels:,} levels; assign parts of it to names"
    with pytest.raises(DiagnosticError) as caught:
        load(text)
    (found,) = caught.value.diagnostics
    column = 21 + expression.startswith("(")
    assert found.message == message and found.span is not None
    assert (found.span.line, found.span.column) == (7, column)
    if levels > 3000:
        with pytest.raises(DiagnosticError) as caught:
            load(text + "metric = 3\n")
        lines = [each.span and each.span.line for each in caught.value.diagnostics[:2]]
        assert lines == [7, text.count("\n") + 1]


def test_a_long_chain_of_cells_is_refused_in_words() -> None:
    """They are written into one another, whichever of them are declared first."""
    cells = [f"cell c{at}(x: []) -> [] = tanh(c{at - 1}(x))\n" for at in range(1, 400)]
    cells = [*reversed(cells), "cell c0(x: []) -> [] = tanh(x)\n"]
    with pytest.raises(DiagnosticError) as caught:
        load(HEADER + "".join(cells) + "loss sum(t in root) c399(t.weight)\n")
    (found,) = caught.value.diagnostics
    expected = "cells and functions call each other too deeply, 400 in a chain; write several as one"
    assert found.message == expected and found.span is not None
    assert (found.span.line, found.span.column, found.span.length) == (6, 6, 4)


def test_spans_are_kept() -> None:
    model = parse(Source("test.dn", HEADER + LOSS))
    last = model.declarations[-1]
    assert (last.span.line, last.span.column) == (6, 1)  # type: ignore[union-attr]
    op = load(HEADER + LOSS).stage("loss").cell.ops[-1]
    assert op.span is not None and op.span.line == 6


@pytest.mark.parametrize("settings", [{}, {"hidden": 16}, {"hidden": 16, "embed": 3}])
def test_a_dimension_that_a_default_names_is_used_whatever_is_set(settings: dict[str, int]) -> None:
    text = example_text("treelstm").replace("hidden = 256", "hidden = 4 * (embed - 1)")
    assert "hidden = 4" in text
    _, warnings = load_program(Source("test.dn", text), {"embed": 5, **settings})
    assert not warnings


def test_the_page_of_the_language_is_right() -> None:
    page = (Path(__file__).parents[2] / "docs" / "language.md").read_text()
    program = page.split("```dn\n")[1].split("```")[0]
    assert load(program).stages == load(example_text("treelstm")).stages
    words = set(page.replace("(", " ").replace("`", " ").split())
    assert words >= BUILTINS
    assert words >= set(RULES)
    cells = (line.split("|")[1] for line in page.splitlines() if line.startswith("|"))
    told = {
        name for cell in cells for code in re.findall("`(.*?)`", cell) for name in re.findall(r"\w+", code)
    }
    assert not {*BUILTINS, *MEASURES} - told, "a row for each in docs/language.md"


@pytest.mark.parametrize("seed", range(MUTATIONS))
def test_mutated_programs_work_or_are_refused_in_words(seed: int) -> None:
    generator = random.Random(seed)
    text = EXAMPLES[seed % len(EXAMPLES)].read_text()
    other = EXAMPLES[(seed // len(EXAMPLES)) % len(EXAMPLES)].read_text()
    for _ in range(generator.choice((1, 1, 2, 5))):
        text = mutate(text, other, generator)
    try:
        program, _ = load_program(Source("mutated.dn", text), {})
    except DiagnosticError as error:
        assert error.diagnostics
        for diagnostic in error.diagnostics:
            assert diagnostic.message and "None" not in diagnostic.message
            if diagnostic.span is not None:
                line = diagnostic.span.source.line_text(diagnostic.span.line)
                assert 1 <= diagnostic.span.column <= len(line) + 1
    else:
        check_program(program)


def mutate(text: str, other: str, generator: random.Random) -> str:
    if len(text) < 10:
        return text
    at = generator.randrange(len(text))
    end = min(len(text), at + generator.choice((1, 1, 2, 4, 8, 30)))
    lines = text.split("\n")
    kind = generator.randrange(8)
    if kind == 0:
        return text[:at] + text[end:]
    if kind == 1:
        return text[:at] + generator.choice(list('()[]<>=+-*/@.,:|?_ \n\t#0x1.5é\0"')) + text[at:]
    if kind == 2:
        start = generator.randrange(len(other))
        return text[:at] + other[start : start + generator.randrange(1, 20)] + text[at:]
    if kind == 3:
        first, second = generator.randrange(len(lines)), generator.randrange(len(lines))
        lines[first], lines[second] = lines[second], lines[first]
    elif kind == 4:
        del lines[generator.randrange(len(lines))]
    elif kind == 5:
        lines.insert(generator.randrange(len(lines)), generator.choice(lines))
    elif kind == 6:
        words = sorted({word for word in text.replace("(", " ").replace(")", " ").split() if word.isalpha()})
        if words:
            return text.replace(generator.choice(words), generator.choice(words), generator.choice((1, -1)))
    else:
        return text[:at]
    return "\n".join(lines)


def test_tokens_and_indices_have_names(tmp_path):
    """A row, and a parameter of a stack, are read by a name for a field as by the field."""
    text = """model T(vocab = 5, d = 3, k = 2)
struct Word = Word(form: token<vocab>, i: index<k>)
param E: table[vocab, d], S: stack[k, d]
fn g(w: Word) -> [d]:
    t = w.form
    j = w.i
    E[t] + S[j]
loss sum(w in root) sum(g(w))
"""
    plain = text.replace("    t = w.form\n    j = w.i\n    E[t] + S[j]", "    E[w.form] + S[w.i]")
    named, expected = (load_program(Source("m.dn", each), {})[0] for each in (text, plain))
    assert named == expected


def test_what_is_learned_outside_is_learned():
    text = """model P(d = 2)
struct W = W(x: pulled<d>)
param q: [d]
loss sum(w in root) sum(w.x * w.x)
output y = sum(q)
"""
    assert load_program(Source("m.dn", text), {})[1] == ()
    (warning,) = load_program(Source("m.dn", text.replace("pulled", "vector")), {})[1]
    assert warning.message == "nothing is learned: no parameter has a gradient from a loss"
