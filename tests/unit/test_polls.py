"""Levels that wait for states, or partial sums, by looking at them (`dnc/passes/plan_polls.py`)."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from dnc.codegen.cuda_files import emit_source
from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.explain.facts import gather
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.plan import Plan
from dnc.runtime.encoder import Encoder
from dnc.runtime.encoder.awaited import awaited_of
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Spread
from dnc.runtime.phases import EVALUATE, sequence
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.verifier import ScheduleError, verify
from tests.support.executors import bench_on_vm, check_both
from tests.support.forests import ForestGrower
from tests.support.models import rows_of
from tests.support.plans import plan_of, plan_of_text

TREE = {"hidden": 64, "embed": 40, "vocab": 11}
CHIP = {"cluster": 0}


def polled(plan: Plan) -> list[tuple[str, str, int, int]]:
    return [(each.segment, each.buffer, each.offset, each.width) for each in plan.polled]


def test_states_over_the_whole_chip_are_polled() -> None:
    assert polled(plan_of("treelstm", TREE, mode="infer", **CHIP)) == [
        ("encode.Node/0", "encode.Node:state", 0, 64)
    ]
    assert polled(plan_of("lstm_classifier", {"hidden": 64}, mode="infer", **CHIP)) == [
        ("forward/0", "forward:state", 0, 64)
    ]


def test_so_are_the_partial_sums_of_the_way_back() -> None:
    """All that the recursion's own products leave: of a tree for both children."""
    for example, settings, buffers in (
        ("lstm_classifier", {"hidden": 64}, ["forward.grad>forward.h@prev#0"]),
        ("treelstm", TREE, ["encode.Node.grad>encode.h@left#0", "encode.Node.grad>encode.h@right#1"]),
    ):
        plan = plan_of(example, settings, **CHIP)
        sums = [each for each in plan.polled if each.partial]
        assert [each.buffer for each in sums] == buffers
        assert all(plan.buffer(each.buffer).partial and each.width == 64 for each in sums)
        assert len(plan.polled) == len(sums) + 1


@pytest.mark.parametrize(
    "example, settings, options",
    [
        ("treelstm", TREE, {**CHIP, "without": ("polls",)}),
        ("treelstm", TREE, {"cluster": 8}),  # a barrier of the hardware
        ("treelstm", TREE, {**CHIP, "residency": "streamed"}),  # many rows, or time for a barrier
        ("treelstm", TREE, {**CHIP, "workers": 1}),
        ("gru_classifier", {"hidden": 64}, {**CHIP, "repeat": True}),  # reads its operand twice
        ("bilstm_tagger", {"hidden": 64}, CHIP),  # two segments in a level
        ("treelstm", TREE, {"target": "cpu"}),
    ],
)
def test_nothing_is_polled(example: str, settings: dict[str, int], options: dict[str, Any]) -> None:
    plan = plan_of(example, settings, **options)
    assert not plan.polled and not {isa.AWAITED, isa.AWAITED_SUMS} & set(isa.layout(plan).header)


ODD = """
model Odd(vocab, ops, embed = 50, hidden = 64, classes = 2)
struct Tree   = Leaf(word: token<vocab>) | Node(op: token<ops>, left: Tree, right: Tree)
struct Sample = Sample(tree: Tree, label: class<classes>)
param E: table[vocab, hidden], F: table[ops, embed], V: [classes, hidden]
param U: [hidden, embed + 2 * hidden]
fn encode(t: Tree) -> [hidden] = match t:
    Leaf(word)            -> E[word]
    Node(op, left, right) -> tanh(U @ concat(F[op], encode(left), encode(right)))
loss sum(s in root) cross_entropy(V @ encode(s.tree), s.label)
"""


@pytest.mark.parametrize("embed, polls", [(50, False), (52, True)])
def test_operands_that_are_not_copied_whole_are_not_polled(embed: int, polls: bool) -> None:
    """They are read element by element, by code that does not wait."""
    options = PlanOptions(cluster=0)
    program = transform(load_program(Source("odd.dn", ODD), {"embed": embed})[0], options)
    assert bool(make_plan(program, "sm_90a", options).polled) == polls


@pytest.mark.parametrize("embed, pushed", [(50, False), (52, True)])
def test_nor_are_they_pushed(embed: int, pushed: bool) -> None:
    source = """
model Odd(vocab, embed = 50, hidden = 64, classes = 2)
struct Word   = Word(form: token<vocab>)
struct Sample = Sample(words: [Word], label: class<classes>)
param E: table[vocab, embed], V: [classes, hidden], U: [hidden, embed + hidden]
fn forward(w: Word) -> [hidden] = tanh(U @ concat(E[w.form], forward(w.prev)))
loss sum(s in root) cross_entropy(V @ forward(s.words.last), s.label)
"""
    options = PlanOptions(cluster=8)
    program = transform(load_program(Source("odd.dn", source), {"embed": embed})[0], options)
    states = [each for each in make_plan(program, "sm_90a", options).pushes if each.value is not None]
    assert bool(states) == pushed


def encoder_of(plan: Plan, samples: int = 6) -> Encoder:
    forest = ForestGrower(plan.program, 3).grow(samples, 15, "random")
    return Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 19))


def test_a_launch_awaits_all_rows_of_the_recursion() -> None:
    plan = plan_of("treelstm", TREE, **CHIP)
    encoder, at = encoder_of(plan), isa.layout(plan).header[isa.AWAITED]
    group = encoder.encode_group([np.arange(2), np.arange(2, 6)], replicas=1, workers=8)
    for schedule in group:
        verify(schedule)
        assert schedule.words[at] == schedule.rows["encode.Node"] > 0


def test_replicas_await_their_own_rows() -> None:
    plan = plan_of("treelstm", TREE, **CHIP)
    encoder, header = encoder_of(plan), isa.layout(plan).header
    group = encoder.encode_group([np.arange(3), np.arange(3, 6)], replicas=4, workers=8)
    for schedule in group:
        verify(schedule)
        words, at = schedule.words, schedule.words[header[isa.AWAITED_FROM]]
        firsts = words[at : at + 5]
        assert words[header[isa.AWAITED]] == firsts[4] == schedule.rows["encode.Node"] > firsts[1] > firsts[0]
        assert firsts[3] == firsts[4]  # three samples, so the last replica has none


def test_nothing_is_awaited_where_nothing_stands_before_the_recursion() -> None:
    """No barrier would part those who set states from those who write them."""
    plan = plan_of("treelstm", TREE, **CHIP)
    none, zeros = np.zeros(0, np.intp), np.zeros((2, 1, 1, 1), np.intp)
    nodes, leaves = (
        Rows(none, Spread(np.array(counts)), np.array(counts).reshape(2, 1, 1, 1), zeros)
        for counts in ([5, 6], [3, 0])
    )
    steps, rows = sequence(plan, "train"), {"encode.Node": nodes, "encode.Leaf": leaves}
    found = awaited_of(plan, steps, rows)
    assert found is not None and found.tolist() == [[5], [0]]
    assert awaited_of(plan, [step for step in steps if step.phase > 0], rows) is None


def test_nothing_is_awaited_where_it_stands_before_the_recursion_in_one_launch_of_two() -> None:
    """Of a schedule for values and training; what running statistics follow is not there for values."""
    text = """model Followed(width = 256)
struct Word = Word(form: token<11>, y: vector<width>)
struct Text = Text(words: [Word])
param E: table[11, width] = normal(1), U: [width, width]
running param R: [width]
fn a(t: Word) -> [width] = tanh(E[t.form] + U @ a(t.prev))
fn g(t: Word) -> [width] = t.y - follow(R, t.y, 0.25)
push s = [a(t) for t in all(Word)]
metric m = mean(t in all(Word)) sum(g(t))
"""
    plan = plan_of_text(text, target="sm_80")
    assert plan.polled and plan.tiling is not None
    check_both(bench_on_vm(plan, 1, 4, (2, plan.tiling.workers), 1))


def test_sums_are_awaited_where_narrow_levels_gain_more_than_setting_them_costs() -> None:
    """They are as many as workers: batches with wide levels wait at barriers on the way back."""
    plan = plan_of("lstm_classifier", {"hidden": 512, "embed": 8}, **CHIP, workers=132)
    at = isa.layout(plan).header[isa.AWAITED_SUMS]
    forest = ForestGrower(plan.program, 3).grow(64, 40, "random")
    encoder = Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 26))
    narrow, wide = (encoder.encode(np.arange(count), replicas=1, workers=132) for count in (1, 64))
    for schedule in (narrow, wide):
        verify(schedule)
    assert narrow.words[at] == narrow.rows["forward"] and wide.words[at] == 0
    evaluation = encoder.encode(np.arange(1), replicas=1, workers=132, mode=EVALUATE)
    assert evaluation.words[at] == 0 < evaluation.words[isa.layout(plan).header[isa.AWAITED]]


def test_the_verifier_knows_what_may_be_awaited() -> None:
    plan = plan_of("treelstm", TREE, **CHIP)
    header = isa.layout(plan).header
    schedule = encoder_of(plan).encode(np.arange(6), replicas=2, workers=8)
    total = "are awaited; there are"
    for wrong, message in (
        (isa.AWAITED, total),
        (isa.AWAITED_SUMS, total),
        ("first", "replica 0 awaits other rows"),
    ):
        words = schedule.words.copy()
        words[header[wrong] if wrong in header else words[header[isa.AWAITED_FROM]] + 1] -= 1
        with pytest.raises(ScheduleError, match=message):
            verify(attrs.evolve(schedule, words=words))


def test_kernels_publish_what_is_polled_and_never_a_minus_zero() -> None:
    """One by one where levels are narrow, and four at a time where they are not."""
    names = ("dnc_publish(", "dnc_arrived(", "dnc_publish4(", "dnc_runs_arrived(")
    for without in ((), ("polls",)):
        plan = plan_of("treelstm", TREE, **CHIP, workers=2, without=without)
        source = emit_source(plan)["kernel.cu"].decode()
        assert [name in source for name in names] == [not without] * len(names)


def test_explain_says_what_is_polled() -> None:
    plan = plan_of("treelstm", TREE, **CHIP)
    assert gather(plan).polls == ("states of encode.Node/0", "partial sums of encode.Node.grad/0")
