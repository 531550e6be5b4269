"""The planner: candidates, what schedules are predicted to cost, and that what was chosen is kept."""

import attrs
import numpy as np
import pytest

from dnc.api.calibration import fit
from dnc.api.ranking import Work, candidate_lines, kernel_of, rank, some_batches
from dnc.compiler import PlanOptions, digest, make_plan, read_program, settled, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.explain.facts import replicas_of
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.costs import CLUSTER, EXCHANGE, FLOP, INSTRUCTION, LAUNCH, NAMES, TILED, Costs, nanoseconds
from dnc.ir.machine import MACHINES, Constants, machine
from dnc.ir.plan import REGISTER, SHARED, STREAMED
from dnc.ir.uses import keeps_weights, lends
from dnc.machine_constants import Measured, known, known_constants, save
from dnc.passes.candidates import candidates
from dnc.passes.plan_weights import Slice
from dnc.runtime.build import Build, Target, read_build, write_build
from dnc.runtime.data import read_samples, table_rows
from dnc.runtime.encoder import Encoder
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.schedule import queue
from dnc.runtime.schedule_cost import busiest
from dnc.runtime.tuned import Tuned, tuned_grid
from tests.support.models import EXAMPLES, small_plan, small_program
from tests.support.plans import plan_of

GPU = "sm_90a"


def leaf(word):
    return {"word": word, "label": 1}


def tree(depth):
    if depth == 0:
        return leaf("a")
    return {"left": tree(depth - 1), "right": leaf("b"), "label": 0}


def data(count=8, depth=3):
    return read_samples([tree(depth)] * count, small_program("treelstm"))


def work(batch=4, chip=GPU, count=8, cores=2):
    found = data(count)
    program = small_plan("treelstm").program
    return Work(program, found, some_batches(count, batch, 2), machine(chip), cores, machine(chip).constants)


def encoded(plan, found, batch, replicas, workers):
    rows = table_rows(plan.program, found.vocabularies)
    encoder = Encoder(prepare(plan, found.forest), static_pool(plan, rows, 2**20))
    return encoder.encode(np.arange(batch, dtype=np.int32), replicas=replicas, workers=workers)


# ---- candidates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 2, 6])
def test_cpu_candidates_divide_the_cores(cores):
    found = candidates(machine("cpu"), cores)
    assert len(set(found)) == len(found)
    assert {cores % (each.replicas * each.workers) for each in found} == {0}
    assert max(each.replicas * each.workers for each in found) == cores


@pytest.mark.parametrize("name", [name for name, chip in MACHINES.items() if chip.is_gpu])
def test_gpu_candidates_fit_the_chip(name):
    chip = machine(name)
    for each in candidates(chip):
        assert each.workers * each.replicas <= chip.processors
        assert each.cluster in (1, each.workers) and each.cluster <= max(chip.clusters, default=1)


def test_every_gpu_candidate_is_the_plan_that_it_says():
    program = small_plan("treelstm").program
    for each in candidates(machine(GPU)):
        plan = make_plan(program, GPU, kernel_of(PlanOptions(), each, machine(GPU)))
        tiling = plan.tiling
        assert (tiling.workers, tiling.cluster, tiling.tile) == (each.workers, each.cluster, each.tile)
        if each.registers == 0:
            assert not any(place.residency == "register" for place in plan.placements)


def test_a_plan_for_batches_of_a_size():
    """One sample wants few exchanges, many want replicas; where nobody says, the plan is to serve both."""

    def workers(name, sizes, batch, mode="train"):
        options = PlanOptions(mode=mode, batch=batch)
        _, program, _ = read_program(EXAMPLES / f"{name}.dn", sizes)
        tiling = make_plan(transform(program, options), GPU, options).tiling
        return tiling.workers, tiling.cluster

    large = {"hidden": 640, "embed": 640}
    assert workers("treelstm", large, None) == workers("treelstm", large, 128) == (16, 16)
    assert workers("treelstm", large, 1) == (128, 1)
    small = {"hidden": 256, "embed": 256}
    assert workers("lstm_classifier", small, None, "infer") == (8, 8)
    assert workers("lstm_classifier", small, 1, "infer") == (16, 16)


# ---- costs ----------------------------------------------------------------------------------------


def test_a_queue_is_counted_from_its_own_words():
    plan = make_plan(small_plan("treelstm").program, GPU, PlanOptions(cluster=8))
    schedule = encoded(plan, data(), 1, 1, 8)
    words = queue(schedule.words, plan, 0)
    counts = busiest(schedule, Costs(plan, 1, 8), machine(GPU).constants)
    barriers = (words[:, 0] == plan.opcode(isa.REPLICA_BARRIER).number).sum()
    assert counts[INSTRUCTION] == len(words) and counts[LAUNCH] == 1
    assert counts[CLUSTER] == barriers > 0 and counts[EXCHANGE] == 0


def test_tensor_cores_work_on_blocks_of_vertices():
    """A row more takes a part of its time, and so does what blocks lack; two rows do not go there."""
    program = small_plan("treelstm").program
    plain, fast = (
        make_plan(program, GPU, PlanOptions(cluster=8, precision=name)) for name in ("fp32", "tf32")
    )
    name = next(each.name for each in plain.segments if each.products and "Node" in each.name)
    own, cores = (
        [Costs(plan, 7, 8).segment(name, np.array([rows]))[FLOP] for rows in (1.0, 2.0, 3.0, 8.0, 9.0, 64.0)]
        for plan in (plain, fast)
    )
    assert own == [own[0] * rows for rows in (1, 2, 3, 8, 9, 64)] and cores[:2] == own[:2]
    assert cores[5] - cores[4] == pytest.approx(0.3 * (own[5] - own[4]))
    assert 0.6 * own[2] < cores[2] < own[2] and cores[5] < 0.32 * own[5]


def test_weight_gradients_take_less_on_tensor_cores():
    program = small_plan("treelstm").program
    plain, fast = (
        make_plan(program, GPU, PlanOptions(cluster=8, precision=name)) for name in ("fp32", "tf32")
    )
    counts = [
        busiest(encoded(plan, data(), 8, 2, 8), Costs(plan, 2, 8), machine(GPU).constants)[TILED]
        for plan in (plain, fast)
    ]
    assert 0 < counts[1] < counts[0]


def test_products_are_shared_out_and_exchanges_are_not():
    program = small_plan("treelstm").program
    one, two, four = (
        busiest(
            encoded(make_plan(program, GPU, PlanOptions(cluster=0, workers=workers)), data(), 4, 1, workers),
            Costs(make_plan(program, GPU, PlanOptions(cluster=0, workers=workers)), 1, workers),
            machine(GPU).constants,
        )
        for workers in (1, 2, 4)
    )
    assert one[FLOP] == 2 * two[FLOP] == 4 * four[FLOP] > 0
    assert one[EXCHANGE] == 0 < two[EXCHANGE] == four[EXCHANGE]


def test_more_rows_cost_more():
    plan = make_plan(small_plan("treelstm").program, GPU, PlanOptions(cluster=8))
    times = [
        nanoseconds(busiest(encoded(plan, data(), batch, 1, 8), Costs(plan, 1, 8), machine(GPU).constants),
                    machine(GPU).constants)
        for batch in (1, 2, 8)
    ]  # fmt: skip
    assert times == sorted(times) and times[0] < times[-1]


def test_ranking_is_by_predicted_time_and_names_a_kernel_once():
    found = rank(work(), PlanOptions())
    times = [each.microseconds for each in found]
    assert times == sorted(times) and times[0] > 0
    keys = [(digest(each.plan), each.candidate.replicas, each.candidate.workers) for each in found]
    assert len(set(keys)) == len(keys)


def test_weights_are_split_where_they_would_be_streamed():
    """512 units fit into registers of no cluster; 4 fit everywhere."""
    assert not any(each.candidate.splits for each in rank(work(), PlanOptions()))
    _, program, _ = read_program(EXAMPLES / "treelstm.dn", {"hidden": 512, "embed": 512})
    large = attrs.evolve(work(), program=transform(program))
    found = {each.candidate: each.plan for each in rank(large, PlanOptions())}
    split = [each for each in found if each.splits]
    assert 33 in {each.workers for each in split}
    for each in split:
        assert keeps_weights(found[each]) and not keeps_weights(found[attrs.evolve(each, splits=False)])


def test_dear_exchanges_favour_replicas_of_one_worker():
    cheap = rank(work(batch=1, chip="cpu"), PlanOptions())
    dear = attrs.evolve(machine("cpu").constants, exchange=1e6)
    found = rank(attrs.evolve(work(batch=1, chip="cpu"), constants=dear), PlanOptions())
    assert found[0].candidate.workers == 1
    assert {each.candidate.workers for each in cheap} == {1, 2}


def test_explain_ranks():
    plan = make_plan(small_plan("treelstm").program, GPU, PlanOptions(cluster=8))
    lines = list(candidate_lines(plan, PlanOptions(cluster=8), data(), 4))
    assert "batch of 4 samples" in lines[0] and len(lines) == 7
    times = [float(line.split(" us:")[0].replace(",", "")) for line in lines[1:]]
    assert times == sorted(times) and any("cluster of 8" in line for line in lines)


# ---- replicas without clusters, beside each other -----------------------------------------------


def tiling_of(example, hidden, **options):
    settings = {"hidden": hidden, "embed": hidden, "vocab": 10_000}
    tiling = plan_of(example, settings, **options).tiling
    return tiling.workers, tiling.cluster


def test_replicas_beside_each_other_keep_what_clusters_stream():
    assert tiling_of("language_model", 512) == (33, 1)
    assert tiling_of("language_model", 256) == (8, 8)  # a cluster keeps it
    plan = plan_of("language_model", {"hidden": 512, "embed": 512, "vocab": 10_000})
    (kept,) = (place for place in plan.placements if place.parameter == "U")
    assert kept.residency == SHARED and replicas_of(plan) == 4


def test_replicas_beside_each_other_are_for_batches_that_are_not_too_large():
    found = [tiling_of("treelstm", 640, batch=batch)[0] for batch in (1, 8, 32, 128)]
    assert found == [128, 66, 66, 16]
    assert tiling_of("treelstm", 640) == (16, 16)  # for all sizes


def test_weights_are_split_where_that_is_clearly_faster():
    """Into registers and shared memory. A launch with 512 units took 252, 625 and 1,985 us at batch 8, 32 and
    128 with them split, and 542, 875 and 1,977 with them streamed."""
    found = [tiling_of("treelstm", 512, batch=batch)[0] for batch in (1, 8, 32, 128)]
    assert found == [128, 33, 33, 16]


@pytest.mark.parametrize(
    ("precision", "registers", "packed"),
    [("fp32", 160, 1), ("tf32", 160, 1), ("tf32x3", 160, 1), ("bf16", 96, 2)],
)
def test_weights_are_split_at_every_precision(precision, registers, packed):
    settings = {"hidden": 512, "embed": 512, "vocab": 10_000}
    plan = plan_of("treelstm", settings, precision=precision)
    assert (plan.tiling.workers, plan.tiling.cluster, plan.tiling.splits) == (33, 1, True)
    (kept,) = (place for place in plan.placements if place.parameter == "U")
    assert kept.residency == REGISTER and kept.registers == range(registers)
    # A worker has 16 units of 5 gates.
    assert len(kept.registers) * packed * 256 + len(kept.rest) == 80 * 1024


def test_registers_of_two_weights_hold_whole_blocks_of_columns():
    """With an odd number of blocks of 16 columns a warp, one may hold weights of two of them."""
    found = [
        attrs.evolve(piece, packed=2).split(14)
        for columns in (128, 256, 384, 512)
        for piece in [Slice("U", 64, 1, columns, True)]
    ]
    assert found == [14, 12, 12, 12]
    assert [Slice("U", 64, 1, columns, True).split(14) for columns in (128, 384)] == [12, 12]


def test_split_weights_do_not_take_the_place_of_products_outside_the_recursion():
    """A language model took 6,860 us a launch with them split, where clusters of 16 kept them, and 5,457."""
    plan = plan_of("language_model", {"hidden": 512, "embed": 512, "vocab": 10_000})
    assert not plan.tiling.splits


def test_where_levels_have_few_rows_registers_come_before_shared_memory():
    """A vanilla RNN took 709 us a launch with its weights in shared memory, and 637 with them split."""
    settings = {"hidden": 512, "embed": 512, "vocab": 10_000}
    for batch, where in ((4, REGISTER), (64, SHARED)):
        plan = plan_of("language_model", settings, batch=batch)
        assert next(place for place in plan.placements if place.parameter == "U").residency == where


def test_a_plan_with_split_weights_is_made_again_from_its_options():
    settings = {"hidden": 512, "embed": 512, "vocab": 10_000}
    plan = plan_of("treelstm", settings)
    again = settled(PlanOptions(), plan)
    assert again.splits and digest(make_plan(plan.program, GPU, again)) == digest(plan)


def test_shared_memory_is_lent_where_levels_alone_read_it():
    settings = {"hidden": 512, "embed": 512}
    assert lends(plan_of("language_model", settings | {"vocab": 10_000}))
    assert not lends(plan_of("language_model", settings | {"vocab": 10_000}, cluster=16))
    assert not lends(plan_of("language_model", settings | {"vocab": 10}, residency="shared", cluster=0))
    assert not lends(plan_of("treelstm", settings))


# ---- what was chosen is kept -------------------------------------------------------------------------


@pytest.mark.parametrize(("vocab", "where"), [(10_000, STREAMED), (100, SHARED)])
def test_what_is_read_once_a_batch_is_kept_as_a_whole_or_not_at_all(vocab, where):
    """W alone fits beside a V that does not: so a launch of 128 texts took 14.7 ms, and 5.6 without it."""
    sizes = {"hidden": 256, "embed": 256, "vocab": vocab}
    plan = plan_of("language_model", sizes, cluster=16)
    found = {placement.parameter: placement for placement in plan.placements}
    assert found["U"].residency == REGISTER
    assert found["W"].residency == found["V"].residency == where
    assert ("the room of tiles" in found["W"].reason) == (where == STREAMED)


def test_a_choice_knows_how_many_registers_weights_may_take():
    """Clusters of 8 keep both matrices of a tagger with registers, without these clusters of 16 do."""
    settings = {"hidden": 256, "embed": 256}
    for registers, cluster in ((None, 8), (32, 16)):
        plan = plan_of("bilstm_tagger", settings, registers=registers)
        assert plan.tiling.cluster == cluster
        assert all(p.residency != STREAMED for p in plan.placements if p.parameter in ("Uf", "Ub"))


TWO_SIZES = """
model Sizes(vocab, large = 256, small = 64, classes = 3)
struct Word = Word(form: token<vocab>, tag: class<classes>)
struct Text = Text(words: [Word])
state S = (h: [large], c: [large])
state L = (h: [small], c: [small])
param E: table[vocab, large], F: table[vocab, small], V: [classes, 2 * large + 2 * small]
param Ua: [4 * large, large], Ub: [4 * large, large], Ra: [4 * small, small], Rb: [4 * small, small]
cell big(U: [4 * large, large], x: [large], s: S) -> S:
    i, o, u, f = split(U @ s.h, 4)
    c = sigmoid(i) * tanh(u + x) + sigmoid(f) * s.c
    h = sigmoid(o) * tanh(c)
cell little(U: [4 * small, small], x: [small], s: L) -> L:
    i, o, u, f = split(U @ s.h, 4)
    c = sigmoid(i) * tanh(u + x) + sigmoid(f) * s.c
    h = sigmoid(o) * tanh(c)
fn a(w: Word) -> S = big(Ua, E[w.form], a(w.prev))
fn b(w: Word) -> S = big(Ub, E[w.form], b(w.next))
fn c(w: Word) -> L = little(Ra, F[w.form], c(w.prev))
fn d(w: Word) -> L = little(Rb, F[w.form], d(w.next))
loss sum(w in all(Word)) cross_entropy(V @ concat(a(w).h, b(w).h, c(w).h, d(w).h), w.tag)
"""


def test_large_weights_go_first_where_small_ones_would_be_in_their_way():
    """Two small matrices would leave 96 of 128 registers, where a large one takes all."""
    program = transform(load_program(Source("sizes.dn", TWO_SIZES), {})[0])
    plan = make_plan(program, GPU, PlanOptions(registers=128, cluster=8))
    found = {p.parameter: p.residency for p in plan.placements}
    assert [found[name] for name in ("Ua", "Ub", "Ra", "Rb")] == [REGISTER, SHARED, SHARED, SHARED]


def test_a_choice_does_not_depend_on_constants_measured_later():
    program = small_plan("treelstm").program
    strange = Constants(*(1e6 if name == "cluster_exchange" else 1.0 for name in NAMES))
    usual, other = make_plan(program, GPU), make_plan(program, GPU, constants=strange)
    assert usual.tiling != other.tiling
    for plan in (usual, other):
        assert digest(make_plan(program, GPU, settled(PlanOptions(), plan))) == digest(plan)


def test_constants_are_kept_by_device(tmp_path, monkeypatch):
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path))
    assert known_constants(GPU) is None
    constants = machine(GPU).constants.scaled(2.0)
    old = Measured("NVIDIA H200", GPU, "2026-01-01", 0.1, 10, machine(GPU).constants)
    save(old)
    path = save(attrs.evolve(old, device="NVIDIA H100", date="2026-02-01", constants=constants))
    assert path.name == "NVIDIA-H100.json" and known_constants(GPU) == constants
    assert known_constants("sm_80") is None
    path.write_text("{")
    assert known(GPU) == old
    save(attrs.evolve(old, version="0.0"))
    assert known(GPU) is None


def test_the_fit_finds_constants_and_keeps_what_it_cannot_see():
    choice = np.random.default_rng(1)
    before = np.array([5000.0, 900.0, 350.0, 0.02])
    true = before * [2.0, 0.5, 3.0, 1.0]
    counts = choice.uniform(1, 20, (60, 4)) * [1, 3, 3, 0]  # nothing is counted of the last one
    found = fit(counts, counts @ true, before)
    assert found[3] == before[3]
    assert found[:3] == pytest.approx(true[:3], rel=0.1)
    assert (fit(counts, np.full(60, 1.0), before) > 0).all()


def entry(batch, replicas, workers):
    return Tuned(batch, replicas, workers, 1.0, 2, "device", "date")


def test_a_tuned_grid_holds_from_half_to_twice_its_batch():
    entries = [entry(8, 2, 1), entry(32, 1, 2)]
    found = [tuned_grid(entries, samples) for samples in (1, 4, 8, 15, 17, 32, 64, 65)]
    assert found == [None, (2, 1), (2, 1), (2, 1), (1, 2), (1, 2), (1, 2), None]


# ---- builds -----------------------------------------------------------------------------------------


def build(path):
    targets = {"cpu": Target("cpu", {}, "plan", tuned=(entry(8, 2, 1),))}
    others = {"cpu": (Target("cpu", {"tile": 24}, "other"), Target("cpu", {"tile": 96}, "third"))}
    return Build(path, "M", "digest", "m.dn", "model M()", {}, "program", targets, (), others)


def test_a_build_holds_kernels_of_candidates(tmp_path):
    path = tmp_path / "build"
    for _ in range(2):  # the second replaces the first, and its folders
        write_build(build(path), {"cpu": {"k": b"0"}}, {"cpu": [{"k": b"1"}, {"k": b"2"}]})
    found = read_build(path)
    assert found.targets["cpu"].tuned == (entry(8, 2, 1),)
    assert [each["k"] for each in found.candidate_kernels("cpu")] == [b"1", b"2"]
    assert found.kernels("cpu") == {"k": b"0"}
    (path / "cpu.2" / "k").write_bytes(b"3")
    with pytest.raises(DiagnosticError, match="damaged"):
        found.candidate_kernels("cpu")


def test_a_folder_that_only_looks_like_a_candidate_is_not_replaced(tmp_path):
    path = tmp_path / "build"
    write_build(build(path), {"cpu": {}}, {"cpu": [{}, {}]})
    (path / "cpu.3").mkdir()
    with pytest.raises(DiagnosticError, match=r"holds cpu\.3 beside the build"):
        write_build(build(path), {"cpu": {}}, {"cpu": [{}, {}]})
