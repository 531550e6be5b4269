"""dnc explain: what the compiler made of a model, and why."""

from __future__ import annotations

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
) -> None:
    """Show what the compiler made of a model, and why."""
    from dnc.api import explain_build

    print(explain_build(build, target, schedule=schedule, data=data, batch=batch))
