"""Values that every worker makes in whole: what they are, when, and what follows for the plan."""

from __future__ import annotations

from typing import Any

import pytest

from dnc.compiler import PlanOptions, digest, make_plan, settled, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir.plan import REGISTER, Plan, RepeatedAddress, Segment
from dnc.ir.program import LEVEL, Program
from dnc.ir.repeated import repeated_parts
from dnc.passes.select_tiles import NOMINAL_ROWS
from tests.support.plans import plan_of

GPU = "sm_90a"


def gru(hidden: int = 64, target: str = GPU, **options: Any) -> Plan:
    sizes = {"hidden": hidden, "embed": hidden, "vocab": 100}
    return plan_of("gru_classifier", sizes, target, **{"mode": "infer", **options})


def level(plan: Plan) -> list[Segment]:
    """The segments of the recursion."""
    return [each for each in plan.segments if plan.program.stage(each.stage).placement == LEVEL]


def repeats(plan: Plan) -> bool:
    return any(segment.repeated for segment in plan.segments)


def test_a_gru_with_one_exchange_and_with_two() -> None:
    one, two = gru(repeat=True), gru(repeat=False)
    assert [segment.step for segment in level(one)] == [0]
    assert [segment.step for segment in level(two)] == [0, 1]
    assert [pushed.buffer for pushed in one.pushes] == ["forward:state"] and not two.pushes
    assert len(one.buffers) < len(two.buffers)  # what is repeated goes through no buffer


def test_both_parts_of_a_gru() -> None:
    (segment,) = level(gru(repeat=True))
    whole, rest = repeated_parts(segment)
    assert [value.name for value in segment.repeated] == ["split_1", "ur", "add", "r", "mul"]
    assert [product.parameter for product in whole.products] == ["U"] and not whole.stores
    assert [value.name for value in whole.cell.results] == ["split_1", "mul"]
    assert [product.parameter for product in rest.products] == ["C"] and rest.stores == segment.stores
    (piece,) = rest.products[0].pieces
    assert piece.address == RepeatedAddress(whole.cell.results[1])
    assert {load.value.name for load in rest.loads} == {"xz", "forward_prev", "xn", "split_1"}


def test_a_segment_without_repeated_values() -> None:
    for segment in level(gru(repeat=False)):
        whole, rest = repeated_parts(segment)
        assert rest is segment and not (whole.loads or whole.products or whole.cell.ops)


def test_every_worker_has_all_of_its_weights() -> None:
    plan = gru(repeat=True, cluster=16, mode="train")
    found = {(p.parameter, p.repeated): p for p in plan.placements}
    assert set(found) == {("U", True), ("U", False), ("C", False), ("W", False)}  # backward: by units
    assert found["U", True].units == found["U", False].units == 64
    assert found["U", True].bytes_per_worker == 16 * found["U", False].bytes_per_worker
    assert found["U", True].residency == REGISTER


def test_what_backward_reads_is_stored_by_the_owners() -> None:
    plan = gru(repeat=True, mode="train")
    (segment,) = (each for each in level(plan) if each.repeated)
    whole, rest = repeated_parts(segment)
    assert {store.value.name for store in rest.stores} & {value.name for value in segment.repeated}
    assert not whole.stores and not whole.transposed


@pytest.mark.parametrize("hidden, pays", [(64, True), (128, True), (256, False), (512, False)])
def test_where_it_pays(hidden: int, pays: bool) -> None:
    plan = gru(hidden, batch=1)
    assert repeats(plan) == pays
    (line,) = (remark for remark in plan.remarks if remark.startswith("repeat: "))
    assert "made whole by every worker" in line and "with an exchange" in line


@pytest.mark.parametrize("hidden, most", [(64, 64), (128, 20)])  # measured: 80, and 40
def test_many_rows_are_cheaper_with_an_exchange(hidden: int, most: int) -> None:
    assert repeats(gru(hidden, batch=most)) and not repeats(gru(hidden, batch=2 * most))
    assert repeats(gru(hidden)) == (most > NOMINAL_ROWS)


def test_training_exchanges_unless_batches_are_known_to_be_small() -> None:
    assert repeats(gru(64, mode="train", batch=8)) and not repeats(gru(64, mode="train"))


def test_levels_that_may_run_in_wide_tiles_exchange() -> None:
    assert not repeats(gru(64, batch=1, registers=0)) and repeats(gru(64, registers=0, repeat=True))


def test_the_cpu_only_when_asked() -> None:
    assert not repeats(gru(target="cpu")) and repeats(gru(target="cpu", repeat=True))


def test_cells_without_products_are_repeated_where_that_is_expected_to_be_faster_at_all() -> None:
    """The margin is for products, which cost every worker as much as one."""
    plan = plan_of("tree_to_sequence", {}, GPU, mode="infer")
    assert repeats(plan) and not any(place.repeated for place in plan.placements)


def test_scalars_of_all_workers_are_no_matter_of_repetition() -> None:
    plan = plan_of("layer_norm_lstm", {"hidden": 72}, GPU, mode="infer")
    assert repeats(plan) and not any(remark.startswith("repeat: ") for remark in plan.remarks)


def test_without_fusion_nothing_is_repeated() -> None:
    assert not repeats(gru(repeat=True, without=("fuse",)))


@pytest.mark.parametrize("repeat", [None, True, False])
@pytest.mark.parametrize("target", [GPU, "cpu"])
def test_a_build_keeps_what_was_chosen(repeat: bool | None, target: str) -> None:
    options = PlanOptions(mode="infer", repeat=repeat)
    plan = gru(128, target, repeat=repeat)
    kept = settled(options, plan)
    assert kept.repeat == repeats(plan)
    assert digest(make_plan(plan.program, target, kept)) == digest(plan)


# ---- other cells ---------------------------------------------------------------------------------

TEXT = """\
model Net(vocab = 20, width = 32)
struct Word = Word(form: token<vocab>)
struct Text = Text(words: [Word])
param E: table[vocab, width]
param W: [width, width], U: [width, width], V: [width, width]
"""
END = "loss sum(t in root) sum(run(t.words.last))\n"


def program_of(cell: str) -> Program:
    return transform(load_program(Source("net.dn", TEXT + cell + END), {})[0])


def forward(cell: str) -> tuple[Plan, list[Segment]]:
    """The plan of a recursion, repeated where that can be; its forward segments."""
    plan = make_plan(program_of(cell), GPU, PlanOptions(cluster=8, repeat=True))
    return plan, [each for each in level(plan) if each.stage == "run"]


def test_of_three_dependent_products_the_first_is_repeated() -> None:
    _, segments = forward(
        "cell step(x: [width], h: [width]) -> [width] = tanh(V @ tanh(U @ tanh(x + W @ h)))\n"
        "fn run(w: Word) -> [width] = step(E[w.form], run(w.prev))\n"
    )
    assert [segment.step for segment in segments] == [0, 1]
    assert [product.parameter for product in segments[0].products] == ["W", "U"] and segments[0].repeated
    assert not segments[1].repeated


def test_a_part_of_an_operand() -> None:
    _, segments = forward(
        "param Y: [width, 2 * width]\n"
        "cell step(x: [width], h: [width]) -> [width] = tanh(Y @ concat(sigmoid(W @ h) * h, h))\n"
        "fn run(w: Word) -> [width] = step(E[w.form], run(w.prev))\n"
    )
    (segment,) = segments
    pieces = segment.products[1].pieces
    assert [isinstance(piece.address, RepeatedAddress) for piece in pieces] == [True, False]


def test_what_was_pushed_is_read_where_it_was_staged() -> None:
    """Repeated cells read whole vectors: of those that others push only what lies in the operand."""
    text = (
        "cell step(x: [width], h: [width]) -> [width] = tanh(x + U @ (sigmoid(W @ h) * h))\n"
        "fn run(w: Word) -> [width] = step(E[w.form], run(w.prev))\n"
    )
    assert forward(text)[0].pushes
    text = (
        "state S = (h: [width], c: [width])\n"
        "cell step(x: [width], s: S) -> S:\n"
        "    h = tanh(x + U @ (sigmoid(W @ s.h) * s.c))\n"
        "    c = s.c + h\n"
        "fn both(w: Word) -> S = step(E[w.form], both(w.prev))\n"
        "fn run(w: Word) -> [width] = both(w).h\n"
    )
    plan = make_plan(program_of(text), GPU, PlanOptions(cluster=8, repeat=True))
    assert repeats(plan) and not plan.pushes


def test_losses_do_not_ask_for_it() -> None:
    """What a softmax needs whole is computed vertex by vertex, behind an exchange."""
    _, segments = forward(
        "cell step(x: [width], h: [width]) -> [width] = softmax(W @ h) * x\n"
        "fn run(w: Word) -> [width] = step(E[w.form], run(w.prev))\n"
    )
    assert not any(segment.repeated for segment in segments) and len(segments) > 1
