"""Plans of example programs."""

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
    chosen = PlanOptions(**options)
    source = Source(f"{example}.dn", (EXAMPLES / f"{example}.dn").read_text(encoding="utf-8"))
    return make_plan(transform(load_program(source, dict(settings or {}))[0], chosen), target, chosen)
