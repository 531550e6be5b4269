"""dnc import-weights and dnc export-weights: weights from and to files of other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dnc.cli.options import run_option
from dnc.diagnostics import fail

Map = Annotated[
    Path | None,
    typer.Option("--map", help="What parameters are made of, TOML. [default: tensors have their names]"),
]


def import_weights(
    weights: Annotated[Path, typer.Argument(help="The weights, safetensors.")],
    map: Map = None,
    build: Annotated[Path, typer.Option(help="The build folder.")] = Path("build"),
    vocabulary: Annotated[
        list[str] | None,
        typer.Option(
            help="Words by row, a line each or JSON; or how many numbers; or a vocabulary.json alone.",
            metavar="DIMENSION=FILE",
        ),
    ] = None,
    unknown: Annotated[str, typer.Option(help="The word that stands for all others.")] = "<unk>",
    seed: Annotated[int, typer.Option(help="Of parameters that the map keeps.", min=0)] = 1,
    run_dir: Annotated[Path | None, run_option("The run folder to write. [default: runs/...]")] = None,
) -> None:
    """Make a run of weights from elsewhere."""
    from dnc.weights import import_weights

    given, saved = _vocabularies(vocabulary)
    made = import_weights(
        build, weights, map, vocabularies=given, unknown=unknown, saved=saved, seed=seed, run_dir=run_dir
    )
    print(made.gathered, file=sys.stderr)
    for kept in made.sparse:
        print(kept, file=sys.stderr)
    for name in made.closed:
        found = f"'{unknown}' is not among the words of '{name}'"
        print(f"{found}: data with other words will be refused (--unknown WORD)", file=sys.stderr)
    for name in made.numbers:
        found = f"'{name}' has no words"
        print(f"{found}: data with words will be refused (--vocabulary {name}=words.txt)", file=sys.stderr)
    print(f"wrote {made.folder}", file=sys.stderr)


def export_weights(
    run: Annotated[Path, typer.Argument(help="A run folder or a checkpoint.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The safetensors file to write.")],
    map: Map = None,
) -> None:
    """Write weights under other names."""
    from dnc.weights import checkpoint_of, export_weights

    checkpoint = checkpoint_of(run)
    for name, shape in export_weights(checkpoint, out, map).items():
        print(f"{name} [{', '.join(str(size) for size in shape)}]", file=sys.stderr)
    print(f"wrote {out}, the weights of {checkpoint}", file=sys.stderr)


def _vocabularies(given: list[str] | None) -> tuple[dict[str, str | Path | int], Path | None]:
    """The files and sizes in `--vocabulary vocab=words.txt`, and the file that stands alone."""
    found: dict[str, str | Path | int] = {}
    saved: Path | None = None
    for item in given or []:
        name, equals, value = item.partition("=")
        if not equals:
            if saved is not None:
                raise fail(
                    f"--vocabulary: found '{saved}' and '{item}', expected one file without a dimension"
                )
            saved = Path(item)
            continue
        if not name or not value:
            raise fail(f"--vocabulary: found '{item}', expected a dimension and a file, as vocab=words.txt")
        if name in found:
            raise fail(f"--vocabulary: {name} is named twice")
        number = value.isascii() and value.isdecimal()
        if number and len(value) > 18:
            raise fail(f"--vocabulary: {name} has {len(value)} digits, expected at most {2**31 - 1}")
        found[name] = int(value) if number else value
    return found, saved
