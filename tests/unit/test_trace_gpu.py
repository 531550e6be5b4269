"""The CUDA backend's side of a timeline, and clocks of multiprocessors, on a made-up GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dnc.api.tracing import start_timeline
from dnc.compiler import PlanOptions, make_plan
from dnc.diagnostics import DiagnosticError
from dnc.runtime.cuda_backend import CudaBackend
from dnc.runtime.initialize import initialize
from dnc.runtime.session import Session
from dnc.runtime.trace.chrome import write_trace
from dnc.runtime.trace.summary import read_summary
from dnc.runtime.trace.timeline import Timeline
from tests.support.fake_gpu import DECODE, PROLOGUE, REST, FakeDevice, duration
from tests.support.forests import ForestGrower
from tests.support.models import rows_of, small_program
from tests.support.traces import check_instructions, check_nesting, load, threads

PLAIN = ("counters", "pool", "words", "grid", "limit_us")


def files(*more: str) -> dict[str, bytes]:
    described = {"symbol": "k", "parameters": [*PLAIN, *more], "threads": 256, "cluster": 8, "workers": 8}
    return {"kernel.json": json.dumps({**described, "shared_bytes": 1 << 17}).encode(), "kernel.cubin": b""}


@pytest.fixture
def made(tmp_path: Path) -> tuple[Session, Timeline, FakeDevice]:
    plan = make_plan(small_program("treelstm"), "sm_90a", PlanOptions(cluster=8))
    device = FakeDevice(plan)
    backend = CudaBackend(plan, files(), device)  # type: ignore[arg-type]
    timeline = Timeline(plan, backend.name, 5, backend.trace_with(files("runs", "stamps")))
    rows = rows_of(plan)
    return (
        Session(plan, backend, rows, initialize(plan.program, rows, 1), timeline=timeline),
        timeline,
        device,
    )


def test_cycles_become_times_on_one_clock(made, tmp_path: Path) -> None:
    session, timeline, device = made
    data = session.attach(ForestGrower(session.plan.program, 1).grow(12, 5))
    held = device.held
    batches = [range(at, at + 3) for at in range(0, 12, 3)] * 2
    assert len(list(session.steps(data, batches))) == 8
    assert device.traced == [True] * 5 + [False] * 3
    assert device.held == held  # memory of the stamps is given back
    write_trace(timeline, tmp_path / "out.json")
    trace, events = load(tmp_path / "out.json")
    assert trace["otherData"]["clock"].startswith("the GPU's clock")
    check_nesting(events)
    check_instructions(timeline, events)
    for event in events:
        if "instruction" in event["args"]:
            expected = duration(event["args"]["instruction"], event["tid"] - 100)
            assert abs(event["end"] - event["begin"] - expected) <= 1
        elif event["name"] == "load weights":
            assert abs(event["end"] - event["begin"] - PROLOGUE) <= 1
    for (process, _), own in threads(events).items():
        launches = [event for event in own if event["cat"] == "launch"]
        assert process == 1 or len(launches) == 5
        for launch in launches:
            inner = [
                e
                for e in own
                if e["args"].get("launch") == launch["args"]["launch"] and "instruction" in e["args"]
            ]
            assert abs(launch["end"] - inner[-1]["end"] - REST) <= 1
            assert abs(inner[0]["begin"] - launch["begin"] - PROLOGUE - DECODE) <= 1
    firsts = {}
    for event in events:
        if event["cat"] == "launch":
            firsts.setdefault(event["args"]["launch"], {})[event["tid"] - 100] = event["begin"]
    assert all(
        abs(begin - found[0] - 7 * worker) <= 1
        for found in firsts.values()
        for worker, begin in found.items()
    )


def test_no_launch_begins_before_it_was_asked_for(made, tmp_path: Path) -> None:
    session, timeline, _ = made
    data = session.attach(ForestGrower(session.plan.program, 1).grow(12, 5))
    list(session.steps(data, [range(at, at + 3) for at in range(0, 12, 3)] * 2))
    write_trace(timeline, tmp_path / "out.json")
    events = load(tmp_path / "out.json")[1]
    origin = min(span.begin for span in timeline.spans)
    waited = []
    for number, launch in enumerate(timeline.launches):
        own = [e["begin"] for e in events if e["cat"] == "launch" and e["args"]["launch"] == number]
        waited.append(min(own) - (launch.asked - origin))
    assert min(waited) == 0  # as early as the host allows
    found = read_summary(tmp_path / "out.json")
    assert len(found.workers) == 16 and len(found.launch_us) == 5
    assert {worker.replica for worker in found.workers} == {"replica 0", "replica 1"}


def test_without_the_emitter_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> dict[str, bytes]:
        raise ModuleNotFoundError("No module named 'tvm'", name="tvm")

    monkeypatch.setattr("dnc.api.tracing.traced_kernels", missing)
    plan = make_plan(small_program("treelstm"), "sm_90a", PlanOptions(cluster=8))
    backend = CudaBackend(plan, files(), FakeDevice(plan))  # type: ignore[arg-type]
    with pytest.raises(DiagnosticError, match="has to be made first, and tvm is not installed here"):
        start_timeline(plan, backend)
