"""CUDA kernels against the definition, on a machine without a GPU: see `tests/support/emulator`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.emulator import COMPILER, backend_of
from tests.support.executors import Bench, check_evaluation, check_group, check_training
from tests.support.forced import forced
from tests.support.forests import ForestGrower
from tests.support.plans import plan_of
from tests.support.programs.check import TOLERANCE

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to compile kernels with")

CASES: dict[str, tuple[str, dict[str, int], dict[str, Any]]] = {
    "treelstm": ("treelstm", {"hidden": 32, "embed": 20, "vocab": 11}, {"cluster": 4}),
}


@pytest.mark.parametrize("name", CASES)
def test_against_the_definition(name: str, tmp_path: Path) -> None:
    example, settings, options = CASES[name]
    plan = plan_of(example, settings, **options)
    backend = backend_of(plan, tmp_path, late=True)
    for seed, samples in enumerate((1, 7)):
        forest = ForestGrower(plan.program, seed).grow(samples, 9, "random")
        bench = Bench(plan.program, plan, backend, forest, seed)
        check_training(bench, TOLERANCE[plan.precision])
        check_evaluation(bench, TOLERANCE[plan.precision])
