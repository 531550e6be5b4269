"""dnc import: data in another format become JSONL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_command(
    format: Annotated[str, typer.Argument(help="The format, as ptb-trees.")],
    source: Annotated[Path, typer.Argument(help="The file to read.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The JSONL file to write.")],
) -> None:
    """Convert data in another format to JSONL."""
    from dnc.api import import_file

    print(import_file(format, source, out))
