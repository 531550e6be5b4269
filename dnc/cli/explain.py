"""dnc explain: what the compiler made of a model, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def explain(
    build: Annotated[Path, typer.Argument(help="The build folder.")],
    target: Annotated[str | None, typer.Option(help="Only this target of the build.")] = None,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Disassemble the schedule of a batch.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="Data whose first batch is shown.")] = None,
    batch: Annotated[int, typer.Option(help="Samples of that batch.", min=1)] = 32,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="Rank the ways in which such batches could run.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write one page that needs no network there.")] = None,
    remarks: Annotated[
        bool, typer.Option("--remarks", help="Say what could not be hoisted, fused, kept on the chip.")
    ] = False,
    memory: Annotated[
        float, typer.Option(help="GiB of the device, for the largest batch that fits.", min=0)
    ] = 80.0,
) -> None:
    """Show what the compiler made of a model, and why."""
    from dnc.api import explain_build

    explained = explain_build(build, target, data=data, memory_bytes=int(min(memory, 2**20) * 2**30))
    if html is None:
        print(explained.text(schedule, batch, remarks, candidates))
        return
    explained.write_page(html)
    print(f"wrote {html}", file=sys.stderr)
