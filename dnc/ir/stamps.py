"""The layout of a traced launch's times: what a traced kernel writes and the runtime reads.

A traced launch has a *run* of int64 words for every worker. It begins with two anchors, taken at the
launch's beginning and end: the time of the clock that all workers share, in nanoseconds, and that of the
worker's own clock at the same moment. Stamps of the own clock follow: stamp 2i when the worker is done
with everything before instruction i, stamp 2i + 1 when it has decoded it, and one behind the last.
So instruction i lasts from stamp 2i + 1 to stamp 2i + 2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Words in front of the stamps: (shared clock, own clock) at the beginning and at the end.
FIRST_ANCHOR, LAST_ANCHOR, ANCHOR_WORDS = 0, 2, 4

Times = NDArray[np.int64]


def stamps_of(instructions: int) -> int:
    """Stamps that a worker makes for a queue of so many instructions."""
    return 2 * instructions + 1


def run_words(instructions: int) -> int:
    """Words of a worker's run."""
    return ANCHOR_WORDS + stamps_of(instructions)


def nanoseconds(run: Times, instructions: int) -> Times:
    """The stamps of a queue on the shared clock, from the anchors' line; whole ns.

    Beside the stamps, the beginning and the end: [begin, stamp 0, ..., stamp 2n, end]. Only differences
    are ever floats: a clock that counts from 1970 has more digits than those hold.
    """
    first, own_first, last, own_last = (int(word) for word in run[:ANCHOR_WORDS])
    stamps = run[ANCHOR_WORDS : ANCHOR_WORDS + stamps_of(instructions)]
    own = np.concatenate(([own_first], stamps, [own_last])) - own_first
    ratio = (last - first) / max(own_last - own_first, 1)
    return first + np.rint(own * ratio).astype(np.int64)
