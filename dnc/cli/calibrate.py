"""dnc calibrate: the constants that the planner's predictions are made of, measured on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    builds: Annotated[list[Path], typer.Argument(help="Builds whose kernels are timed.")],
    data: Annotated[Path, typer.Option(help="Samples for all of them, JSONL.")],
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [default: the best there is]")] = None,
    rounds: Annotated[int, typer.Option(help="How often every batch is run.", min=1)] = 5,
) -> None:
    """Measure the constants that the planner predicts with."""
    import attrs
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from dnc.api.calibration import calibrate as run

    def tell(text: str) -> None:
        if sys.stderr.isatty():
            print(text, file=sys.stderr)

    found = run(builds, data, device=device, rounds=rounds, tell=tell)
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
