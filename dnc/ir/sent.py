"""What levels hand each other beside, or in place of, a barrier: parts of a plan.

In: nothing. Out: `Pushed`, into the shared memory of others, and `Polled`, looked at until it is there.
"""

from __future__ import annotations

import attrs

from dnc.ir.cell import Value
from dnc.ir.machine import THREADS


@attrs.frozen
class Pushed:
    """What a segment of a level sends to the other workers, too, of every row: the units of `value`, which
    stand from `offset` on in the records of `buffer`; without a value those of the partial sums there."""

    segment: str
    buffer: str
    offset: int
    value: Value | None


@attrs.frozen
class Polled:
    """What says by itself that it has come: `width` units from `offset` on in the records of `buffer`, which
    a segment of a level writes. They are states, which the next levels read as operands, or partial sums, all
    of a record, whose runs the next levels' cells add up. Until they are written they are `NOT_YET`, which
    none of them is."""

    segment: str
    buffer: str
    offset: int
    width: int
    partial: bool = False


# The bits of minus zero: a float that is no state, as zeros are written without a sign.
NOT_YET = 0x80000000

# Runs of partial sums that a worker's threads wait for in a level that polls, and cells: one a thread, in two
# rounds; of more a thread has four at a time, which nobody waits for.
MOST_SUMS, MOST_CELLS = 4096, 2 * THREADS


def most_sums(share: int, workers: int) -> int:
    """Rows of a level that polls partial sums, at most, where each of so many workers has `share` units."""
    return min(MOST_SUMS // workers, MOST_CELLS) // share
