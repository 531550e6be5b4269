"""The CUDA kernels against the definition. Needs a GPU and kernels made by `tests.gpu.builds`."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from dnc.compiler import PlanOptions, make_plan
from dnc.diagnostics import DiagnosticError
from dnc.ir import isa
from dnc.ir.early import early
from dnc.ir.optimizers import OPTIMIZERS, Hyper
from dnc.ir.parser import parse_program
from dnc.runtime.data_parallel import DataParallelBackend
from dnc.runtime.encoder.modes import Modes
from dnc.runtime.initialize import initialize
from dnc.runtime.phases import TRAIN
from dnc.runtime.session import Session
from dnc.runtime.trace.chrome import write_trace
from dnc.runtime.trace.timeline import OFF, Timeline
from tests.gpu.builds import kernel_files, open_devices
from tests.support.endings import check_endings
from tests.support.executors import Bench, check_both, check_evaluation, check_group, check_training
from tests.support.forced import forced
from tests.support.forests import SHAPES, ForestGrower
from tests.support.optimizers import VOCABULARY, check_many_steps
from tests.support.programs.check import TOLERANCE
from tests.support.queues import damaged, made_early
from tests.support.traces import check_instructions, check_nesting, clock_error, load

FOLDER = Path(os.environ.get("DNC_GPU_BUILDS", "/nonexistent"))
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/program.ir"))


def _device() -> Any:
    from dnc.runtime.cuda_driver import CudaError, open_device

    try:
        return open_device()
    except CudaError as error:
        pytest.skip(f"no GPU: {error.message}")


@pytest.fixture(scope="module")
def device() -> Any:
    if not NAMES:
        pytest.skip("no kernels: set DNC_GPU_BUILDS to a folder made by python -m tests.gpu.builds")
    return _device()


def _backend(device: Any, name: str, replicas: int | None = None, trains: bool = True) -> tuple[Any, Any]:
    """trains: whether a kernel for inference will not do."""
    from dnc.runtime.cuda_backend import CudaBackend

    folder = FOLDER / name
    if not folder.is_dir():  # "none", or a folder with some of the cases
        pytest.skip("no kernel of this kind in the folder")
    options = json.loads((folder / "options.json").read_text())
    options["without"] = tuple(options["without"])
    program = parse_program((folder / "program.ir").read_text())
    plan = make_plan(program, "sm_90a", PlanOptions(**options))
    if trains and not plan.trains:
        pytest.skip("is for inference")
    return program, CudaBackend(plan, kernel_files(folder), device, replicas)


@pytest.mark.parametrize("is_lean", [True, False])
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_against_the_definition(device: Any, name: str, is_lean: bool) -> None:
    """is_lean: small batches have the lean kernel."""
    program, backend = _backend(device, name, trains=False)
    if not is_lean:
        backend.lean = None
    elif backend.lean is None:
        pytest.skip("has no lean kernel")
    large = "256" in name
    for seed, shape in enumerate(SHAPES):
        for samples in (1, 3, 90) if large else (1, 7, 40):
            forest = ForestGrower(program, seed).grow(
                samples, 12 if large else 9, shape, 0.4 if name.startswith("dag") else 0.0
            )
            bench = Bench(program, backend.plan, backend, forest, seed)
            tolerance = TOLERANCE[backend.plan.precision]
            if backend.plan.trains:
                check_training(bench, tolerance)
                check_both(bench, tolerance)
            check_evaluation(bench, tolerance)


@pytest.mark.parametrize("few", [None, False])
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_gpus_that_train_together(device: Any, name: str, few: bool | None) -> None:
    """All that there are, up to four; also with fewer samples than GPUs, and twice with the same bits."""
    others = open_devices()[1:]
    if not others:
        pytest.skip("one GPU")
    program = _backend(device, name)[0]
    backend: Any = DataParallelBackend([_backend(each, name)[1] for each in (device, *others)])
    for seed, samples in enumerate((1, 3, 30)):
        shape = "random" if samples > 1 else "single"
        bench = Bench(
            program, backend.plan, backend, ForestGrower(program, seed).grow(samples, 9, shape), seed
        )
        found = []
        with forced(few=few):
            for _ in range(2):
                check_training(bench, TOLERANCE[backend.plan.precision])
                found.append(bench.parameters())
        for parameter, value in found[0].items():
            np.testing.assert_array_equal(found[1][parameter].view(np.int32), value.view(np.int32))


@pytest.mark.parametrize("name", NAMES[:1] or ["none"])
def test_memory_that_goes_between_launches_that_meet(device: Any, name: str, monkeypatch: Any) -> None:
    """A driver that gives it back waits for what runs, which waits for the launch that has yet to come."""
    others = open_devices()[1:]
    if not others:
        pytest.skip("one GPU")
    program = _backend(device, name)[0]
    backend: Any = DataParallelBackend([_backend(each, name)[1] for each in (device, *others)])
    bench = Bench(program, backend.plan, backend, ForestGrower(program, 1).grow(8, 9, "random"), 1)
    check_training(bench, TOLERANCE[backend.plan.precision])
    first, last = backend.members[0], backend.members[-1]
    started, kept, launch_first, launch_last = Event(), [], first.launch_share, last.launch_share
    for each in (first, last):
        with each.device.inside():
            kept += [each.device.allocate(1 << 20), each.device.pinned(1 << 20)]

    def first_one(*arguments: Any) -> None:
        launch_first(*arguments)
        started.set()

    def last_one(*arguments: Any) -> None:
        assert started.wait(10)
        kept.clear()
        launch_last(*arguments)

    monkeypatch.setattr(first, "launch_share", first_one)
    monkeypatch.setattr(last, "launch_share", last_one)
    begin = time.perf_counter()
    bench.launch(TRAIN)
    assert not kept and time.perf_counter() - begin < 20


@pytest.mark.parametrize("few, apart", [(True, False), (True, True), (False, True)])
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_weight_gradients_of_few_rows_and_in_chunks(device: Any, name: str, few: bool, apart: bool) -> None:
    program, backend = _backend(device, name)
    with forced(few, apart, alike=few):
        bench = Bench(program, backend.plan, backend, ForestGrower(program, 5).grow(30, 9, "random"), 5)
        check_training(bench, TOLERANCE[backend.plan.precision])


@pytest.mark.parametrize("name", NAMES or ["none"])
def test_tiles_of_tokens_of_every_size(device: Any, name: str) -> None:
    program, backend = _backend(device, name)
    if not any(table.products for table in backend.plan.table_gradients):
        pytest.skip("has no products of tokens")
    forest = ForestGrower(program, 6).grow(60, 9, "random")
    for groups in isa.token_groups(backend.plan):
        with forced(groups=groups):
            bench = Bench(program, backend.plan, backend, forest, 6)
            check_training(bench, TOLERANCE[backend.plan.precision])


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_partial_sums_that_are_added_up(device: Any, name: str, added: bool) -> None:
    program, backend = _backend(device, name)
    if not backend.plan.reduced:
        pytest.skip("leaves no partial sums that a cluster may add up")
    for seed, shape in enumerate(SHAPES):
        forest = ForestGrower(program, seed).grow(60, 15, shape, 0.4 if name.startswith("dag") else 0.0)
        bench = Bench(program, backend.plan, backend, forest, seed)
        with forced(added=added):
            check_training(bench, TOLERANCE[backend.plan.precision])
            check_group(bench)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_phases_that_the_grid_shares_out(device: Any, name: str, shared: bool) -> None:
    program, backend = _backend(device, name)
    for seed, samples in enumerate((1, 3, 30)):
        bench = Bench(
            program, backend.plan, backend, ForestGrower(program, seed).grow(samples, 9, "random"), seed
        )
        with forced(shared=shared):
            check_training(bench, TOLERANCE[backend.plan.precision])
            if samples > 1:
                check_group(bench)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_weight_gradients_of_levels_that_have_ended(device: Any, name: str, few: bool) -> None:
    """By replicas without rows; three times with the same bits."""
    program, backend = _backend(device, name)
    if early(backend.plan) is None:
        pytest.skip("makes no weight gradient early")
    for samples, early_levels in ((1, True), (3, True), (2, (50, 45))):
        forest = ForestGrower(program, samples).grow(samples, 120, "complete")
        bench = Bench(program, backend.plan, backend, forest, samples)
        found = []
        with forced(few=few, shared=True, early=early_levels):
            schedule = bench.encode(TRAIN, Hyper(), backend.grid(samples))
            assert any(made_early(schedule)) and not all(made_early(schedule))
            for _ in range(3):
                check_training(bench, TOLERANCE[backend.plan.precision])
                found.append(bench.parameters())
            check_both(bench, TOLERANCE[backend.plan.precision])
            if samples > 1:
                check_group(bench)
        for parameter, value in found[0].items():
            for other in found[1:]:
                np.testing.assert_array_equal(other[parameter].view(np.int32), value.view(np.int32))
    lost = damaged(schedule, 0, isa.POST, 0, 0, backend.plan.opcode(isa.NOP).number)
    bench.load(lost.static_words + lost.activations)
    backend.launch([lost], 0)
    with pytest.raises(DiagnosticError, match="posts of other replicas"):
        backend.finish(0)
    check_training(bench, TOLERANCE[backend.plan.precision])


@pytest.mark.parametrize("parts", [True, False])
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_parts_of_the_recursion_apart(device: Any, name: str, parts: bool) -> None:
    program, backend = _backend(device, name)
    if Modes(backend.plan).mode("train").parts is None:
        pytest.skip("has one part of the recursion")
    for seed, samples in enumerate((1, 3, 30)):
        bench = Bench(
            program, backend.plan, backend, ForestGrower(program, seed).grow(samples, 9, "random"), seed
        )
        with forced(parts=parts):
            check_training(bench, TOLERANCE[backend.plan.precision])
            check_evaluation(bench, TOLERANCE[backend.plan.precision])
            if samples > 1:
                check_group(bench)


@pytest.mark.parametrize("decay, clip", [(0.0, math.inf), (0.1, 0.3)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(device: Any, optimizer: str, decay: float, clip: float) -> None:
    program, backend = _backend(device, "tags")
    rows = {p.name: VOCABULARY for p in program.parameters if p.kind == "table"}
    made = Session(backend.plan, backend, rows, initialize(program, rows, 1))
    check_many_steps(made, optimizer, decay, clip)


@pytest.mark.parametrize("name", NAMES or ["none"])
def test_same_bits_twice_and_one_launch(device: Any, name: str) -> None:
    program, backend = _backend(device, name)
    forest = ForestGrower(program, 5).grow(20, 15)
    bench = Bench(program, backend.plan, backend, forest, 5)
    found = []
    for _ in range(5):
        before = backend.launches
        bench.launch("train", Hyper(learning_rate=0.5))
        assert backend.launches == before + 1
        found.append(bench.parameters())
    for other in found[1:]:
        for parameter, value in found[0].items():
            assert np.array_equal(value, other[parameter]), parameter


@pytest.mark.parametrize("name", NAMES or ["none"])
def test_a_stream_of_predictions(device: Any, name: str) -> None:
    """Groups of batches, two under way: the bits of each alone; the values of calls, and on one replica."""
    program, backend = _backend(device, name, trains=False)
    if not any(result.kind == "output" for result in backend.plan.results):
        pytest.skip("declares no output")
    rows = {p.name: p.dimensions[0].size or 11 for p in program.parameters if p.kind == "table"}
    values = initialize(program, rows, 1)
    batches = [[at, at + 1] for at in range(0, 40, 2)] * 3 + [[at] for at in range(40)] * 2 + [[3, 3, 5]]
    tolerance = TOLERANCE[backend.plan.precision]

    def agree(outputs: Any, others: Any) -> bool:
        floats = [(a, b) for key, each in outputs.items() for a, b in zip(each, others[key], strict=True)]
        floats = [(a, b) for a, b in floats if a is not None and np.asarray(a).dtype.kind == "f"]
        close = {"rtol": max(1e-2, tolerance), "atol": max(1e-3, tolerance / 5)}
        return all(np.allclose(a, b, **close) for a, b in floats)

    found = []
    for own in (backend, _backend(device, name, replicas=1, trains=False)[1]):
        made = Session(backend.plan, own, rows, values)
        data = made.attach(ForestGrower(program, 3).grow(40, 9))
        before = own.launches
        found.append(list(made.predictions(data, batches)))
        assert own.launches == before + len(batches)
        for batch, outputs in zip(batches, found[-1], strict=True):
            for key, expected in next(made.predictions(data, [batch])).items():
                assert all(np.array_equal(a, b) for a, b in zip(outputs[key], expected, strict=True)), key
            assert agree(outputs, made.answers.predict(data, np.array(batch)))
    assert own.grid(100, False)[0] == own.grid(100)[0] == 1
    assert all(agree(outputs, others) for outputs, others in zip(*found, strict=True))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("decoder")] or ["none"])
def test_a_launch_leaves_behind_the_last_word(device: Any, name: str) -> None:
    """The same words up to the end; no worker is left waiting for one that has gone."""
    program, backend = _backend(device, name)
    left, total = 0, 0
    for seed, samples in enumerate((1, 2, 7, 40)):
        forest = ForestGrower(program, seed).grow(samples, 80, "complete")
        bench = Bench(program, backend.plan, backend, forest, seed)
        for _ in range(20):
            found = check_endings(bench)
            left, total = left + found[0], total + found[1]
    assert 0 < left < total


@pytest.mark.parametrize("name", [name for name in NAMES if (FOLDER / name / "traced").exists()] or ["none"])
def test_a_timeline_by_the_clock_of_the_gpu(device: Any, name: str, tmp_path: Path) -> None:
    """Complete, nested, the same bits; the workers' clocks agree within half the cheapest exchange."""
    program, backend = _backend(device, name)
    traced = backend.trace_with(kernel_files(FOLDER / name / "traced"))
    timeline = Timeline(backend.plan, backend.name, 6, traced)
    rows = {p.name: 11 for p in program.parameters if p.kind == "table"}
    forest = ForestGrower(program, 3).grow(24, 10)
    batches = [range(at, at + 4) for at in range(0, 24, 4)] * 2
    losses = []
    for own in (timeline, OFF):
        made = Session(backend.plan, backend, rows, initialize(program, rows, 1), timeline=own)
        losses.append([result.loss for result in made.steps(made.attach(forest), batches)])
    assert losses[0] == losses[1]
    write_trace(timeline, tmp_path / "out.json")
    events = load(tmp_path / "out.json")[1]
    check_nesting(events)
    check_instructions(timeline, events)
    error = clock_error(timeline, events)
    print(f"{name}: clocks are off by {error.ns} ns at most")
    assert error.ns <= 100, error
