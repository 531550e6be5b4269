"""Sizes of examples and of their data that no tile divides and that the reference VM can take."""

from __future__ import annotations

import re
from collections.abc import Mapping

from benchmarks.model_data import Sizes, program_of
from tests.support.models import EXAMPLES

SMALL = {
    "vocab": 11, "targets": 13, "chars": 9, "classes": 5, "tags": 4,
    "layers": 3, "embed": 6, "hidden": 5, "half": 3, "char": 4, "mlp": 7, "width": 3,
}  # fmt: skip
SIZES = Sizes(
    words=(1, 6), leaves=(1, 7), pyramid=(1, 5), complete=(0, 3), steps=(1, 7), vertices=(1, 7), grid=(1, 7)
)


def settings(name: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """`sizes` for the dimensions of an example that have a default."""
    head = re.search(
        r"^model \w+\(([^)]*)\)", (EXAMPLES / f"{program_of(name)}.dn").read_text(), re.MULTILINE
    )
    assert head is not None
    return {found: sizes[found] for found in re.findall(r"(\w+) = \d+", head[1])}
