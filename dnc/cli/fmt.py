"""dnc fmt: programs in one form."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dnc.cli.pipes import PIPE, piped, put
from dnc.diagnostics import DiagnosticError, fail

if TYPE_CHECKING:
    from dnc.editing import Formatted


def fmt(
    paths: Annotated[list[str], typer.Argument(help="Files, folders of .dn files, or - for a pipe.")],
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if something would change.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Write nothing; print what would change.")] = False,
) -> int:
    """Format programs in place."""
    from dnc.editing import format_paths

    if PIPE in paths:
        if len(paths) > 1:
            raise fail("found '-' and other paths, expected '-' alone: it stands for standard input")
        return _tell([_format_pipe(quiet=check or diff)], check, diff, False)
    results, errors = format_paths(paths, write=not (check or diff))
    code = _tell(results, check, diff, True)
    if errors:
        raise DiagnosticError(*errors)
    return code


def _format_pipe(quiet: bool) -> Formatted:
    """Formats standard input; the text goes to standard output, unless quiet."""
    from dnc.editing import format_text

    result = format_text(piped(), "<stdin>")
    if not quiet:
        put(result.after)
    return result


def _tell(results: list[Formatted] | tuple[Formatted, ...], check: bool, diff: bool, files: bool) -> int:
    """Says what became of the files; the exit code."""
    changed = [result for result in results if result.changed]
    if diff:
        for result in changed:
            put(result.diff())
    elif files or check:
        for result in changed:
            print(f"{'would format' if check else 'formatted'} {result.name}", file=sys.stderr)
    return 1 if check and changed else 0
