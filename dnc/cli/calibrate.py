"""dnc calibrate: the constants that the planner's predictions are made of, measured on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dnc.diagnostics import fail


def calibrate(
    data: Annotated[Path, typer.Option(help="Samples for all of them, JSONL.")],
    builds: Annotated[list[Path] | None, typer.Argument(help="Builds whose kernels are timed.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--builds", help="Also all builds in this folder.", metavar="FOLDER")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [default: the best there is]")] = None,
    rounds: Annotated[int, typer.Option(help="How often every batch is run.", min=1)] = 5,
) -> None:
    """Measure the constants that the planner predicts with."""
    import attrs
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from dnc.api.calibration import builds_in
    from dnc.api.calibration import calibrate as run

    chosen = [*(builds or ()), *(() if folder is None else builds_in(folder))]
    if not chosen:
        raise fail("expected a build, or --builds with a folder of them")

    def tell(text: str) -> None:
        if sys.stderr.isatty():
            print(text, file=sys.stderr)

    found = run(chosen, data, device=device, rounds=rounds, tell=tell)
    measured = found.measured
    print(f"{measured.device} ({measured.machine}), {measured.launches} kinds of launches")
    table = Table(box=box.ASCII2)
    for name in ("ns", "built in", "measured"):
        table.add_column(name, justify="left" if name == "ns" else "right")
    before, now = attrs.asdict(found.before), attrs.asdict(measured.constants)
    for name, value in before.items():
        table.add_row(name, f"{value:,.4g}", f"{now[name]:,.4g}")
    Console(width=None if sys.stdout.isatty() else 100, highlight=False).print(table)
    print(f"median error of a prediction: {found.error_before:.1%} before, {measured.error:.1%} now")
    print(f"wrote {found.path}", file=sys.stderr)
