"""Reports without a device: `check_data` on a program and its data, `explain_build` on a build.

In: paths. Out: text for people. Guaranteed: nothing is compiled, opened on a device or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
import msgspec

from dnc.compiler import build_plan, machine_of, read_program, target_name
from dnc.diagnostics import Diagnostic, fail
from dnc.explain import explain_plan, explain_schedule
from dnc.runtime.build import read_build
from dnc.runtime.data import describe, examples, read, read_samples, summarize, table_rows


@attrs.frozen
class DataCheck:
    """What `check_data` found: the program is right; summary: of the data, None without any."""

    model: str
    warnings: tuple[Diagnostic, ...]
    description: str
    summary: str | None


def check_data(
    program: str | Path,
    data: str | Path | None = None,
    settings: Mapping[str, int] | None = None,
    *,
    labels_required: bool = True,
) -> DataCheck:
    """Checks a program and data for it; DiagnosticError holds every mistake."""
    _, checked, warnings = read_program(program, settings or {})
    summary = None
    if data is not None:
        summary = summarize(read(data, checked, labels_required=labels_required))
    return DataCheck(checked.name, warnings, describe(checked), summary)


def explain_build(
    build: str | Path,
    target: str | None = None,
    *,
    schedule: bool = False,
    data: str | Path | None = None,
    batch: int = 32,
) -> str:
    """What the compiler made of a build, as text; with `schedule` also a batch's instructions.

    The batch is the first of `data`, else one made-up sample.
    """
    opened = read_build(build)
    names = tuple(opened.targets) if target is None else (target_name(machine_of(target)),)
    if not set(names) <= set(opened.targets):
        raise fail(f"{build}: has no target {names[0]}, only {', '.join(opened.targets)}")
    settings = ", ".join(f"{name} = {size}" for name, size in opened.settings.items()) or "none"
    parts = [f"model {opened.model} of {opened.source_name}, settings: {settings}"]
    for name in names:
        plan = build_plan(opened, name)
        parts.append(explain_plan(plan))
        if schedule:
            example = msgspec.json.decode(examples(plan.program)[1])
            given = read_samples([example], plan.program) if data is None else read(data, plan.program)
            rows = table_rows(plan.program, given.vocabularies)
            parts.append(explain_schedule(plan, given.forest, rows, batch))
    return "\n\n".join(parts)
