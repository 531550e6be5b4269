"""What the schedule verifier refuses: one word damaged, one message."""

import attrs
import numpy as np
import pytest

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.plan import GatherList, SlotList, TableList
from dnc.runtime.backend import VMBackend
from dnc.runtime.schedule import queue
from dnc.runtime.verifier import ScheduleError, verify
from tests.support.executors import Bench
from tests.support.forests import ForestGrower
from tests.support.models import small_plan, small_program

PLAN = small_plan("treelstm")
WHERE = isa.layout(PLAN)
STEP = isa.INSTRUCTION_WORDS


@pytest.fixture(scope="module")
def schedule():
    forest = ForestGrower(small_program("treelstm"), 3).grow(4, 9, "complete")
    bench = Bench(small_program("treelstm"), PLAN, VMBackend(PLAN, 2, 3), forest)
    return bench.encoder.encode(bench.samples, replicas=2, workers=3)


def header(name, value):
    def damage(words):
        words[WHERE.header[name]] = value

    return damage


def instruction(name, field, change):
    """Changes a field (0: the opcode) of the first instruction of that name of replica 0."""

    def damage(words):
        found = queue(words, PLAN, 0)
        number = int(np.flatnonzero(found[:, 0] == PLAN.opcode(name).number)[0])
        at = int(words[WHERE.queues_at]) + number * STEP + field
        words[at] = change(int(words[at]))

    return damage


def entry(kind, change):
    def damage(words):
        for item in PLAN.lists:
            at = int(words[WHERE.lists_at + WHERE.lists[item.name]])
            if isinstance(item, kind) and at and words[at]:
                words[at] = change(int(words[at]))
                return
        raise AssertionError(kind)

    return damage


def queue_at(worker, value):
    def damage(words):
        words[WHERE.queues_at + worker] = value

    return damage


def base(words):
    words[WHERE.bases_at + WHERE.bases[PLAN.buffers[0].name]] += 4


def synchronised(words):
    words[words[WHERE.header["sync"]]] = 1


def endless(words):
    opcodes = words[words[WHERE.queues_at] : words[WHERE.header["sync"]] : isa.INSTRUCTION_WORDS]
    opcodes[opcodes == PLAN.opcode(isa.END).number] = 0


def list_at(words):
    words[WHERE.lists_at + WHERE.lists[PLAN.lists[0].name]] = len(words) - 1


SEGMENT = PLAN.segments[0].name
DAMAGE = [
    (header("version", isa.VERSION + 1), f"version {isa.VERSION + 1}, expected {isa.VERSION}"),
    (header("words", 64), "the header says 64 words"),
    (header("replicas", 0), "0 replicas of 3 workers"),
    (header("lists", 3), "the table of lists is said to be at 3"),
    (header("replicas", 1 << 20), "queue table"),
    (header("samples", 5), "the header says 5 samples"),
    (header("sync", 1 << 28), "words for synchronisation"),
    (synchronised, "not zero"),
    (header("loss_scale", 0), "loss scale"),
    (base, "the base of"),
    (queue_at(0, 1 << 28), "different queues"),
    (queue_at(4, 8), "different queues"),
    (instruction(isa.REPLICA_BARRIER, 0, lambda word: 99), "unknown opcode 99"),
    (instruction(isa.REPLICA_BARRIER, 1, lambda word: word + 1), "do not count 1, 2, 3"),
    (instruction(isa.REPLICA_BARRIER, 3, lambda word: 7), "words behind its fields"),
    (instruction(isa.GRID_BARRIER, 0, lambda word: 0), "words behind its fields"),
    (instruction(isa.NORM, 1, lambda word: word + 1), "differ behind"),
    (instruction(SEGMENT, 1, lambda word: -1), "rows outside"),
    (instruction(SEGMENT, 2, lambda word: 1 << 20), "rows outside"),
    (instruction(SEGMENT, 2, lambda word: word + 1), "worked on twice"),
    (instruction(SEGMENT, 0, lambda word: 0), "words behind its fields"),
    (entry(GatherList, lambda word: word + 1), "no record of its buffer"),
    (entry(TableList, lambda word: 1 << 28), "no record of its buffer"),
    (entry(SlotList, lambda word: -1 - (1 << 28)), "no record of its buffer"),
    (entry(SlotList, lambda word: 1 << 28), "an offset is outside"),
    (list_at, "outside the schedule"),
    (endless, "does not end"),
]


def test_what_the_encoder_made_is_accepted(schedule):
    verify(schedule)


@pytest.mark.parametrize("number", range(len(DAMAGE)))
def test_damage_is_refused(schedule, number):
    damage, message = DAMAGE[number]
    words = schedule.words.copy()
    damage(words)
    with pytest.raises(ScheduleError) as caught:
        verify(attrs.evolve(schedule, words=words))
    assert message in str(caught.value)


def test_buffers_that_overlap_are_refused(schedule):
    names = [buffer.name for buffer in PLAN.buffers if buffer.name in schedule.bases]
    words, bases = schedule.words.copy(), dict(schedule.bases)
    bases[isa.NORMS] = bases[names[-1]]
    words[WHERE.bases_at + WHERE.bases[isa.NORMS]] = bases[isa.NORMS]
    with pytest.raises(ScheduleError, match="inside"):
        verify(attrs.evolve(schedule, words=words, bases=bases))


def test_a_result_of_no_row_lies_where_the_next_one_does():
    text = "model M\nstruct A = Left() | Right()\nparam p: [3]\n"
    text += "loss sum(a in all(A.Left)) sum(p)\nloss sum(a in all(A.Right)) sum(p * p)\n"
    program = transform(load_program(Source("m.dn", text), {})[0], PlanOptions())
    plan = make_plan(program, "cpu", PlanOptions())
    forest = ForestGrower(program, 0).grow(12, 1)
    arms = forest.tables["A"].arm
    bench = Bench(program, plan, VMBackend(plan, 1, 2), forest)
    for arm in (0, 1):
        schedule = bench.encoder.encode(np.flatnonzero(arms == arm), replicas=1, workers=2)
        assert sorted(rows for _, rows in schedule.results.values()) == [0, np.count_nonzero(arms == arm)]
        verify(schedule)
