"""Options that several commands share, and how their values are read.

In: texts from the command line. Out: values; DiagnosticError names the option.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dnc.diagnostics import fail

if TYPE_CHECKING:
    from dnc.api import Model

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set a dimension of the model, as hidden=512.", metavar="NAME=SIZE"),
]

Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, cuda:1, cuda:0,1 (together) or vm. [default: the best there is]"),
]


def check_one_origin(checkpoint: Path | None, run_dir: Path | None) -> None:
    """DiagnosticError if two options say whose weights are read."""
    if checkpoint is not None and run_dir is not None:
        raise fail("--checkpoint and --run-dir exclude each other: both name the weights")


def run_option(help: str, metavar: str = "<path>") -> Any:
    """An option that names the folder of a run."""
    return typer.Option(parser=_run_folder, help=help, metavar=metavar)


def _run_folder(text: str) -> Path:
    """An empty text would be the working folder."""
    if not text:
        raise fail("a run folder is named by an empty text, expected a path")
    return Path(text)


def tell_changed(model: Model) -> None:
    """Says so where a build is of a program that was edited since."""
    build = model.build
    if build.source_has_changed():
        print(f"note: {build.source_name} has changed since {build.path} was compiled", file=sys.stderr)


def settings_of(given: list[str] | None) -> dict[str, int]:
    """The dimensions in `--set hidden=512 --set embed=300` (or separated by commas)."""
    found: dict[str, int] = {}
    for item in (piece for text in given or [] for piece in text.split(",")):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not name or not equals or not (value.isascii() and value.isdecimal()):
            raise fail(f"--set: found '{item}', expected a dimension and its size, as hidden=512")
        if len(value) > 18:
            raise fail(f"--set: {name} has {len(value)} digits, expected a size of at most {2**31 - 1}")
        if name in found:
            raise fail(f"--set: {name} is set twice")
        found[name] = int(value)
    return found


def names_of(option: str, given: list[str] | None) -> tuple[str, ...]:
    """What stands in an option that may be repeated or separated by commas; none of it is empty."""
    found = [(piece.strip(), text) for text in given or [] for piece in text.split(",")]
    for piece, text in found:
        if not piece:
            raise fail(f"{option}: found '{text}', which has an empty entry")
    return tuple(piece for piece, _ in found)
