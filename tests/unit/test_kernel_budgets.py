"""How many registers weights get in a kernel: all, as long as it does not spill, or not much."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import dnc.compiler
from dnc.api import tuning_kernels
from dnc.compiler import PlanOptions, compile_model, compile_target, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.ir.machine import machine
from dnc.ir.plan import REGISTER, STREAMED, PlanTooLarge
from dnc.ir.regions import registers_taken
from dnc.passes.candidates import candidates
from tests.support.plans import plan_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "treelstm.dn"
SETTINGS = {"hidden": 512, "embed": 16, "vocab": 11}


def has_no_room(*_):
    raise PlanTooLarge("57472 bytes of staging; 44720 are there")


def made(monkeypatch, spills, options=PlanOptions(precision="tf32")):
    """The target, and the registers that were tried. spills: by registers for weights the bytes that a kernel
    spills, None where it has no room; what is not there does not spill."""
    tried = []

    def kernels(plan, _):
        taken = registers_taken(plan)
        tried.append(taken)
        if spills.get(taken, 0) is None:
            has_no_room()
        return {"kernel.json": json.dumps({"spill_stores": spills.get(taken, 0)}).encode()}, False

    monkeypatch.setattr(dnc.compiler, "cached_kernels", kernels)
    program, _ = load_program(Source(str(EXAMPLE), EXAMPLE.read_text()), SETTINGS)
    return compile_target(transform(program, options), "sm_90a", options), tried


def recursive(target):
    return next(place for place in target.report.plan.placements if place.parameter == "U")


def test_a_kernel_that_does_not_spill_has_all_registers(monkeypatch):
    target, tried = made(monkeypatch, {})
    kept = recursive(target)
    assert tried == [160] and kept.residency == REGISTER and kept.rest


def test_a_few_bytes_are_spilled_rather_than_weights_streamed(monkeypatch):
    target, tried = made(monkeypatch, {160: 4, 144: None})
    assert tried == [160, 144] and recursive(target).registers == range(160)


def test_the_fewest_bytes_win(monkeypatch):
    target, _ = made(monkeypatch, {160: 40, 144: 12})
    assert recursive(target).registers == range(144)


def test_many_bytes_are_worse_than_weights_that_are_streamed(monkeypatch):
    target, tried = made(monkeypatch, {160: 400, 144: None})
    assert tried[:2] == [160, 144] and recursive(target).residency == STREAMED


def test_a_plan_without_room_is_passed_over(monkeypatch):
    target, tried = made(monkeypatch, {160: None, 144: None})
    assert tried[:2] == [160, 144] and recursive(target).residency == STREAMED


def test_a_candidate_without_room_says_so(monkeypatch):
    monkeypatch.setattr(tuning_kernels, "compile_target", has_no_room)
    monkeypatch.setattr(tuning_kernels, "build_program", lambda build: None)
    plan, chip = plan_of("treelstm", {"hidden": 8, "embed": 8, "vocab": 11}), machine("sm_90a")
    each = SimpleNamespace(plan=plan, candidate=candidates(chip)[0], options=PlanOptions())
    found = tuning_kernels.kernel_for(None, [], each, chip, lambda _: None)
    assert found == "its kernel has no room: 57472 bytes of staging; 44720 are there"


def test_no_plan_has_room(monkeypatch, tmp_path):
    monkeypatch.setattr(dnc.compiler, "cached_kernels", has_no_room)
    with pytest.raises(DiagnosticError, match=r"no kernel has room for this program(.|\n)*57472 bytes"):
        compile_model(EXAMPLE, tmp_path / "build", ["cuda"], SETTINGS)
    assert not (tmp_path / "build").exists()
