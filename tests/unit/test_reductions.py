"""Partial sums that a cluster adds up before they are written (`dnc/passes/plan_reductions.py`): which, when,
and that gradients are the same."""

from __future__ import annotations

from functools import cache
from typing import Any

import attrs
import numpy as np
import pytest

from dnc.codegen.bodies.cuda_reduce import shares
from dnc.codegen.cuda_files import emit_source
from dnc.explain.facts import gather
from dnc.ir import isa, lean
from dnc.ir.plan import Plan
from dnc.ir.plan_text import print_plan
from dnc.runtime.backend import VMBackend
from dnc.runtime.encoder import Encoder
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.reference_vm import MachineError, ReferenceVM
from dnc.runtime.schedule import queue
from dnc.runtime.verifier import ScheduleError, verify
from tests.support.executors import Bench, OnGrid, check_group, check_parts, check_training
from tests.support.forced import forced
from tests.support.forests import ForestGrower
from tests.support.models import rows_of
from tests.support.plans import plan_of

TREE = {"vocab": 11, "hidden": 32, "embed": 8}


@cache
def plan_on_cluster(name: str, cluster: int | None = 8, **settings: int) -> Plan:
    return plan_of(name, settings, cluster=cluster)


@pytest.mark.parametrize(
    "name, settings, stage",
    [
        ("treelstm", TREE, "encode.Node.grad"),
        ("td_lstm", {"vocab": 11, "hidden": 32, "embed": 8}, "encode.Pair.grad"),
        ("dag", {}, "encode.Join.grad"),
    ],
)
def test_partial_sums_of_levels_may_be_added_up(name: str, settings: dict[str, int], stage: str) -> None:
    plan = plan_on_cluster(name, **settings)
    assert len(plan.reduced) == 2 and all(each.startswith(f"{stage}>") for each in plan.reduced)
    assert all(plan.buffer(each).partial for each in plan.reduced)
    assert f"reduce {plan.reduced[0]}: in the cluster" in print_plan(plan)
    assert gather(plan).reductions == (f"{stage}/0",)


@pytest.mark.parametrize(
    "name, settings, options",
    [
        ("treelstm", TREE, {"without": ("reductions",)}),
        ("treelstm", TREE, {"cluster": 0}),  # no cluster, no other's shared memory
        ("treelstm", TREE, {"residency": "shared"}),
        ("treelstm", TREE | {"hidden": 36}, {}),  # workers would not share columns in whole accesses
        ("treelstm", TREE, {"mode": "infer"}),
        ("lstm_classifier", {"hidden": 32}, {}),  # pushes them
        ("bilstm_tagger", {"hidden": 32}, {}),  # two segments in a level
        ("childsum", {"hidden": 32}, {}),
    ],
)
def test_others_are_not(name: str, settings: dict[str, int], options: dict[str, Any]) -> None:
    plan = plan_of(name, settings, **{"cluster": 8} | options)
    assert not plan.reduced
    if plan.trains:
        schedule = encoder_of(plan, 4, "random").encode(np.arange(4), replicas=1, workers=8)
        assert schedule.words[isa.layout(plan).header[isa.RUNS]] == 8


def test_workers_share_all_columns() -> None:
    plan = plan_on_cluster("treelstm", **TREE)
    (segment,) = (each for each in plan.segments if each.name == "encode.Node.grad/0")
    found = shares(plan, segment)
    assert [(share.buffer, share.columns, share.at) for share in found] == [
        (plan.reduced[0], 4, 0),
        (plan.reduced[1], 4, 4),
    ]
    (other,) = (each for each in plan.segments if each.name == "encode.Node/0")
    assert shares(plan, other) == ()


# ---- schedules -----------------------------------------------------------------------------------------


def encoder_of(plan: Plan, samples: int = 40, shape: str = "complete") -> Encoder:
    forest = ForestGrower(plan.program, 3).grow(samples, 15, shape)
    return Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 19))


def test_wide_batches_have_one_run() -> None:
    plan = plan_on_cluster("treelstm", **TREE)
    encoder, at = encoder_of(plan), isa.layout(plan).header[isa.RUNS]
    batches = [np.arange(2), np.arange(2, 40)]
    narrow, wide = encoder.encode_group(batches, replicas=1, workers=8)
    assert [int(each.words[at]) for each in (narrow, wide)] == [8, 1]
    for samples, grouped in zip(batches, (narrow, wide), strict=True):
        alone = encoder.encode(samples, replicas=1, workers=8)
        assert alone.words[at] == grouped.words[at]
        verify(grouped)
        verify(alone)
    again = encoder.encode(batches[1], replicas=1, workers=8)
    with forced(added=False):
        more = encoder.encode(batches[1], replicas=1, workers=8)
    saved = sum(again.rows[plan.buffer(name).space] * plan.buffer(name).width * 7 for name in plan.reduced)
    assert more.words[at] == 8 and more.activations - again.activations == saved


def test_lean_batches_have_a_run_for_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lean kernel has no code that adds them up, however wide the levels of a batch are."""
    plan = plan_on_cluster("treelstm", **TREE)
    encoder, at = encoder_of(plan), isa.layout(plan).header[isa.RUNS]
    wide = encoder.encode(np.arange(40), replicas=1, workers=8)
    assert not wide.lean and wide.words[at] == 1
    monkeypatch.setattr(lean, "MOST_ROWS", 1 << 20)
    wide = encoder.encode(np.arange(40), replicas=1, workers=8)
    assert wide.lean and wide.words[at] == 8
    text = emit_source(plan, is_lean=True)["lean.cu"].decode()
    assert "dnc_cluster_arrive_relaxed" not in text and "dnc_push" not in text


def test_the_verifier_knows_how_many_runs_there_may_be() -> None:
    plan = plan_on_cluster("treelstm", **TREE)
    schedule = encoder_of(plan).encode(np.arange(40), replicas=1, workers=8)
    at = isa.layout(plan).header[isa.RUNS]
    for runs, message in ((3, "3 runs of a record; there are 8 workers"), (8, "no record of its buffer")):
        words = schedule.words.copy()
        words[at] = runs
        with pytest.raises(ScheduleError, match=message):
            verify(attrs.evolve(schedule, words=words))


# ---- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("added", [True, False, None])
@pytest.mark.parametrize(
    "name, settings", [("treelstm", TREE), ("td_lstm", TREE), ("dag", {}), ("td_rnn", {"hidden": 32})]
)
def test_gradients_are_the_same(name: str, settings: dict[str, int], added: bool | None) -> None:
    plan = plan_on_cluster(name, **settings)
    assert plan.reduced and plan.tiling is not None
    for seed, samples in enumerate((1, 7, 20)):
        forest = ForestGrower(plan.program, seed).grow(samples, 9, "complete", 0.3 if name == "dag" else 0.0)
        backend = OnGrid(VMBackend(plan, 2, 8, seed), (2, 8))
        bench = Bench(plan.program, plan, backend, forest, seed)  # type: ignore[arg-type]
        with forced(added=added):
            check_training(bench)
            if samples == 7:
                check_parts(bench)
                check_group(bench)


def test_a_worker_that_sends_nothing_is_waited_for() -> None:
    """Others do not go on with sums that are not whole."""
    plan, last = plan_on_cluster("treelstm", **TREE), 7
    schedule = encoder_of(plan).encode(np.arange(40), replicas=1, workers=8)
    own = queue(schedule.words, plan, last).copy()
    (first, *_) = np.flatnonzero(own[:, 0] == plan.opcode("encode.Node.grad/0").number)
    own[first, 0] = plan.opcode(isa.NOP).number
    words = np.concatenate((schedule.words, own.ravel().astype(np.int32)))
    words[isa.layout(plan).queues_at + last] = len(schedule.words)
    pool = np.ones(schedule.static_words + schedule.activations, np.float32)
    with pytest.raises(MachineError, match=r"deadlock.*\(0: partial sums of others, .* 7: replica_barrier"):
        ReferenceVM(plan).run(words, pool, schedule.static_words)


def test_both_ways_are_in_the_kernel() -> None:
    text = emit_source(plan_on_cluster("treelstm", **TREE))["kernel.cu"].decode()
    assert "dnc_cluster_arrive_relaxed();" in text and "dnc_push" in text
    without = plan_of("treelstm", TREE, cluster=8, without=("reductions",))
    text = emit_source(without)["kernel.cu"].decode()
    assert "dnc_cluster_arrive_relaxed" not in text and "dnc_push" not in text
