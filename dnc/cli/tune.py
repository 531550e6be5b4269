"""dnc tune: the best candidates of the cost model, timed on the user's data; the fastest stays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnc.cli.under_way import under_way
from dnc.diagnostics import fail

if TYPE_CHECKING:
    from dnc.api.tuning import Tuning

BEST, ROUNDS = 5, 5
COLUMNS = ("rank", "replicas", "workers", "cluster", "tile", "registers", "predicted us", "measured us")


def tune(
    build: Annotated[Path, typer.Argument(help="The build folder, which gets the fastest kernel.")],
    data: Annotated[Path | None, typer.Option(help="Samples like those that it will run on, JSONL.")] = None,
    batch: Annotated[int, typer.Option(help="Samples of a batch.", min=1)] = 32,
    best: Annotated[
        int | None, typer.Option(help=f"How many candidates are timed. [default: {BEST}]", min=1)
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [default: the best there is]")] = None,
    emit: Annotated[
        int | None,
        typer.Option(help="Put the kernels of so many candidates into the build, and time none.", min=1),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help=f"How often every batch is run. [default: {ROUNDS}]", min=1)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Leave the build as it is.")] = False,
) -> None:
    """Time candidates on your data, keep the fastest."""
    from dnc.api import tuning

    if data is None and emit is None:
        raise fail("expected --data, with samples like those that the model will run on, or --emit")
    if emit is not None and dry_run:
        raise fail("--emit and --dry-run exclude each other: the kernels go into the build")
    for option, value in {"--best": best, "--rounds": rounds}.items():
        if emit is not None and value is not None:
            raise fail(f"--emit and {option} exclude each other: nothing is timed")
    with under_way() as tell:
        if emit is not None:
            found = tuning.emit_candidates(build, emit, data=data, batch=batch, device=device, tell=tell)
        else:
            assert data is not None
            found = tuning.tune(
                build,
                data,
                batch=batch,
                best=BEST if best is None else best,
                device=device,
                rounds=ROUNDS if rounds is None else rounds,
                keeps=not dry_run,
                tell=tell,
            )
    show(found, emit is not None)
    if emit is not None:
        held = sum(not each.problem for each in found.entries)
        print(f"{build}: holds {held} of {found.ranked} candidates for {found.target}", file=sys.stderr)
        return
    winner = found.entries[found.chosen]
    kept = "has the fastest now" if found.replaced else "keeps what it had"
    if dry_run and found.replaced:
        kept = "is as it was; the fastest is another one"
    print(f"{build}: {kept}, {winner.measured:,.1f} us a launch", file=sys.stderr)


def show(found: Tuning, emitted: bool) -> None:
    """A table of what was predicted and measured."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    where = "" if emitted else f" on {found.device}"
    print(f"{found.model} for {found.target}{where}: {found.doing}, batches of {found.batch}")
    print(f"{found.ranked} candidates ranked; constants: {found.constants}")
    table = Table(box=box.ASCII2)
    for name in COLUMNS:
        table.add_column(name, justify="right")
    table.add_column("")
    for at, each in enumerate(found.entries):
        way = each.candidate
        notes = [each.problem] if each.problem else []
        notes += ["as it was"] if each.current and not emitted else []
        notes += ["chosen"] if at == found.chosen and not emitted else []
        table.add_row(
            str(each.rank),
            str(way.replicas),
            str(way.workers),
            str(way.cluster) if way.cluster > 1 else "-",
            str(way.tile),
            "split" if way.splits else "-" if way.registers is None else str(way.registers),
            f"{each.predicted:,.1f}",
            "-" if each.measured is None else f"{each.measured:,.1f}",
            Text(", ".join(notes)),
        )
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(table)
