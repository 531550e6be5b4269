"""A recursion that is left behind its last word: on the VM, with every grid, and made wrong on purpose."""

from functools import cache

import attrs
import numpy as np
import pytest

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.plan import Plan
from dnc.ir.program import Program
from dnc.runtime.backend import VMBackend
from dnc.runtime.encoder import ending
from dnc.runtime.encoder.ending import Ending
from dnc.runtime.phases import PREDICT, sequence
from dnc.runtime.reference_vm import MachineError
from dnc.runtime.schedule import queue
from dnc.runtime.verifier import ScheduleError, verify
from tests.support.endings import check_endings, encoded, exits_of
from tests.support.executors import Bench
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES, small_plan
from tests.support.queues import damaged, fields_of

PROGRAM = EXAMPLES.parent / "tests" / "support" / "decoder.dn"
STEP = isa.INSTRUCTION_WORDS


@cache
def made(text: str = "", mode: str = "infer") -> tuple[Program, Plan]:
    source = Source("decoder.dn", PROGRAM.read_text() + text)
    options = PlanOptions(mode=mode)
    program = transform(load_program(source, {})[0], options)
    return program, make_plan(program, "cpu", options)


def bench(grid: tuple[int, int], samples: int, size: int = 40, seed: int = 1, text: str = "") -> Bench:
    program, plan = made(text)
    forest = ForestGrower(program, seed).grow(samples, size, "complete")
    return Bench(program, plan, VMBackend(plan, *grid, seed=seed), forest, seed)


@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (2, 2), (3, 1), (5, 2)])
@pytest.mark.parametrize("window", [1, 3, 16])
def test_the_words_up_to_the_end(monkeypatch: pytest.MonkeyPatch, grid: tuple[int, int], window: int) -> None:
    monkeypatch.setattr(ending, "WINDOW", window)
    left, total = 0, 0
    for seed, samples in enumerate((1, 4)):
        found = check_endings(bench(grid, samples, seed=seed))
        left, total = left + found[0], total + found[1]
    assert 0 < left < total


def test_smaller_windows_leave_out_more(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for window in (1, 4, 16, 64):
        monkeypatch.setattr(ending, "WINDOW", window)
        found.append(check_endings(bench((1, 2), 1))[0])
    assert found == sorted(found, reverse=True) and found[0] > found[-1] == 0


def test_a_build_that_trains_leaves_too() -> None:
    program, plan = made(mode="train")
    forest = ForestGrower(program, 1).grow(3, 40, "complete")
    left, _ = check_endings(Bench(program, plan, VMBackend(plan, 2, 2), forest))
    assert left > 0


# What the words read may itself stand behind the recursion, and be of the elements before.
BEHIND = """
fn late(w: Target) -> [targets] = V @ run(w) + scores(w.prev)
output further = [argmax(late(w) + late(w.prev)) for w in all(Target)]
"""
# The words of these come from the last one to the first.
TURNED = """
fn back(w: Target) -> [hidden] = next(chosen(w), back(w.next))
output turned = [argmax(V @ back(w)) for w in all(Target)]
"""
# A recursion over the other list that waits for that of the words; they do not need it.
AGAIN = """
fn again(w: Source) -> [hidden] = next({}, again(w.prev))
output again = [again(w) for w in all(Source)]
"""
OTHER = "output read = [argmax(encode(w)) for w in all(Source)]\n"


def test_words_that_are_made_in_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.endings.OUTPUT", "further")
    left, total = check_endings(bench((2, 3), 5, text=BEHIND))
    assert 0 < left < total


def test_what_waits_for_the_words_and_is_not_asked_for_changes_nothing() -> None:
    text = AGAIN.format("F[argmax(scores(w.parent.target.last))]")
    own = bench((2, 3), 5, text=text)
    assert own.program.strata == 3
    left, total = check_endings(own)
    assert 0 < left < total and left == check_endings(bench((2, 3), 5))[0]


def test_nothing_is_left_where_words_stand_between_two_recursions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.endings.OUTPUT", "between")
    text = AGAIN.format("some(w.parent.target.last)") + (
        "fn some(w: Target) -> [embed] = F[argmax(scores(w))] + F[argmax(scores(w.prev))]\n"
        "output between = [argmax(V @ tanh(W @ some(w))) for w in all(Target)]\n"
    )
    own = bench((2, 3), 5, text=text)
    assert own.program.stage("some").when == "early 2"
    assert not len(exits_of(encoded(own, 1)))
    assert check_endings(own)[0] == 0


def test_nothing_is_left_where_words_come_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.endings.OUTPUT", "turned")
    own = bench((1, 2), 2, text=TURNED)
    assert not len(exits_of(encoded(own, 1)))
    assert check_endings(own)[0] == 0


def test_plans_that_choose_no_class_within_the_recursion_have_no_such_instruction() -> None:
    for name in ("treelstm", "dag", "bilstm_tagger"):
        assert isa.LEAVE not in {opcode.name for opcode in small_plan(name).opcodes}
    assert isa.LEAVE in {opcode.name for opcode in made()[1].opcodes}


def test_no_test_before_every_list_has_begun_nor_behind_the_last_word() -> None:
    """Lists of 41 and 18 words: nothing is asked while one of them has no word."""
    program, plan = made()
    forest = ForestGrower(program, 1).grow(2, 90, "comb")
    own = Bench(program, plan, VMBackend(plan, 1, 1), forest)
    schedule = encoded(own, 3)
    exits = exits_of(schedule).tolist()
    assert exits
    for _, to, lists, begins, ends, word, *_ in exits:
        assert (lists, word) == (2, 3) and to > 0
        assert (schedule.words[ends : ends + 2] > schedule.words[begins : begins + 2]).all()


# ---- made wrong on purpose ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "field, change, message",
    [
        ("to", lambda to: to - 1, "the barrier of the grid"),
        ("to", lambda to: 0, "the barrier of the grid"),
        ("lists", lambda lists: 0, "0 lists"),
        ("lists", lambda lists: 1 << 30, "outside the schedule"),
        ("begins", lambda at: -1, "outside the schedule"),
        ("ends", lambda at: 1 << 30, "outside the schedule"),
        ("begins", lambda at: at - 40, "a list is outside the schedule|none of 'words'"),
        ("ends", lambda at: at + 2, "none of 'words' that is there before it"),
        ("word", lambda word: -1, "with the word -1"),
    ],
)
def test_a_damaged_test_is_refused(field, change, message) -> None:
    own = bench((1, 2), 2)
    schedule = encoded(own, 1)
    at = isa.LEAVE_FIELDS.index(field)
    value = change(fields_of(schedule, 0, isa.LEAVE)[0][at])
    with pytest.raises(ScheduleError, match=message):
        verify(damaged(schedule, 0, isa.LEAVE, 0, 1 + at, value))


def test_words_that_no_exchange_has_made_visible_are_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exchange before a test is taken away: the verifier refuses it, and the VM finds the race."""
    own = bench((1, 3), 3)
    schedule = encoded(own, 1)
    words = schedule.words.copy()
    start = int(words[isa.layout(own.plan).queues_at])
    found = queue(words, own.plan, 0)
    leave, barrier = (own.plan.opcode(name).number for name in (isa.LEAVE, isa.REPLICA_BARRIER))
    output = own.plan.opcode("output/0").number
    first = int(np.flatnonzero(found[:, 0] == leave)[0])
    made_at = int(np.flatnonzero(found[:first, 0] == output)[-1])
    for at in np.flatnonzero(found[made_at:first, 0] == barrier) + made_at:
        words[start + at * STEP : start + (at + 1) * STEP] = 0
    later = queue(words, own.plan, 0)[:, 0] == barrier
    words[start : start + len(later) * STEP].reshape(-1, STEP)[later, 1] = np.arange(1, later.sum() + 1)
    with pytest.raises(ScheduleError, match="that is there before it"):
        verify(attrs.evolve(schedule, words=words))
    pool = np.full(schedule.static_words + schedule.activations + 16, np.nan, np.float32)
    pool[: schedule.static_words] = 0
    with pytest.raises(MachineError, match=r"race|before anything was written"):
        own.backend.machine.run(words, pool, schedule.static_words)


def test_workers_that_part_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that leaves alone: the others wait for it, which the VM calls a deadlock."""
    monkeypatch.setattr(ending, "WINDOW", 1)
    own = bench((1, 2), 1)
    schedule = encoded(own, 1)
    machine = own.backend.machine
    monkeypatch.setattr(machine, "_ended", lambda fields, worker: worker.number == 0)
    pool = np.zeros(schedule.static_words + schedule.activations + 16, np.float32)
    with pytest.raises(MachineError, match="deadlock"):
        machine.run(schedule.words.copy(), pool, schedule.static_words)


def test_outputs_of_other_vertices_are_not_made() -> None:
    _, plan = made(OTHER)
    spaces = {
        mode: {step.segment.space for step in sequence(plan, mode)}
        for mode in (PREDICT, Ending("words", 1).mode, Ending("read", 1).mode)
    }
    assert [len(found) for found in spaces.values()] == [7, 6, 2]
