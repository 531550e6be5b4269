"""What a command is doing, on a terminal, while that takes long.

In: texts, one after another. Out: the last one, on standard error, where that is a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def under_way(shown: bool = True) -> Iterator[Callable[[str], None]]:
    """What is told of is shown meanwhile. Nothing may be printed then: rich shows it there, too, wherever
    standard output goes."""
    if shown:
        from rich.console import Console

        console = Console(stderr=True)
        if console.is_terminal:
            with console.status("") as status:
                yield status.update
            return
    yield lambda text: None
