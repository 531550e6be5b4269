"""What a CPU module holds: instructions stay functions, products are there if they are called."""

import re
from itertools import cycle

import attrs
import pytest

from dnc import tirx_cpu
from dnc.codegen.bodies.cpu_products import NAMES
from dnc.codegen.cpu_kernel import Kernel
from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from tests.property.test_programs import CASES, FAILED_ONCE, GRIDS
from tests.support.cpu_functions import SMALLEST
from tests.support.models import EXAMPLES
from tests.support.programs.campaign import Tally, check_on_cpu, on_grids
from tests.support.programs.check import prepare
from tests.support.programs.kernels import Shared, SharedFunctions, compile_together

OWN = {isa.NOP, isa.END, isa.REPLICA_BARRIER, isa.GRID_BARRIER}

JOINED = """model Joined(d = 17)
struct T = T(below: T?, x: vector<d>)
param W: [d, {1} * d]
fn f(t: T) -> [d] = tanh(W @ concat({0}) + t.x)
loss sum(t in root) sum(f(t) * t.x)
"""


def kernel_of(text: str) -> Kernel:
    options = PlanOptions()
    program = transform(load_program(Source("m.dn", text), {})[0], options)
    return Kernel(make_plan(program, "cpu", options))


def test_instructions_stay_functions():
    kernel = kernel_of(SMALLEST)
    text = tirx_cpu.assembly(tirx_cpu.compile_module(kernel.build()))
    labels = set(re.findall(r"^(op_\d+):", text, re.MULTILINE))
    first = {min(isa.optimizers_of(kernel.plan))}  # one function for all optimizers
    others = set(isa.optimizers_of(kernel.plan)) - first
    wanted = {o.number for o in kernel.plan.opcodes if o.name not in OWN} - others
    assert labels == {f"op_{number}" for number in wanted}


@pytest.mark.parametrize("name", ["treelstm", "dag", "gru_classifier"])
def test_products_that_are_called_are_there(name):
    kernel = kernel_of((EXAMPLES / f"{name}.dn").read_text())
    module = kernel.build()
    there = {variable.name_hint for variable in module.functions} & set(NAMES)
    calls = set(re.findall(r"\.(dnc_\w+)\(", tirx_cpu.to_text(module)))
    assert there == calls & set(NAMES) != set()


def test_kernels_of_one_module():
    """Programs that failed once, side by side in one module: each calls its own functions."""
    paths = [path for path in FAILED_ONCE if "# cpu" in path.read_text()]
    cases = [attrs.evolve(case, target="cpu") for _, case in zip(paths, cycle(CASES), strict=False)]
    prepared = [prepare(path.read_text(), case) for path, case in zip(paths, cases, strict=True)]
    backends = compile_together([each.plan for each in prepared])
    for each, case, backend in zip(prepared, cases, backends, strict=True):
        on_grids(each, backend, case, GRIDS[:2])


def test_products_of_one_module_read_where_their_plans_put_blocks():
    """A product of more pieces has its blocks listed further behind: their functions differ."""
    texts = [JOINED.format(", ".join(["f(t.below)"] * pieces), pieces) for pieces in (1, 1, 3)]
    prepared = [prepare(text, CASES[0]) for text in texts]
    shared = Shared()
    one, same, other = (
        SharedFunctions(each.plan, shared, f"p{number}_").variable(NAMES[0])
        for number, each in enumerate(prepared)
    )
    assert one is same and one is not other
    backends = compile_together([each.plan for each in prepared])
    for each, backend in zip(prepared, backends, strict=True):
        on_grids(each, backend, CASES[0], GRIDS[:2])


def test_a_wrong_result_is_a_failure(monkeypatch):
    """A campaign counts programs that agree, and keeps those that do not."""
    tally = Tally("cpu")
    check_on_cpu(range(1, 4), tally)
    assert (tally.done, tally.failures) == (3, {})
    assert tally.agreed + sum(tally.unsuitable.values()) == 3 and tally.agreed
    monkeypatch.setattr("dnc.codegen.bodies.cpu_math.tanh", lambda x: x)
    monkeypatch.setattr("dnc.codegen.bodies.cpu_worker.CpuMath.tanh", staticmethod(lambda x: x))
    wrong = Tally("cpu")
    check_on_cpu(range(1, 4), wrong)
    assert wrong.done == 3 and wrong.failures
