"""What `--precision` changes: the plan of a GPU, its text and what explain says of it."""

from __future__ import annotations

import pytest

from dnc.compiler import PlanOptions, digest, make_plan
from dnc.explain.facts import gather
from dnc.ir.plan import BF16, FP32, PRECISIONS, REGISTER, TF32
from dnc.ir.plan_text import print_plan
from tests.support.models import small_program

pytest.importorskip("tvm")
OPTIONS = PlanOptions(precision=TF32)


@pytest.mark.parametrize("precision", [each for each in PRECISIONS if each != FP32])
def test_a_gpu_plan_says_so_and_has_kernels_of_its_own(precision: str) -> None:
    program = small_program("treelstm")
    plain = make_plan(program, "sm_90a")
    rounded = make_plan(program, "sm_90a", PlanOptions(precision=precision))
    assert (plain.precision, rounded.precision) == (FP32, precision)
    assert digest(plain) != digest(rounded)
    assert print_plan(rounded).splitlines()[0].endswith(f", {precision}")
    assert (
        f"in {precision} on tensor cores" in gather(rounded).tiling
        and "tensor cores" not in gather(plain).tiling
    )


def test_a_cpu_computes_in_float32() -> None:
    program = small_program("treelstm")
    assert make_plan(program, "cpu", OPTIONS) == make_plan(program, "cpu")


def test_only_the_kernel_that_may_round_uses_tensor_cores() -> None:
    from dnc.codegen.cuda_files import emit_source

    program = small_program("treelstm")
    used = {"mma.sync": 0, "dnc_round_tf32": 0, "dnc_split_tf32": 0, "dnc_mma_bf16": 0}
    for precision in PRECISIONS:
        plan = make_plan(program, "sm_90a", PlanOptions(precision=precision))
        text = emit_source(plan)["kernel.cu"].decode()
        found = {name for name in used if name in text}
        assert ("mma.sync" in found) == (precision != FP32)
        assert ("dnc_mma_bf16" in found) == (precision == BF16)
        for name in found:
            used[name] += 1
    assert used == {"mma.sync": 3, "dnc_round_tf32": 1, "dnc_split_tf32": 1, "dnc_mma_bf16": 1}


def test_a_register_holds_two_weights_of_16_bits() -> None:
    plans = [
        make_plan(
            small_program("treelstm"),
            "sm_90a",
            PlanOptions(cluster=16, residency=REGISTER, precision=precision),
        )
        for precision in (TF32, BF16)
    ]
    plain, packed = (list(gather(plan).on_chip.register_blocks) for plan in plans)
    assert plain and [(block.name, block.size) for block in packed] == [
        (block.name, block.size // 2) for block in plain
    ]
