"""Devices that train together, on the reference VM: random structures, shares, groups, parts and damage."""

from __future__ import annotations

from functools import cache

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.optimizers import Hyper
from dnc.ir.plan import Plan
from dnc.ir.program import Program
from dnc.runtime.backend import VMBackend
from dnc.runtime.data_parallel import DataParallelBackend
from dnc.runtime.encoder.tail import Part
from dnc.runtime.reference_vm import MachineError
from dnc.runtime.schedule import queue
from dnc.runtime.schedules import Schedules
from dnc.runtime.verifier import ScheduleError, verify
from tests.property.test_executors import SIZES
from tests.support.executors import NOISE, Bench, check_training
from tests.support.forced import forced
from tests.support.forests import SHAPES, ForestGrower
from tests.support.models import EXAMPLES

VERTICES = 40


@cache
def model(name: str) -> tuple[Program, Plan]:
    path = EXAMPLES / f"{name}.dn"
    program = transform(load_program(Source(str(path), path.read_text()), SIZES[name])[0], PlanOptions())
    return program, make_plan(program, "sm_90a", PlanOptions())


def bench_of(
    name: str, devices: int, samples: int, shape: str = "random", seed: int = 1, grid=(2, 2)
) -> Bench:
    program, plan = model(name)
    backend = DataParallelBackend([VMBackend(plan, *grid, seed + number) for number in range(devices)])
    forest = ForestGrower(program, seed).grow(samples, max(1, VERTICES // samples), shape)
    return Bench(program, plan, backend, forest, seed)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(SIZES)),
    devices=st.integers(2, 4),
    grid=st.sampled_from(((1, 1), (1, 4), (2, 2), (3, 1))),
    samples=st.integers(1, 9),
    shape=st.sampled_from(SHAPES),
    few=st.sampled_from((None, True, False)),
    seed=st.integers(0, 2**16),
)
def test_random_batches(
    name: str, devices: int, grid: tuple[int, int], samples: int, shape: str, few: bool | None, seed: int
) -> None:
    """Every gradient is that of the whole batch, and all devices have the same bits behind it."""
    with forced(few=few):
        check_training(bench_of(name, devices, samples, shape, seed, grid))


def launched(bench: Bench, groups: list[list[np.ndarray]], parts: list[Part] | None = None) -> np.ndarray:
    """The parameters, as words, behind groups of batches."""
    made = []
    for number, batches in enumerate(groups):
        first = sum(map(len, groups[:number])) if parts is None else 0
        made.append(
            bench.encoder.encode_group(
                batches,
                replicas=2,
                workers=2,
                updates=[Hyper(learning_rate=0.1).update()] * len(batches),
                part=Part() if parts is None else parts[number],
                noises=np.array([NOISE + 2 * (first + at) for at in range(len(batches))], np.uint32),
                devices=bench.backend.devices,
            )
        )
    bench.load(max(schedules.static_words + schedules.activations for schedules in made))
    for schedules in made:
        for schedule in schedules:
            verify(schedule)
        bench.backend.launch(schedules, 0)
        bench.backend.finish(0)
    return bench.backend.read(0, bench.pool.words)[bench.pool.bases[isa.PARAMETERS] * 4 :].view(np.int32)


@pytest.mark.parametrize("name", ["treelstm", "rnn_stack", "similarity", "bilstm_tagger"])
def test_groups_of_batches_give_the_same_bits(name: str) -> None:
    bench = bench_of(name, 2, 9)
    batches = [bench.samples[at : at + 3] for at in range(0, 9, 3)]
    together, alone = (launched(bench, groups) for groups in ([batches], [[batch] for batch in batches]))
    first = (bench.pool.bases[isa.GRADIENTS] - bench.pool.bases[isa.PARAMETERS]) * 4
    np.testing.assert_array_equal(together[:first], alone[:first])


@pytest.mark.parametrize("name", ["treelstm", "rnn_stack", "char_tagger"])
def test_a_batch_in_parts_is_one_update(name: str) -> None:
    bench = bench_of(name, 2, 6)
    tokens = {t.parameter: bench.encoder.tokens(t, bench.samples) for t in bench.plan.table_gradients}
    followed = bench.encoder.followed(bench.samples)
    parts = [Part(last, last, 6, tokens, followed) for last in (False, True)]
    launched(bench, [[bench.samples[:3]], [bench.samples[3:]]], parts)
    found = bench.parameters()
    launched(bench, [[bench.samples]])
    for parameter, value in bench.parameters().items():
        np.testing.assert_allclose(found[parameter], value, rtol=2e-5, atol=2e-6, err_msg=parameter)


def schedules_of(bench: Bench) -> Schedules:
    return bench.encoder.encode_group([bench.samples], replicas=2, workers=2, devices=2)


def damaged(
    schedules: Schedules, name: str, which: int, field: int, value: int, device: int = 0
) -> Schedules:
    """With a word of an instruction changed, in the queues of both replicas of a device."""
    words, plan = schedules.words.copy(), schedules.plan
    at = isa.layout(plan).queues_at
    for worker in (0, 2):
        numbers = np.flatnonzero(queue(words[device], plan, worker)[:, 0] == plan.opcode(name).number)
        first = words[device, at + worker] + numbers[which] * isa.INSTRUCTION_WORDS
        words[device, first : first + isa.INSTRUCTION_WORDS] *= field > 0  # another opcode has no fields
        words[device, first + field] = value
    return attrs.evolve(schedules, words=words)


NOP = 0
DAMAGE = [
    (isa.DEVICE_BARRIER, 0, 0, NOP, "where devices meet stand"),
    (isa.DEVICE_BARRIER, 1, 0, NOP, "where devices meet stand"),
    (isa.DEVICE_BARRIER, 0, 1, 2, r"count \[2, 2\], not \[1, 2\]"),
    (isa.DEVICE_BARRIER, 0, 2, 1, "several numbers of a device"),
    (isa.ALL_REDUCE, 0, 0, NOP, "adds up"),
    (isa.ALL_REDUCE, 0, 2, 4, "adds up"),
    (isa.ALL_REDUCE, 1, 1, 4, "adds up"),
    (isa.ALL_REDUCE, 1, 3, 0, "adds up"),
    (isa.ALL_REDUCE, 1, 4, 4, "adds up"),
    (isa.ALL_REDUCE, 1, 6, 3, "several numbers of a device"),
    ("sgd", 0, 3, 1, "'norms' is 1"),
]


@pytest.mark.parametrize(("name", "which", "field", "value", "message"), DAMAGE)
def test_damaged_schedules_are_refused(name: str, which: int, field: int, value: int, message: str) -> None:
    bench = bench_of("treelstm", 2, 4)
    schedules = schedules_of(bench)
    for schedule in schedules:
        verify(schedule)
    with pytest.raises(ScheduleError, match=message):
        verify(damaged(schedules, name, which, field, value)[0])


def test_shares_that_do_not_meet_are_refused() -> None:
    bench = bench_of("treelstm", 2, 4)
    alone = bench.encoder.encode(bench.samples, replicas=2, workers=2)
    verify(alone)
    with pytest.raises(ScheduleError, match="do not meet in front of the update"):
        verify(attrs.evolve(alone, devices=2))


@pytest.mark.parametrize("device", [0, 1])
def test_a_device_that_fails(device: int) -> None:
    """The error is its own, not that of those who waited for it; the next launch finds all of them, and the
    same on all."""
    bench = bench_of("treelstm", 2, 4)
    schedules = schedules_of(bench)
    bench.load(schedules.static_words + schedules.activations)
    backend = bench.backend
    assert isinstance(backend, DataParallelBackend)
    for name in (isa.DEVICE_BARRIER, "sgd"):  # the other device makes no update, or has made it
        with pytest.raises(MachineError, match="unknown opcode 1048576"):
            backend.launch(damaged(schedules, name, -1, 0, 1 << 20, device), 0)
        backend.launch(schedules, 0)
        assert (backend.finish(0)[:, isa.RESULT_UPDATED] == 1).all()
        memories = [member.read(4096, schedules.address * 4 - 4096) for member in backend.members]
        np.testing.assert_array_equal(*(memory.view(np.int32) for memory in memories))


@pytest.mark.parametrize("barrier", [-1, -2, -3, -4])
def test_barriers_that_are_removed_are_missed(barrier: int) -> None:
    """A barrier of the grid is needed on either side of one of all devices."""
    bench = bench_of("treelstm", 2, 6)
    schedules = damaged(schedules_of(bench), isa.GRID_BARRIER, barrier, 0, NOP)
    bench.load(schedules.static_words + schedules.activations)
    with pytest.raises(MachineError, match=r"race|before anything was written|one of all devices"):
        bench.backend.launch(schedules, 0)
