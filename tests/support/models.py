"""Small models and what it takes to run them on the reference VM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path

import pytest

import dnc
import dnc.kernel_cache
from dnc.compiler import PlanOptions, compile_model, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir.plan import Plan
from dnc.ir.program import Program
from dnc.runtime.backend import VMBackend
from dnc.runtime.initialize import initialize
from dnc.runtime.session import Session

EXAMPLES = Path(__file__).parents[2] / "examples"
SUPPORT = Path(__file__).parent
VOCABULARY = 11

# Settings that make an example small enough for the reference VM.
SMALL = {
    "treelstm": {"vocab": VOCABULARY, "embed": 4, "hidden": 4},
    "bilstm_tagger": {"vocab": VOCABULARY, "embed": 4, "hidden": 4, "tags": 3},
    "dag": {"width": 3, "hidden": 4},
    "childsum": {"vocab": VOCABULARY, "embed": 4, "hidden": 4},
}


@contextmanager
def without_kernels(cache: Path) -> Iterator[None]:
    """Builds made in the block have no kernels: the reference VM needs none. cache: where no others look."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
        patch.setenv("DNC_CACHE_DIR", str(cache))
        yield


def kernels_for(device: str, cache: Path) -> AbstractContextManager[None]:
    """The same where builds are for the reference VM."""
    return without_kernels(cache) if device == "vm" else nullcontext()


def opened(folder: Path, text: str, device: str = "cpu", mode: str = "train") -> dnc.Model:
    """A program, compiled into `folder / "b"`; kernels are made for a CPU alone."""
    (folder / "m.dn").write_text(text)
    with kernels_for(device, folder / "cache"):
        compile_model(folder / "m.dn", folder / "b", ("cpu",), {}, PlanOptions(mode=mode))
    return dnc.load(folder / "b", device, seed=4)


@cache
def small_program(name: str) -> Program:
    """An example with small dimensions, transformed."""
    path = EXAMPLES / f"{name}.dn"
    program, _ = load_program(Source(str(path), path.read_text()), SMALL[name])
    return transform(program)


@cache
def small_plan(name: str, target: str = "cpu") -> Plan:
    """Its plan."""
    return make_plan(small_program(name), target, PlanOptions())


def rows_of(plan: Plan) -> dict[str, int]:
    """Rows of the tables of a small model."""
    return {p.name: VOCABULARY for p in plan.program.parameters if p.kind == "table"}


def small_session(
    name: str, replicas: int = 1, workers: int = 1, memory: int | None = None, encoders: int = 0
) -> Session:
    """A session of a small model on the reference VM, with first values of seed 1."""
    plan = small_plan(name)
    values = initialize(plan.program, rows_of(plan), 1)
    backend = VMBackend(plan, replicas, workers)
    return Session(plan, backend, rows_of(plan), values, memory, encoders=encoders)
