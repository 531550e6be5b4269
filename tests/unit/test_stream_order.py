"""No schedule is overwritten while a kernel or a copy may still read it, whatever runs in which stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnc.compiler import PlanOptions, make_plan
from dnc.ir.optimizers import Hyper
from dnc.runtime.cuda_backend import CudaBackend
from dnc.runtime.initialize import initialize
from dnc.runtime.predictor import Predictor
from dnc.runtime.session import Session
from tests.support.forests import ForestGrower
from tests.support.models import rows_of, small_program
from tests.support.order import Order
from tests.unit.test_cuda_runs import Device, Running, Stream
from tests.unit.test_trace_gpu import files


class Event:
    """A point in time: the operation that it stands behind."""

    def __init__(self, order: Order) -> None:
        self.order, self.at = order, -1

    def synchronize(self) -> None:
        self.order.waited(self.at)


class Noted(Stream):
    """A stream that tells the order what it does."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        device.streams += 1
        self.handle, self.order = device.streams, device.order

    def record(self) -> Any:
        event = Event(self.order)
        self.mark(event)
        return event

    def mark(self, event: Any) -> None:
        event.at = self.order.note(self.handle, "mark")

    def wait(self, event: Any) -> None:
        self.order.note(self.handle, "wait", behind=[event.at])

    def synchronize(self) -> None:
        self.order.drained(self.handle)

    def upload(self, to: Any, source: Any, size: int) -> None:
        self.order.note(self.handle, "upload", (to.address, to.address + size))
        super().upload(to, source, size)

    def download(self, to: Any, source: Any, size: int) -> None:
        self.order.note(self.handle, "download", (source.address, source.address + size))
        super().download(to, source, size)

    def download_rows(self, to: Any, source: Any, rows: int, pitch: int) -> None:
        self.order.note(self.handle, "download", (source.address, source.address + rows * pitch))
        super().download_rows(to, source, rows, pitch)

    def download_to(self, host: int, address: int, size: int) -> None:
        self.order.note(self.handle, "download", (address, address + size))
        super().download_to(host, address, size)


class Kernel(Running):
    stream: Any = None

    def launch(self) -> None:
        words = self.values["words"]
        self.device.order.note(self.stream.handle, "kernel", (words, words + 4))  # type: ignore[attr-defined]
        super().launch()


class Streams(Device):
    def __init__(self, plan: Any) -> None:
        self.streams, self.order = 0, Order()
        super().__init__(plan)
        self.stream = Noted(self)

    def new_stream(self) -> Any:
        return Noted(self)

    def call(self, kernel: Any, shape: Any, stream: Any) -> Any:
        made = Kernel(self, kernel, shape)
        made.stream = stream
        return made


@pytest.fixture
def made() -> tuple[Session, Streams]:
    plan = make_plan(small_program("treelstm"), "sm_90a", PlanOptions(cluster=8))
    device = Streams(plan)
    backend = CudaBackend(plan, files(), device)  # type: ignore[arg-type]
    session = Session(plan, backend, rows_of(plan), initialize(plan.program, rows_of(plan), 1))
    session.memory.grow(60_000, 60_000)
    device.static = session.memory.pool.words
    return session, device


def batches(size: int) -> list[list[int]]:
    return [list(range(at, at + size)) for at in range(0, 40 - size + 1, size)] * 3


def test_an_upload_that_waits_for_nobody_is_found() -> None:
    order = Order()
    order.note(1, "kernel", (0, 8))
    end = order.note(1, "mark")
    order.note(2, "upload", (4, 6))
    assert order.races() == ["upload 2 meets kernel 0 of stream 1"]
    order = Order()
    order.note(1, "kernel", (0, 8))
    end = order.note(1, "mark")
    order.note(2, "wait", behind=[end])
    order.note(2, "upload", (4, 6))
    assert not order.races()


@pytest.mark.parametrize("lanes", [1, 2])
def test_streams_of_predictions_with_calls_and_steps_between(made: Any, lanes: int) -> None:
    session, device = made
    if lanes == 1:
        session.answers._lanes = lambda samples: 1
    short, one = Predictor(session), ForestGrower(session.plan.program, 3).grow(1, 6)
    short.predict(one)
    data = session.attach(ForestGrower(session.plan.program, 4).grow(40, 5, "random"))
    for number, _ in enumerate(session.predictions(data, [*batches(2), *batches(5), [1, 1], *batches(1)])):
        if number % 3 == 0:
            short.predict(one)
        if number % 7 == 0:
            session.step(data, np.array([0, 1]), Hyper())
    list(session.steps(data, batches(3)))
    assert session.evaluate(data).samples == 40
    uploads = [each for each in device.order.operations if each.kind == "upload"]
    assert len(uploads) > 20 and not device.order.races()


def test_a_group_that_breaks_off_is_waited_for(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two launches of a group: the next upload comes behind the first one."""
    session, device = made
    data = session.attach(ForestGrower(session.plan.program, 4).grow(40, 5, "random"))
    list(session.predictions(data, batches(2)))
    launch, count = Kernel.launch, []

    def stopped(kernel: Any) -> None:
        count.append(1)
        if len(count) == 2:
            raise KeyboardInterrupt
        launch(kernel)

    monkeypatch.setattr(Kernel, "launch", stopped)
    with pytest.raises(KeyboardInterrupt):
        list(session.predictions(data, batches(2)))
    session.launches.forget()
    list(session.predictions(data, batches(2)))
    assert len(count) > 20 and not device.order.races()
