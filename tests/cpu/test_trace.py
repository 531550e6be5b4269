"""Timelines of CPU launches: complete, ordered, nested, and without a trace in the plain kernel."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from dnc import tirx_cpu
from dnc.codegen import cpu_kernel
from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.ir.optimizers import Hyper
from dnc.ir.plan import Plan
from dnc.runtime.cpu_backend import CpuBackend
from dnc.runtime.initialize import initialize
from dnc.runtime.session import Session
from dnc.runtime.trace.chrome import write_trace
from dnc.runtime.trace.summary import read_summary
from dnc.runtime.trace.timeline import ENCODE, HOST, LAUNCH, OFF, WAIT, Timeline
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES
from tests.support.traces import check_instructions, check_nesting, clock_error, load, threads


@cache
def compiled(name: str) -> tuple[Plan, dict[str, bytes], dict[str, bytes]]:
    path = EXAMPLES / f"{name}.dn"
    source = Source(str(path), path.read_text())
    program = transform(load_program(source, {"hidden": 6, "embed": 5})[0], PlanOptions())
    plan = make_plan(program, "cpu")
    return plan, cpu_kernel.build_cpu(plan), cpu_kernel.build_cpu(plan, traced=True)


def session(name: str, grid: tuple[int, int], launches: int) -> tuple[Session, Timeline]:
    plan, plain, traced = compiled(name)
    backend = CpuBackend(plan, plain, *grid)
    timeline = Timeline(plan, backend.name, launches, backend.trace_with(traced))
    rows = {p.name: 11 for p in plan.program.parameters if p.kind == "table"}
    values = initialize(plan.program, rows, 1)
    return Session(plan, backend, rows, values, timeline=timeline), timeline


def run(made: Session, epochs: int = 2) -> list[float]:
    forest = ForestGrower(made.plan.program, 3).grow(12, 6)
    data = made.attach(forest)
    batches = [range(at, at + 3) for _ in range(epochs) for at in range(0, 12, 3)]
    return [result.loss for result in made.steps(data, batches, Hyper(learning_rate=0.1))]


@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("name", ["treelstm", "bilstm_tagger"])
def test_a_timeline_is_complete(name: str, grid: tuple[int, int], tmp_path: Path) -> None:
    made, timeline = session(name, grid, 5)
    run(made)
    assert len(timeline.launches) == 5
    write_trace(timeline, tmp_path / "out.json")
    trace, events = load(tmp_path / "out.json")
    assert trace["otherData"]["launches"] == 5 and trace["otherData"]["target"] == "cpu"
    check_nesting(events)
    assert check_instructions(timeline, events) > 50
    assert clock_error(timeline, events).ns <= 0
    waits = {event["name"] for event in events if event["cat"] == "wait"}
    assert waits <= {"grid_barrier", "replica_barrier", "end"} and "grid_barrier" in waits
    assert ("replica_barrier" in waits) == (grid[1] > 1)
    assert all(event["cname"] == "terrible" for event in events if event["cat"] == "wait")
    assert {event["name"] for event in events if event["cat"] == "host"} == set(HOST)
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert all(place in named for place in threads(events))
    assert len({place for place in threads(events) if place[1] >= 100}) == grid[0] * grid[1]


def test_launches_lie_within_what_the_host_did_for_them(tmp_path: Path) -> None:
    made, timeline = session("treelstm", (2, 1), 4)
    run(made, epochs=1)
    write_trace(timeline, tmp_path / "out.json")
    events = load(tmp_path / "out.json")[1]
    launches = [event for event in events if event["cat"] == "launch"]
    host = {name: [e for e in events if e["name"] == name] for name in (ENCODE, LAUNCH, WAIT)}
    assert min(e["begin"] for e in launches) >= min(e["begin"] for e in host[LAUNCH])
    assert max(e["end"] for e in launches) <= max(e["end"] for e in host[WAIT])
    assert min(e["end"] for e in host[ENCODE]) <= min(e["begin"] for e in host[LAUNCH])


def test_only_the_first_launches_are_traced_and_the_bits_stay(tmp_path: Path) -> None:
    traced, timeline = session("treelstm", (2, 1), 3)
    other, _ = session("treelstm", (2, 1), 1)
    other.timeline = OFF
    assert run(traced) == run(other)
    assert len(timeline.launches) == 3
    spans = len(timeline.spans)
    run(traced)
    assert (len(timeline.launches), len(timeline.spans)) == (3, spans)
    for name, values in traced.read_arrays().items():
        assert np.isfinite(values).all(), name


def test_evaluation_and_prediction_are_traced(tmp_path: Path) -> None:
    made, timeline = session("treelstm", (1, 2), 2)
    data = made.attach(ForestGrower(made.plan.program, 4).grow(5, 6))
    made.evaluate(data)
    made.predict(data)
    write_trace(timeline, tmp_path / "out.json")
    events = load(tmp_path / "out.json")[1]
    check_nesting(events)
    check_instructions(timeline, events)
    names = [{e["name"] for e in events if e["args"].get("launch") == number} for number in (0, 1)]
    assert any(name.startswith("accuracy") for name in names[0])
    assert any(name.startswith("output") for name in names[1])


def test_the_summary_adds_up(tmp_path: Path) -> None:
    made, timeline = session("bilstm_tagger", (2, 2), 3)
    run(made)
    write_trace(timeline, tmp_path / "out.json")
    events = load(tmp_path / "out.json")[1]
    found = read_summary(tmp_path / "out.json")
    assert len(found.launch_us) == 3 and len(found.workers) == 4
    for worker in found.workers:
        assert worker.total == pytest.approx(sum(found.launch_us))
        assert 0 < worker.work + worker.wait + worker.setup <= worker.total + 1e-6
        assert worker.work + worker.wait + worker.setup + worker.idle == pytest.approx(worker.total)
    for opcode in found.opcodes:
        own = [event for event in events if event["name"] == opcode.name]
        assert opcode.count == len(own)
        assert opcode.total == pytest.approx(sum(event["dur"] for event in own))
        assert opcode.longest >= opcode.mean
    assert sum(opcode.total for opcode in found.opcodes if opcode.category == "work") == pytest.approx(
        sum(worker.work for worker in found.workers)
    )


def test_the_plain_kernel_knows_no_clock() -> None:
    plan = compiled("treelstm")[0]
    plain, traced = (cpu_kernel.Kernel(plan, traced).build() for traced in (False, True))
    assert "dnc_now" not in tirx_cpu.to_text(plain) and "stamps" not in tirx_cpu.to_text(plain)
    assert tirx_cpu.to_text(traced).count("dnc_now") >= 2
    # Nothing but the interpreter differs: the instructions' own functions are the same.
    names = [variable.name_hint for variable in plain.get_global_vars()]
    assert len(names) > 10 and {v.name_hint for v in traced.get_global_vars()} == set(names)
    for name in names:
        same = tvm_ffi.structural_equal(plain[name], traced[name], map_free_vars=True)
        assert same == (name != cpu_kernel.SYMBOL), name


def test_nothing_launched_is_said(tmp_path: Path) -> None:
    _, timeline = session("treelstm", (1, 1), 2)
    with pytest.raises(DiagnosticError, match="nothing was launched"):
        write_trace(timeline, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_the_text_of_a_traced_kernel_has_all_that_it_calls() -> None:
    """As where the cache has lost machine code, or cannot be written: it knows all that it calls."""
    *_, traced = compiled("treelstm")
    text = traced["kernel.tirx"].decode()
    assert all(f"@{name}" in text for name in ("dnc_now", "dnc_yield", "dnc_load_acquire"))
    assert text.count('"pragma_import_llvm"') == 1
