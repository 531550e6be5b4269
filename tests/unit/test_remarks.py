"""Remarks: every decision has one, no other place has one, and their text, place and way into a build."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import attrs
import pytest

from dnc.compiler import PlanOptions, compile_model, make_plan, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.ir.opdef import PRODUCT
from dnc.ir.ops import OPS
from dnc.ir.plan import REGISTER, Plan
from dnc.ir.program import DENSE, FORWARD, LEVEL, ParameterInput
from dnc.ir.remarks import Remark, Remarks
from dnc.passes.pass_manager import PassOptions
from dnc.runtime.build import read_build
from tests.support.models import EXAMPLES

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.dn"))
SETTINGS = {"attention": {"targets": 30}, "encoder_decoder": {"targets": 30}, "char_rnn": {"chars": 20}}


def remarked(source: Source, target: str, **settings: int) -> tuple[Plan, tuple[Remark, ...]]:
    """The plan of a program and all remarks on the way to it."""
    of_program, of_plan = Remarks(), Remarks(target)
    program, _ = load_program(source, settings)
    program = transform(program, PlanOptions(), PassOptions(remarks=of_program))
    plan = make_plan(program, target, PlanOptions(), PassOptions(remarks=of_plan))
    return plan, (*of_program.all(), *of_plan.all())


@cache
def example(name: str, target: str) -> tuple[Plan, tuple[Remark, ...]]:
    path = EXAMPLES / f"{name}.dn"
    text = path.read_text()
    open_ones = {"vocab": 40} if "language_model" in name else {}
    return remarked(Source(path.name, text), target, **{**open_ones, **SETTINGS.get(name, {})})


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("name", NAMES)
def test_every_decision_of_an_example_has_a_remark(name: str, target: str) -> None:
    plan, remarks = example(name, target)
    source = (EXAMPLES / f"{name}.dn").read_text().split("\n")
    for remark in remarks:
        assert remark.span is not None and remark.span.source.name == f"{name}.dn"
        line = source[remark.span.line - 1]
        assert 1 <= remark.span.column <= remark.span.column + remark.span.length - 1 <= len(line)
    cut = {remark.stage for remark in remarks if "is cut before this" in remark.message}
    assert cut == {segment.stage for segment in plan.segments if segment.step > 0}
    kept = {remark.stage for remark in remarks if remark.decided_by == "hoist"}
    for stage in plan.program.stages:
        inputs = dict(zip(stage.cell.inputs, stage.inputs, strict=True))
        waits = any(
            OPS[op.opcode].has(PRODUCT)
            and any(isinstance(inputs.get(v), ParameterInput) for v in op.operands)
            for op in stage.cell.ops
        )
        if stage.direction == FORWARD and stage.placement == LEVEL and waits:
            assert stage.name in kept
    off_chip = {p.parameter for p in plan.placements if p.residency != REGISTER and target != "cpu"}
    said = {r.message.split()[0] for r in remarks if r.decided_by == "plan-weights"}
    recursive = {p for p in off_chip if any(_multiplies(plan, p, stage) for stage in plan.program.stages)}
    assert said == recursive


def _multiplies(plan: Plan, parameter: str, stage: object) -> bool:
    """Whether a segment of a LEVEL stage multiplies by the parameter, by units."""
    return any(
        segment.stage == stage.name and stage.placement == LEVEL  # type: ignore[attr-defined]
        for segment in plan.segments
        for product in (*segment.products, *segment.transposed)
        if product.parameter == parameter
    )


def test_collecting_remarks_changes_nothing() -> None:
    path = EXAMPLES / "char_tagger.dn"
    program, _ = load_program(Source(path.name, path.read_text()), {})
    assert make_plan(transform(program), "sm_90a") == example("char_tagger", "sm_90a")[0]


PROGRAM = """\
model Net(vocab = 20, width = 32, classes = 3)
struct Word = Word(form: token<vocab>)
struct Text = Text(words: [Word], label: class<classes>)
param E: table[vocab, width]
param W: [width, 2 * width], U: [width, width], V: [classes, width]
cell step(x: [width], h: [width]) -> [width]:
    g = sigmoid(W @ concat(x, h))
    tanh(U @ (g * h))
fn run(w: Word) -> [width] = step(E[w.form], run(w.prev))
fn logits(t: Text) = V @ run(t.words.last)
loss sum(t in root) cross_entropy(logits(t), t.label)
"""

EXPECTED = """\
net.dn:7:17: remark: the product with W stays in the recursion: it waits for run at prev [hoist]
      g = sigmoid(W @ concat(x, h))
                  ^^^^^^^^^^^^^^^^
  E[form] would not wait: W @ concat(a, b) is W_a @ a + W_b @ b, \
and what has no part in the recursion leaves it
net.dn:8:10: remark: the product with U stays in the recursion: it waits for run at prev [hoist]
      tanh(U @ (g * h))
           ^^^^^^^^^^^
net.dn:8:10: remark: 'run' is cut before this, with an exchange at every level: \
the product needs a whole vector, of which every worker has made its units; \
with --repeat it makes all of them [fuse, sm_90a]
      tanh(U @ (g * h))
           ^^^^^^^^^^^
net.dn:8:15: remark: 'run.grad' is cut before this, with an exchange at every level: \
it reads sums of which every worker has a part [fuse, sm_90a]
      tanh(U @ (g * h))
                ^^^^^"""


def test_the_text() -> None:
    _, remarks = remarked(Source("net.dn", PROGRAM), "sm_90a")
    assert "\n".join(str(remark.diagnostic()) for remark in remarks) == EXPECTED


def test_an_exchange_that_is_saved() -> None:
    program, said = load_program(Source("net.dn", PROGRAM), {})[0], Remarks()
    make_plan(transform(program), "sm_90a", PlanOptions(repeat=True), PassOptions(remarks=said))
    (found,) = [remark for remark in said.all() if "whole" in remark.message]
    assert found.message == (
        "every worker makes in 'run' all of the vector that this product needs whole: "
        "that saves an exchange at every level"
    )


def test_weights_that_do_not_fit() -> None:
    _, remarks = remarked(Source("net.dn", PROGRAM), "sm_120", width=4096)
    said = [r for r in remarks if r.decided_by == "plan-weights"]
    assert {r.message.split()[0] for r in said} == {"W", "U"}
    assert all("is not kept on the chip: it takes" in r.message for r in said)
    assert {(r.span.line, r.span.column) for r in said if r.span} == {(7, 17), (8, 10)}


def test_a_function_that_stays_a_stage() -> None:
    text = PROGRAM.replace("run(t.words.last)", "last(t.words.last)").replace(
        "fn logits", "fn last(w: Word) -> [width] = tanh(run(w))\nfn logits"
    )
    _, remarks = remarked(Source("net.dn", text), "cpu")
    (found,) = [remark for remark in remarks if remark.decided_by == "inline"]
    assert (
        found.message
        == "'last' is no part of its callers' stages: 'loss' calls it at another vertex (words.last)"
    )
    assert found.span is not None and found.span.line == 10


def test_a_stage_between_two_recursions() -> None:
    text = """
model Layers(vocab, width = 8, classes = 3)
struct Word = Known(form: token<vocab>) | Odd
struct Text = Text(words: [Word], label: class<classes>)
param E: table[vocab, width], U: [width, width], W: [width, width], V: [classes, width], b: [width]
fn own(w: Word) -> [width] = match w:
    Known(form) -> E[form]
    Odd -> b
fn lower(w: Word) -> [width] = tanh(U @ lower(w.prev) + own(w))
fn between(w: Word) -> [width] = match w:
    Known(form) -> lower(w) * E[form]
    Odd -> lower(w)
fn upper(w: Word) -> [width] = tanh(W @ upper(w.prev) + between(w))
loss sum(t in all(Text)) cross_entropy(V @ upper(t.words.last), t.label)
"""
    _, remarks = remarked(Source("layers.dn", text), "cpu")
    found = [r for r in remarks if "runs wavefront by wavefront" in r.message]
    assert len(found) == 2 and "recursion of lower, and that of upper waits for it" in found[0].message


def test_a_pass_left_out_says_nothing() -> None:
    collected = Remarks()
    program, _ = load_program(Source("net.dn", PROGRAM), {})
    options = PlanOptions(without=("hoist", "inline", "fuse"))
    program = transform(program, options, PassOptions(remarks=collected))
    make_plan(program, "cpu", options, PassOptions(remarks=collected))
    assert collected.all() == ()


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("dnc.kernel_cache._emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "net.dn").write_text(PROGRAM)
    report = compile_model(tmp_path / "net.dn", tmp_path / "build", ("cpu", "cuda"))
    remarks = read_build(tmp_path / "build").remarks
    assert [attrs.astuple(r, recurse=False) for r in remarks] == [
        attrs.astuple(r, recurse=False) for r in report.remarks
    ]
    assert {remark.target for remark in remarks} == {"", "cpu", "cuda:sm_90a"}
    return tmp_path / "build"


def test_a_build_keeps_them(built: Path) -> None:
    text = "\n".join(str(remark.diagnostic()) for remark in read_build(built).remarks)
    assert "net.dn:7:17: remark: the product with W" in text and "                  ^^^^^^^^" in text


def test_damage_is_found(built: Path) -> None:
    (built / "remarks.json").write_text("[]")
    with pytest.raises(DiagnosticError, match=r"remarks\.json: the build is damaged here"):
        read_build(built)


def test_command_line(command, workplace):
    (workplace / "net.dn").write_text(PROGRAM)
    quiet, loud = command("compile net.dn -o net"), command("compile net.dn -o net --remarks")
    assert "remark" not in quiet.error and loud.code == 0 and loud.out == ""
    assert loud.error.startswith("net.dn:7:17: remark: the product with W stays in the recursion")
    shown = command("explain net --remarks").out
    assert "net.dn:7:17: remark: the product with W" in shown and "[fuse, cpu]" in shown
    assert "remark: " not in command("explain net").out


def test_dense_parameters_only() -> None:
    """Remarks of weights name parameters."""
    plan, remarks = example("treelstm", "sm_120")
    dense = {p.name for p in plan.program.parameters if p.kind == DENSE}
    assert {r.message.split()[0] for r in remarks if r.decided_by == "plan-weights"} <= dense
