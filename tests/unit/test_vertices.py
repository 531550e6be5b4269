"""Which rows of VERTEX segments a warp of a GPU takes several of at a time."""

from __future__ import annotations

import pytest

from dnc.codegen.bodies.cuda_vertices import LITTLE_WORK, goes_abreast
from dnc.ir.plan import VERTEX
from tests.support.plans import plan_of


@pytest.mark.parametrize(
    "example, settings, goes",
    [
        ("treelstm", {}, True),
        ("treelstm", {"classes": LITTLE_WORK}, False),  # a row is too much work
        ("attention", {}, False),  # how long it takes depends on the row
    ],
)
def test_short_rows_go_abreast(example: str, settings: dict[str, int], goes: bool) -> None:
    plan = plan_of(example, settings)
    found = [goes_abreast(segment) for segment in plan.segments if segment.mapping == VERTEX]
    assert found and (all(found) if goes else not all(found))
