"""What `--precision tf32` changes: the plan of a GPU, its text and what explain says of it."""

from __future__ import annotations

import pytest

from dnc.compiler import PlanOptions, digest, make_plan
from dnc.explain.facts import gather
from dnc.ir.plan import FP32, PRECISIONS, TF32, TF32X3
from dnc.ir.plan_text import print_plan
from tests.support.models import small_program

pytest.importorskip("tvm")
OPTIONS = PlanOptions(precision=TF32)


@pytest.mark.parametrize("precision", (TF32, TF32X3))
def test_a_gpu_plan_says_so_and_has_kernels_of_its_own(precision: str) -> None:
    program = small_program("treelstm")
    plain = make_plan(program, "sm_90a")
    rounded = make_plan(program, "sm_90a", PlanOptions(precision=precision))
    assert (plain.precision, rounded.precision) == (FP32, precision)
    assert digest(plain) != digest(rounded)
    assert print_plan(rounded).splitlines()[0].endswith(f", {precision}")
    assert f"in {precision} on tensor cores" in gather(rounded).tiling and "tf32" not in gather(plain).tiling


def test_a_cpu_computes_in_float32() -> None:
    program = small_program("treelstm")
    assert make_plan(program, "cpu", OPTIONS) == make_plan(program, "cpu")


def test_only_the_kernel_that_may_round_uses_tensor_cores() -> None:
    from dnc.codegen.cuda_kernel import emit_source

    program = small_program("treelstm")
    texts = [
        emit_source(make_plan(program, "sm_90a", PlanOptions(precision=each)))["kernel.cu"]
        for each in PRECISIONS
    ]
    assert [b"mma.sync" in text for text in texts] == [False, True, True]
    assert [b"dnc_split_tf32" in text for text in texts] == [False, False, True]
