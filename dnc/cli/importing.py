"""dnc import: data in another format become JSONL."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dnc.cli.options import names_of
from dnc.cli.pipes import PIPE, STDIN, STDOUT
from dnc.diagnostics import fail
from dnc.runtime.atomic import is_open


def import_command(
    format: Annotated[
        str,
        typer.Argument(
            help="ptb-trees, conllu-trees, conllu-words, sick, tagged, conll, text or csv"
            " (docs/data.md has each)."
        ),
    ],
    source: Annotated[str, typer.Argument(help="The file to read; for sick a folder; - is standard input.")],
    out: Annotated[
        str,
        typer.Option("-o", "--out", help="The JSONL file to write; - is standard output.", metavar="<path>"),
    ],
    fields: Annotated[
        list[str] | None,
        typer.Option(help="What fields are called, as tag=label; tag= leaves it out.", metavar="NAME=NEW"),
    ] = None,
    structure: Annotated[
        str | None, typer.Option(help="Of words: sequence, pyramid, balanced, random or grid.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of random trees. [default: 1]")] = None,
    rare: Annotated[int | None, typer.Option(help="Words seen fewer times are given as characters.")] = None,
    counted_in: Annotated[
        Path | None, typer.Option(help="Where words are counted for --rare. [default: the file itself]")
    ] = None,
    longest: Annotated[int | None, typer.Option(help="Leave out sentences of more words.")] = None,
    layers: Annotated[int | None, typer.Option(help="grid: layers over the words.")] = None,
    skip: Annotated[
        int | None, typer.Option(help="grid: layers that a residual skips; 0: none. [default: 0]")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="text, csv: spaces, words or characters. [default: spaces]")
    ] = None,
    length: Annotated[int | None, typer.Option(help="text: pieces of so many tokens.")] = None,
    marks: Annotated[
        bool, typer.Option("--marks/--no-marks", help="text: <s> and </s> around a sentence.")
    ] = True,
    columns: Annotated[
        str | None,
        typer.Option(
            help="csv: those of the text and the label. [default: text,label] conll: numbers of those of the"
            " word and the tag. [default: the first and the last]"
        ),
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="csv: between cells, or tab. [default: ,]")] = None,
    quotes: Annotated[
        bool,
        typer.Option("--quotes/--no-quotes", help="csv: cells in quotes may hold delimiters, line ends."),
    ] = True,
    comments: Annotated[
        str | None, typer.Option(help="conll: what rows begin with that are left out, as '#'.")
    ] = None,
    unlabelled: Annotated[
        str | None,
        typer.Option(help="conllu, tagged, conll, csv: the label, as _, of what has none: none is written."),
    ] = None,
    numeric: Annotated[bool, typer.Option("--numeric", help="csv: the label is a number.")] = False,
    separator: Annotated[
        str | None, typer.Option(help="tagged: between a word and its tag. [default: |]")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="sick: scores are 1 to this. [default: 5]")] = None,
) -> None:
    """Convert data in another format to JSONL."""
    from dnc.api import import_file

    given = {
        "structure": structure,
        "seed": seed,
        "rare": rare,
        "counted_in": counted_in,
        "longest": longest,
        "layers": layers,
        "skip": skip,
        "tokens": tokens,
        "length": length,
        "marks": None if marks else False,
        "columns": None if columns is None else tuple(name.strip() for name in columns.split(",")),
        "delimiter": delimiter,
        "quotes": None if quotes else False,
        "comments": comments,
        "unlabelled": unlabelled,
        "numeric": numeric or None,
        "separator": separator,
        "classes": classes,
    }
    options = {name: value for name, value in given.items() if value is not None}
    read, written = Path(STDIN if source == PIPE else source), Path(STDOUT if out == PIPE else out)
    report = import_file(format, read, written, fields=_renames(fields), **options)
    print(report, file=sys.stderr if is_open(written) else sys.stdout)  # what it is about stays alone
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)


def _renames(given: list[str] | None) -> dict[str, str]:
    """The names in `--fields tag=label,word=form`."""
    found: dict[str, str] = {}
    for item in names_of("--fields", given):
        name, equals, new = (part.strip() for part in item.partition("="))
        if not name or not equals:
            raise fail(f"--fields: found '{item}', expected a field and its new name, as tag=label")
        if name in found:
            raise fail(f"--fields: {name} is named twice")
        found[name] = new
    return found
