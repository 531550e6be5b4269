"""Predictions the CUDA backend's short way, on a driver of host memory that runs kernels on the VM."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnc.compiler import PlanOptions, make_plan
from dnc.diagnostics import DiagnosticError
from dnc.ir import isa
from dnc.runtime import cuda_driver
from dnc.runtime.alone import ALONE
from dnc.runtime.backend import VMBackend
from dnc.runtime.cuda_backend import CudaBackend
from dnc.runtime.cuda_driver import CudaError, LaunchShape
from dnc.runtime.initialize import initialize
from dnc.runtime.predictor import Predictor
from dnc.runtime.reference_vm import ReferenceVM
from dnc.runtime.schedule import header
from dnc.runtime.session import Session
from tests.support.fake_gpu import FakeCall, FakeDevice, FakeKernel, FakeStream
from tests.support.forests import ForestGrower
from tests.support.models import rows_of, small_program
from tests.support.waiting import wait_for
from tests.unit.test_trace_gpu import files


class Event:
    """A point in time: how many launches there were."""

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.at = device, 0

    def synchronize(self) -> None:
        """Everything has happened."""

    def microseconds_since(self, start: Event) -> float:
        """A launch lasts three."""
        return 3.0 * (self.at - start.at)


class Stream(FakeStream):
    def record(self) -> Any:
        return Event(self.device)

    def mark(self, event: Any) -> None:
        event.at = self.device.launches

    def download_to(self, host: int, address: int, size: int) -> None:
        found = self.device.bytes(address, size).copy()
        ctypes.memmove(host, found.ctypes.data, size)


class Running(FakeCall):
    def launch(self) -> None:
        """Runs the words that lie there on the VM; `broken` fills in an abort record instead."""
        device, at = self.device, self.values["words"]
        self.kernel.check(self.shape)
        count = int(device.bytes(at, 4 * len(isa.HEADER)).view(np.int32)[isa.HEADER.index("words")])
        words = device.bytes(at, count * 4).view(np.int32)
        found = header(words, device.plan)
        assert self.values["counters"] == at + found["sync"] * 4
        assert self.values["grid"] == found["replicas"] * found["workers"] == self.shape.workers
        device.launches += 1
        if device.broken:  # type: ignore[attr-defined]
            abort = found["sync"] + isa.SYNC_ABORT * isa.SYNC_STRIDE
            words[abort : abort + 4] = (3, 7, 1, 2)
            return
        pool = device.memory[self.values["pool"] :].view(np.float32)
        ReferenceVM(device.plan, 0).run(words.copy(), pool, device.static)  # type: ignore[attr-defined]


class Device(FakeDevice):
    def __init__(self, plan: Any) -> None:
        super().__init__(plan)
        self.stream, self.static, self.broken = Stream(self), 0, False

    def call(self, kernel: FakeKernel, shape: LaunchShape, stream: FakeStream) -> Any:
        return Running(self, kernel, shape)


@pytest.fixture
def made() -> tuple[Session, Session, Device]:
    plan = make_plan(small_program("treelstm"), "sm_90a", PlanOptions(cluster=8))
    device, values = Device(plan), initialize(plan.program, rows_of(plan), 1)
    backend = CudaBackend(plan, files(), device)  # type: ignore[arg-type]
    session = Session(plan, backend, rows_of(plan), values)
    device.static = session.memory.pool.words
    return session, Session(plan, VMBackend(plan, 1, 8), rows_of(plan), values), device


def test_values_of_short_runs(made) -> None:
    session, plain, device = made
    short, kernel = Predictor(session), None
    for turn in range(2):
        for seed in range(4):
            forest = ForestGrower(session.plan.program, seed).grow(1 + seed % 2, 6)
            before = device.launches
            found = short.predict(forest)
            device.static = session.memory.pool.words
            assert device.launches == before + 1
            expected = plain.predict(plain.attach(forest))
            for name, values in expected.items():
                for one, other in zip(values, found[name], strict=True):
                    assert np.array_equal(one, other), name
        kernel = session.backend.time_kernels() if turn == 0 else kernel
    assert kernel == pytest.approx([3e-6] * 4)


def test_a_thread_that_has_no_context(made) -> None:
    """One that only calls, as those of a server."""
    session, plain, device = made
    forest = ForestGrower(session.plan.program, 1).grow(2, 4)
    expected, found = plain.predict(plain.attach(forest)), []

    def work() -> None:
        data = session.attach(forest)
        device.static = session.memory.pool.words
        session.reserve(data, 2)
        device.static = session.memory.pool.words
        found.append(session.predict(data))
        found.append(Predictor(session).predict(forest))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == 2
    for each in found:
        for name, values in expected.items():
            for one, other in zip(values, each[name], strict=True):
                assert np.array_equal(one, other), name


def test_memory_is_given_back(made) -> None:
    session, _, device = made
    data, backend = session.attach(ForestGrower(session.plan.program, 1).grow(2, 4)), session.backend
    session.reserve(data, 2)
    device.static = session.memory.pool.words
    list(session.predictions(data, [range(1), range(2), range(1)]))
    assert device.locked == 6  # of both slots: what goes there, what comes back, values
    with device.inside():
        backend._slot(0, 1 << 20)
    assert device.locked == 5  # no values are there yet
    backend.close()
    assert (device.held, device.locked) == (0, 0)


def test_no_room_for_larger_page_locked_memory(made, monkeypatch) -> None:
    """What there was has been given back, and nobody uses it any more."""
    backend, device = made[0].backend, made[2]
    with device.inside():
        backend._slot(0, 1)
        backend._direct_for(1, 1)
        with monkeypatch.context() as patch:
            patch.setattr(
                type(device), "pinned", lambda self, size: (_ for _ in ()).throw(CudaError("no room"))
            )
            for grow in (lambda: backend._slot(0, 1 << 22), lambda: backend._direct_for(1 << 22, 1)):
                with pytest.raises(CudaError, match="no room"):
                    grow()
        assert backend._slots[0] is None and backend._direct is None
        assert len(backend._slot(0, 1).words) and len(backend._direct_for(1, 1).words)
    backend.close()
    assert device.locked == 0


def test_memory_that_is_taken_is_what_went_before(monkeypatch) -> None:
    """Who takes memory has that of what is gone, whenever the thread that gives it back comes to run."""
    order: list[str] = []
    driver = SimpleNamespace(
        cuCtxPushCurrent=lambda _: (0,),
        cuCtxPopCurrent=lambda: (0,),
        cuMemFree=lambda address: order.append(f"free {address}") or (0,),
        cuMemAlloc=lambda size: order.append("allocate") or (0, 1024),
        cuMemHostAlloc=lambda size, flags: order.append("pin") or (0, np.zeros(size, np.uint8).ctypes.data),
        cuMemFreeHost=lambda address: (0,),
    )
    monkeypatch.setattr(cuda_driver, "_driver", lambda: driver)
    device = cuda_driver.Device("host", "sm_90", 4, 13000, cuda_driver.Stream(1), context=1)
    dropped = [cuda_driver.OwnBuffer(at, 4, "context") for at in (256, 512)]
    ALONE.acquire()
    dropped.pop()
    ALONE.release()
    kept = [device.allocate(4)]
    ALONE.acquire()
    dropped.pop()
    ALONE.release()
    kept.append(device.pinned(4))
    assert order == ["free 512", "allocate", "free 256", "pin"]
    kept.clear()
    wait_for(lambda: order[4:] == ["free 1024"])


def test_memory_goes_with_the_last_reference(monkeypatch) -> None:
    freed: list[int] = []
    driver = SimpleNamespace(
        cuCtxPushCurrent=lambda _: (0,),
        cuCtxPopCurrent=lambda: (0,),
        cuMemFree=lambda address: freed.append(address) or (0,),
        cuMemFreeHost=lambda address: freed.append(-address) or (0,),
    )
    monkeypatch.setattr(cuda_driver, "_driver", lambda: driver)
    dropped, given = cuda_driver.OwnBuffer(256, 4, "context"), cuda_driver.OwnBuffer(512, 4, "context")
    part = cuda_driver.DeviceBuffer(256, 4)
    part.free()
    assert freed == []
    given.free()
    given.free()
    del dropped, given
    wait_for(lambda: freed == [512, 256])
    pinned = [cuda_driver.PinnedBuffer(at, np.zeros(4, np.uint8), "context") for at in (768, 1024)]
    pinned[0].free()
    del pinned
    wait_for(lambda: freed == [512, 256, -768, -1024])


def test_memory_is_left_alone_in_a_process_without_the_context(monkeypatch) -> None:
    freed: list[int] = []
    asked: list[str] = []
    driver = SimpleNamespace(
        cuCtxPushCurrent=lambda context: asked.append(context) or (3,), cuMemFree=freed.append
    )
    monkeypatch.setattr(cuda_driver, "_driver", lambda: driver)
    found = cuda_driver.OwnBuffer(256, 4, "context")
    del found
    wait_for(lambda: asked == ["context"])
    with ALONE:  # whoever asked is done
        assert freed == []


def test_no_more_replicas_than_samples(made) -> None:
    backend = made[0].backend
    assert backend.grid(1) == (2, 8) and backend.grid(1, False) == (1, 8)
    assert backend.grid(5, False) == (2, 8)


def test_an_interrupt_before_a_launch_is_noted(made, monkeypatch) -> None:
    """What the slot had may still be copied from there when the next launch comes."""
    session, _, device = made
    data, order = session.attach(ForestGrower(session.plan.program, 1).grow(2, 4)), list[str]()
    session.reserve(data, 2)
    device.static = session.memory.pool.words
    launch = session.backend.launch

    def interrupted(*arguments: Any) -> None:
        launch(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session.backend, "launch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(session.predictions(data, [range(2)]))
    for kind, name in ((Stream, "upload"), (Event, "synchronize")):
        method = getattr(kind, name)
        noted = lambda *a, name=name, method=method: order.append(name) or method(*a)  # noqa: E731
        monkeypatch.setattr(kind, name, noted)
    list(session.predictions(data, [range(2)]))
    assert order == ["synchronize", "upload", "synchronize"]


def test_a_kernel_that_gave_up(made) -> None:
    session, _, device = made
    device.broken = True
    forest = ForestGrower(session.plan.program, 1).grow(1, 3)
    with pytest.raises(DiagnosticError, match="worker 2, instruction 7, exchange barrier of a replica, 2"):
        Predictor(session).predict(forest)


def test_replicas_that_are_asked_for(made) -> None:
    """A kernel is prepared also where the driver need not be asked how many replicas it holds."""
    session, plain, device = made
    backend = CudaBackend(session.plan, files(), device, replicas=1)
    assert backend.grid(5) == (1, 8)
    rows, values = rows_of(session.plan), initialize(session.plan.program, rows_of(session.plan), 1)
    forest = ForestGrower(session.plan.program, 1).grow(3, 4)
    found = Predictor(Session(session.plan, backend, rows, values)).predict(forest)
    expected = plain.predict(plain.attach(forest))
    for name, each in expected.items():
        assert all(np.array_equal(one, other) for one, other in zip(each, found[name], strict=True))


def test_more_replicas_than_the_driver_holds_are_refused(made) -> None:
    with pytest.raises(DiagnosticError, match="holds 2 clusters of 8 workers of this build at once; 3 were"):
        CudaBackend(made[0].plan, files(), made[2], replicas=3)


def test_a_group_of_predictions_is_one_copy_there_and_one_back(made, monkeypatch) -> None:
    """Values of all batches come in one copy behind the launches; two groups are under way."""
    session, plain, device = made
    run = ReferenceVM.run

    def with_static(machine: ReferenceVM, words: Any, pool: Any, static: int) -> None:
        run(machine, words, pool, max(static, session.memory.pool.words))

    monkeypatch.setattr(ReferenceVM, "run", with_static)
    forest = ForestGrower(session.plan.program, 2).grow(40, 6)
    data, other = session.attach(forest), plain.attach(forest)
    batches = [[at, at + 1] for at in range(0, 40, 2)] * 2
    list(session.predictions(data, batches))  # memory has grown
    copies: list[str] = []
    for name in ("upload", "download_to", "download_rows"):
        inner = getattr(device.stream, name)
        monkeypatch.setattr(
            device.stream, name, lambda *a, name=name, inner=inner: (copies.append(name), inner(*a))
        )
    before = device.launches
    found = list(session.predictions(data, batches))
    assert device.launches == before + len(batches)
    # Every second pass begins a group, as no sample occurs twice in one; a group has 32 batches at most.
    assert copies == ["upload", "download_rows", "download_to"] * 2
    for batch, outputs in zip(batches, found, strict=True):
        for name, values in plain.predict(other, batch).items():
            assert all(np.array_equal(a, b) for a, b in zip(values, outputs[name], strict=True)), name
    assert session.evaluate(data) == pytest.approx(plain.evaluate(other))
