"""How the rows of a VERTEX segment are dealt out to workers: what others may count on.

In: a segment. Out: whether its rows are dealt out evenly. Guaranteed for two such segments of one space: the
same worker has the same rows of both. Where a row needs much memory, fewer warps of a worker may have one.
"""

from __future__ import annotations

from dnc.ir.plan import VERTEX, BufferAddress, Segment, SlotsAddress, padded
from dnc.ir.types import ListType

SMALL_ROW = 1024  # floats that a row may keep: every warp of a worker has room for so many


def deals_evenly(segment: Segment) -> bool:
    """Whether a worker's rows follow from how many there are alone."""
    kept = [load for load in segment.loads if isinstance(load.address, BufferAddress | SlotsAddress)]
    types = [load.value.type for load in kept] + [op.result.type for op in segment.cell.ops]
    if segment.mapping != VERTEX or any(isinstance(kind, ListType) for kind in types):
        return False
    return sum(padded(kind.size) for kind in types if not isinstance(kind, ListType)) <= SMALL_ROW
