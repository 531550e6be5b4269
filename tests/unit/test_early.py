"""Weight gradients of levels that have ended, made by replicas without rows (`dnc/ir/early.py`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from dnc.ir import isa
from dnc.ir.early import POSTS, early
from dnc.ir.optimizers import Hyper
from dnc.ir.plan import Plan
from dnc.runtime.backend import VMBackend
from dnc.runtime.encoder import Encoder, Part
from dnc.runtime.encoder.assign import Burdens, assign
from dnc.runtime.encoder.early import NEVER, _parted
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Spread
from dnc.runtime.phases import TRAIN
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.reference_vm import MachineError, ReferenceVM
from dnc.runtime.schedule import Schedule, queue
from dnc.runtime.verifier import ScheduleError, verify
from tests.support.executors import Bench, OnGrid, bench_on_vm, check_both, check_group, check_training
from tests.support.forced import forced
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES, rows_of
from tests.support.plans import plan_of, plan_of_text
from tests.support.queues import damaged, fields_of, made_early

LARGE, SMALL = {"hidden": 256, "embed": 256}, {"hidden": 32}
WORKERS = 8


@cache
def plan_named(name: str, target: str = "sm_90a", **settings: int) -> Plan:
    return plan_of(name, settings, target)


def encoder_of(plan: Plan, samples: int, length: int) -> Encoder:
    forest = ForestGrower(plan.program, 3).grow(samples, length, "complete")
    return Encoder(prepare(plan, forest), static_pool(plan, rows_of(plan), 1 << 20))


def schedule_of(plan: Plan, samples: int = 3, replicas: int = 5, length: int = 40) -> Schedule:
    """One in which gradients are made early."""
    with forced(early=True, shared=True):
        return encoder_of(plan, samples, length).encode(
            np.arange(samples), replicas=replicas, workers=WORKERS
        )


# ---- what can be early -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, settings, gradients",
    [
        ("lstm_classifier", SMALL, ["U"]),
        ("gru_classifier", {}, ["U", "C"]),
        ("lstm2", {}, ["W2", "U2", "U1"]),
        ("bilstm_tagger", {"hidden": 32}, ["Ub", "Uf"]),
    ],
)
def test_of_sequences_gradients_of_what_recurs(
    name: str, settings: dict[str, int], gradients: list[str]
) -> None:
    plan = plan_named(name, **settings)
    found = early(plan)
    assert found is not None
    of = {gradient.name: gradient.parameter for gradient in plan.dense_gradients}
    assert [of[each] for each in found.gradients] == gradients


@pytest.mark.parametrize("name", ["treelstm", "td_lstm", "dag", "top_down"])
def test_of_trees_nothing(name: str) -> None:
    assert early(plan_named(name)) is None


def test_nothing_on_a_cpu_nor_for_inference_nor_where_gradients_stand_behind_levels() -> None:
    assert early(plan_named("lstm_classifier", "cpu", **SMALL)) is None
    assert early(plan_of("lstm_classifier", SMALL, mode="infer")) is None
    assert early(plan_named("layer_norm_lstm")) is None  # its gains multiply gradients behind the levels
    assert isa.POST not in {opcode.name for opcode in plan_named("treelstm").opcodes}


# ---- the choice ------------------------------------------------------------------------------------------


def chosen(samples: int, replicas: int, length: int = 300) -> list[bool]:
    """Of every replica whether it makes gradients early, of an LSTM that nothing is forced of."""
    plan = plan_named("lstm_classifier", **LARGE)
    schedule = encoder_of(plan, samples, length).encode(
        np.arange(samples), replicas=replicas, workers=WORKERS
    )
    verify(schedule)
    return made_early(schedule)


def test_replicas_without_samples_make_gradients_early() -> None:
    assert chosen(8, 15) == [False] * 8 + [True] * 7


def test_nobody_does_who_has_samples_or_too_little_to_gain() -> None:
    assert chosen(5, 5) == [False] * 5
    assert chosen(1, 15, 10) == [False] * 15


def test_batches_of_a_group_choose_for_themselves() -> None:
    plan = plan_named("lstm_classifier", **LARGE)
    encoder = encoder_of(plan, 17, 300)
    batches = [np.arange(2), np.arange(2, 9), np.arange(9, 17)]
    found = encoder.encode_group(batches, replicas=8, workers=WORKERS)
    waiting = []
    for samples, grouped in zip(batches, found, strict=True):
        verify(grouped)
        alone = encoder.encode(samples, replicas=8, workers=WORKERS)
        for name in (isa.EARLY, isa.POST, isa.OUTER):
            assert [fields_of(grouped, r, name) for r in range(8)] == [
                fields_of(alone, r, name) for r in range(8)
            ]
        waiting.append(sum(made_early(grouped)))
    assert waiting[2] == 0 and waiting[0] in (0, 6) and any(waiting)


def test_posts_stand_behind_the_levels_of_their_rows() -> None:
    schedule = schedule_of(plan_named("lstm_classifier", **SMALL))
    verify(schedule)
    assert [fields_of(schedule, 0, isa.POST)[number][0] for number in range(POSTS)] == list(range(POSTS))
    waits = fields_of(schedule, 4, isa.EARLY)
    assert [wait[:3] for wait in waits] == [[24, 0, 24], [24, 1, 24], [0, 0, 0]]
    assert not fields_of(schedule, 4, isa.POST) and not fields_of(schedule, 2, isa.EARLY)
    levels = queue(schedule.words, schedule.plan, 0)
    post = schedule.plan.opcode(isa.POST).number
    (first, second) = np.flatnonzero(levels[:, 0] == post)
    barriers = [schedule.plan.opcode(name).number for name in (isa.REPLICA_BARRIER, isa.GRID_BARRIER)]
    assert np.isin(levels[[first + 1, second + 1], 0], barriers).all()
    assert not np.isin(levels[[first - 1, second - 1], 0], barriers).any()  # no exchange of its own


def replicas_of(rows: int | list[int], levels: int, counts: list[int], replicas: int) -> list[int]:
    """Of batches of so many samples how many replicas they have."""
    samples = [np.arange(count, dtype=np.int32) for count in counts]
    most = max(counts)
    burdens = Burdens(np.resize(rows, most), np.full(most, levels))
    found = assign(samples, burdens, replicas, spares=True)
    return [len(set(found.owner[found.spread.of(batch)].tolist())) for batch in range(len(counts))]


def test_samples_share_a_replica_where_all_end_as_soon() -> None:
    """Sixteen of one length on fifteen replicas take as long as on eight; of two lengths they may not. Each
    batch of a group decides for itself."""
    assert replicas_of(1000, 50000, [16], 15) == [8]
    assert replicas_of(1000, 50000, [16], 16) == [16]
    assert replicas_of(1000, 50000, [16, 4, 20, 61], 15) == [8, 4, 10, 15]
    assert replicas_of([40000] * 14 + [1000] * 2, 50000, [16], 15) == [15]


def test_a_batch_has_the_replicas_that_it_has_alone() -> None:
    plan = plan_named("lstm_classifier", **LARGE)
    encoder = encoder_of(plan, 60, 100)
    batches = np.random.default_rng(2).permutation(60).astype(np.int32)[:48].reshape(3, 16)
    found = encoder.encode_group(batches, replicas=15, workers=WORKERS)
    for samples, grouped in zip(batches, found, strict=True):
        alone = encoder.encode(samples, replicas=15, workers=WORKERS)
        assert grouped.samples.tolist() == alone.samples.tolist()
        for name in (isa.EARLY, isa.POST, isa.OUTER, "forward/0"):
            assert [fields_of(grouped, r, name) for r in range(15)] == [
                fields_of(alone, r, name) for r in range(15)
            ]


# ---- the order of rows -----------------------------------------------------------------------------------


def test_rows_behind_posts_come_first() -> None:
    """Two batches; of the first one level 2 is behind the first post, level 1 behind the second."""
    counts = np.array([[[[2, 1, 1], [1, 1, 0]]], [[[1, 0, 0], [1, 2, 1]]]])
    flat = counts.reshape(2, -1)
    starts = (flat.cumsum(axis=1) - flat).reshape(counts.shape)
    rows = Rows(np.arange(11) + 100, Spread(np.array([6, 5])), counts, starts)
    found = _parted(rows, np.array([[2, 1], [NEVER, NEVER]]))
    assert found.positions.tolist() == [103, 102, 105, 100, 101, 104, 106, 107, 108, 109, 110]
    assert [[own.tolist() for own in found.behind(post)] for post in range(3)] == [
        [[0, 0], [1, 0]],
        [[1, 0], [2, 0]],
        [[3, 0], [3, 5]],
    ]
    assert (found.by_level == rows.by_level).all()


# ---- what is wrong ---------------------------------------------------------------------------------------


ROW, ROWS, FIRST, ADDS, INDEX, NORM = (1 + isa.OUTER_FIELDS.index(name) for name in isa.OUTER_FIELDS[1:])
WRONG: list[tuple[tuple[int, str, int, int, Callable[[int], int]], str]] = [
    ((0, isa.POST, 0, 1, lambda word: 1), r"replica 0 posts \[1, 1\], expected \[0, 1\]"),
    ((1, isa.POST, 0, 0, lambda word: 0), r"replica 1 posts \[1\], expected \[0, 1\]"),
    ((3, isa.EARLY, 0, 1, lambda word: word - 8), "replicas 3 and 4 make other gradients early"),
    ((4, isa.OUTER, 0, ROW, lambda word: word + 1), "replicas 3 and 4 make other gradients early"),
]
BOTH_WRONG: list[tuple[tuple[str, int, int, Callable[[int], int]], str]] = [
    ((isa.EARLY, 0, 3, lambda word: word - 1), "gradients made early wait for"),
    ((isa.EARLY, 2, 1, lambda word: 8), "gradients made early wait for"),
    ((isa.OUTER, 0, 1, lambda word: 0), "gradient 0 is made early"),
    ((isa.OUTER, 0, 1, lambda word: 99), "gradient 99 is made early"),
    ((isa.OUTER, 0, ROW, lambda word: word + 1), r"rows from 1 on are added up behind 0"),
    ((isa.OUTER, 0, ROWS, lambda word: word + 1), "a row is added up before its deltas are made"),
    ((isa.OUTER, 1, ROWS, lambda word: word - 1), r"are not added to the \d+ before them"),
    ((isa.OUTER, 1, ROWS, lambda word: 1 << 20), "rows that do not exist"),
    ((isa.OUTER, 0, FIRST, lambda word: 16), "early: no such worker"),
    ((isa.OUTER, 1, ADDS, lambda word: 0), "'accumulate' is 0, expected 1"),
    ((isa.OUTER, 0, ADDS, lambda word: 2), "'accumulate' is 2"),
    ((isa.OUTER, 0, INDEX, lambda word: 1), "'index' is 1, expected 0"),
    ((isa.OUTER, 0, NORM, lambda word: 0), "'first_norm' is 0, expected -1"),
]


@pytest.mark.parametrize("place, message", WRONG, ids=[message for _, message in WRONG])
def test_the_verifier_finds_what_one_replica_has(
    place: tuple[int, str, int, int, Callable[[int], int]], message: str
) -> None:
    schedule = schedule_of(plan_named("lstm_classifier", **SMALL))
    replica, name, number, field, change = place
    words = fields_of(schedule, replica, name)[number]
    value = change(words[field - 1] if field else 0)
    with pytest.raises(ScheduleError, match=message):
        verify(damaged(schedule, replica, name, number, field, value))


@pytest.mark.parametrize(
    "place, message", BOTH_WRONG, ids=[f"{m} {n}" for n, (_, m) in enumerate(BOTH_WRONG)]
)
def test_the_verifier_finds_what_all_who_wait_have(
    place: tuple[str, int, int, Callable[[int], int]], message: str
) -> None:
    schedule = schedule_of(plan_named("lstm_classifier", **SMALL))
    name, number, field, change = place
    for replica in (3, 4):
        words = fields_of(schedule, replica, name)[number]
        schedule = damaged(schedule, replica, name, number, field, change(words[field - 1]))
    with pytest.raises(ScheduleError, match=message):
        verify(schedule)


def test_rows_that_are_added_up_twice_are_found() -> None:
    """The last of a gradient's rows have to be added to those that were made early."""
    schedule = schedule_of(plan_named("lstm_classifier", **SMALL))
    (late,) = {tuple(fields) for fields in fields_of(schedule, 0, isa.OUTER) if fields[ADDS - 1]}
    number = fields_of(schedule, 0, isa.OUTER).index(list(late))
    for replica in range(5):
        places = fields_of(schedule, replica, isa.OUTER)
        schedule = damaged(
            schedule,
            replica,
            isa.OUTER,
            len(places) - len(fields_of(schedule, 0, isa.OUTER)) + number,
            ADDS,
            0,
        )
    with pytest.raises(ScheduleError, match="are not added to the"):
        verify(schedule)


def run_on_vm(schedule: Schedule, seed: int = 0) -> None:
    pool = np.ones(schedule.static_words + schedule.activations, np.float32)
    ReferenceVM(schedule.plan, seed).run(schedule.words, pool, schedule.static_words)


def test_who_does_not_wait_races() -> None:
    """The race checker sees deltas of another replica, behind no post."""
    schedule = schedule_of(plan_named("lstm_classifier", **SMALL))
    run_on_vm(schedule)
    for replica in (3, 4):
        schedule = damaged(schedule, replica, isa.EARLY, 1, 3, 0)
    with pytest.raises(MachineError, match=r"race|before anything was written"):
        run_on_vm(schedule)


def test_a_post_says_nothing_of_what_follows_it() -> None:
    """Whoever waits for the first post alone does not see the rows of the second."""
    schedule = schedule_of(plan_named("lstm_classifier", **SMALL))
    for replica in (3, 4):
        schedule = damaged(schedule, replica, isa.EARLY, 1, 2, 0)
    with pytest.raises(MachineError, match=r"race|before anything was written"):
        for seed in range(8):
            run_on_vm(schedule, seed)


def test_a_post_that_nobody_makes_is_a_deadlock() -> None:
    schedule = schedule_of(plan_named("lstm_classifier", **SMALL))
    for replica in range(3):
        schedule = damaged(schedule, replica, isa.POST, 0, 0, schedule.plan.opcode(isa.NOP).number)
    with pytest.raises(MachineError, match=r"deadlock.*early"):
        run_on_vm(schedule)


# ---- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, settings",
    [
        ("lstm_classifier", {"hidden": 32}),
        ("gru_classifier", {"hidden": 16}),
        ("bilstm_tagger", {"hidden": 32}),
        ("lstm2", {"hidden": 32}),
        ("encoder_decoder", {"hidden": 32, "targets": 20}),
    ],
)
@pytest.mark.parametrize("few", [True, False])
def test_values_are_the_same(name: str, settings: dict[str, int], few: bool) -> None:
    plan = plan_named(name, **settings)
    for seed, (samples, grid) in enumerate(((1, (3, 4)), (2, (4, 8)))):
        bench = bench_on_vm(plan, samples, 9, grid, seed)
        with forced(early=True, shared=True, few=few, parts=False):
            assert any(made_early(bench.encode(TRAIN, Hyper(), grid)))
            check_training(bench)
            check_both(bench)


def tagger(*changes: tuple[str, str]) -> Plan:
    """That of the bidirectional tagger with another text."""
    text = (EXAMPLES / "bilstm_tagger.dn").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return plan_of_text(text, {"hidden": 32, "embed": 128})


def early_of(plan: Plan) -> set[str]:
    """The parameters of which gradients can be made early."""
    found = early(plan)
    names = () if found is None else found.gradients
    return {gradient.parameter for gradient in plan.dense_gradients if gradient.name in names}


def test_rows_behind_posts_are_in_chunks_of_their_own() -> None:
    """The first chunk adds to what was made early, the others to nothing."""
    plan = plan_named("lstm_classifier", hidden=32)
    grid = 4, 4
    forest = ForestGrower(plan.program, 1).grow(2, 120, "complete")
    bench = Bench(plan.program, plan, OnGrid(VMBackend(plan, *grid, 1), grid), forest, 1)
    with forced(early=(50, 45), shared=True, few=False):
        schedule = bench.encode(TRAIN, Hyper(), grid)
        ((*_, accumulate, chunks, _, _),) = fields_of(schedule, 0, "gradient U #2")[:1]
        assert any(made_early(schedule)) and accumulate == 1 and chunks > 1
        check_training(bench)
        check_both(bench)


@pytest.mark.parametrize("few", [True, False])
def test_a_matrix_that_two_recursions_multiply_by(few: bool) -> None:
    """Its second gradient adds to the first one in every chunk, and nothing of it is made early."""
    plan = tagger(("Wb: [4 * hidden, embed], ", ""), ("lstm(Wb,", "lstm(Wf,"))
    grid = 3, 4
    forest = ForestGrower(plan.program, 1).grow(2, 40, "complete")
    bench = Bench(plan.program, plan, OnGrid(VMBackend(plan, *grid, 1), grid), forest, 1)
    assert early_of(plan) == {"Ub", "Uf"}
    with forced(early=True, shared=True, few=few, parts=False):
        schedule = bench.encode(TRAIN, Hyper(), grid)
        twice = [fields for each in plan.dense_gradients for fields in fields_of(schedule, 0, each.name)]
        assert few or any(chunks > 1 for *_, chunks, _, _ in twice)
        check_training(bench)


def test_what_is_not_complete_waits_for_the_end() -> None:
    """A matrix that both directions multiply by has two gradients, which add up in order; a frozen one has
    none; and where a replica has its own words to itself, its rows lie side by side."""
    matrix = "Uf: [4 * hidden, hidden]"
    assert early_of(tagger((" Ub: [4 * hidden, hidden],", ""), ("Wb, Ub,", "Wb, Uf,"))) == set()
    frozen = tagger((f", {matrix}", ""), ("param V:", f"frozen param {matrix}\nparam V:"))
    assert early_of(frozen) == {"Ub"}
    plan = plan_named("lstm_classifier", **SMALL)
    with forced(early=True, shared=False):
        schedule = encoder_of(plan, 3, 40).encode(np.arange(3), replicas=5, workers=WORKERS)
    assert not any(made_early(schedule))


def test_groups_and_parts_of_a_batch_are_the_same() -> None:
    plan = plan_named("lstm_classifier", hidden=32)
    bench = bench_on_vm(plan, 6, 9, (8, 4), 5)
    with forced(early=True, shared=True):
        check_group(bench)
        part = bench.encoder.encode(
            np.arange(2), replicas=3, workers=4, part=Part(accumulate=True, update=False)
        )
    verify(part)
    assert [fields[ADDS - 1] for fields in fields_of(part, 2, isa.OUTER)][:2] == [1, 1]
