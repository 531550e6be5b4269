"""dnc explain: what the compiler made of a model, and why."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from dnc.cli.pipes import put
from dnc.diagnostics import fail

BATCH = 32


def explain(
    build: Annotated[Path, typer.Argument(help="The build folder.")],
    target: Annotated[str | None, typer.Option(help="Only this target of the build.")] = None,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Disassemble the schedule of a batch.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="Data whose first batch is shown.")] = None,
    batch: Annotated[
        int | None, typer.Option(help=f"Samples of that batch. [default: {BATCH}]", min=1)
    ] = None,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="Rank the ways in which such batches could run.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write one page that needs no network there.")] = None,
    remarks: Annotated[
        bool, typer.Option("--remarks", help="Say what could not be hoisted, fused, kept on the chip.")
    ] = False,
    memory: Annotated[
        float | None,
        typer.Option(
            help="GiB of the device, for the largest batch that fits. [default: 80; of a CPU this machine's]",
            min=0,
        ),
    ] = None,
) -> None:
    """Show what the compiler made of a model, and why."""
    from dnc import api

    if batch is not None and not (schedule or candidates):
        raise fail("--batch goes with --schedule and --candidates")
    if batch is not None and data is None:
        raise fail("--batch goes with --data: without data there is one made-up sample")
    if html is not None:
        for option, given in (("--schedule", schedule), ("--candidates", candidates)):
            if given:
                raise fail(f"{option} and --html exclude each other: the page has neither of the two")
        api.check_result(html, data)
    if memory is not None and math.isinf(memory):
        raise fail("--memory: found inf, expected GiB")
    room = None if memory is None else int(min(memory, 2**20) * 2**30)
    explained = api.explain_build(build, target, data=data, memory_bytes=room)
    if html is None:
        put(explained.text(schedule, BATCH if batch is None else batch, remarks, candidates) + "\n")
        return
    api.check_result(html, data, explained.build.source_name)
    explained.write_page(html)
    print(f"wrote {html}", file=sys.stderr)
