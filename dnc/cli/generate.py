"""dnc generate: lists that a program goes on with from its own words, for every sample of a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dnc.cli.options import Device, check_one_origin, run_option, tell_changed
from dnc.cli.pipes import PIPE, STDIN, put
from dnc.diagnostics import counted


def generate(
    build: Annotated[Path, typer.Argument(help="The build folder; best one of --mode infer.")],
    data: Annotated[
        str,
        typer.Option(
            help="Samples without the list that is made, JSONL; - is standard input.", metavar="<path>"
        ),
    ],
    end: Annotated[str, typer.Option(help="The word that ends a list, or its number.")],
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="A line of JSON a sample; - is standard output.", metavar="<path>"),
    ] = PIPE,
    output: Annotated[
        str | None, typer.Option(help="The output that is the next word. [default: the only one]")
    ] = None,
    field: Annotated[
        str | None,
        typer.Option("--list", help="The list that is made. [default: the only one that can be]"),
    ] = None,
    most: Annotated[int, typer.Option(help="Words of a list.", min=1)] = 200,
    chunk: Annotated[
        int | None, typer.Option(help="Words of a launch. [default: all of them]", min=1)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="What 'sample' draws by. [default: the largest is chosen]", min=0)
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Weights and vocabulary.")] = None,
    run_dir: Annotated[
        Path | None, run_option("The run whose weights are meant. [default: the newest]")
    ] = None,
    device: Device = None,
) -> None:
    """Make lists word by word, in one launch."""
    from dnc import api

    check_one_origin(checkpoint, run_dir)
    weights = api.find_checkpoint(build, run_dir) if checkpoint is None else checkpoint
    if out != PIPE:
        api.check_result(out, data, weights)
    model = api.load(build, device, checkpoint=weights)
    tell_changed(model)
    source = STDIN if data == PIPE else data
    lines = api.generate_lines(model, source, end, output, most=most, chunk=chunk, field=field, seed=seed)
    if out == PIPE:
        put(b"".join(lines).decode())
    else:
        print(f"wrote {out}: {counted(api.write_lines(out, lines), 'line')}", file=sys.stderr)
