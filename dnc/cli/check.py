"""dnc check: is a program right, what do its data look like, do these data fit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dnc.cli.options import Settings, settings_of


def check(
    program: Annotated[Path, typer.Argument(help="The model, a .dn file.")],
    data: Annotated[Path | None, typer.Option(help="Data to check, JSONL.")] = None,
    settings: Settings = None,
    labels: Annotated[
        bool, typer.Option("--labels/--no-labels", help="Whether every label has to be there.")
    ] = True,
) -> None:
    """Check a program, and data for it."""
    from dnc.api import check_data

    result = check_data(program, data, settings_of(settings), labels_required=labels)
    for warning in result.warnings:
        print(warning, file=sys.stderr)
    print(f"{program}: model {result.model} is right")
    print(result.description)
    if result.summary is not None:
        print(result.summary)
