"""Stacks of parameters: first values, where rows lie, what an instruction works on, bad data."""

from pathlib import Path

import numpy as np
import pytest

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.parser import parse_program
from dnc.ir.plan import STREAMED
from dnc.ir.printer import print_program
from dnc.runtime.backend import VMBackend
from dnc.runtime.data import read
from dnc.runtime.encoder import Encoder
from dnc.runtime.initialize import initialize
from dnc.runtime.pool import load_parameters, read_array, static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.schedule import list_words, queue
from dnc.runtime.verifier import ScheduleError, verify
from tests.support.executors import Bench, check_training
from tests.support.forests import ForestGrower

PROGRAM = """
model Grid(layers = 3, kinds = 2, hidden = 5)
struct Cell = Cell(layer: index<layers>, kind: index<kinds>, left: Cell?, right: Cell?)
param W: stack[layers, hidden, hidden], U: stack[kinds, hidden, hidden] = orthogonal
param b: stack[layers, hidden] = pieces(1, 2, 3, 4, 5), c: stack[kinds, hidden]
fn f(t: Cell) -> [hidden] = tanh(W[t.layer] @ f(t.left) + U[t.kind] @ f(t.right) + b[t.layer] + c[t.kind])
loss sum(t in all(Cell)) sum(f(t) * f(t))
"""


def program(text: str = PROGRAM):
    return load_program(Source("grid.dn", text), {})[0]


def plan_of(target: str = "cpu"):
    return make_plan(transform(program(), PlanOptions()), target, PlanOptions())


def bench(seed: int = 1, samples: int = 6, grid: tuple[int, int] = (2, 3)) -> Bench:
    changed = transform(program(), PlanOptions())
    plan = make_plan(changed, "cpu", PlanOptions())
    forest = ForestGrower(changed, seed).grow(samples, 9)
    return Bench(changed, plan, VMBackend(plan, *grid, seed), forest, seed)


def test_the_printed_program_is_read_again():
    changed = transform(program(), PlanOptions())
    assert parse_program(print_program(changed)) == changed
    assert {gradient.field for gradient in changed.weight_gradients} == {"layer", "kind"}


def test_every_parameter_of_a_stack_starts_as_one_alone():
    values = initialize(program(), {}, 3)
    assert {name: value.shape for name, value in values.items()} == {
        "W": (3, 5, 5), "U": (2, 5, 5), "b": (3, 5), "c": (2, 5)
    }  # fmt: skip
    assert 0.5 < np.abs(values["W"]).max() <= np.sqrt(6 / 10)  # xavier, not over [3, 5, 5]
    assert len({value.tobytes() for value in values["W"]}) == 3
    for basis in values["U"]:
        np.testing.assert_allclose(basis @ basis.T, np.eye(5), atol=1e-6)
    np.testing.assert_array_equal(values["b"], [[1, 2, 3, 4, 5]] * 3)
    assert not values["c"].any()


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_values_survive_the_pool(target):
    plan = plan_of(target)
    pool = static_pool(plan, {}, 64)
    values = initialize(plan.program, {}, 4)
    words = np.zeros(pool.words, np.float32)
    load_parameters(plan, pool, values, words)
    for name, value in values.items():
        np.testing.assert_array_equal(read_array(plan, pool, name, words), value)


def test_a_gpu_streams_a_stack_and_says_why():
    placed = {place.parameter: place for place in plan_of("sm_90a").placements}
    assert placed["W"].residency == placed["U"].residency == STREAMED
    assert "chosen by the rows" in placed["W"].reason


def test_rows_of_an_instruction_select_the_same():
    made = bench()
    schedule = made.encoder.encode(made.samples, replicas=2, workers=3)
    verify(schedule)
    plan, layout = made.plan, isa.layout(made.plan)
    selecting = {s.name: {u.select for u in (*s.products, *s.transposed)} - {None} for s in plan.segments}
    seen = 0
    for worker in (0, 3):
        for opcode, row, rows, *_ in queue(schedule.words, plan, worker).tolist():
            for name in selecting.get(plan.opcodes[opcode].name, ()):
                at = list_words(schedule.words, layout, name)
                assert len(set(schedule.words[at + row : at + row + rows])) == 1
                seen += rows > 1
    assert seen > 3  # there are instructions of several rows


def test_a_row_of_another_index_is_refused():
    made = bench()
    schedule = made.encoder.encode(made.samples, replicas=2, workers=3)
    plan, layout = made.plan, isa.layout(made.plan)
    for select in ("layer", "kind"):
        at = list_words(schedule.words, layout, f"f:self.{select}")
        before = schedule.words[at]
        schedule.words[at] = 1 - min(before, 1)
        with pytest.raises(ScheduleError, match=r"select|another index"):
            verify(schedule)
        schedule.words[at] = before
    assert plan is schedule.plan


def test_what_no_row_selects_has_no_gradient():
    made = bench(samples=3)
    made.forest.tables["Cell"].data["layer"][:] = 1
    made.encoder = Encoder(prepare(made.plan, made.forest), made.pool)
    check_training(made)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("3", "field 'layer' is 3, but index<layers> has 0..2"),
        ("-1", "field 'layer' is -1, but index<layers> starts at 0"),
        ('"a"', "field 'layer' must be a whole number, which selects from a stack, found a string"),
        ("null", "field 'layer' is null"),
        ("1.5", "field 'layer' must be a whole number, which selects from a stack, found a fraction"),
    ],
)
def test_bad_data(tmp_path: Path, value: str, message: str):
    path = tmp_path / "grid.jsonl"
    path.write_text(f'{{"layer": 2, "kind": 0}}\n{{"layer": {value}, "kind": 1}}\n')
    with pytest.raises(DiagnosticError) as caught:
        read(path, program())
    assert message in str(caught.value) and "grid.jsonl:2" in str(caught.value)
