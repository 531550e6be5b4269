"""Who adds up the runs of partial sums on a GPU: by the plan alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program

TREE = Path(__file__).parents[2] / "examples" / "treelstm.dn"


def _chosen(hidden: int, options: PlanOptions) -> tuple[list[str], list[str]]:
    """Segments whose runs lanes of a warp share, and those whose cells run by blocks of units."""
    pytest.importorskip("tvm")
    from dnc.codegen.bodies.cuda_blocks import takes_blocks
    from dnc.codegen.bodies.cuda_runs import shares_runs

    program, _ = load_program(Source(str(TREE), TREE.read_text()), {"hidden": hidden, "embed": 64})
    plan = make_plan(transform(program, options), "sm_90a", options)
    assert plan.tiling is not None
    worker: Any = SimpleNamespace(plan=plan, workers=plan.tiling.workers)
    units = [segment for segment in plan.segments if segment.mapping == "unit"]
    return (
        [segment.name for segment in units if shares_runs(worker, segment)],
        [segment.name for segment in units if takes_blocks(worker, segment)],
    )


def test_a_replica_over_the_whole_chip_shares_runs() -> None:
    shared, blocks = _chosen(512, PlanOptions(batch=1))
    assert shared == ["encode.Node.grad/0", "encode.Leaf.grad/0"]
    assert blocks == ["encode.Leaf.grad/0"]  # the other one has a product


def test_a_cluster_does_not() -> None:
    assert _chosen(256, PlanOptions(cluster=16)) == ([], [])


def test_units_that_four_do_not_divide_have_no_blocks() -> None:
    assert _chosen(150, PlanOptions(cluster=0, workers=72)) == (
        ["encode.Node.grad/0", "encode.Leaf.grad/0"],
        [],
    )


def test_a_worker_with_some_of_its_units_shares_none() -> None:
    """Lanes that add up together have to run the same cells."""
    assert _chosen(149, PlanOptions(cluster=0, workers=72)) == ([], [])
