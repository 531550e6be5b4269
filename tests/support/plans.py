"""Plans of examples, and of programs that a test writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir.plan import Plan
from tests.support.models import EXAMPLES


def plan_of(
    example: str, settings: Mapping[str, int] | None = None, target: str = "sm_90a", **options: Any
) -> Plan:
    """The plan of `examples/EXAMPLE.dn` at some settings; options: of `PlanOptions`."""
    text = (EXAMPLES / f"{example}.dn").read_text(encoding="utf-8")
    return plan_of_text(text, settings, target, f"{example}.dn", **options)


def plan_of_text(
    text: str,
    settings: Mapping[str, int] | None = None,
    target: str = "sm_90a",
    name: str = "text.dn",
    **options: Any,
) -> Plan:
    """The same of a program; `plan.program` is what it was transformed to. name: that messages say."""
    chosen = PlanOptions(**options)
    program = load_program(Source(name, text), dict(settings or {}))[0]
    return make_plan(transform(program, chosen), target, chosen)
