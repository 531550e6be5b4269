"""Trees of 32 to 1,024 leaves on the CPU kernel: complete ones (wide wavefronts) and random splits (deep)."""

from __future__ import annotations

import pytest

from benchmarks.model_data import Sizes, samples
from dnc.codegen.cpu_kernel import build_cpu
from dnc.compiler import make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.runtime.backend import Backend
from dnc.runtime.cpu_backend import CpuBackend
from dnc.runtime.data import read_samples
from tests.support.executors import Bench, OnGrid, check_evaluation, check_outputs, check_training
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES

SETTINGS = {"vocab": 200, "hidden": 12}


@pytest.fixture(scope="module")
def compiled():
    path = EXAMPLES / "tree_fc.dn"
    program = transform(load_program(Source(str(path), path.read_text()), SETTINGS)[0])
    plan = make_plan(program, "cpu")
    return program, plan, CpuBackend(plan, build_cpu(plan))


def test_rows_of_a_table_whose_norms_have_parts() -> None:
    path = EXAMPLES / "treelstm.dn"
    settings = {"vocab": 9, "embed": 3 * isa.PART_COLUMNS - 1, "hidden": 5}
    program = transform(load_program(Source(str(path), path.read_text()), settings)[0])
    plan = make_plan(program, "cpu")
    forest = ForestGrower(program, 3).grow(4, 9, "random")
    check_training(Bench(program, plan, CpuBackend(plan, build_cpu(plan)), forest))


@pytest.mark.parametrize("grid", [(1, 2), (2, 1)])
@pytest.mark.parametrize("name", ["tree_fc", "tree_fc_random"])
def test_a_batch_of_trees_of_32_to_1024_leaves(compiled, name, grid) -> None:
    program, plan, backend = compiled
    trees = [samples(name, program, 1, Sizes(complete=(doublings, doublings)))[0] for doublings in (10, 5, 7)]
    forest = read_samples(trees, program).forest
    leaves = (forest.tables["Tree"].arm == 0).sum()
    assert leaves == 1024 + 32 + 128
    on_grid: Backend = OnGrid(backend, grid)  # type: ignore[assignment]
    bench = Bench(program, plan, on_grid, forest)
    check_training(bench)
    check_evaluation(bench)
    check_outputs(bench)
