"""Kernels compiled for inference: the bits of those that train, and nothing that only training needs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from dnc.codegen.cpu_kernel import build_cpu
from dnc.compiler import INFER, TRAIN, PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.optimizers import OPTIMIZERS
from dnc.ir.plan import Plan
from dnc.ir.program import BACKWARD, Program
from dnc.runtime.cpu_backend import CpuBackend
from dnc.runtime.phases import EVALUATE, PREDICT, RESULT_KINDS
from dnc.runtime.pool import static_pool
from dnc.runtime.predictions import collect
from tests.cpu.test_cpu_kernel import SIZES as CPU_SIZES
from tests.cpu.test_cpu_kernel import model
from tests.property.test_executors import SIZES
from tests.support.executors import Bench, OnGrid, check_evaluation, check_outputs
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES

NAMES = ("treelstm", "bilstm_tagger", "similarity", "dag")


def planned(name: str, mode: str, target: str, sizes: Mapping[str, int]) -> tuple[Program, Plan]:
    options, path = PlanOptions(mode=mode), EXAMPLES / f"{name}.dn"
    source, _ = load_program(Source(str(path), path.read_text()), sizes)
    program = transform(source, options)
    return program, make_plan(program, target, options)


@cache
def inference(name: str) -> tuple[Program, Plan, CpuBackend]:
    program, plan = planned(name, INFER, "cpu", CPU_SIZES[name])
    return program, plan, CpuBackend(plan, build_cpu(plan))


def outputs(bench: Bench) -> dict[str, list[np.ndarray]]:
    schedule, _ = bench.launch(PREDICT)
    return collect(bench.backend, bench.encoder, schedule, bench.samples)


@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_a_build_that_trains(name: str, grid: tuple[int, int]) -> None:
    benches = []
    for program, plan, backend in (model(name), inference(name)):
        forest = ForestGrower(program, 5).grow(7, 20)
        benches.append(Bench(program, plan, OnGrid(backend, grid), forest, 5))  # type: ignore[arg-type]
    check_evaluation(benches[1])
    check_outputs(benches[1])
    first, second = map(outputs, benches)
    assert first.keys() == second.keys() and first
    for output, values in first.items():
        for one, other in zip(values, second[output], strict=True):
            assert np.array_equal(one, other), output
    if any(result.kind in RESULT_KINDS[EVALUATE] for result in benches[0].plan.results):
        sums = [results for _, results in (bench.launch(EVALUATE) for bench in benches)]
        assert np.array_equal(sums[0][isa.RESULT_FIRST :], sums[1][isa.RESULT_FIRST :])


@pytest.mark.parametrize("target", ["cpu", "sm_90a", "sm_80"])
@pytest.mark.parametrize("name", sorted(SIZES))
def test_nothing_is_left_of_training(name: str, target: str) -> None:
    trained, whole = planned(name, TRAIN, target, SIZES[name])
    program, plan = planned(name, INFER, target, SIZES[name])
    assert not any(stage.direction == BACKWARD for stage in program.stages)
    assert not program.weight_gradients and not plan.dense_gradients and not plan.table_gradients
    names = {opcode.name for opcode in plan.opcodes}
    assert isa.NORM not in names and not any(each.split()[0] in OPTIMIZERS for each in names)
    assert not any("gradient" in each or ".grad" in each for each in names)
    assert {buffer.name for buffer in plan.buffers} < {buffer.name for buffer in whole.buffers}
    assert program.parameters == trained.parameters
    rows = {p.name: p.dimensions[0].size or 9 for p in program.parameters if p.kind == "table"}
    assert static_pool(plan, rows, 64).words < static_pool(whole, rows, 64).words


def test_dropout_is_gone() -> None:
    source = Source(
        "m.dn",
        "model M(d = 4)\nstruct V = V(x: vector<d>)\nparam W: [d, d]\n"
        "fn f(v: V) = dropout(tanh(W @ dropout(v.x, 0.5)), 0.5)\n"
        "loss sum(v in root) squared_error(f(v), v.x)\noutput y = f(root)\n",
    )
    program, _ = load_program(source, {})
    transformed = transform(program, PlanOptions(mode=INFER))
    assert not any(op.opcode == "dropout" for stage in transformed.stages for op in stage.cell.ops)
    plan = make_plan(transformed, "cpu", PlanOptions(mode=INFER))
    assert not any(type(item).__name__ == "NoiseList" for item in plan.lists)
