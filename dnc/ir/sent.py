"""What levels hand each other beside, or in place of, a barrier: parts of a plan.

In: nothing. Out: `Pushed`, into the shared memory of others, and `Polled`, looked at until it is there.
"""

from __future__ import annotations

import attrs

from dnc.ir.cell import Value


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
    """States that say by themselves that they have come: `width` units from `offset` on in the records of
    `buffer`, which a segment of a level writes and the next levels read as operands. Until they are written
    they are `NOT_YET`, which no state is."""

    segment: str
    buffer: str
    offset: int
    width: int


# The bits of minus zero: a float that is no state, as zeros are written without a sign.
NOT_YET = 0x80000000
