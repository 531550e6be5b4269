"""Sessions and commands on several devices, each of which the reference VM plays."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

import dnc
from dnc.diagnostics import DiagnosticError
from dnc.ir import isa
from dnc.ir.forest import Forest
from dnc.ir.optimizers import Hyper
from dnc.runtime.alone import ALONE, make_calls, watch, when_alone
from dnc.runtime.backend import VMBackend
from dnc.runtime.data_parallel import DataParallelBackend
from dnc.runtime.initialize import initialize
from dnc.runtime.schedule import Schedule
from dnc.runtime.session import Session
from tests.support.command_line import Command
from tests.support.forests import ForestGrower
from tests.support.models import rows_of, small_plan

TARGET = "sm_90a"
MOMENTUM = Hyper("momentum", 0.05, clip_norm=0.5)
NAMES = ("treelstm", "dag", "bilstm_tagger")
BATCHES = [[4], [0], [7], [2, 1], [8, 3], [5], [5], [0, 1, 2, 3], [4, 5, 6, 7], [8, 8, 2]]


def session_of(name: str, devices: int, memory: int | None = None, encoders: int = 0) -> Session:
    plan = small_plan(name, TARGET)
    members = [VMBackend(plan, 2, 2, seed) for seed in range(devices)]
    backend = DataParallelBackend(members) if devices > 1 else members[0]
    values = initialize(plan.program, rows_of(plan), 1)
    return Session(plan, backend, rows_of(plan), values, memory, encoders=encoders)


def forest_of(name: str, samples: int = 9) -> Forest:
    return ForestGrower(small_plan(name, TARGET).program, 3).grow(samples, 5, "random")


def same_bits(session: Session) -> None:
    """Everything static but the schedules is the same on all devices."""
    backend = session.backend
    assert isinstance(backend, DataParallelBackend)
    first, end = (
        at * 4 for at in (session.memory.pool.bases[isa.PARAMETERS], session.memory.pool.schedules[0])
    )
    memories = [member.read(first, end - first).view(np.int32) for member in backend.members]
    for memory in memories[1:]:
        np.testing.assert_array_equal(memory, memories[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("devices", [2, 3])
def test_steps_are_those_of_one_device(name: str, devices: int) -> None:
    """Also those of fewer samples than devices, in which one occurs twice, and encoded one by one."""
    one, several, again = (session_of(name, count) for count in (1, devices, devices))
    expected = list(one.steps(one.attach(forest_of(name)), BATCHES, MOMENTUM))
    found = list(several.steps(several.attach(forest_of(name)), BATCHES, MOMENTUM))
    for result, right in zip(found, expected, strict=True):
        np.testing.assert_allclose((result.loss, result.norm), (right.loss, right.norm), rtol=1e-5)
        assert (result.step, result.samples, result.parts) == (right.step, right.samples, 1)
    for parameter, value in one.read_arrays().items():
        np.testing.assert_allclose(several.read_arrays()[parameter], value, atol=1e-5)
    same_bits(several)
    assert several.backend.launches == devices * len(BATCHES)
    data, alone = again.attach(forest_of(name)), []
    for batch in BATCHES:
        again.step(data, batch, MOMENTUM)
        alone.append(again.sync())
    assert alone == found
    for parameter, value in again.read_arrays().items():
        np.testing.assert_array_equal(several.read_arrays()[parameter], value)


def test_memory_goes_behind_launches_that_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver gives none back before what runs is over, which waits for launches that have yet to start."""
    order, launch_share, session = list[str](), VMBackend.launch_share, session_of("treelstm", 3)
    data = session.attach(forest_of("treelstm"))

    def launched(self: VMBackend, schedules: Sequence[Schedule], slot: int, turn: int) -> None:
        when_alone(lambda: order.append("gone"))
        launch_share(self, schedules, slot, turn)
        order.append("launched")

    monkeypatch.setattr(VMBackend, "launch_share", launched)
    watch()
    session.step(data, [0, 1, 2, 3], MOMENTUM)
    session.sync()
    with ALONE:
        make_calls()
    assert order == ["launched"] * 3 + ["gone"] * 3


def test_what_is_no_training_runs_on_the_first() -> None:
    one, two = session_of("treelstm", 1), session_of("treelstm", 2)
    data, other = one.attach(forest_of("treelstm")), two.attach(forest_of("treelstm"))
    assert two.evaluate(other) == one.evaluate(data)
    found, expected = two.predict(other), one.predict(data)
    assert found.keys() == expected.keys()
    counts = [member.launches for member in two.backend.members]  # type: ignore[attr-defined]
    assert counts[0] > 0 and counts[1] == 0
    list(two.steps(other, [[0, 1], [2]], MOMENTUM))
    assert two.evaluate(other) != one.evaluate(data)
    with pytest.raises(DiagnosticError, match="handed in are on one device: choose one"):
        two.backward(other, [0, 1])


def test_a_batch_in_parts_is_one_update() -> None:
    """The shares of every part are launched together; memory is that of each device."""
    whole = session_of("treelstm", 2)
    data = whole.attach(forest_of("treelstm"))
    whole.step(data, range(9), MOMENTUM)
    loss = whole.sync()
    used = data.encode_group([np.arange(9, dtype=np.int32)], devices=2).activations
    parted = session_of("treelstm", 2, memory=whole.memory.pool.words + used * 3 // 4)
    parted.step(parted.attach(forest_of("treelstm")), range(9), MOMENTUM)
    result = parted.sync()
    assert loss is not None and result is not None and result.parts > 1
    assert result.parts * 2 == parted.backend.launches
    np.testing.assert_allclose((result.loss, result.norm), (loss.loss, loss.norm), rtol=1e-5)
    for name, value in whole.read_arrays().items():
        np.testing.assert_allclose(parted.read_arrays()[name], value, atol=1e-5)
    same_bits(parted)


def test_batches_that_other_processes_encode() -> None:
    ahead, here = session_of("treelstm", 2, encoders=2), session_of("treelstm", 2)
    ahead.ahead._least = 0
    batches = [[at, (at + 1) % 9, (at + 2) % 9] for at in range(9)] * 3
    found = list(ahead.steps(ahead.attach(forest_of("treelstm")), batches, MOMENTUM))
    assert found == list(here.steps(here.attach(forest_of("treelstm")), batches, MOMENTUM))


def test_a_plan_for_a_cpu_is_refused() -> None:
    plan = small_plan("treelstm")
    with pytest.raises(
        DiagnosticError, match="several devices train together on GPUs; this build is for cpu"
    ):
        DataParallelBackend([VMBackend(plan), VMBackend(plan)])


def test_devices_that_are_not_alike_are_refused() -> None:
    plan = small_plan("treelstm", TARGET)
    with pytest.raises(
        DiagnosticError, match=r"have to be alike: reference VM, 2 x 1 .*; reference VM, 1 x 1"
    ):
        DataParallelBackend([VMBackend(plan, 2), VMBackend(plan, 1)])


def test_devices_are_given_back_twice() -> None:
    backend = session_of("treelstm", 2).backend
    backend.close()
    backend.close()


def test_an_interrupt_waits_for_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs behind it, and training goes on with the same weights on all devices."""
    session = session_of("treelstm", 2)
    data = session.attach(forest_of("treelstm"))
    list(session.steps(data, [[0, 1, 2]], MOMENTUM))
    waits = [KeyboardInterrupt]

    def wait(under_way: Sequence[Future[None]]) -> None:
        if waits:
            raise waits.pop()
        concurrent.futures.wait(under_way)

    monkeypatch.setattr("dnc.runtime.data_parallel.wait", wait)
    with pytest.raises(KeyboardInterrupt):
        session.step(data, [3, 4, 5], MOMENTUM)
    before = session.backend.read(0, 4096)
    counts = [member.launches for member in session.backend.members]  # type: ignore[attr-defined]
    time.sleep(0.3)
    np.testing.assert_array_equal(session.backend.read(0, 4096), before)
    assert counts == [2, 2]
    list(session.steps(data, [[6, 7], [8]], MOMENTUM))
    same_bits(session)


def test_a_fork_has_threads_of_its_own() -> None:
    session = session_of("treelstm", 2)
    data = session.attach(forest_of("treelstm"))
    session.step(data, [0, 1], MOMENTUM)
    session.sync()
    session.backend._process = -1  # type: ignore[attr-defined]
    old = session.backend._threads  # type: ignore[attr-defined]
    session.step(data, [2, 3], MOMENTUM)
    assert session.sync() is not None and session.backend._threads is not old  # type: ignore[attr-defined]


def test_places_for_schedules_are_those_of_one_device() -> None:
    one, four = session_of("treelstm", 1), session_of("treelstm", 4)
    for session in (one, four):
        list(session.steps(session.attach(forest_of("treelstm", 64)), [range(64)], MOMENTUM))
    assert four.memory.pool.schedule_words <= one.memory.pool.schedule_words


def test_training_goes_on_with_the_same_bits(command: Command, workplace: Path) -> None:
    """Through the command line; a run of two devices, stopped and resumed, is that of two devices."""
    run = "run build --data train.jsonl --dev dev.jsonl --batch 3 --optimizer adam --device"
    assert command(f"{run} vm:0,1 --epochs 2 --run-dir whole").code == 0
    assert command(f"{run} vm:0,1 --epochs 1 --run-dir half").code == 0
    resumed = command("run build --data train.jsonl --dev dev.jsonl --epochs 2 --resume half --device vm:0,1")
    assert resumed.code == 0, resumed.error
    assert command(f"{run} vm --epochs 2 --run-dir one").code == 0
    whole, half, one = (
        dnc.load("build", "vm", checkpoint=workplace / name / "last.safetensors").parameters()
        for name in ("whole", "half", "one")
    )
    for name, value in whole.items():
        np.testing.assert_array_equal(half[name], value)
        np.testing.assert_allclose(one[name], value, atol=1e-4)


@pytest.mark.parametrize(
    "text, message",
    [
        ("run build --data train.jsonl --device vm:0,1 --trace t.json", "a timeline is one device's"),
        ("run build --data train.jsonl --device vm:0", "unknown device 'vm:0'"),
        ("run build --data train.jsonl --device vm:1,1", "names one twice"),
        ("bench build --data train.jsonl --latency --device vm:0,1", "predictions run on one device"),
        ("tune build --data train.jsonl --device vm:0,1", "kernels are timed on one device"),
        ("calibrate build --data train.jsonl --device vm:0,1", "kernels are timed on one device"),
    ],
)
def test_what_one_device_does(command: Command, text: str, message: str) -> None:
    found = command(text)
    assert found.code == 2 and message in found.error
