"""Parts of the recursion on replicas of their own (`runtime/encoder/parts.py`): which, when, and values."""

from __future__ import annotations

import numpy as np
import pytest

from dnc.explain.facts import gather
from dnc.ir import isa
from dnc.ir.phases import Phases
from dnc.ir.plan import Plan
from dnc.runtime.encoder import Encoder
from dnc.runtime.encoder.modes import Modes
from dnc.runtime.encoder.parts import replicas_of_sample
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.reference_vm import MachineError, ReferenceVM
from dnc.runtime.schedule import Schedule, queue
from dnc.runtime.verifier import verify
from tests.support.executors import bench_on_vm, check_all, check_both
from tests.support.forced import forced
from tests.support.forests import ForestGrower
from tests.support.meetings import without_first_meeting
from tests.support.models import rows_of
from tests.support.plans import plan_of, plan_of_text

TAGGER = ("bilstm_tagger", {"hidden": 256, "embed": 256})
BOTH = ("forward", "backward")
BEHIND = Phases().behind
THREE = """
model Three(vocab, width = 8, classes = 3)
struct Word = Word(form: token<vocab>, label: class<classes>)
struct Text = Text(words: [Word], others: [Word])
param E: table[vocab, width], U: [width, width], W: [width, width], R: [width, width], V: [classes, 2 * width]
fn ahead(w: Word) -> [width] = tanh(U @ ahead(w.prev) + E[w.form])
fn back(w: Word) -> [width] = tanh(W @ back(w.next) + E[w.form])
fn deep(w: Word) -> [width] = tanh(R @ deep(w.prev) + ahead(w))
loss sum(w in all(Word)) cross_entropy(V @ concat(back(w), deep(w)), w.label)
output back = [back(w) for w in all(Word)], deep = [deep(w) for w in all(Word)]
"""


LETTERS = """model Letters(width = 8)
struct Letter = Letter(x: pulled<width>, y: vector<width>)
struct Word = Word(letters: [Letter])
struct Text = Text(words: [Word])
param U: [width, width], R: [width, width], P: [3, width], Q: [width, width], K: [width, width]
frozen param T: [width, width]
running param M: [width]
fn a(t: Letter) -> [width] = tanh(t.x + U @ a(t.prev))
fn b(t: Letter) -> [width] = tanh(t.y + T @ b(t.next))
fn c(t: Word) -> [width] = tanh(a(t.letters.last) + b(t.letters.first) + R @ c(t.prev))
"""
# What runs in one of two launches alone: a recursion that an output needs, or what running statistics follow.
VALUES_ALONE = """fn d(t: Word) -> [width] = tanh(Q @ a(t.letters.last) + K @ d(t.prev))
push s = [c(t) for t in all(Word)]
output y = [argmax(P @ d(t)) for t in all(Word)]
"""
TRAINING_ALONE = """fn e(t: Word) -> [width] = Q @ a(t.letters.last) + K @ d(t.prev)
fn d(t: Word) -> [width] = tanh(e(t) - follow(M, a(t.letters.last), 0.25))
push s = [c(t) for t in all(Word)]
metric y = mean(t in all(Word)) sum(P @ d(t))
"""


def three(target: str = "sm_90a") -> Plan:
    return plan_of_text(THREE, target=target)


def encoder_of(plan: Plan, samples: int, vertices: int = 15) -> Encoder:
    forest = ForestGrower(plan.program, 3).grow(samples, vertices, "complete")
    return Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 21))


def of_replicas(schedule: Schedule, workers: int, names: tuple[str, ...] = BOTH) -> list[list[int]]:
    """How many rows of every segment a replica runs."""
    plan, replicas = schedule.plan, schedule.words[isa.layout(schedule.plan).header["replicas"]]
    queues = [queue(schedule.words, plan, replica * workers) for replica in range(replicas)]
    numbers = [plan.opcode(f"{name}/0").number for name in names]
    return [[int(own[own[:, 0] == number, 2].sum()) for number in numbers] for own in queues]


# ---- which ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode, meets", [("train", (BEHIND, BEHIND + 1)), ("evaluate", (BEHIND,))])
def test_two_directions_are_two_parts(mode: str, meets: tuple[int, ...]) -> None:
    parts = Modes(plan_of(*TAGGER)).mode(mode).parts
    assert parts is not None and parts.of_space == {"forward": 0, "backward": 1} and parts.meets == meets


def test_what_reads_another_function_is_in_its_part() -> None:
    parts = Modes(three()).mode("train").parts
    assert parts is not None and parts.count == 2
    assert parts.of_space["ahead"] == parts.of_space["deep"] != parts.of_space["back"]


@pytest.mark.parametrize(
    "name, target",
    [
        ("treelstm", "sm_90a"),
        ("similarity", "sm_90a"),  # two trees, but one function
        ("bilstm_tagger", "cpu"),  # a meeting of threads costs more than a level
    ],
)
def test_others_have_one(name: str, target: str) -> None:
    assert Modes(plan_of(name, {}, target)).mode("train").parts is None


def test_directions_of_letters_are_where_those_of_words_are() -> None:
    plan = plan_of("char_tagger", {})
    parts, phases = Modes(plan).mode("train").parts, Phases.of(plan.program)
    assert parts is not None and parts.of_space == {"right": 0, "left": 1, "forward": 0, "backward": 1}
    # What words read of letters, and gradients of letters of those of words, all replicas make.
    between = 2, phases.count - 3
    assert parts.meets == tuple(sorted((*between, phases.behind, phases.starts)))


def test_a_prediction_can_be_on_several_replicas() -> None:
    assert [replicas_of_sample(plan_of(*each)) for each in (TAGGER, ("treelstm", {}))] == [2, 1]


def test_explain_names_them() -> None:
    assert gather(plan_of(*TAGGER)).parts == BOTH and gather(plan_of("treelstm", {})).parts == ()


# ---- when ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 5, 40])
def test_directions_have_replicas_of_their_own(samples: int) -> None:
    plan = plan_of(*TAGGER)
    schedule = encoder_of(plan, samples, 30).encode(np.arange(samples), replicas=7, workers=8)
    verify(schedule)
    found = of_replicas(schedule, 8)
    assert all(min(own) == 0 for own in found)
    assert [sum(own) for own in zip(*found, strict=True)] == [schedule.rows[name] for name in BOTH]
    busy = [sum(max(own[part] for part in which) > 0 for own in found) for which in ((0,), (1,))]
    assert busy == ([1, 1] if samples == 1 else [3, 4])


def test_one_replica_has_both() -> None:
    schedule = encoder_of(plan_of(*TAGGER), 5).encode(np.arange(5), replicas=1, workers=8)
    assert of_replicas(schedule, 8) == [[schedule.rows[name] for name in BOTH]]


def test_short_recursions_stay_together() -> None:
    """A meeting of all replicas would cost more than it saves."""
    schedule = encoder_of(plan_of(*TAGGER), 3, 2).encode(np.arange(3), replicas=7, workers=8)
    assert any(min(own) > 0 for own in of_replicas(schedule, 8))


def test_batches_of_a_group_choose_for_themselves() -> None:
    """Long sentences, and such as have a word or two."""
    plan = plan_of(*TAGGER)
    grower = ForestGrower(plan.program, 3)
    forest = grower.grow(12, 40, "random")
    encoder = Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 21))
    length = np.diff(encoder.prepared.spaces["forward"].begin)
    order = np.argsort(length, kind="stable").astype(np.int32)
    batches = [order[:1], order[1:3], order[3:8], order[8:]]
    together = []
    for samples, grouped in zip(batches, encoder.encode_group(batches, replicas=3, workers=8), strict=True):
        verify(grouped)
        alone = encoder.encode(samples, replicas=3, workers=8)
        assert of_replicas(grouped, 8) == of_replicas(alone, 8)
        together.append(any(min(own) > 0 for own in of_replicas(alone, 8)))
    assert not all(together)


# ---- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [plan_of("bilstm_tagger", {"hidden": 32}), three()])
def test_values_are_the_same(plan: Plan) -> None:
    for seed, (samples, grid) in enumerate(((1, (3, 4)), (5, (2, 8)), (9, (7, 2)), (3, (4, 1)))):
        bench = bench_on_vm(plan, samples, 7, grid, seed)
        for shared in (None, True):
            with forced(parts=True, shared=shared):
                check_all(bench)
                check_both(bench)


@pytest.mark.parametrize("alone", [VALUES_ALONE, TRAINING_ALONE])
def test_replicas_meet_in_both_launches_of_a_schedule(alone: str) -> None:
    """At phases in which the launch runs something, not the other one."""
    plan = plan_of_text(LETTERS + alone)
    for seed, (samples, grid) in enumerate(((1, (3, 4)), (5, (2, 8)), (9, (7, 2)), (3, (4, 1)))):
        bench = bench_on_vm(plan, samples, 7, grid, seed)
        for parts in (True, None):
            with forced(parts=parts):
                check_both(bench)


def test_a_replica_that_does_not_wait_is_found() -> None:
    """The race checker sees results that read a direction of another replica, and no meeting in between."""
    plan = plan_of("bilstm_tagger", {"hidden": 32})
    with forced(parts=True):
        schedule = encoder_of(plan, 2).encode(np.array([1]), replicas=2, workers=4)
    words = without_first_meeting(schedule, 2, 4)
    pool = np.ones(schedule.static_words + schedule.activations, np.float32)
    with pytest.raises(MachineError):
        ReferenceVM(plan).run(words, pool, schedule.static_words)
