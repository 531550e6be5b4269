"""Leaves of one word share a row: fewer rows, the same gradients, and the same words whoever encodes them."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir.plan import Plan
from dnc.ir.program import Program
from dnc.runtime.backend import VMBackend
from dnc.runtime.encoder import Encoder
from dnc.runtime.encoder.alike import MOST_ALIKE, Alike
from dnc.runtime.encoder.assign import assign
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.verifier import verify
from tests.support.executors import Bench, check_group, check_parts, check_training
from tests.support.forced import forced
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES, rows_of

SIZES = {
    "treelstm": {"vocab": 5, "hidden": 4, "embed": 4},
    "rvnn": {"vocab": 5, "hidden": 4},
    "mvrnn": {"vocab": 5},
    "td_lstm": {"vocab": 5, "hidden": 4, "embed": 4},
    "tree_to_sequence": {"words": 5, "targets": 5, "hidden": 4, "embed": 4},
}
SHARED = {name: "encode.Leaf" for name in SIZES} | {"td_lstm": "encode.Word"}
# Vectors of their own, words of other vertices, children: nothing is known to be alike.
OTHERS = ("dag", "bilstm_tagger", "childsum", "attention", "token_vectors", "top_down", "lstm_classifier")


@cache
def program_of(name: str) -> Program:
    path = EXAMPLES / f"{name}.dn"
    source = Source(path.name, path.read_text(encoding="utf-8"))
    return transform(load_program(source, SIZES.get(name, {}))[0])


@cache
def plan_of(name: str, target: str = "sm_90a") -> Plan:
    return make_plan(program_of(name), target, PlanOptions())


def encoder_of(name: str, samples: int = 12) -> Encoder:
    plan = plan_of(name)
    forest = ForestGrower(plan.program, 3).grow(samples, 9, "random")
    return Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 19))


def leaves(encoder: Encoder, batches: list[list[int]], replicas: int) -> tuple[Rows, Rows]:
    """The rows of leaves, and those that are left of them."""
    assigned = assign([np.array(b, np.int32) for b in batches], encoder._burdens, replicas)
    rows = encoder._rows(("encode.Leaf",), assigned, {})["encode.Leaf"]
    return rows, Alike(encoder.prepared, encoder.lists).merged("encode.Leaf", rows)


@pytest.mark.parametrize("name", [*SIZES, *OTHERS])
def test_spaces_whose_rows_may_be_shared(name: str) -> None:
    encoder = encoder_of(name)
    found = Alike(encoder.prepared, encoder.lists)._spaces
    assert found == ({SHARED[name]} if name in SHARED else set())


@pytest.mark.parametrize(
    "before, after",
    [
        ("W @ x", "W @ dropout(x, 0.5)"),
        ("Leaf(word: token<vocab>,", "Leaf(word: token<vocab>, hint: vector<embed>,"),
    ],
)
def test_what_only_one_vertex_knows(before: str, after: str) -> None:
    """Random numbers, vectors of its own."""
    text = (EXAMPLES / "treelstm.dn").read_text(encoding="utf-8")
    assert before in text
    text = text.replace(before, after)
    if "hint" in after:
        text = text.replace(
            "Leaf(word, ...)        -> leaf(E[word])", "Leaf(word, hint, ...) -> leaf(E[word] + hint)"
        )
    plan = make_plan(transform(load_program(Source("x.dn", text), SIZES["treelstm"])[0]), "sm_90a")
    forest = ForestGrower(plan.program, 3).grow(3, 9, "random")
    encoder = Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 19))
    assert not Alike(encoder.prepared, encoder.lists)._spaces


@pytest.mark.parametrize("replicas", [1, 3])
def test_every_leaf_has_a_row_of_its_word(replicas: int) -> None:
    encoder = encoder_of("treelstm", 40)
    words = encoder.lists.numbers("encode.Leaf", (), "word")[0]
    batches = [list(range(13)), list(range(13, 40))]
    with forced(alike=True):
        whole, few = leaves(encoder, batches, replicas)
    positions, stands = few.members
    assert sorted(positions) == sorted(whole.positions) and len(few.positions) < len(whole.positions) // 2
    assert (words[few.positions][stands] == words[positions]).all()
    sizes = np.bincount(stands)
    assert sizes.min() >= 1 and sizes.max() == MOST_ALIKE
    ends = few.counts.reshape(-1).cumsum()
    starts = ends - few.counts.reshape(-1)
    owner = np.arange(len(ends)).repeat(few.counts.reshape(-1))
    assert (owner[stands] == np.arange(len(ends)).repeat(whole.counts.reshape(-1))).all()  # of its replica
    for begin, end in zip(starts.tolist(), ends.tolist(), strict=True):
        assert all(a >= b for a, b in pairwise(sizes[begin:end]))  # who stands for most comes first
        found = list(zip(words[few.positions[begin:end]].tolist(), sizes[begin:end].tolist(), strict=True))
        for word in {word for word, _ in found}:  # no more rows than it takes
            own = [size for other, size in found if other == word]
            assert sum(size < MOST_ALIKE for size in own) <= 1
    of_batch = few.counts.reshape(len(batches), -1)
    assert (few.spread.counts == of_batch.sum(axis=1)).all()
    assert (few.starts.reshape(len(batches), -1) == of_batch.cumsum(axis=1) - of_batch).all()


def test_small_batches_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside large ones."""
    encoder = encoder_of("treelstm", 40)
    monkeypatch.setattr("dnc.runtime.encoder.alike.FEWEST", 30)
    whole, few = leaves(encoder, [[0, 1, 2], list(range(3, 40))], 2)
    small, large = whole.spread.counts
    assert small < 60 <= large and few.spread.counts[0] == small and few.spread.counts[1] < large
    assert (few.positions[:small] == whole.positions[:small]).all()
    monkeypatch.setattr("dnc.runtime.encoder.alike.FEWEST", large // 2 + 1)
    whole, few = leaves(encoder, [[0, 1, 2], list(range(3, 40))], 2)
    assert few is whole


@pytest.mark.parametrize("target", ["sm_90a", "cpu"])
@pytest.mark.parametrize("name", SIZES)
def test_training_agrees_with_the_interpreter(name: str, target: str) -> None:
    plan = plan_of(name, target)
    workers = plan.tiling.workers if plan.tiling and target != "cpu" else 2
    forest = ForestGrower(plan.program, 3).grow(7, 9, "random")
    used = set()
    for alike in (False, True):
        with forced(alike=alike):
            bench = Bench(program_of(name), plan, VMBackend(plan, 2, workers), forest)
            check_training(bench)
            check_parts(bench)
            check_group(bench)
            schedule, _ = bench.launch("train")
            verify(schedule)
            used.add(schedule.rows[SHARED[name]])
            evaluated, _ = bench.launch("evaluate")
            assert evaluated.rows[SHARED[name]] == max(used)  # of training alone
    assert len(used) == 2


def test_the_words_follow_from_the_batch() -> None:
    """Not from what was encoded before."""
    encoders = [encoder_of("treelstm", 40) for _ in range(2)]
    batch = np.arange(40, dtype=np.int32)
    with forced(alike=True):
        encoders[0].encode(batch[::-1].copy(), replicas=2, workers=16)
        words = [each.encode(batch, replicas=2, workers=16).words for each in encoders]
    assert np.array_equal(*words)
