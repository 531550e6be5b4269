"""The reference VM against the definition: random structures, grids and passes left out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir.plan import Plan
from dnc.ir.program import Program
from dnc.passes.share import SHARED
from dnc.runtime.backend import Fill, VMBackend
from dnc.runtime.schedule import Schedule
from dnc.runtime.verifier import verify
from tests.support.executors import Bench, check_both, check_evaluation, check_training
from tests.support.forced import shared_products
from tests.support.forests import SHAPES, ForestGrower
from tests.support.models import EXAMPLES

SIZES = {
    "additive_attention": {"hidden": 5, "embed": 4, "targets": 11},
    "attention": {"hidden": 5, "embed": 4, "targets": 11},
    "bilstm_tagger": {"hidden": 5, "embed": 4},
    "char_rnn": {"hidden": 4, "embed": 3, "chars": 11},
    "char_tagger": {"hidden": 4, "half": 3, "char": 4, "mlp": 5},
    "childsum": {"hidden": 5, "embed": 4},
    "crf_tagger": {"hidden": 5, "embed": 4},
    "dag": {"hidden": 6},
    "encoder_decoder": {"hidden": 5, "embed": 4, "targets": 11},
    "gru_classifier": {"hidden": 6, "embed": 5},
    "language_model": {"hidden": 5, "embed": 4, "vocab": 11},
    "layer_norm_lstm": {"hidden": 72, "embed": 4},
    "lstm2": {"hidden": 5, "embed": 4},
    "lstm_classifier": {"hidden": 6, "embed": 4},
    "mvrnn": {"width": 4},
    "nary_treelstm": {"hidden": 5, "embed": 4},
    "ner_tagger": {"hidden": 5, "embed": 4, "mlp": 3},
    "rnn_stack": {"hidden": 5, "layers": 3, "chars": 11},
    "rvnn": {"hidden": 6},
    "similarity": {"hidden": 5, "embed": 4, "mlp": 3},
    "sparse_lstm": {"hidden": 6, "embed": 4, "chars": 11},
    "td_lstm": {"hidden": 5, "embed": 4},
    "td_rnn": {"hidden": 5},
    "tied_language_model": {"hidden": 5, "vocab": 11},
    "token_vectors": {"width": 4, "hidden": 5},
    "top_down": {"hidden": 5, "embed": 4},
    "tree_fc": {"hidden": 6},
    "tree_to_sequence": {"hidden": 5, "embed": 4, "targets": 11},
    "treelstm": {"hidden": 6, "embed": 5},
}
WITHOUT: tuple[tuple[str, ...], ...] = ((), ("fuse",), ("hoist",), ("inline",), ("fuse", "hoist", "inline"))
# Vertices of a batch and work of a grid that the VM does in about half a second.
VERTICES = 40


@cache
def model(name: str, without: tuple[str, ...], repeat: bool, common: bool = False) -> tuple[Program, Plan]:
    options = PlanOptions(without=without, repeat=repeat, reduce=repeat)
    path = EXAMPLES / f"{name}.dn"
    source = load_program(Source(str(path), path.read_text()), SIZES[name])[0]
    with shared_products() if common else nullcontext():
        program = transform(source, options)
    return program, make_plan(program, "cpu", options)


class Verified(VMBackend):
    """The VM; every schedule is verified before."""

    def launch(
        self, schedules: Sequence[Schedule], slot: int, traced: int = 0, fill: Fill | None = None
    ) -> None:
        for schedule in schedules:
            verify(schedule)
        super().launch(schedules, slot, traced, fill)


def compare(
    name: str,
    without: tuple[str, ...],
    grid: tuple[int, int],
    batch: int,
    shape: str,
    sharing: float,
    seed: int,
    repeat: bool = False,
    common: bool = False,
) -> None:
    program, plan = model(name, without, repeat, common)
    forest = ForestGrower(program, seed).grow(batch, max(1, VERTICES // batch), shape, sharing)
    bench = Bench(program, plan, Verified(plan, *grid, seed), forest, seed)
    check_training(bench)
    check_evaluation(bench)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(SIZES)),
    without=st.sampled_from(WITHOUT),
    replicas=st.integers(1, 3),
    workers=st.sampled_from((1, 2, 4, 7)),
    batch=st.integers(1, 12),
    shape=st.sampled_from(SHAPES),
    shared=st.booleans(),
    seed=st.integers(0, 2**16),
    repeat=st.booleans(),
)
def test_random_batches(
    name: str,
    without: tuple[str, ...],
    replicas: int,
    workers: int,
    batch: int,
    shape: str,
    shared: bool,
    seed: int,
    repeat: bool,
) -> None:
    sharing = 0.4 if name == "dag" and shared else 0.0
    compare(name, without, (replicas, workers), batch, shape, sharing, seed, repeat)


# Not found out here, which would take every process of tests seconds.
REPEATED = (
    "attention", "char_rnn", "childsum", "encoder_decoder", "gru_classifier", "layer_norm_lstm", "similarity",
    "top_down", "tree_to_sequence",
)  # fmt: skip
NOTHING_IN_COMMON = ("crf_tagger", "token_vectors")


def test_examples_repeat() -> None:
    found = [name for name in SIZES if any(each.repeated for each in model(name, (), True)[1].segments)]
    assert sorted(found) == list(REPEATED)


@pytest.mark.parametrize("workers", (1, 4, 7))
@pytest.mark.parametrize("name", REPEATED)
def test_repeated_values(name: str, workers: int) -> None:
    compare(name, (), (2, workers), 5, "random", 0.0, workers, True)


def has_common_products(name: str) -> bool:
    return any(stage.name == SHARED for stage in model(name, (), False, True)[0].stages)


def test_examples_have_products_in_common() -> None:
    assert sorted(set(SIZES).difference(filter(has_common_products, SIZES))) == list(NOTHING_IN_COMMON)


@pytest.mark.parametrize("name", sorted(set(SIZES).difference(NOTHING_IN_COMMON)))
def test_products_in_common(name: str) -> None:
    compare(name, (), (2, 3), 6, "random", 0.0, 5, common=True)


@pytest.mark.parametrize("name", sorted(SIZES))
def test_forty_samples(name: str) -> None:
    compare(name, (), (2, 2), 40, "single", 0.0, 3)


@pytest.mark.parametrize("name", sorted(SIZES))
def test_values_and_training_by_one_schedule(name: str) -> None:
    program, plan = model(name, (), False)
    forest = ForestGrower(program, 6).grow(6, 7, "random")
    check_both(Bench(program, plan, VMBackend(plan, 2, 3, 6), forest, 6))


@pytest.mark.parametrize("name", sorted(SIZES))
def test_more_replicas_than_samples(name: str) -> None:
    compare(name, (), (3, 2), 1, "random", 0.0, 4)
