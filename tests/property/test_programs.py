"""Random programs: the interpreter against the reference VM and the CPU kernel, in values and gradients.

Each program is printed and parsed, compiled with passes on and off, and run on random structures and
grids. `DNC_PROGRAMS` sets how many run on the VM. Of the CPU kernel, which takes seconds to compile, a
twentieth are compiled as a build is, and a fifth many in a module. Programs that once failed are in
`programs/`; docs/testing.md says how to run many more.
"""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dnc.codegen.cpu_kernel import build_cpu
from dnc.passes.distribute import NARROW
from dnc.passes.hoist import Hoist
from dnc.runtime.backend import VMBackend
from dnc.runtime.cpu_backend import CpuBackend
from tests.support.executors import OnGrid
from tests.support.forests import SHAPES
from tests.support.programs import SMALL_WIDTHS, WIDTHS, program_of, programs
from tests.support.programs.campaign import BATCH, GRIDS, Tally, check_on_cpu
from tests.support.programs.check import (
    OPTIONAL_PASSES,
    Case,
    Unsuitable,
    check_differences,
    check_inference,
    load,
    prepare,
    run,
)

COUNT = int(os.environ.get("DNC_PROGRAMS", "100"))
HERE = Path(__file__).parent
FAILED_ONCE = sorted((HERE / "programs").glob("*.dn"))
CASES = (
    Case(seed=1, samples=3, replicas=2, workers=2),
    Case(seed=2, vertices=9, workers=4, without=("hoist",), shape="chain", target="sm_90a"),
    Case(seed=3, workers=2, without=("fuse", "inline", "canonicalize"), shape="comb"),
    Case(seed=4, samples=2, vertices=1, replicas=3, shape="single"),
    Case(seed=8, samples=3, common=True),
)

OF_A_PROGRAM = {
    "pushed_gradients_of_an_arm_without_any": Case(
        seed=2009611,
        samples=3,
        vertices=6,
        shape="chain",
        replicas=2,
        workers=2,
        without=("inline", "canonicalize"),
        target="cpu",
    ),
    "unused_parameters_in_chunks_of_rows": Case(samples=20, vertices=30, shape="chain", target="sm_90a"),
}
"""The case that a program failed in, where those above do not find it."""

generated = settings(
    deadline=None,
    derandomize="DNC_PROGRAMS" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
cases = st.builds(
    Case,
    seed=st.integers(0, 2**16),
    samples=st.integers(1, 4),
    vertices=st.sampled_from((3, 6, 10)),
    shape=st.sampled_from(SHAPES),
    sharing=st.sampled_from((0.0, 0.4)),
    replicas=st.sampled_from((1, 2, 3)),
    workers=st.sampled_from((1, 2, 4)),
    without=st.sets(st.sampled_from(OPTIONAL_PASSES)).map(lambda names: tuple(sorted(names))),
    target=st.sampled_from(("cpu", "sm_90a")),
    apart=st.booleans(),
    alike=st.booleans(),
    added=st.booleans(),
    shared=st.booleans(),
    parts=st.booleans(),
    common=st.booleans(),
    repeat=st.sampled_from((None, True, False)),
    reduce=st.sampled_from((None, True, False)),
    narrow=st.sampled_from((0, NARROW)),
)


def on_the_vm(text: str, case: Case) -> None:
    prepared = prepare(text, case)
    if case.seed % 4 == 0:  # four interpretations more
        check_differences(prepared, case.seed)
    run(prepared, VMBackend(prepared.plan, case.replicas, case.workers, case.seed), case)
    check_inference(prepared, VMBackend(prepared.inference[1], case.replicas, case.workers, case.seed), case)


def on_the_cpu(text: str, case: Case) -> None:
    prepared = prepare(text, case)
    backend = CpuBackend(prepared.plan, build_cpu(prepared.plan))
    for grid in GRIDS:
        run(prepared, OnGrid(backend, grid), case)  # type: ignore[arg-type]


def fused(case: Case) -> Case:
    """The same for the CPU, with no pass left out: without `fuse` a kernel takes far longer to compile."""
    return attrs.evolve(case, target="cpu", without=())


@settings(generated, max_examples=COUNT)
@given(text=programs(SMALL_WIDTHS), case=cases)
def test_reference_vm(text: str, case: Case) -> None:
    try:
        on_the_vm(text, case)
    except Unsuitable:
        assume(False)


@settings(generated, max_examples=max(COUNT // 20, 1))
@given(text=programs(WIDTHS, groups=1, depth=2), case=cases.map(fused))
def test_cpu_kernel(text: str, case: Case) -> None:
    try:
        on_the_cpu(text, case)
    except Unsuitable:
        assume(False)


@pytest.mark.parametrize("first", range(1, COUNT // 5 + 1, BATCH))
def test_cpu_kernels_of_one_module(first: int) -> None:
    tally = Tally("cpu")
    check_on_cpu(range(first, min(first + BATCH, COUNT // 5 + 1)), tally)
    assert not tally.failures and tally.agreed


def test_recursions_of_some_feed_others() -> None:
    found = [Hoist()(load(program_of(seed))).strata for seed in range(80)]
    assert sum(strata > 1 for strata in found) >= 4


def test_rounding_adds_up_where_vertices_are_alike() -> None:
    """The same tanh of 9 at many vertices: what float32 makes of its slope has one sign everywhere."""
    text = "model M\nstruct A = A(t: [B])\nstruct B = B()\nparam w: [2]\n"
    text += "loss 0.03 * sum(t in all(B)) tanh({} + sum(w))\n"
    case = Case(seed=1, samples=1, vertices=200, shape="chain")
    prepare(text.format(1), case)
    with pytest.raises(Unsuitable, match="gradient w is decided by rounding"):
        prepare(text.format(9), case)


def test_values_beyond_float32_cannot_be_compared() -> None:
    """A softplus written out: float64 takes the logarithm of e^100, float32 has no such number."""
    text = "model M\nstruct A = A()\nparam w: [2]\nloss 0.01 * sum(t in all(A)) log(1 + exp({} + sum(w)))\n"
    prepare(text.format(50), Case(samples=1))
    with pytest.raises(Unsuitable, match="loss is decided by rounding"):
        prepare(text.format(100), Case(samples=1))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"case{case.seed}")
@pytest.mark.parametrize("path", FAILED_ONCE, ids=lambda path: path.stem)
def test_failed_once(path: Path, case: Case) -> None:
    on_the_vm(path.read_text(), case)


@pytest.mark.parametrize("path", [p for p in FAILED_ONCE if "# cpu" in p.read_text()], ids=lambda p: p.stem)
def test_failed_once_on_the_cpu(path: Path) -> None:
    on_the_cpu(path.read_text(), CASES[0])


@pytest.mark.parametrize("name", OF_A_PROGRAM)
def test_failed_in_a_case_of_its_own(name: str) -> None:
    text, case = (HERE / "programs" / f"{name}.dn").read_text(), OF_A_PROGRAM[name]
    on_the_vm(text, case)
    on_the_cpu(text, attrs.evolve(case, target="cpu"))
