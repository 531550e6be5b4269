"""dnc check: is a program right, what do its data look like, do these data fit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dnc.cli.options import Settings, settings_of
from dnc.cli.pipes import put
from dnc.diagnostics import DiagnosticError


def check(
    program: Annotated[Path, typer.Argument(help="The model, a .dn file.")],
    data: Annotated[Path | None, typer.Option(help="Data to check, JSONL.")] = None,
    settings: Settings = None,
    labels: Annotated[
        bool, typer.Option("--labels/--no-labels", help="Whether every label has to be there.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what is wrong as JSON (docs/editing.md has its form).")
    ] = False,
) -> int:
    """Check a program, and data for it."""
    from dnc.api import check_data

    if as_json:
        return _as_json(program, data, settings, labels)
    result = check_data(program, data, settings_of(settings), labels_required=labels)
    for warning in result.warnings:
        print(warning, file=sys.stderr)
    print(f"{program}: model {result.model} is right")
    print(result.description)
    if result.summary is not None:
        print(result.summary)
    return 0


def _as_json(program: Path, data: Path | None, settings: list[str] | None, labels: bool) -> int:
    """Prints the result as one line; the exit code is that of a check without it."""
    from dnc.api import check_data
    from dnc.editing import check_result

    try:
        found = check_data(program, data, settings_of(settings), labels_required=labels)
        result = check_result(str(program), found.model, found.warnings)
    except DiagnosticError as error:
        result = check_result(str(program), None, error.diagnostics)
    put(f"{result.json()}\n")
    return 0 if result.ok else 2
