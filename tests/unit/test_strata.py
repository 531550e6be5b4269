"""Recursions behind each other (`passes/hoist.py`): which are strata, what leaves them, levels and values."""

from __future__ import annotations

import numpy as np
import pytest

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.explain.facts import gather, levels
from dnc.frontend.build import load_program
from dnc.ir.parser import parse_program
from dnc.ir.phases import Phases
from dnc.ir.printer import print_program
from dnc.ir.program import FORWARD, LEVEL, Program
from dnc.ir.reads import stage_producers
from dnc.ir.verifier import verify
from dnc.runtime.phases import sequence
from dnc.runtime.prepared import prepare
from tests.support.executors import bench_on_vm, check_all
from tests.support.forced import forced
from tests.support.forests import ForestGrower
from tests.support.plans import plan_of

# Letters make words, words sentences, sentences a text; two layers over words.
TEXT = """
model Text(vocab, width = 8, classes = 3)
struct Letter = Letter(form: token<vocab>)
struct Word = Word(letters: [Letter])
struct Sentence = Sentence(words: [Word])
struct Text = Text(sentences: [Sentence], label: class<classes>)
param E: table[vocab, width], A: [width, width], B: [width, width], C: [width, width], D: [width, width]
param W: [width, width], X: [width, width], Y: [width, width], V: [classes, width]
fn letter(c: Letter) -> [width] = tanh(A @ letter(c.prev) + E[c.form])
fn word(w: Word) -> [width] = tanh(B @ word(w.prev) + W @ letter(w.letters.last))
fn upper(w: Word) -> [width] = tanh(C @ upper(w.prev) + X @ word(w))
fn sentence(s: Sentence) -> [width] = tanh(D @ sentence(s.prev) + Y @ upper(s.words.last))
loss sum(t in all(Text)) cross_entropy(V @ sentence(t.sentences.last), t.label)
output z = [sentence(s) for s in all(Sentence)]
"""


def program_of(text: str, *without: str) -> Program:
    return transform(load_program(Source("text.dn", text), {})[0], PlanOptions(without=without))


def strata(program: Program) -> dict[str, str]:
    return {stage.name: stage.when for stage in program.stages if stage.direction == FORWARD}


def test_recursions_over_other_structs_are_strata_and_layers_are_not() -> None:
    found = strata(program_of(TEXT))
    assert [found[name] for name in ("letter", "word", "upper", "sentence")] == [
        "level",
        "level 1",
        "level 1",
        "level 2",
    ]


def test_products_leave_a_recursion_for_what_is_there_before_it() -> None:
    found = strata(program_of(TEXT))
    assert found["word.pre"] == "early 1" and found["sentence.pre"] == "early 2"
    assert "upper.pre" not in found  # the layer below goes on beside it


def test_a_product_that_waits_for_no_recursion_is_in_front_of_all() -> None:
    found = strata(plan_of("encoder_decoder", {"targets": 20}).program)
    assert (found["encode"], found["decode"], found["decode.pre"]) == ("level", "level 1", "early")


# Of two layers over words, both ways, only those one way read letters.
ONE_WAY = (
    TEXT[: TEXT.index("fn upper")]
    + """
fn upper(w: Word) -> [width] = tanh(C @ upper(w.prev) + X @ word(w))
fn turned(w: Word) -> [width] = tanh(D @ turned(w.next) + X @ E[w.letters.first.form])
fn above(w: Word) -> [width] = tanh(C @ above(w.next) + X @ turned(w))
loss sum(t in all(Word)) sum(Y @ (upper(t) + above(t)))
"""
)
# What letters feed is an output alone: training runs nothing of the first stratum.
OUTPUT = ONE_WAY.replace("upper(t) + above(t)", "above(t)") + "output up = [upper(w) for w in all(Word)]\n"


def test_recursions_over_the_same_structs_go_on_together() -> None:
    found = strata(program_of(ONE_WAY))
    assert [found[name] for name in ("letter", "word", "upper", "turned", "above")] == [
        "level",
        *("level 1",) * 4,
    ]


def test_what_a_later_stratum_reads_stays_in_front_of_it() -> None:
    """A sentence's words wait for those of another recursion, and so do not put off what that reads."""
    text = ONE_WAY + "fn last(w: Word) -> [width] = tanh(A @ last(w.prev) + B @ turned(w) + word(w))\n"
    found = strata(program_of(text + "loss sum(w in all(Word)) sum(last(w))\n"))
    assert (found["turned"], found["last"], found["last.pre"]) == ("level", "level 1", "early 1")


def test_gradients_come_last_to_first() -> None:
    program = program_of(TEXT)
    phases = Phases.of(program)
    order = ["sentence.grad", "sentence.pre.grad", "word.grad", "word.pre.grad", "letter.grad"]
    found = [phases.of_stage(program.stage(name)) for name in order]
    assert found == sorted(set(found)) and found[0] > phases.starts and found[-1] < phases.count
    assert [phases.has_levels(phase) for phase in found] == [True, False, True, False, True]
    for stage in program.stages:
        assert phases.has_levels(phases.of_stage(stage)) == (stage.placement == LEVEL)


# Two stages behind the last recursion, and a loss that reads the second.
LATE = (
    TEXT
    + """
fn late(s: Sentence) -> [width] = tanh(Y @ sentence(s))
fn later(s: Sentence) -> [width] = tanh(X @ late(s) + late(s.prev))
loss sum(s in all(Sentence)) sum(later(s.next))
"""
)


@pytest.mark.parametrize("text, joined", [(TEXT, {("loss", "loss.grad")}), (LATE, set())])
def test_every_stage_runs_behind_what_it_reads(text: str, joined: set[tuple[str, str]]) -> None:
    """joined: stages at the same place, because each row of one reads that of the other alone."""
    program = program_of(text)
    places: dict[str, list[tuple[int, int]]] = {}
    for step in sequence(make_plan(program, "cpu", PlanOptions()), "train"):
        places.setdefault(step.segment.stage, []).append((step.phase, step.step))
    behind, together = set(), set()
    for stage in (program.stage(name) for name in places):
        for maker in (program.stage(name) for name in stage_producers(program, stage) if name in places):
            made, read = max(places[maker.name]), min(places[stage.name])
            if maker.placement == stage.placement == LEVEL and made[0] == read[0]:
                continue  # levels order them
            assert made <= read, (maker.name, stage.name)
            (behind if made < read else together).add((maker.name, stage.name))
    assert together == joined
    assert {("letter", "word.pre"), ("word.pre", "word"), ("sentence.grad", "sentence.pre.grad")} <= behind
    assert text == TEXT or {("sentence", "late"), ("late", "later"), ("later", "loss2")} <= behind


def test_levels_of_a_stratum_begin_at_zero() -> None:
    plan = make_plan(program_of(TEXT), "cpu", PlanOptions())
    prepared = prepare(plan, ForestGrower(plan.program, 3).grow(20, 40, "random"))
    for name in ("letter", "word", "sentence"):
        assert prepared.spaces[name].level.min() == 0
    # A layer is one level behind the one below it.
    word, upper = prepared.spaces["word"], prepared.spaces["upper"]
    np.testing.assert_array_equal(word.vertex, upper.vertex)
    np.testing.assert_array_equal(word.level + 1, upper.level)


def test_the_printed_form_comes_back() -> None:
    program = program_of(TEXT)
    text = print_program(program)
    assert "level 2 forward" in text and parse_program(text) == program and program.strata == 3


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("sentence level 2 forward", "sentence level 200 forward", "there is no stratum 200"),
        ("sentence level 2 forward", "sentence level -1 forward", "there is no stratum -1"),
        ("sentence level 2 forward", "sentence level 1.5 forward", "expected a whole number"),
        ("sentence level 2 backward", "sentence level 1 backward", "of the same space"),
        ("word early 1 forward", "word late 1 forward", "is late 1, expected level 1 at the latest"),
    ],
)
def test_wrong_strata_are_told(old: str, new: str, message: str) -> None:
    text = print_program(program_of(TEXT))
    assert text.count(old) == 1
    with pytest.raises(DiagnosticError, match=message):
        verify(parse_program(text.replace(old, new)))


def test_without_hoist_there_is_one() -> None:
    assert program_of(TEXT, "hoist").strata == 1


# Samples and grids.
SIZES = ((1, (3, 4)), (5, (2, 4)), (9, (7, 4)))


@pytest.mark.parametrize("text, without", [(TEXT, ()), (TEXT, ("hoist",)), (ONE_WAY, ()), (OUTPUT, ())])
def test_values(text: str, without: tuple[str, ...]) -> None:
    plan = make_plan(program_of(text, *without), "sm_90a", PlanOptions(workers=4, cluster=4))
    for seed, (samples, grid) in enumerate(SIZES if text == TEXT and not without else SIZES[1:2]):
        bench = bench_on_vm(plan, samples, 16, grid, seed)
        for shared in (None, True):
            with forced(shared=shared):
                check_all(bench)


def test_values_with_directions_apart() -> None:
    plan = plan_of("char_tagger", {"hidden": 12, "half": 8, "char": 4, "mlp": 8})
    for seed, (samples, grid) in enumerate(((1, (3, 4)), (5, (2, 4)), (9, (7, 2)))):
        bench = bench_on_vm(plan, samples, 20, grid, seed)
        with forced(parts=True):
            check_all(bench)


# ---- what people read ----------------------------------------------------------------------------------


def test_explain_tells_recursions_apart() -> None:
    plan = make_plan(program_of(TEXT), "sm_90a", PlanOptions())
    facts = gather(plan)
    assert [len(both) for both in levels(plan)] == [2, 2, 2]
    names = [exchange.phase for exchange in facts.exchanges]
    assert "forward, between recursions 1 and 2" in names and "backward, a level of recursion 3" in names
    assert any("A level of recursion 2 (word, upper), forward and backward" in line for line in facts.why)


def test_explain_numbers_recursions_alike_where_training_does_not_run_the_first() -> None:
    facts = gather(make_plan(program_of(OUTPUT), "sm_90a", PlanOptions()))
    named = [exchange.phase for exchange in facts.exchanges if "a level" in exchange.phase]
    assert named == ["forward, a level of recursion 2", "backward, a level of recursion 2"]
    assert any("A level of recursion 2 (turned, above), forward and backward" in line for line in facts.why)
