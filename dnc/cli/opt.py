"""dnc opt: runs passes on textual IR."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dnc.cli.options import Settings, names_of, settings_of
from dnc.cli.pipes import PIPE, piped, put
from dnc.diagnostics import fail


def opt(
    file: Annotated[str, typer.Argument(help="IR, or a .dn file; - for a pipe of IR.")],
    passes: Annotated[
        str, typer.Option("-p", "--passes", help="By commas, as 'canonicalize,hoist{split=false}'.")
    ] = "",
    print_after: Annotated[
        list[str] | None, typer.Option(help="Print the IR behind these passes, or all, on standard error.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the result there.")] = None,
    target: Annotated[
        str, typer.Option(help="Of the passes behind fuse: cpu, cuda, cuda:sm_80, ...")
    ] = "cpu",
    settings: Settings = None,
    remarks: Annotated[bool, typer.Option("--remarks", help="Say what could not be done, and why.")] = False,
) -> None:
    """Run passes on IR, and print what they make of it."""
    from dnc import api

    wanted = names_of("--print-after", print_after)
    if out is not None:
        api.check_result(out, file)
    result = api.run_passes(
        "<stdin>" if file == PIPE else Path(file),
        passes,
        text=piped() if file == PIPE else None,
        settings=settings_of(settings),
        target=api.machine_of(target),
    )
    ran = [name for name, _ in result.after]
    for name in wanted:
        if name not in (*ran, "all"):
            raise fail(
                f"--print-after: '{name}' is not among the passes that ran: {', '.join(ran) or 'none'}"
            )
    for remark in result.remarks if remarks else ():
        print(remark.diagnostic(), file=sys.stderr)
    for name, text in result.after:
        if name in wanted or "all" in wanted:
            print(f"# after {name}\n{text}", file=sys.stderr)
    if out is None:
        put(result.text)
    else:
        api.write_text(out, result.text)
        print(f"wrote {out}", file=sys.stderr)
