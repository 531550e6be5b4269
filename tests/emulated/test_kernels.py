"""CUDA kernels against the definition, on a machine without a GPU: see `tests/support/emulator`.

CI runs a few small plans, with everything that the encoder may choose. `DNC_EMULATED=NAME,NAME` adds cases of
`tests/gpu/builds.py`, which are larger.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from dnc.diagnostics import DiagnosticError
from dnc.ir import isa
from dnc.ir.optimizers import Hyper
from dnc.runtime import cuda_together
from dnc.runtime.data_parallel import DataParallelBackend
from dnc.runtime.phases import TRAIN
from dnc.runtime.schedule import queue
from tests.gpu.builds import CASES as ON_A_GPU
from tests.support.emulator import COMPILER, backend_of, backends_of
from tests.support.executors import Bench, check_both, check_evaluation, check_group, check_training
from tests.support.forced import forced
from tests.support.forests import ForestGrower
from tests.support.plans import plan_of
from tests.support.programs.check import TOLERANCE
from tests.support.queues import fields_of, made_early

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to compile kernels with")

TREE = {"hidden": 64, "embed": 64, "vocab": 11}
Case = tuple[str, dict[str, int], dict[str, Any]]
CASES: dict[str, Case] = {
    "weights in registers": ("treelstm", TREE, {"cluster": 4}),
    "tensor cores, bf16": ("treelstm", TREE, {"cluster": 4, "precision": "bf16"}),
    "tensor cores, tf32, an odd number of strips, units that some workers lack": (
        "treelstm",
        {"hidden": 131, "embed": 8, "vocab": 11},
        {"cluster": 4, "precision": "tf32"},
    ),
    "tensor cores, a recursion without a loss": (
        "token_vectors",
        {"hidden": 20, "width": 12},
        {"cluster": 4, "precision": "tf32"},
    ),
    "tensor cores, all weights in registers": (
        "treelstm",
        {"hidden": 20, "embed": 12, "vocab": 11},
        {"cluster": 4, "precision": "tf32", "residency": "register"},
    ),
    "tensor cores, tf32x3, weights streamed": (
        "treelstm",
        {"hidden": 48, "embed": 20, "vocab": 11},
        {"cluster": 4, "precision": "tf32x3", "residency": "streamed"},
    ),
    "states that are pushed": ("lstm_classifier", {"hidden": 32, "embed": 20}, {"cluster": 4}),
    "matrices without a bias": ("../tests/support/unbiased", {"width": 32}, {"cluster": 4}),
    "names that C has, too": ("../tests/support/hidden_names", {}, {"cluster": 4}),
    "two parts of a recursion": ("bilstm_tagger", {"hidden": 32, "embed": 20}, {"cluster": 4}),
    "states that are polled": ("lstm_classifier", {"hidden": 32, "embed": 20}, {"cluster": 0, "workers": 4}),
    "values that every worker makes": (
        "gru_classifier",
        {"hidden": 32, "embed": 20},
        {"cluster": 4, "repeat": True},
    ),
    "values that every worker makes, of many units that are no multiple of 4": (
        "gru_classifier",
        {"hidden": 50, "embed": 20},
        {"cluster": 4, "repeat": True},
    ),
    "scalars that every worker makes": (
        "layer_norm_lstm",
        {"hidden": 72, "embed": 24},
        {"cluster": 4},
    ),
    "scalars that every worker makes, in front of tiled products": (
        "layer_norm_lstm",
        {"hidden": 72, "embed": 24},
        {"cluster": 4, "residency": "streamed"},
    ),
    "tensor cores, tf32, rows of weights longer than eight vertices have room for": (
        "../tests/support/long_rows",
        {},
        {"cluster": 4, "precision": "tf32"},
    ),
    "sparse weights, units that some workers lack": (
        "sparse_lstm",
        {"hidden": 150, "embed": 20, "chars": 30},
        {"cluster": 0, "workers": 8, "residency": "sparse", "mode": "infer"},
    ),
    "sparse weights in shared memory that is lent": (
        "sparse_lstm",
        {"hidden": 160, "embed": 8, "chars": 3700},
        {"cluster": 0, "workers": 4, "registers": 0, "mode": "infer"},
    ),
    "sparse weights, used outside the recursion, too": (
        "../tests/support/sparse_outside",
        {"hidden": 64, "chars": 3700},
        {"cluster": 0, "workers": 4, "registers": 0, "residency": "sparse", "mode": "infer"},
    ),
    "sparse weights, in training": (
        "sparse_lstm",
        {"hidden": 32, "embed": 20, "chars": 30},
        {"cluster": 4},
    ),
    "blocks of units, long rows of logits": (
        "language_model",
        {"hidden": 16, "embed": 8, "vocab": 1028},
        {"cluster": 4, "residency": "streamed"},
    ),
    "levels apart from a product that streams": (
        "language_model",
        {"hidden": 32, "embed": 8, "vocab": 6000},
        {"cluster": 4},
    ),
    "registers of two recursions": (
        "encoder_decoder",
        {"hidden": 32, "embed": 8, "targets": 20},
        {"cluster": 4, "registers": 16},
    ),
    "levels that push in front of some that do not": (
        "tree_to_sequence",
        {"hidden": 32, "embed": 8, "targets": 20},
        {"cluster": 4},
    ),
    "runs of many workers": (
        "treelstm",
        {"hidden": 72, "embed": 24, "vocab": 11},
        {"cluster": 0, "workers": 18},
    ),
    "tensor cores, tf32, weights in shared memory, a step of more columns than there are, early loads": (
        "lstm_classifier",
        {"hidden": 72, "embed": 24},
        {"cluster": 0, "workers": 18, "residency": "shared", "precision": "tf32"},
    ),
    "runs of many workers, a thread each": (
        "treelstm",
        {"hidden": 38, "embed": 24, "vocab": 11},
        {"cluster": 0, "workers": 18, "residency": "shared"},
    ),
    "cells that read little beside runs of many workers": (
        "../benchmarks/applications/rnn",
        {"hidden": 72, "embed": 24},
        {"cluster": 0, "workers": 18},
    ),
    "weights in registers and shared memory": (
        "treelstm",
        {"hidden": 38, "embed": 24, "vocab": 11},
        {"batch": 1, "registers": 4},
    ),
    "tensor cores, tf32, weights in registers and shared memory": (
        "treelstm",
        {"hidden": 131, "embed": 8, "vocab": 11},
        {"batch": 1, "registers": 16, "precision": "tf32"},
    ),
    "tensor cores, bf16, weights in registers and shared memory": (
        "treelstm",
        {"hidden": 131, "embed": 8, "vocab": 11},
        {"batch": 1, "registers": 14, "precision": "bf16"},
    ),
    "sums of many columns over the warps": (
        "treelstm",
        {"hidden": 520, "embed": 8, "vocab": 11},
        {"cluster": 0, "workers": 2, "residency": "streamed"},
    ),
    "shared memory that is lent, states that are polled": (  # of up to four rows: products of more are tiled
        "language_model",
        {"hidden": 64, "embed": 8, "vocab": 3700},
        {"cluster": 0, "workers": 4, "registers": 0},
    ),
}

# Those without clusters that run as several replicas.
BESIDE = ("states that are polled", "shared memory that is lent, states that are polled")

# Those that take longest, or are much like others: they run where `DNC_EMULATED` is set.
LONG = (
    "blocks of units, long rows of logits",
    "sums of many columns over the warps",
    "tensor cores, bf16, weights in registers and shared memory",
    "runs of many workers, a thread each",
)


def _more() -> Iterator[tuple[str, Case]]:
    for name in filter(None, os.environ.get("DNC_EMULATED", "").split(",")):
        example, settings, options = ON_A_GPU[name]
        yield name, (example, settings, attrs.asdict(options, recurse=False))


cases = CASES | dict(_more())
NAMES = [name for name in cases if name not in LONG or "DNC_EMULATED" in os.environ]


@pytest.mark.parametrize("name", NAMES)
def test_against_the_definition(name: str, tmp_path: Path) -> None:
    example, settings, options = cases[name]
    plan = plan_of(example, settings, **options)
    assert plan.tiling is not None
    backend = backend_of(plan, tmp_path, replicas=2 if plan.tiling.cluster > 1 or name in BESIDE else 1)
    device: Any = backend.device
    tolerance = TOLERANCE[plan.precision]

    def bench(samples: int, shape: str) -> Bench:
        forest = ForestGrower(plan.program, samples).grow(samples, 9, shape)
        return Bench(plan.program, plan, backend, forest, samples)

    if not plan.trains:
        for samples, shape in ((1, "single"), (5, "random"), (40, "complete")):
            check_evaluation(bench(samples, shape), tolerance)
        return
    check_training(bench(1, "single"), tolerance)
    with forced(few=True, shared=True, parts=True):
        small = bench(5, "random")
        check_training(small, tolerance)
        check_evaluation(small, tolerance)
        check_both(small, tolerance)
    device.late = False
    with forced(few=False, apart=True, alike=True, added=True, parts=False):
        check_training(bench(40, "complete"), tolerance)
    if plan.tiling.cluster > 1:
        check_group(bench(3, "random"))


@pytest.mark.parametrize("name", ["weights in registers", "runs of many workers"])
def test_the_lean_kernel_against_the_definition(name: str, tmp_path: Path) -> None:
    """Batches that are larger than those it is for take longer, and that is all."""
    example, settings, options = CASES[name]
    plan = plan_of(example, settings, **options)
    assert plan.tiling is not None
    replicas = 2 if plan.tiling.cluster > 1 else 1
    backend = backend_of(plan, tmp_path, replicas, is_lean=True)
    tolerance = TOLERANCE[plan.precision]
    for samples, shape in ((1, "single"), (15, "complete")):
        forest = ForestGrower(plan.program, samples).grow(samples, 9, shape)
        bench = Bench(plan.program, plan, backend, forest, samples)
        with forced(few=True, added=False):
            check_training(bench, tolerance)
    check_evaluation(bench, tolerance)
    with forced(few=False), pytest.raises(DiagnosticError, match="unknown"):
        check_training(bench, tolerance)


@pytest.mark.parametrize(("name", "devices"), [("weights in registers", 2), ("states that are polled", 3)])
def test_devices_that_train_together(
    name: str, devices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where some have no sample. Who waits in vain says so, and the next launch is right."""
    example, settings, options = CASES[name]
    plan = plan_of(example, settings, **options)
    backend = DataParallelBackend(backends_of(plan, tmp_path, devices, replicas=1))

    def bench(samples: int, shape: str) -> Bench:
        forest = ForestGrower(plan.program, samples).grow(samples, 9, shape)
        return Bench(plan.program, plan, backend, forest, samples)

    for samples, shape, few in ((1, "single", True), (7, "random", False), (30, "complete", False)):
        with forced(few=few):
            check_training(bench(samples, shape), TOLERANCE[plan.precision])
    last = bench(7, "random")
    schedules = last.encoder.encode_group(
        [last.samples], replicas=1, workers=backend.grid(7)[1], devices=devices
    )
    last.load(schedules.static_words + schedules.activations)
    lost = schedules.words.copy()
    instructions = queue(lost[1], plan, 0)
    number = int(np.flatnonzero(instructions[:, 0] == plan.opcode(isa.DEVICE_BARRIER).number)[-1])
    first = int(lost[1, isa.layout(plan).queues_at]) + number * isa.INSTRUCTION_WORDS
    lost[1, first : first + isa.INSTRUCTION_WORDS] = 0  # all workers of the replica have this queue
    with monkeypatch.context() as patch:
        patch.setattr(cuda_together, "TOGETHER_LIMIT_US", 2_000_000)
        backend.launch(attrs.evolve(schedules, words=lost), 0)
    with pytest.raises(DiagnosticError, match="barrier of several GPUs, 1 arrivals missing"):
        backend.finish(0)
    backend.launch(schedules, 0)
    assert (backend.finish(0)[:, isa.RESULT_UPDATED] == 1).all()
    check_training(last, TOLERANCE[plan.precision])


def test_weight_gradients_of_levels_that_have_ended(tmp_path: Path) -> None:
    """By the second replica, which has no rows. Of chunks behind, the first one adds to them."""
    plan = plan_of("lstm_classifier", {"hidden": 32, "embed": 128}, cluster=4)
    assert plan.pushes
    backend = backend_of(plan, tmp_path, replicas=2)
    bench = Bench(plan.program, plan, backend, ForestGrower(plan.program, 7).grow(1, 120, "complete"), 1)
    with forced(early=True, shared=True, few=True):
        assert made_early(bench.encode(TRAIN, Hyper(), (2, 4))) == [False, True]
        check_training(bench, TOLERANCE[plan.precision])
        check_both(bench, TOLERANCE[plan.precision])
    with forced(early=(50, 45), shared=True, few=False):
        schedule = bench.encode(TRAIN, Hyper(), (2, 4))
        ((*_, accumulate, chunks, _, _),) = fields_of(schedule, 0, "gradient U #2")
        assert made_early(schedule) == [False, True] and accumulate == 1 and chunks > 1
        check_training(bench, TOLERANCE[plan.precision])


def test_a_level_that_polls_in_vain_ends_the_launch(tmp_path: Path) -> None:
    """All workers leave, the host says who waited for what, and the next launch is right."""
    example, settings, options = CASES["states that are polled"]
    plan = plan_of(example, settings, **options)
    assert plan.polled
    backend = backend_of(plan, tmp_path, replicas=1)
    device: Any = backend.device
    forest = ForestGrower(plan.program, 3).grow(1, 9, "random")
    bench = Bench(plan.program, plan, backend, forest, 3)
    device.kernel.lose(2)
    with pytest.raises(DiagnosticError, match="barrier of a replica"):
        check_training(bench, TOLERANCE[plan.precision])
    device.kernel.lose(-1)
    check_training(bench, TOLERANCE[plan.precision])


def test_tiles_of_tokens_of_every_size(tmp_path: Path) -> None:
    plan = plan_of("treelstm", {"hidden": 24, "embed": 72, "vocab": 150}, cluster=4, precision="tf32")
    backend = backend_of(plan, tmp_path, 1)
    forest = ForestGrower(plan.program, 5).grow(30, 9, "random")
    for groups in isa.token_groups(plan):
        with forced(groups=groups):
            check_training(Bench(plan.program, plan, backend, forest, 5), TOLERANCE[plan.precision])


def test_tiles_whose_last_rows_are_few(tmp_path: Path) -> None:
    """Copies for the next tile are made between products, of which there are few at the end of one."""
    plan = plan_of("language_model", {"hidden": 16, "embed": 8, "vocab": 1028}, cluster=4)
    backend = backend_of(plan, tmp_path, 1)
    forest = ForestGrower(plan.program, 20).grow(20, 9, "complete")
    with forced(few=True):
        check_training(Bench(plan.program, plan, backend, forest, 20), TOLERANCE[plan.precision])


def test_copies_that_nobody_waits_for_are_found(tmp_path: Path) -> None:
    """They arrive as late as they may, and shared memory begins as numbers that are none."""
    plan = plan_of("treelstm", {"hidden": 16, "embed": 8, "vocab": 11}, cluster=4, residency="streamed")

    def hasty(text: str) -> str:
        front, kernel = text.split('extern "C" __global__', 1)
        waits = re.compile(r"dnc_copy_wait\d\(\);")
        assert waits.search(kernel)
        return 'extern "C" __global__'.join((front, waits.sub("", kernel)))

    backend = backend_of(plan, tmp_path, 1, hasty)
    bench = Bench(plan.program, plan, backend, ForestGrower(plan.program, 1).grow(20, 9, "complete"), 1)
    with pytest.raises(AssertionError):
        check_training(bench, TOLERANCE[plan.precision])
