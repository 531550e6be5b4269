"""Which replica takes which samples: against every other way, where samples are few, and for many of them."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from dnc.runtime.encoder.assign import Burdens, Price, assign, prices
from dnc.runtime.encoder.words import Numbers
from dnc.runtime.prepared import SpaceRows
from tests.support.plans import plan_of


def ends(burdens: Burdens, samples: Sequence[int], owner: Sequence[int], replicas: int) -> list[int]:
    """When replicas end: all rows of theirs, and the levels of the highest one."""
    found = []
    for replica in range(replicas):
        own = [sample for sample, each in zip(samples, owner, strict=True) if each == replica]
        found.append(int(burdens.rows[own].sum() + burdens.levels[own].max(initial=0)))
    return found


def burdens_of(random: np.random.Generator, samples: int, level: int = 4300) -> Burdens:
    """Like sentences: the more rows, the more levels, more or less."""
    leaves = random.integers(2, 50, samples)
    heights = np.ceil(np.log2(leaves) + random.random(samples) * leaves / 3).astype(np.int64)
    return Burdens(leaves * 1020, heights * level)


@pytest.mark.parametrize("seed", range(8))
def test_nearly_as_early_as_any_other_way(seed: int) -> None:
    random = np.random.default_rng(seed)
    burdens, batch = burdens_of(random, 10), np.arange(10, dtype=np.int32)
    best = min(max(ends(burdens, range(10), owner, 2)) for owner in product(range(2), repeat=10))
    found = assign([batch], burdens, 2)
    assert max(ends(burdens, found.samples.tolist(), found.owner.tolist(), 2)) <= 1.1 * best


@pytest.mark.parametrize("size", [32, 128, 256])
def test_many_samples_end_together_and_earlier_than_back_and_forth(size: int) -> None:
    random = np.random.default_rng(size)
    burdens = burdens_of(random, 2000)
    for _ in range(5):
        batch = random.choice(2000, size, replace=False).astype(np.int32)
        found = assign([batch], burdens, 7)
        own = ends(burdens, found.samples.tolist(), found.owner.tolist(), 7)
        order = batch[burdens.lighter[batch].argsort(kind="stable")]
        turns = np.tile([*range(7), *range(6, -1, -1)], size)[:size]
        assert max(own) < max(ends(burdens, order.tolist(), turns.tolist(), 7))
        assert max(own) - min(own) <= int((burdens.rows + burdens.levels)[batch].max()) // 2


def test_samples_with_many_levels_go_together() -> None:
    levels = np.where(np.arange(400) % 40 == 0, 100_000, 1000)
    burdens, batch = Burdens(np.full(400, 4000), levels), np.arange(400, dtype=np.int32)
    found = assign([batch], burdens, 4)
    high = found.owner[levels[found.samples] > 1000]
    assert len(high) == 10 and len(set(high.tolist())) == 1


def test_a_batch_gets_the_same_alone_and_among_others() -> None:
    random = np.random.default_rng(5)
    burdens = burdens_of(random, 300)
    batches = [random.choice(300, size).astype(np.int32) for size in (40, 3, 15, 14, 1, 64)]
    together = assign(batches, burdens, 7)
    for number, batch in enumerate(batches):
        own = together.owner // 7 == number
        alone = assign([batch], burdens, 7)
        of_alone = sorted(zip(alone.samples.tolist(), alone.owner.tolist(), strict=True))
        of_own = zip(together.samples[own].tolist(), (together.owner[own] % 7).tolist(), strict=True)
        assert of_alone == sorted(of_own)
        assert sorted(sample for sample, _ in of_alone) == sorted(batch.tolist())


@pytest.mark.parametrize("rows", [1, 7])
def test_samples_that_cost_the_same_are_shared_out_evenly(rows: int) -> None:
    burdens = Burdens(np.full(100, rows), np.full(100, rows * 50))
    owner = assign([np.arange(100, dtype=np.int32)], burdens, 7).owner
    counts: Numbers = np.bincount(owner, minlength=7)
    assert counts.max() - counts.min() <= 1


def test_wide_samples_with_few_levels_do_not_come_last() -> None:
    random = np.random.default_rng(3)
    wide = random.random(500) < 0.1
    rows = np.where(wide, random.integers(60, 120, 500), random.integers(5, 15, 500)) * 1020
    burdens = Burdens(rows, np.where(wide, 2, random.integers(5, 15, 500)) * 4300)
    for _ in range(10):
        batch = random.choice(500, 64, replace=False).astype(np.int32)
        found = assign([batch], burdens, 7)
        own = ends(burdens, found.samples.tolist(), found.owner.tolist(), 7)
        least = (burdens.rows[batch].sum() + 7 * burdens.levels[batch].min()) / 7
        assert max(own) <= 1.35 * max(least, int((burdens.rows + burdens.levels)[batch].max()))


def test_burdens_are_rows_and_the_levels_of_the_highest_vertex() -> None:
    level = np.array([0, 0, 1, 2, 0, 0, 1], np.int32)
    begin = np.array([0, 4, 4, 7], np.intp)  # the second sample has no row
    own = SpaceRows(np.arange(7), level, begin, np.zeros(7, np.intp), ())
    found = Burdens.of({"own": Price(10.0, 100.0)}, {"own": own})
    assert found.rows.tolist() == [41, 1, 31]
    assert found.levels.tolist() == [300, 0, 200]


def test_only_levels_of_the_recursion_have_a_price() -> None:
    found = prices(plan_of("treelstm"))
    node = next(price for name, price in found.items() if "Node" in name)
    others = [price for name, price in found.items() if "Node" not in name]
    assert node.level > node.row > 0
    assert others and all(price.level == 0 and price.row > 0 for price in others)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_on_tensor_cores_levels_cost_more_than_rows(precision: str) -> None:
    def of(**options: str) -> Price:
        found = prices(plan_of("treelstm", {"hidden": 256, "embed": 256}, cluster=16, **options))
        return next(price for name, price in found.items() if "Node" in name)

    others, on_cores = of(), of(precision=precision)
    assert on_cores.row < 0.6 * others.row and on_cores.level > 1.3 * others.level
