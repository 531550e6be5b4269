"""Phases that the grid shares out (`dnc/runtime/encoder/scopes.py`): when, how queues look, and values."""

from __future__ import annotations

from functools import cache

import attrs
import numpy as np
import pytest

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.phases import Phases
from dnc.ir.plan import Plan
from dnc.runtime.data.reader import read_samples
from dnc.runtime.encoder import Encoder
from dnc.runtime.encoder.modes import Modes
from dnc.runtime.phases import _joined, sequence
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.reference_vm import MachineError, ReferenceVM
from dnc.runtime.schedule import Schedule, queue
from dnc.runtime.verifier import ScheduleError, verify
from tests.support.executors import (
    bench_on_vm,
    check_evaluation,
    check_group,
    check_outputs,
    check_training,
)
from tests.support.forced import forced
from tests.support.forests import ForestGrower
from tests.support.meetings import without_first_meeting
from tests.support.models import rows_of
from tests.support.plans import plan_of
from tests.support.queues import fields_of

LARGE = {"vocab": 11, "hidden": 256, "embed": 256}
SMALL = {"vocab": 11, "hidden": 32, "embed": 8}
WORDS = """
model Words(vocab = 9, width = 512)
struct Letter = Letter(form: token<vocab>)
struct Word = Word(letters: [Letter])
struct Text = Text(words: [Word])
param E: table[vocab, width], A: [width, width], B: [width, width], C: [width, width], D: [width, width]
fn letter(c: Letter) -> [width] = tanh(A @ letter(c.prev) + E[c.form])
fn word(w: Word) -> [width] = tanh(B @ word(w.prev) + D @ tanh(C @ letter(w.letters.last)))
loss sum(w in all(Word)) sum(word(w))
"""


@cache
def plan_named(name: str, target: str = "sm_90a", **settings: int) -> Plan:
    return plan_of(name, settings, target)


def encoder_of(plan: Plan, samples: int, shape: str = "complete") -> Encoder:
    forest = ForestGrower(plan.program, 3).grow(samples, 15, shape)
    return Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 19))


def instructions(schedule: Schedule, name: str) -> list[list[int]]:
    """The first two fields of an opcode's instructions, replica by replica."""
    replicas = schedule.words[isa.layout(schedule.plan).header["replicas"]]
    own = [fields_of(schedule, replica, name) for replica in range(replicas)]
    return [[word for fields in found for word in fields[:2]] for found in own]


# ---- the choice ----------------------------------------------------------------------------------------


def test_words_of_one_sentence_go_to_all_replicas() -> None:
    plan = plan_named("lstm_classifier", **LARGE)
    forest = ForestGrower(plan.program, 3).grow(2, 200, "complete")
    encoder = Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 19))
    schedule = encoder.encode(np.array([0]), replicas=4, workers=8)
    words = instructions(schedule, "forward.pre/0")
    assert all(words) and sum(own[1] for own in words) == schedule.rows["forward"] > 128
    assert [len(own) // 2 for own in instructions(schedule, isa.GRID_BARRIER)] == [3] * 4
    levels = instructions(schedule, "forward/0")
    assert levels[0] and not any(levels[1:])
    verify(schedule)


def test_few_leaves_stay_with_their_sentence() -> None:
    """An instruction takes as long for a leaf or two as for twenty."""
    plan = plan_named("treelstm", **LARGE)
    schedule = encoder_of(plan, 8).encode(np.array([3]), replicas=4, workers=16)
    assert [bool(own) for own in instructions(schedule, "encode.Leaf/0")] == [True, False, False, False]


def test_replicas_that_have_as_much_to_do_keep_their_leaves() -> None:
    plan = plan_named("treelstm", **LARGE)
    encoder = encoder_of(plan, 64)
    sizes = np.diff(encoder.prepared.spaces["encode.Leaf"].begin)
    same = np.flatnonzero(sizes == np.bincount(sizes).argmax())[:4]
    assert len(same) == 4
    schedule = encoder.encode(same, replicas=4, workers=16)
    assert [own[1] for own in instructions(schedule, "encode.Leaf/0")] == [sizes[same[0]]] * 4
    assert [len(own) // 2 for own in instructions(schedule, isa.GRID_BARRIER)] == [2] * 4


def test_replicas_with_more_rows_and_fewer_levels_keep_their_leaves() -> None:
    """Samples were shared out by what rows and levels cost, so these end with the others."""
    plan = plan_of("treelstm", LARGE, cluster=16, precision="tf32")
    forest = ForestGrower(plan.program, 3).grow(64, 31, "chain")
    encoder = Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 20))
    with forced(apart=False):  # adding up deltas of words takes another barrier
        schedule = encoder.encode(np.arange(64), replicas=7, workers=16)
    assert [len(own) // 2 for own in instructions(schedule, isa.GRID_BARRIER)] == [2] * 7


def test_a_cpu_shares_nothing_out() -> None:
    plan = plan_named("treelstm", "cpu", **LARGE)
    schedule = encoder_of(plan, 4).encode(np.array([0]), replicas=4, workers=1)
    assert [bool(own) for own in instructions(schedule, "encode.Leaf/0")] == [True, False, False, False]


def test_stacks_are_not_shared_out() -> None:
    plan = plan_named("rnn_stack")
    assert any(plan.program.selectors(space.name) for space in plan.program.spaces)
    sharing, steps = Modes(plan).mode("train").sharing, sequence(plan, "train")
    chosen = {step.segment.space for step in steps if step.phase in sharing.phases}
    assert not any(plan.program.selectors(space) for space in chosen)


@pytest.mark.parametrize("shapes, shares", [([(20, 10), (80, 10)], True), ([(3, 60), (80, 2)], False)])
def test_nobody_waits_who_has_more_to_do_behind(shapes: list[tuple[int, int]], shares: bool) -> None:
    """Words stand between two recursions. A sample with few long ones, and one with many short ones."""
    program = transform(load_program(Source("words.dn", WORDS), {})[0], PlanOptions())
    plan = make_plan(program, "sm_90a", PlanOptions(cluster=8))
    samples = [{"words": [{"letters": [{"form": 1}] * letters}] * words} for words, letters in shapes]
    forest = read_samples(samples, program).forest
    encoder = Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 21))
    schedule = encoder.encode(np.arange(2), replicas=2, workers=8)
    verify(schedule)
    (_, one), (_, other) = instructions(schedule, "word.pre/0")
    assert (abs(one - other) <= 1) == shares


def test_batches_of_a_group_choose_for_themselves() -> None:
    plan = plan_named("lstm_classifier", **LARGE)
    forest = ForestGrower(plan.program, 3).grow(40, 300, "complete")
    encoder = Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 21))
    batches = [np.arange(2), np.arange(2, 40)]
    found = encoder.encode_group(batches, replicas=3, workers=8)
    for samples, grouped in zip(batches, found, strict=True):
        verify(grouped)
        alone = encoder.encode(samples, replicas=3, workers=8)
        for name in ("forward.pre/0", isa.GRID_BARRIER):
            assert instructions(grouped, name) == instructions(alone, name)


# ---- gradients without an exchange in front --------------------------------------------------------------


def test_the_gradient_of_a_loss_joins_it() -> None:
    steps = {step.segment.name: step for step in sequence(plan_named("treelstm", **SMALL), "train")}
    loss, gradient = steps["loss/0"], steps["loss.grad/0"]
    assert (loss.phase, loss.step) == (gradient.phase, gradient.step) == (Phases().behind, 0)


def test_where_nothing_stands_in_front_it_starts_alone() -> None:
    (gradient,) = (
        step
        for step in sequence(plan_named("treelstm", **SMALL), "train")
        if step.segment.name == "loss.grad/0"
    )
    alone = attrs.evolve(gradient, phase=Phases().starts, step=0)
    assert _joined(Phases(), [alone]) == (alone,)


def test_what_reads_the_units_of_others_waits_for_them() -> None:
    """Logits of many classes are made unit by unit, and their gradient multiplies them."""
    plan = plan_named("language_model", hidden=64, embed=8, vocab=300)
    later = [step.segment for step in sequence(plan, "train") if step.phase == Phases().starts]
    assert later and all(segment.mapping == "unit" for segment in later)


# ---- queues --------------------------------------------------------------------------------------------


def test_the_verifier_counts_meetings_in_front_of_the_tail() -> None:
    plan = plan_named("treelstm", **LARGE)
    with forced(shared=True):
        schedule = encoder_of(plan, 30).encode(np.array([3]), replicas=4, workers=16)
    words = schedule.words.copy()
    (first, *_) = np.flatnonzero(queue(words, plan, 16)[:, 0] == plan.opcode(isa.GRID_BARRIER).number)
    at = int(words[isa.layout(plan).queues_at + 16]) + int(first) * isa.INSTRUCTION_WORDS
    words[at : at + 2] = 0  # replica 1 does not wait for the leaves of the others
    with pytest.raises(ScheduleError, match="replicas 0 and 1 differ"):
        verify(attrs.evolve(schedule, words=words))


def test_a_replica_that_does_not_wait_is_found() -> None:
    """The race checker sees rows that another replica makes, and no meeting in between."""
    plan = plan_named("treelstm", **SMALL)
    with forced(shared=True):
        schedule = encoder_of(plan, 8).encode(np.array([3]), replicas=2, workers=4)
    words = without_first_meeting(schedule, 2, 4)
    pool = np.ones(schedule.static_words + schedule.activations, np.float32)
    with pytest.raises(MachineError):
        ReferenceVM(plan).run(words, pool, schedule.static_words)


# ---- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, settings",
    [
        ("treelstm", SMALL),
        ("lstm_classifier", {"hidden": 32}),
        ("bilstm_tagger", {"hidden": 32}),
        ("layer_norm_lstm", {"hidden": 16}),
        ("language_model", {"hidden": 32, "embed": 8, "vocab": 11}),
    ],
)
def test_values_are_the_same(name: str, settings: dict[str, int]) -> None:
    plan = plan_named(name, **settings)
    for seed, (samples, grid) in enumerate(((1, (3, 4)), (5, (2, 8)), (3, (4, 1)))):
        bench = bench_on_vm(plan, samples, 7, grid, seed)
        with forced(shared=True):
            check_training(bench)
            check_evaluation(bench)
            check_outputs(bench)
        with forced(shared=lambda rows: rows % 2 == 0):
            if samples > 1:
                check_group(bench)
