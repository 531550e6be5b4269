"""Gradients of tables that add up the deltas of a token before the product (`dnc/passes/reassociate.py`)."""

from functools import cache

import numpy as np
import pytest

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.forest import Forest
from dnc.ir.plan import Plan
from dnc.ir.program import Program
from dnc.runtime.backend import VMBackend
from dnc.runtime.schedule import queue
from dnc.runtime.verifier import ScheduleError, verify
from tests.support.executors import Bench, check_group, check_parts, check_training
from tests.support.forced import forced
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES

# A table whose rows are used beside their product; two tables. Sizes are such that products are shared out by
# units, as no stage of few weights is.
TEXTS = {
    "also_plain": """model M(vocab, width = 96)
struct T = L(word: token<vocab>) | N(left: T, right: T)
param E: table[vocab, width]
param W: [width, width], b: [width]
param U: [width, 2 * width]
fn f(t: T) -> [width] = match t:
    L(word) -> tanh(W @ E[word] + E[word] + b)
    N(left, right) -> tanh(U @ concat(f(left), f(right)))
loss sum(t in all(T)) squared_error(f(t), b)
""",
    "two_tables": """model M(vocab, tags = 5, width = 96)
struct S = L(word: token<vocab>, tag: token<tags>) | N(left: S, right: S)
param E: table[vocab, 100], F: table[tags, width]
param W: [width, 100], V: [width, width], U: [width, width], b: [width]
fn f(t: S) -> [width] = match t:
    L(word, tag) -> tanh(W @ E[word] + V @ F[tag] + b)
    N(left, right) -> tanh(U @ (f(left) + f(right)))
loss sum(t in all(S)) squared_error(f(t), b)
""",
}
SIZES = {
    "treelstm": {"vocab": 5, "embed": 96, "hidden": 32},
    "bilstm_tagger": {"vocab": 4, "embed": 70, "hidden": 32, "tags": 5},
    "nary_treelstm": {"vocab": 5, "embed": 132, "hidden": 64},
    "childsum": {"vocab": 5, "embed": 132, "hidden": 64},
    "tree_to_sequence": {"words": 5, "targets": 6, "embed": 132, "hidden": 64},
}
PRODUCTS = {
    "treelstm": {"E": ["W"]},
    "bilstm_tagger": {"E": ["Wb", "Wf"]},
    "nary_treelstm": {"E": ["Wf", "W"]},
    "childsum": {"E": ["Wf", "W"]},
    "tree_to_sequence": {"E": ["W"], "F": ["Wt"]},
    "also_plain": {"E": ["W"]},
    "two_tables": {"E": ["W"], "F": ["V"]},
}


@cache
def program_of(name: str) -> Program:
    if name in TEXTS:
        return transform(load_program(Source(name, TEXTS[name]), {"vocab": 5})[0])
    path = EXAMPLES / f"{name}.dn"
    return transform(load_program(Source(path.name, path.read_text(encoding="utf-8")), SIZES[name])[0])


@cache
def plan_of(name: str, target: str = "sm_90a", without: tuple[str, ...] = ()) -> Plan:
    return make_plan(program_of(name), target, PlanOptions(without=without))


def forest_of(name: str) -> Forest:
    return ForestGrower(program_of(name), 3).grow(5, 9, "random")


def bench_of(name: str, plan: Plan) -> Bench:
    return Bench(program_of(name), plan, VMBackend(plan, 2, plan.tiling.workers), forest_of(name))


@pytest.mark.parametrize("name", PRODUCTS)
def test_input_products_stand_behind_the_sums(name: str) -> None:
    plan, plain = plan_of(name), plan_of(name, without=("reassociate",))
    found = {t.parameter: [p.parameter for p in t.products] for t in plan.table_gradients if t.products}
    assert found == PRODUCTS[name]
    matrices = {matrix for each in found.values() for matrix in each}
    turned = [t.parameter for segment in plan.segments for t in segment.transposed]
    before = [t.parameter for segment in plain.segments for t in segment.transposed]
    assert sorted(before) == sorted([*turned, *(m for each in found.values() for m in each)])
    over_tokens = {gradient.parameter for gradient in plan.dense_gradients if gradient.table}
    assert matrices <= over_tokens  # and biases that add up the same deltas
    partial = {buffer.name for buffer in plan.buffers if buffer.partial}
    assert len(partial) == len({b.name for b in plain.buffers if b.partial}) - sum(map(len, found.values()))
    assert not any(t.products for t in plain.table_gradients)
    assert not any(t.products for t in plan_of(name, "cpu").table_gradients)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("name", PRODUCTS)
def test_training_agrees_with_the_interpreter(name: str, few: bool, apart: bool) -> None:
    with forced(few, apart):
        bench = bench_of(name, plan_of(name))
        check_training(bench)
        check_parts(bench)
        schedule, _ = bench.launch("train")
        verify(schedule)
        names = [bench.plan.opcodes[int(row[0])].name for row in queue(schedule.words, bench.plan, 0)]
        sums = [name for name in names if name.startswith("sum ")]
        assert len(sums) == (sum(map(len, PRODUCTS[name].values())) if apart else 0)


@pytest.mark.parametrize("name", PRODUCTS)
def test_batches_that_sum_first_are_encoded_beside_others(name: str) -> None:
    with forced(few=lambda rows: rows % 2 == 0, apart=lambda rows: rows % 3 != 0):
        check_group(bench_of(name, plan_of(name)))


def test_vectors_add_up_deltas_of_vertices_that_read_no_row() -> None:
    """A first word has no word before it, whose row it would read."""
    plan = plan_of("tree_to_sequence")
    assert {g.parameter for g in plan.dense_gradients if g.table} == {"W", "b_w", "Wt"}


def test_what_is_shared_by_other_readers_stays_where_it_is() -> None:
    """Rows that no product reads; deltas that do not lie in whole addresses."""
    path = EXAMPLES / "char_tagger.dn"
    source = Source(path.name, path.read_text(encoding="utf-8"))
    plan = make_plan(transform(load_program(source, {})[0]), "sm_90a")
    tables = {table.parameter: table for table in plan.table_gradients}
    assert not tables["E"].products and tables["E"].plain
    program = load_program(Source("x", TEXTS["also_plain"]), {"vocab": 5, "width": 97})[0]
    (table,) = make_plan(transform(program), "sm_90a").table_gradients
    assert not table.products and table.partial


def test_damage_is_found() -> None:
    with forced(few=False, apart=True):
        bench = bench_of("treelstm", plan_of("treelstm"))
        schedule, _ = bench.launch("train")
        (number,) = (o.number for o in bench.plan.opcodes if o.name.startswith("sum "))
        queues = [queue(schedule.words, bench.plan, first) for first in (0, bench.plan.tiling.workers)]
        for rows in queues:
            rows[rows[:, 0] == number, 1] -= 1
        with pytest.raises(ScheduleError, match=r"5 tokens, 4 in 'deltas E\.W#0'"):
            verify(schedule)
        for rows in queues:
            rows[rows[:, 0] == number, 1] += 1
        verify(schedule)
        at = 1 + isa.TABLE_PRODUCT_FIELDS.index("groups")
        number = bench.plan.opcode("gradient E").number
        for rows in queues:
            rows[rows[:, 0] == number, at] += 100
        with pytest.raises(ScheduleError, match=r"no tiles of 10\d groups"):
            verify(schedule)
        for rows in queues:
            rows[rows[:, 0] == number, at] -= 100
            rows[rows[:, 0] == number, at - 1] = 2 * bench.plan.tiling.workers
        with pytest.raises(ScheduleError, match="are left out"):
            verify(schedule)
        for rows in queues:
            rows[rows[:, 0] == number, at - 1] = 0
        verify(schedule)
        lists = isa.layout(bench.plan)
        (product,) = bench.plan.table_gradients[0].products
        schedule.words[lists.lists_at + lists.lists[product.terms]] += 1
        with pytest.raises(ScheduleError, match="in their order"):
            verify(schedule)


@pytest.mark.parametrize("grid", [1, 3, 16, 112, 500])
def test_tiles_are_dealt_out_to_somebody(grid: int) -> None:
    """Whatever the workers have to do: also where all of them have a tile of one matrix."""
    bench = bench_of("treelstm", plan_of("treelstm"))
    shapes = bench.encoder.modes.tail._shapes
    (table,) = bench.plan.table_gradients
    tokens = np.array([0, 1, 17, 400, 3000])
    rows = np.full((len(tokens), len(shapes.outer)), 100)
    first = shapes.outer
    for outer in (first, np.where(first == first.max(), grid, 0)):
        shapes.outer = outer
        shapes._seats.clear()
        shapes._left.clear()
        few = np.ones(len(tokens), bool)
        together = shapes.deal(table, tokens, rows, few, grid)
        before, left_out, groups, sharers = together
        for batch in range(len(tokens)) if outer is first else ():
            own = [each[batch : batch + 1] for each in (tokens, rows, few)]
            for alone, same in zip(shapes.deal(table, *own, grid), together, strict=True):
                assert alone.tolist() == same[batch : batch + 1].tolist()
        assert (sharers > 0).all() and (sharers <= grid).all()
        apart = sharers < grid  # who makes products then has no tiles of gradients
        assert (before[apart] == (grid - sharers)[apart]).all() and (left_out[apart] == sharers[apart]).all()
        assert (before >= 0).all() and (before + left_out <= grid).all() and (left_out < grid).all()
        assert set(groups.tolist()) <= set(isa.token_groups(bench.plan))


def test_a_batch_that_comes_again_is_dealt_out_alike() -> None:
    """Alone, so that its deal is remembered."""
    bench = bench_of("treelstm", plan_of("treelstm"))
    encoder, samples = bench.encoder, np.arange(2)
    first, again = (encoder.encode(samples, replicas=1, workers=4).words for _ in range(2))
    assert first.tolist() == again.tolist()
    assert len(encoder.modes.tail._deals._answers) == 1
