"""Keys of random numbers in a schedule that is kept: written anew for the noise of every launch.

In: a schedule and the encoder that made it. Out: where its keys stand, and whose they are. Guaranteed: the
words that the encoder would have written for that noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.noise import vertex_keys
from dnc.ir.plan import NoiseList
from dnc.runtime.prepared import Indices
from dnc.runtime.schedule import Schedule, list_words

if TYPE_CHECKING:
    from dnc.runtime.encoder import Encoder


@attrs.frozen(eq=False)
class Keys:
    """Those of a space: at: their first word. vertices: of every row. draws: as `NoiseInput` has it."""

    at: int
    vertices: Indices
    draws: bool

    def fill(self, words: NDArray[np.int32], noise: int) -> None:
        """Writes them into the schedule's words."""
        found = vertex_keys(np.array([noise]), self.vertices, self.draws)
        words[self.at : self.at + len(found)] = found


def keys_of(data: Encoder, schedule: Schedule) -> tuple[Keys, ...]:
    """All of a schedule."""
    return tuple(
        Keys(
            list_words(schedule.words, data.layout, item.name),
            data.prepared.spaces[item.space].vertex[schedule.positions[item.space]],
            item.draws,
        )
        for item in data.modes.mode(schedule.mode).lists
        if isinstance(item, NoiseList)
    )
