"""Weight gradients of few rows: `outer` instructions and tiles in chunks give the same training."""

from functools import cache
from unittest.mock import patch

import attrs
import numpy as np
import pytest

from dnc.compiler import make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import cutting, isa
from dnc.runtime.backend import VMBackend
from dnc.runtime.encoder.tail import Tail, expected_grid
from dnc.runtime.schedule import queue
from dnc.runtime.verifier import ScheduleError, verify
from tests.support.executors import Bench, check_group, check_parts, check_training
from tests.support.forced import forced
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES
from tests.support.queues import damaged

SIZES = {
    "treelstm": {"vocab": 11, "embed": 72, "hidden": 72},  # strips, and norms in parts
    "childsum": {"vocab": 11, "embed": 6, "hidden": 7},
    "tied_language_model": {"vocab": 9, "hidden": 6},
    "rnn_stack": {"chars": 9, "layers": 3, "hidden": 5},
    "dag": {"width": 3, "hidden": 132},
}
WIDE = {"hidden": 256, "embed": 256}


@cache
def compiled(name: str):
    path = EXAMPLES / f"{name if name != 'wide' else 'treelstm'}.dn"
    source = Source(path.name, path.read_text(encoding="utf-8"))
    program = transform(load_program(source, SIZES.get(name, WIDE))[0])
    return program, make_plan(program, "sm_90a")


def bench_of(name: str) -> Bench:
    program, plan = compiled(name)
    forest = ForestGrower(program, 3).grow(5, 7, "random")
    return Bench(program, plan, VMBackend(plan, 2, plan.tiling.workers), forest)


def names_of(bench: Bench, schedule) -> set[str]:
    return {bench.plan.opcodes[int(row[0])].name for row in queue(schedule.words, bench.plan, 0)}


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("name", SIZES)
def test_both_ways_train_alike(name: str, few: bool) -> None:
    bench = bench_of(name)
    with forced(few=few):
        assert cutting.has_outer(bench.plan)
        check_training(bench)
        check_parts(bench)
        schedule, _ = bench.launch("train")
        verify(schedule)
        assert (isa.OUTER in names_of(bench, schedule)) == few
        assert (isa.NORM in names_of(bench, schedule)) != few


@pytest.mark.parametrize("name", ["treelstm", "rnn_stack"])
def test_batches_of_both_kinds_are_encoded_together(name: str) -> None:
    with forced(few=lambda rows: rows % 2 == 0):
        check_group(bench_of(name))


def test_products_have_workers_for_themselves() -> None:
    """Where a tile of products takes longest, nobody who makes one has tiles of gradients."""
    with patch.object(isa, "_TOKEN_TILE", 10**6), forced(few=True):
        bench = bench_of("treelstm")
        check_training(bench)
        check_group(bench)
        schedule, _ = bench.launch("train")
        verify(schedule)
        grid, at = 2 * bench.plan.tiling.workers, isa.layout(bench.plan).header[isa.SHARERS]
        sharers = int(schedule.words[at])
        assert 0 < sharers < grid
        (row,) = (
            row
            for row in queue(schedule.words, bench.plan, 0)
            if row[0] == bench.plan.opcode("gradient E").number
        )
        fields = dict(zip(isa.TABLE_PRODUCT_FIELDS, row[1:].tolist(), strict=True))
        assert (fields["first_worker"], fields["before"]) == (sharers, grid - sharers)
        for wrong in (0, grid + 1):
            schedule.words[at] = wrong
            with pytest.raises(ScheduleError, match="workers share tiles"):
                verify(schedule)


def test_a_bias_is_made_beside_its_matrix() -> None:
    _, plan = compiled("treelstm")
    beside = {name: gradient.parameter for name, gradient in cutting.outer_beside(plan).items()}
    by_parameter = {gradient.name: gradient.parameter for gradient in plan.dense_gradients}
    found = {by_parameter[name]: vector for name, vector in beside.items()}
    assert found == {"W": "b_w", "U": "b_u", "V": "b_v"}


def test_a_matrix_of_few_rows_is_made_in_strips() -> None:
    _, plan = compiled("treelstm")
    matrices = [gradient for gradient in plan.dense_gradients if gradient.pieces]
    tiles = {g.parameter: (cutting.outer_tile(g), cutting.outer_tiles(g)) for g in matrices}
    assert tiles == {  # 5 x 72, 216 x 72, 360 x 144
        "V": (cutting.OUTER_STRIP, 2),
        "W": (cutting.OUTER_TILE, 4),
        "U": (cutting.OUTER_TILE, 12),
    }


@pytest.mark.parametrize(
    ("rows", "columns", "shapes"),
    [
        (1024, 256, [(128, 256), (64, 64)]),  # of many rows a tile costs half as much, of few it comes late
        (1280, 512, [(128, 256), (128, 128)]),
        (128, 32, [(64, 64)]),  # two tiles, which cost a sixteenth more than one of 128 x 128
        (5, 256, [(16, 256), (64, 64)]),
        (9, 24, [(64, 64)]),
        (64, 64, [(64, 64)]),
    ],
)
def test_a_second_shape_of_tiles_has_to_be_worth_its_code(rows, columns, shapes):
    gradient = next(gradient for gradient in compiled("wide")[1].dense_gradients if gradient.pieces)
    pieces = (attrs.evolve(gradient.pieces[0], width=columns),)
    gradient = attrs.evolve(gradient, rows=rows, pieces=pieces)
    assert [(tile.rows, tile.columns) for tile in cutting.gradient_tiles(gradient)] == shapes


def test_what_is_made_along_has_no_instruction() -> None:
    _, plan = compiled("treelstm")
    bench = bench_of("treelstm")
    along = {gradient.name: gradient.parameter for gradient in cutting.made_along(plan).values()}
    assert sorted(along.values()) == ["b_u", "b_v", "b_w"]
    assert len(bench.encoder.modes.tail._shapes.outer) == 3
    for few in (True, False):
        with forced(few=few):
            assert not names_of(bench, bench.launch("train")[0]) & along.keys()


def test_a_token_leaves_a_norm_a_part_of_its_row() -> None:
    _, plan = compiled("treelstm")
    (table,) = plan.table_gradients
    assert isa.table_norms(table) == 2
    bench = bench_of("treelstm")
    schedule, _ = bench.launch("train")
    names = [opcode.name for opcode in plan.opcodes]
    rows = [
        row for row in queue(schedule.words, plan, 0).tolist() if names[row[0]] in ("gradient E", "sgd E")
    ]
    (_, tokens, first, *_), (_, same, norms, *_) = rows
    assert tokens == same > 0 and norms == first + 2 * tokens


def test_many_rows_go_in_chunks() -> None:
    _, plan = compiled("treelstm")
    bench = bench_of("treelstm")
    shapes = bench.encoder.modes.tail._shapes
    rows = np.array([[10] * len(shapes.outer), [100_000] * len(shapes.outer)])
    assert shapes.few(rows, np.zeros(2), isa.MOST_CHUNKS, 112).tolist() == [True, False]
    assert cutting.has_outer(plan)


def with_field(bench: Bench, field: str, value: int):
    """Another word in the first `outer` of both replicas."""
    schedule, _ = bench.launch("train")
    for replica in range(2):
        schedule = damaged(schedule, replica, isa.OUTER, 0, 1 + isa.OUTER_FIELDS.index(field), value)
    return schedule


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("gradient", 99, "no gradient 99"),
        ("gradient", 1, "made beside another"),
        ("rows", 1, "1 rows, expected"),
        ("first_norm", 7, "norms from"),
        ("first_worker", -1, "no worker -1"),
        ("index", 3, "number 3 of 1"),
    ],
)
def test_damage_is_refused(field: str, value: int, message: str) -> None:
    with forced(few=True):
        bench = bench_of("treelstm")
        names = [gradient.name for gradient in bench.plan.dense_gradients]
        if message == "made beside another":
            value = names.index(next(iter(cutting.outer_beside(bench.plan).values())).name)
        with pytest.raises(ScheduleError, match=message):
            verify(with_field(bench, field, value))


def test_a_model_without_dense_parameters_trains() -> None:
    text = """model Words(vocab = 11, classes = 4)
struct Word = Word(word: token<vocab>, label: class<classes>)
param E: table[vocab, classes]
loss sum(w in all(Word)) cross_entropy(E[w.word], w.label)
"""
    program = transform(load_program(Source("words.dn", text), {})[0])
    plan = make_plan(program, "sm_90a")
    assert not plan.dense_gradients and not cutting.has_outer(plan)
    forest = ForestGrower(program, 3).grow(5, 7, "random")
    check_training(Bench(program, plan, VMBackend(plan, 2, plan.tiling.workers), forest))


def shares_of(name: str, rows: list[int]):
    """Chunks of every gradient, and what every worker has to do."""
    plan = compiled(name)[1]
    shapes = Tail(plan)._shapes
    grid = expected_grid(plan)
    (chunks,), (shape,) = shapes.cut(np.array([rows]), isa.MOST_CHUNKS, grid)
    each = np.arange(len(rows))
    size = -(-np.array(rows) // chunks // isa.CHUNK_MULTIPLE) * isa.CHUNK_MULTIPLE
    cost = size * shapes.row[each, shape] + shapes.fixed[each, shape]
    (first,), _ = shapes.share_out(chunks[None], shape[None], grid)
    load, pieces = np.zeros(grid), shapes.tiles[each, shape] * chunks
    for worker, count, cycles in zip(first, pieces, cost, strict=True):
        np.add.at(load, (worker + np.arange(count)) % grid, cycles)
    return chunks, load


@pytest.mark.parametrize("rows", [[9502, 4623, 1833], [4692, 2282, 1064], [64, 16320, 300], [500, 100, 40]])
def test_pieces_fit_the_grid(rows: list[int]) -> None:
    """Nobody has half as much again as all have on average, where there is much to do."""
    chunks, load = shares_of("wide", rows)
    assert ((chunks >= 1) & (chunks <= isa.MOST_CHUNKS)).all()
    assert load.max() < 1.5 * load.mean() or (chunks == isa.MOST_CHUNKS).any()


def test_batches_of_about_as_many_rows_are_cut_alike() -> None:
    shapes = Tail(compiled("wide")[1])._shapes
    chunks, shape = shapes.cut(np.array([[9502, 4623, 1833], [9481, 4610, 1840]]), isa.MOST_CHUNKS, 112)
    assert (chunks[0] == chunks[1]).all() and (shape[0] == shape[1]).all()


def test_a_vector_that_is_made_along_has_the_chunks_of_its_matrix() -> None:
    _, plan = compiled("treelstm")
    groups = isa.norm_groups(plan)
    assert [name for _, _, name in groups] == ["W", "U", "V"]
    assert [first for first, _, _ in groups] == [0, *np.cumsum([n for _, n, _ in groups])[:-1].tolist()]
    names = {gradient.parameter for gradient in plan.dense_gradients}
    trained = [p.name for p in isa.dense_parameters(plan) if p.trained and p.name in names]
    assert sum(count for _, count, _ in groups) == sum(isa.parameter_floats(plan, name) for name in trained)
