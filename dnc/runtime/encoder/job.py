"""A job: batches that run one after another in one mode, and all that their encoding depends on.

In: a session's state when the batches come up. Out: an encoder's schedules. Guaranteed: a job can be
encoded anywhere, at any time before its launches, with the same words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.forest import Ints
from dnc.ir.optimizers import Update
from dnc.runtime.encoder.tail import WHOLE, Part
from dnc.runtime.phases import TRAIN
from dnc.runtime.pool import StaticPool
from dnc.runtime.schedules import Schedules
from dnc.runtime.sharing import Sharing

if TYPE_CHECKING:
    from dnc.runtime.encoder import Encoder


@attrs.frozen(eq=False)
class Job:
    """Batches [batches, samples], in which no sample occurs twice.

    grid: replicas, workers of each. updates (in training), noises: one a batch. pool: where everything
    lies; buffer: which of its two places for schedules. pool_words: how many words there are, None if that
    is seen later. shares: whether the batches share vectors, results and gradients with another net. lanes:
    how many of the batches run beside each other. place: in training, the steps and the updates before the
    first one, and the optimizer. devices: those that share the batches; then the grid is that of each. part:
    of a batch that does not fit, which is the only one then.
    """

    batches: Ints
    grid: tuple[int, int]
    updates: list[Update]
    noises: NDArray[np.uint32]
    pool: StaticPool
    buffer: int
    pool_words: int | None
    mode: str = TRAIN
    shares: bool = False
    lanes: int = 1
    place: tuple[int, int, str] | None = None
    devices: int = 1
    part: Part = WHOLE

    def moved(self, pool: StaticPool, buffer: int, pool_words: int | None) -> Job:
        """The same job for another place; itself, if that is where it is."""
        if pool is self.pool and buffer == self.buffer and pool_words == self.pool_words:
            return self
        return attrs.evolve(self, pool=pool, buffer=buffer, pool_words=pool_words)

    def encode(self, encoder: Encoder, sharing: Sharing | None = None) -> Schedules:
        """The schedules; DoesNotFit if the batches do not fit into the pool.

        sharing: what the data set shares, for a job that `shares`.
        """
        encoder.pool = self.pool
        replicas, workers = self.grid
        guest = sharing.guest_of(self.batches[0], self.mode) if self.shares and sharing else None
        return encoder.encode_group(
            self.batches,
            mode=self.mode,
            replicas=replicas,
            workers=workers,
            updates=self.updates,
            part=self.part,
            buffer=self.buffer,
            pool_words=self.pool_words,
            noises=self.noises,
            guest=guest,
            lanes=self.lanes,
            devices=self.devices,
        )
