"""What `--precision tf32` changes: the plan of a GPU, its text and what explain says of it."""

from __future__ import annotations

import pytest

from dnc.compiler import PlanOptions, digest, make_plan
from dnc.explain.facts import gather
from dnc.ir.plan import FP32, TF32
from dnc.ir.plan_text import print_plan
from tests.support.models import small_program

pytest.importorskip("tvm")
OPTIONS = PlanOptions(precision=TF32)


def test_a_gpu_plan_says_so_and_has_kernels_of_its_own() -> None:
    program = small_program("treelstm")
    plain, rounded = make_plan(program, "sm_90a"), make_plan(program, "sm_90a", OPTIONS)
    assert (plain.precision, rounded.precision) == (FP32, TF32)
    assert digest(plain) != digest(rounded)
    assert print_plan(rounded).splitlines()[0].endswith(", tf32")
    assert "tf32" in gather(rounded).tiling and "tf32" not in gather(plain).tiling


def test_a_cpu_computes_in_float32() -> None:
    program = small_program("treelstm")
    assert make_plan(program, "cpu", OPTIONS) == make_plan(program, "cpu")


def test_only_the_kernel_that_may_round_uses_tensor_cores() -> None:
    from dnc.codegen.cuda_kernel import emit_source

    program = small_program("treelstm")
    texts = [
        emit_source(make_plan(program, "sm_90a", each))["kernel.cu"] for each in (PlanOptions(), OPTIONS)
    ]
    assert [b"mma.sync" in text for text in texts] == [False, True]
