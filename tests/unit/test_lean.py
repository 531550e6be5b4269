"""The lean kernel: which batches run on it, and what it leaves out."""

from __future__ import annotations

import numpy as np
import pytest

from dnc.ir import isa, lean
from dnc.ir.noise import NONE
from dnc.runtime.cuda_backend import CudaBackend
from dnc.runtime.encoder import Encoder
from dnc.runtime.initialize import initialize
from dnc.runtime.phases import PREDICT, TRAIN
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.schedule import queue
from dnc.runtime.session import Session
from tests.support.fake_gpu import FakeCall, FakeDevice
from tests.support.forced import forced
from tests.support.forests import ForestGrower
from tests.support.models import rows_of
from tests.support.plans import plan_of
from tests.unit.test_trace_gpu import files

TREE = {"hidden": 64, "embed": 64, "vocab": 11}
REPLICAS, WORKERS = 2, 16


def tree_plan():
    return plan_of("treelstm", TREE, cluster=8)


def encoder_of(plan, samples, size=9):
    forest = ForestGrower(plan.program, 3).grow(samples, size)
    return Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 20))


def encoded(encoder, batches, mode):
    return encoder.encode_group(
        [np.array(batch, np.int32) for batch in batches],
        mode=mode,
        replicas=REPLICAS,
        workers=WORKERS,
        noises=np.full(len(batches), NONE, np.uint32),
    )


def test_a_lean_kernel_lacks_gradients_in_chunks():
    plan = tree_plan()
    assert lean.has_lean(plan)
    assert lean.left_out(plan) == {isa.NORM, *(gradient.name for gradient in plan.dense_gradients)}
    assert set(lean.product_spaces(plan)) == {("encode.Leaf", False), ("encode.Node", True)}
    assert lean.product_spaces(plan, {"encode.Leaf/0"}) == (("encode.Leaf", False),)
    tiling = lean.lean_plan(plan).tiling
    assert tiling is not None and plan.tiling is not None and tiling.tile < plan.tiling.tile


def test_a_cpu_has_none():
    assert not lean.has_lean(plan_of("treelstm", TREE, target="cpu"))


@pytest.mark.parametrize("mode", [TRAIN, PREDICT])
def test_batches_of_few_rows_are_lean(mode):
    """It follows from each batch, not from those that it is encoded with."""
    plan = tree_plan()
    encoder = encoder_of(plan, 120)
    batches = [[at] for at in range(20)] + [list(range(20, 110))]
    with forced(alike=False):  # else leaves of one word are one row
        together = encoded(encoder, batches[:20], mode)
        assert together.lean.all() and all(schedule.lean for schedule in together)
        (many,) = encoded(encoder, batches[20:], mode)
    assert not many.lean


def test_gradients_in_chunks_are_for_the_other_kernel():
    plan = tree_plan()
    encoder, missing = encoder_of(plan, 10), {plan.opcode(name).number for name in lean.left_out(plan)}
    for few in (True, False):
        with forced(few=few):
            (schedule,) = encoded(encoder, [[0]], TRAIN)
        assert schedule.lean is few
        assert missing.isdisjoint(queue(schedule.words, plan, 0)[:, 0].tolist()) is few


class Device(FakeDevice):
    """Notes the kernel of every launch."""

    def __init__(self, plan):
        super().__init__(plan)
        self.launched = []

    def call(self, kernel, shape, stream):
        """A launch that says whose it is."""
        made, launch = super().call(kernel, shape, stream), FakeCall.launch

        def noted():
            self.launched.append(kernel)
            launch(made)

        made.launch = noted
        return made


@pytest.mark.parametrize("has_lean", [True, False])
def test_a_launch_takes_the_kernel_of_its_schedule(has_lean):
    plan, described = tree_plan(), files()["kernel.json"]
    own = {f"{lean.NAME}.json": described, f"{lean.NAME}.cubin": b""} if has_lean else {}
    backend = CudaBackend(plan, files() | own, device := Device(plan))
    session = Session(plan, backend, rows_of(plan), initialize(plan.program, rows_of(plan), 1))
    data = session.attach(ForestGrower(plan.program, 3).grow(10, 9))
    for few in (True, False):
        with forced(few=few):
            list(session.steps(data, [[0], [1]]))
        wanted = backend.lean if few and has_lean else backend.kernel
        assert len(device.launched) == 2 and all(kernel is wanted for kernel in device.launched)
        device.launched.clear()
