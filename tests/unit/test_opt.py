"""dnc opt: single passes on textual IR do what the pipeline does; mistakes are shown at their place."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnc.api.passes import known_passes, run_passes
from dnc.compiler import MODES, PlanOptions, make_plan, plan_passes, program_passes, read_program, transform
from dnc.diagnostics import DiagnosticError
from dnc.ir.machine import machine
from dnc.ir.plan_text import print_plan
from dnc.ir.printer import print_program
from tests.support.models import EXAMPLES
from tests.support.mutations import Choices, damaged_program
from tests.unit.test_remarks import NAMES, SETTINGS

TREE = EXAMPLES / "treelstm.dn"
SMALL = {"vocab": 11, "hidden": 4, "embed": 4}
PROGRAM = "canonicalize,inline,hoist,differentiate,canonicalize"
PLAN = ",".join(["fuse", *(step.name for step in plan_passes(PlanOptions(), machine("cpu")))])


def ir(passes: str = "") -> str:
    return run_passes(TREE, passes, settings=SMALL).text


def sizes(name: str) -> dict[str, int]:
    return {**({"vocab": 40} if "language_model" in name else {}), **SETTINGS.get(name, {})}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_the_pipeline_one_pass_at_a_time(name: str, mode: str) -> None:
    """Through text behind every pass, and all at once: what `dnc compile` makes, with what it chose between
    two ways of `fuse` left out."""
    path = EXAMPLES / f"{name}.dn"
    program = read_program(path, sizes(name))[1]
    expected = transform(program, PlanOptions(mode=mode))
    passes = [step.name for step in program_passes(mode)]
    text = run_passes(path, "", settings=sizes(name)).text
    assert text == print_program(program)
    at_once = run_passes("x.ir", ",".join(passes), text=text)
    assert [step for step, _ in at_once.after] == passes
    for step, (_, behind) in zip(passes, at_once.after, strict=True):
        text = run_passes("x.ir", step, text=text).text
        assert text == behind
    assert text == at_once.text == print_program(expected)
    for target in ("cpu", "sm_90a"):
        plan = make_plan(expected, target, PlanOptions(mode=mode, repeat=False))
        assert run_passes("x.ir", PLAN, text=text, target=target).text == print_plan(plan) + "\n"


def test_options_of_passes() -> None:
    program = read_program(TREE, SMALL)[1]
    assert ".pre" not in run_passes(EXAMPLES / "bilstm_tagger.dn", "hoist{split=false}").text
    assert ".pre" in run_passes(EXAMPLES / "bilstm_tagger.dn", "hoist{ split = true }").text
    text = run_passes(TREE, "fuse{enabled=false}", settings=SMALL).text
    gru = run_passes(EXAMPLES / "gru_classifier.dn", f"{PROGRAM},fuse{{repeats=true}}", target="sm_90a").text
    assert "by every worker in whole: %split_1, %ur, %add, %r, %mul" in gru
    assert text.count("segment ") > run_passes(TREE, "fuse", settings=SMALL).text.count("segment ")
    shown = run_passes(
        TREE, f"{PROGRAM},fuse,select-tiles{{cluster=8 window=256}},plan-weights{{residency=streamed}}",
        settings=SMALL, target="sm_90a",
    ).text  # fmt: skip
    expected = make_plan(
        transform(program), "sm_90a", PlanOptions(cluster=8, window=256, residency="streamed")
    )
    assert shown.strip() in print_plan(expected) or shown.strip() == print_plan(expected)


def test_every_pass_can_be_named() -> None:
    names = list(known_passes(machine("cpu")))
    assert names == [
        *("canonicalize", "inline", "merge", "hoist", "differentiate", "share", "drop-training"),
        *(
            "fuse",
            "reassociate",
            "select-tiles",
            "plan-weights",
            "mailboxes",
            "polls",
            "reductions",
            "select-instructions",
        ),
    ]


@pytest.mark.parametrize(
    "passes, place, message",
    [
        ("canonicalize,fly", "1:14", "there is no pass 'fly'"),
        ("hoist,", "1:6", "expected a pass behind the comma"),
        (",hoist", "1:1", "expected a pass, and its options in braces"),
        ("hoist{split=false", "1:1", "expected a pass, and its options in braces"),
        ("hoist inline", "1:1", "there is no pass 'hoist inline'"),
        ("hoist{split=maybe}", "1:7", "split: found 'maybe', expected true or false"),
        ("hoist{splits=true}", "1:7", "'hoist' has no option 'splits'"),
        ("canonicalize{a=1}", "1:14", "'canonicalize' has no option 'a'"),
        ("fuse{vertex_floats=-3}", "1:6", "vertex_floats: found '-3', expected a whole number"),
        ("fuse{vertex_floats=99999999999}", "1:6", "vertex_floats: found '99999999999', expected a whole"),
        ("fuse,select-tiles{workers=-1}", "1:19", "workers: found '-1', expected a whole number"),
        ("fuse,select-tiles{cluster=x}", "1:19", "cluster: found 'x', expected a whole number"),
        ("fuse,select-tiles{batch=-4}", "1:19", "batch: found '-4', expected a whole number"),
        ("fuse,select-tiles{window=none}", "1:19", "window: found 'none', expected a whole number"),
        ("fuse,select-tiles,plan-weights{limit=-5}", "1:32", "limit: found '-5', expected a whole number"),
        ("fuse,select-tiles{constants=5}", "1:19", "'select-tiles' has no option 'constants'"),
        ("fuse,select-tiles{tile=0}", "1:6", "'select-tiles': tile: found 0, expected 1 or more"),
        ("fuse,select-tiles{workers=0}", "1:6", "'select-tiles': workers: found 0, expected 1 or more"),
        ("fuse,select-tiles,plan-weights{residency=5}", "1:19", "'plan-weights': residency: found '5'"),
        ("hoist{split}", "1:7", "expected options as name=value"),
        ("fuse,hoist", "1:6", "'hoist' works on programs, and behind 'fuse' there is a plan"),
        ("fuse,fuse", "1:6", "'fuse' works on programs, and behind 'fuse' there is a plan"),
        ("select-tiles", "1:1", "'select-tiles' works on plans: 'fuse' has to stand before it"),
        ("fuse,select-tiles,reassociate", "1:19", "'reassociate' changes what tiles are chosen for"),
        ("fuse,plan-weights", "1:6", "'plan-weights' needs the plan's tiles: 'select-tiles' has to"),
        ("polls", "1:1", "'polls' works on plans: 'fuse' has to stand before it"),
        ("fuse,polls", "1:6", "'polls' needs the plan's tiles: 'select-tiles' has to"),
        ("differentiate,hoist", "1:15", "'hoist' works on forward stages, and 'differentiate' has made back"),
        ("differentiate,differentiate", "1:15", "'differentiate' works on forward stages"),
        ("fuse,select-tiles,plan-weights{residency=x}", "1:19", "'plan-weights': residency: found 'x'"),
    ],
)
def test_wrong_lists(passes: str, place: str, message: str) -> None:
    for target in ("cpu", "sm_90a"):
        with pytest.raises(DiagnosticError) as caught:
            run_passes("x.ir", passes, text=ir(), target=target)
        assert str(caught.value).startswith(f"-p:{place}: error: {message}"), caught.value
        assert f"\n  {passes}\n" in str(caught.value)


def test_clusters_that_a_machine_does_not_have() -> None:
    message = "-p:1:6: error: 'select-tiles': sm_90a has no clusters of 5\n"
    with pytest.raises(DiagnosticError) as caught:
        run_passes("x.ir", "fuse,select-tiles{cluster=5}", text=ir(), target="sm_90a")
    assert str(caught.value).startswith(message)


def test_options_that_are_left_open() -> None:
    for passes in ("select-tiles{cluster=none tile=none}", "select-tiles,plan-weights{residency=none}"):
        plain = ",".join(each.split("{")[0] for each in passes.split(","))
        found = [run_passes("x.ir", f"fuse,{each}", text=ir(), target="sm_90a") for each in (passes, plain)]
        assert found[0].text == found[1].text


@pytest.mark.parametrize("before", ["", "canonicalize,inline,hoist,"])
def test_running_parameters_move_only_behind_differentiate(before: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        run_passes(EXAMPLES / "rnn_stack.dn", f"{before}fuse", settings=sizes("rnn_stack"))
    message = "'fuse': running parameters move: 'differentiate' or 'drop-training' has to stand before it"
    assert str(caught.value).startswith(f"-p:1:{len(before) + 1}: error: {message}"), caught.value
    for made in ("differentiate", "drop-training"):
        passes = f"{before}{made},fuse"
        assert run_passes(EXAMPLES / "rnn_stack.dn", passes, settings=sizes("rnn_stack")).text


def test_a_number_that_python_does_not_read() -> None:
    with pytest.raises(DiagnosticError, match=r"-p:1:19: error: window: found '9+', expected a whole number"):
        run_passes("x.ir", f"fuse,select-tiles{{window={'9' * 5000}}}", text=ir(), target="sm_90a")


def test_a_file_with_backward_stages_is_named() -> None:
    with pytest.raises(
        DiagnosticError, match=r"-p:1:1: error: 'hoist' works .*, and t\.ir has backward ones"
    ):
        run_passes("t.ir", "hoist", text=ir(PROGRAM))


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("tanh(%c)", "tan(%c)", "t.ir:45:21: error: unknown operation 'tan'"),
        ("tanh(%c)", "tanh(%q)", "t.ir:45:26: error: %q is not defined above"),
        ("= sigmoid(%i)", "= sigmoid(%i", "t.ir:42:3: error: found '%tanh', expected ','"),
        ("root Tree", "root Bush", "error: t.ir: the root struct 'Bush' does not exist"),
        ("program TreeLSTM", "programm TreeLSTM", "t.ir:1:1: error: found 'programm', expected 'program'"),
        ("parameter V\n", "parameter Q\n", "error: stage 'logits': input %V:"),
        ('"3 * hidden"', '"\\ * hidden"', "t.ir:16:20: error: found '\"\\ * hidden\"', expected a string"),
        ('"3 * hidden"', '"\\ud800"', "t.ir:16:20: error: found '\"\\ud800\"', expected a string as JSON"),
        ("accuracy mean 0", "accuracy mean 1", "result %accuracy: found expression 1, but 'mean' has 1"),
        ("accuracy mean 0", "accuracy mean -1", "result %accuracy: found expression -1, but 'mean' has 1"),
        ("hidden = 4", "hidden = " + "4" * 5000, "t.ir:5:20: error: found a number of 5000 letters"),
    ],
)
def test_wrong_ir(old: str, new: str, message: str) -> None:
    text = ir()
    assert old in text, text
    with pytest.raises(DiagnosticError) as caught:
        run_passes("t.ir", "canonicalize", text=text.replace(old, new, 1))
    assert message in str(caught.value), caught.value


@pytest.mark.parametrize("start, passes", [("", PROGRAM), (PROGRAM, PLAN)])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_damaged_ir_is_refused_in_words(start: str, passes: str, data: st.DataObject) -> None:
    choices = Choices(lambda low, high: data.draw(st.integers(low, high)))
    text = damaged_program(choices, ir(start))
    try:
        run_passes("t.ir", f"canonicalize,{passes}", text=text)
    except DiagnosticError as error:
        assert "error: " in str(error)


def test_command_line(command, workplace, monkeypatch):
    shown = command(f"opt {TREE} --set hidden=4,embed=4")
    assert shown.code == 0 and shown.error == "" and shown.out.startswith("program TreeLSTM\n")
    (workplace / "t.ir").write_text(shown.out)
    assert command("opt t.ir").out == shown.out
    done = command("opt t.ir -p canonicalize,hoist --print-after hoist -o out.ir --remarks")
    assert done.code == 0 and done.out == "" and done.error.endswith("wrote out.ir\n")
    assert "# after hoist\nprogram TreeLSTM" in done.error and "# after canonicalize" not in done.error
    assert "t.ir:" in done.error and "remark: the product with U stays in the recursion" in done.error
    assert command("opt out.ir -p differentiate,fuse").out.startswith("plan TreeLSTM for cpu\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(shown.out.encode())))
    assert command("opt - -p fuse --target cuda").out.startswith("plan TreeLSTM for sm_90a\n")
    (workplace / "-").write_text(shown.out)
    assert command("opt ./-").out == shown.out


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("opt none.ir", "error: none.ir: there is no such file"),
        ("opt build", "error: build: is a directory, expected a file"),
        ("opt t.ir --set hidden=3", "error: t.ir: sizes can be set in a .dn file, not in IR"),
        ("opt t.ir -p hoist --print-after fuse", "error: --print-after: 'fuse' is not among the passes that"),
        ("opt t.ir --target tpu", "error: unknown target 'tpu'"),
        ("opt t.ir -o t.ir", "error: t.ir: is read here too and would be lost"),
        ("opt t.ir -o no/where", "error: no/where: there is no directory no"),
        ("opt latin.ir", "latin.ir:1:9: error: not UTF-8"),
        ("opt empty.ir", "empty.ir:1:1: error: found 'end of text', expected 'program'"),
        ("opt", "error: Missing argument"),
    ],
)
def test_mistakes(command, workplace, arguments, message):
    (workplace / "t.ir").write_text(ir())
    (workplace / "latin.ir").write_bytes(b"program \xe4")
    (workplace / "empty.ir").write_text("")
    done = command(arguments)
    assert done.code == 2 and done.out == "" and done.error.startswith(message), done.error
