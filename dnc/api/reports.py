"""Reports without a device: `check_data` on a program and its data, `explain_build` on a build.

In: paths. Out: text or a page for people. Guaranteed: nothing is compiled or opened on a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
import msgspec

from dnc.api.open_sizes import with_sizes
from dnc.api.ranking import candidate_lines, tuned_lines
from dnc.compiler import build_plan, read_program, stored_options, transform
from dnc.diagnostics import Diagnostic, DiagnosticError, fail
from dnc.explain.facts import PlanFacts, gather
from dnc.explain.html import as_page
from dnc.explain.memory import MemoryFacts, memory_facts
from dnc.explain.text import as_text, explain_schedule
from dnc.ir.machine import machine, machine_of, target_name
from dnc.ir.plan import Plan
from dnc.runtime.atomic import write_text
from dnc.runtime.build import Build, read_build
from dnc.runtime.cores import machine_memory
from dnc.runtime.data import Dataset, describe, examples, read, read_samples, summarize, table_rows
from dnc.runtime.run_folder import check_result

GPU_MEMORY = 80 * 2**30


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
    """Checks a program, its gradients, and data for it; DiagnosticError holds every mistake, and of sizes
    that the program leaves open those that the data ask for."""
    try:
        _, checked, warnings = read_program(program, settings or {})
    except DiagnosticError as error:
        if data is None:
            raise
        raise with_sizes(error, program, data, settings or {}, labels_required) from None
    transform(checked)
    summary = None
    if data is not None:
        summary = summarize(read(data, checked, labels_required=labels_required))
    return DataCheck(checked.name, warnings, describe(checked), summary)


@attrs.frozen
class Explained:
    """A build's targets by name: plan, facts, memory, and the samples that the memory is about."""

    build: Build
    targets: tuple[tuple[str, Plan, PlanFacts, MemoryFacts, Dataset], ...]

    def text(
        self, schedule: bool = False, batch: int = 32, remarks: bool = False, candidates: bool = False
    ) -> str:
        """For a terminal. schedule: with the instructions of the first `batch` samples. candidates: with
        those that are predicted to be the fastest for such batches.
        """
        build = self.build
        settings = ", ".join(f"{name} = {size}" for name, size in build.settings.items()) or "none"
        parts = [f"model {build.model} of {build.source_name}, settings: {settings}"]
        for name, plan, facts, memory, data in self.targets:
            parts.append(as_text(facts, memory))
            if build.targets[name].tuned:
                parts.append("\n".join(tuned_lines(build.targets[name].tuned)))
            if candidates:
                options = stored_options(build, build.targets[name])
                parts.append("\n".join(candidate_lines(plan, options, data, batch)))
            if remarks:
                own = [remark for remark in build.remarks if remark.target in ("", name)]
                parts.append("\n".join(str(remark.diagnostic()) for remark in own) or "no remarks")
            if schedule:
                rows = table_rows(plan.program, data.vocabularies)
                parts.append(explain_schedule(plan, data.forest, rows, batch))
        return "\n\n".join(parts)

    def page(self) -> str:
        """One self-contained HTML page."""
        build = self.build
        targets = [(name, facts, memory) for name, _, facts, memory, _ in self.targets]
        remarks = [remark for remark in build.remarks if remark.target in ("", *(t[0] for t in targets))]
        return as_page(build.model, build.source_name, build.source, build.settings, targets, remarks)

    def write_page(self, path: str | Path) -> None:
        """Writes the page; DiagnosticError if that is not possible."""
        check_result(path)
        write_text(path, self.page())


def explain_build(
    build: str | Path,
    target: str | None = None,
    *,
    data: str | Path | None = None,
    memory_bytes: int | None = None,
) -> Explained:
    """What the compiler made of a build; DiagnosticError where its kernels are damaged.

    data: what activations are measured on; a made-up sample without. memory_bytes: of the device for
    which the largest batch is worked out; None for 80 GiB of a GPU, and all that this machine has for a CPU.
    """
    opened = read_build(build)
    names = tuple(opened.targets) if target is None else (target_name(machine_of(target)),)
    if not set(names) <= set(opened.targets):
        raise fail(f"{build}: has no target {names[0]}, only {', '.join(opened.targets)}")
    found = []
    for name in names:
        opened.kernels(name)  # what is explained is what would run
        plan = build_plan(opened, name)
        if data is None:
            example = msgspec.json.decode(examples(plan.program)[1])
            given, what = read_samples([example], plan.program), "a made-up sample"
        else:
            given, what = read(data, plan.program), f"samples as in {data}"
        rows = table_rows(plan.program, given.vocabularies)
        usual = GPU_MEMORY if machine(plan.target).is_gpu else machine_memory()
        room = usual if memory_bytes is None else memory_bytes
        found.append((name, plan, gather(plan), memory_facts(plan, given.forest, rows, room, what), given))
    return Explained(opened, tuple(found))
