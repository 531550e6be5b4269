"""Pages with generated blocks: between `<!-- generated: NAME -->` and `<!-- end -->` stands what code says.

In: a page and a text for every block by name. Out: the page with its blocks made again, or a word on
whether they are stale. Guaranteed: a block that is missing or unknown is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Stale(Exception):
    """The page, or what describes the code, does not fit the code."""


def with_blocks(name: str, page: str, made: Mapping[str, str]) -> str:
    """The page called `name` with its blocks made again; Stale if a block is missing or unknown."""
    found = [match[2] for match in BLOCK.finditer(page)]
    if sorted(found) != sorted(made):
        raise Stale(f"{name} has the blocks {sorted(found)}, expected {sorted(made)}")
    return BLOCK.sub(lambda match: match[1] + made[match[2]] + match[3], page)


def rewrite(path: Path, render: Callable[[str], str], arguments: Sequence[str]) -> int:
    """Rewrites the page, or with --check only looks at it; the exit code."""
    page = path.read_text(encoding="utf-8")
    made = render(page)
    if "--check" in arguments:
        return int(made != page)
    path.write_text(made, encoding="utf-8")
    return 0
