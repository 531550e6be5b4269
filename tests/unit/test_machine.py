"""What the reference VM finds: races, deadlocks and wrong addresses made on purpose."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnc.ir import isa
from dnc.ir.plan import GatherList
from dnc.ir.program import LEVEL
from dnc.runtime.backend import VMBackend
from dnc.runtime.reference_vm import MachineError
from dnc.runtime.reference_vm.memory import CheckedMemory, Worker, stamp
from dnc.runtime.schedule import queue
from tests.support.executors import Bench
from tests.support.forests import ForestGrower
from tests.support.models import small_plan, small_program

STEP = isa.INSTRUCTION_WORDS


@pytest.fixture
def bench():
    plan = small_plan("treelstm")
    forest = ForestGrower(small_program("treelstm"), 3).grow(2, 9, "complete")
    return Bench(small_program("treelstm"), plan, VMBackend(plan, 1, 3), forest)


def run(bench, words, schedule):
    pool = np.zeros(schedule.static_words + schedule.activations + 16, np.float32)
    pool[schedule.static_words :] = np.nan
    bench.backend.machine.run(words, pool, schedule.static_words)


def places(bench, words, name, worker=0):
    """Offsets of a worker's instructions of one name."""
    where = isa.layout(bench.plan)
    start = int(words[where.queues_at + worker])
    found = queue(words, bench.plan, worker)[:, 0] == bench.plan.opcode(name).number
    return start + np.flatnonzero(found) * STEP


def encoded(bench):
    schedule = bench.encoder.encode(bench.samples, replicas=1, workers=3)
    words = schedule.words.copy()
    run(bench, words, schedule)
    return schedule, words


def test_a_missing_barrier_of_a_replica_is_a_race(bench):
    schedule, words = encoded(bench)
    barriers = places(bench, words, isa.REPLICA_BARRIER)
    # The gradient of the loss reads only what the same worker made: there is none in front of it.
    own_rows = bench.plan.opcode("loss.grad/0").number
    assert len(barriers) >= 4 and all(words[at + STEP] != own_rows for at in barriers)
    for at in barriers:
        damaged = words.copy()
        damaged[at : at + STEP] = 0
        with pytest.raises(MachineError, match=r"race|before anything was written"):
            run(bench, damaged, schedule)


def test_a_missing_barrier_of_the_grid_is_a_race(bench):
    schedule, words = encoded(bench)
    for at in places(bench, words, isa.GRID_BARRIER):
        damaged = words.copy()
        damaged[at : at + STEP] = 0
        with pytest.raises(MachineError, match=r"race|before anything was written"):
            run(bench, damaged, schedule)


def test_rows_of_an_instruction_cannot_read_each_other(bench):
    """A kernel makes them at the same time; nothing is in order between them, not even on one worker."""
    schedule = bench.encoder.encode(bench.samples, replicas=1, workers=1)
    words = schedule.words.copy()
    run(bench, words, schedule)
    plan = bench.plan
    segment = next(each.name for each in plan.segments if plan.program.stage(each.stage).placement == LEVEL)
    row, rows = (1 + plan.opcode(segment).fields.index(name) for name in ("row", "rows"))
    first, second, *_ = places(bench, words, segment)
    assert words[first + row] + words[first + rows] == words[second + row]
    words[first + rows] += words[second + rows]
    with pytest.raises(MachineError, match="before anything was written"):
        run(bench, words, schedule)


def test_a_worker_without_a_barrier_deadlocks(bench):
    schedule, words = encoded(bench)
    own = queue(words, bench.plan, 2).copy()
    last = np.flatnonzero(own[:, 0] == bench.plan.opcode(isa.GRID_BARRIER).number)[-1]
    own[last:] = 0
    own[last:, 0] = bench.plan.opcode(isa.END).number
    damaged = np.concatenate((words, own.ravel()))
    damaged[isa.layout(bench.plan).queues_at + 2] = len(words)
    with pytest.raises(MachineError, match="deadlock"):
        run(bench, damaged, schedule)


@pytest.mark.parametrize("address", [-1, -5, -11, 10, 15, 25, -(1 << 40)])
@pytest.mark.parametrize("workers", [1, 4])
def test_words_that_are_not_there_stay_so(address, workers):
    """Whoever reads or writes them, and whatever was tried before."""
    memory = CheckedMemory(np.zeros(10, np.float32), 10, workers)
    machine: Any = SimpleNamespace(
        now=stamp(1),
        settled=lambda worker: stamp(1),
        error=lambda worker, what: MachineError(what),
        zero_words=0,
    )
    worker, at = Worker(0, 0, 0, np.zeros(0)), np.array([3, address])
    for _ in range(2):
        for attempt in (
            lambda: memory.read(at, machine, worker),
            lambda: memory.write(at, np.ones(2), machine, worker),
            lambda: memory.read_from_outside(at, machine),
            lambda: memory.write_from_outside(at, np.ones(2), machine),
        ):
            with pytest.raises(MachineError, match="outside the pool"):
                attempt()


@pytest.mark.parametrize("address", [1 << 28, -5])
def test_an_address_outside_the_pool(bench, address):
    schedule, words = encoded(bench)
    where = isa.layout(bench.plan)
    name = next(i.name for i in bench.plan.lists if isinstance(i, GatherList) and i.path)
    words[words[where.lists_at + where.lists[name]]] = address
    with pytest.raises(MachineError, match="outside the pool"):
        run(bench, words, schedule)


def test_an_address_of_a_later_record(bench):
    schedule, words = encoded(bench)
    where = isa.layout(bench.plan)
    item = next(i for i in bench.plan.lists if isinstance(i, GatherList) and i.path)
    at = words[where.lists_at + where.lists[item.name]]
    words[at] = schedule.bases[f"{item.space}:state"]
    with pytest.raises(MachineError, match=r"race|before anything was written"):
        run(bench, words, schedule)


def test_an_unknown_opcode(bench):
    schedule, words = encoded(bench)
    words[places(bench, words, isa.GRID_BARRIER)[0]] = 99
    with pytest.raises(MachineError, match="unknown opcode 99"):
        run(bench, words, schedule)
