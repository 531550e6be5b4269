"""Rows of a space in a group of batches: which vertices they are, replica by replica, level by level.

Rows are ordered by (batch, replica, level, sample), so a wavefront of a replica, and everything of
a replica, lie side by side (Cavs's dynamic tensor). Where stages select from stacks, the numbers
they select come before the replica: then the rows of a wavefront that share a parameter lie side by
side, and so do all rows that add to one gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import numpy as np

from dnc.ir.forest import Ints
from dnc.runtime.encoder.assign import Assignment
from dnc.runtime.encoder.words import Numbers, Spread, order_below
from dnc.runtime.prepared import Indices, SpaceRows

# Rows have one level, or one more than a multiple of so many: then few shapes of recursions occur.
LEVELS = 8


@attrs.define(eq=False)
class Rows:
    """A space in a group of batches.

    positions: of every row its row in the prepared data. counts, starts: [batches, keys, replicas,
    levels], how many rows a wavefront has and the first one's number in its batch. There is one key
    for every combination of the numbers that rows select from stacks, the last one fastest; `sizes`
    says how many there are of each. all: where rows stand for others, too, the positions of all, and of
    each the row that stands for it, counted over all batches. posts: so many keys are rows of levels that
    replicas post (`early.py`), the last key those of others.
    """

    positions: Indices
    spread: Spread
    counts: Numbers
    starts: Numbers
    sizes: tuple[int, ...] = ()
    all: tuple[Indices, Indices] | None = None
    posts: int = 0

    @property
    def stand_alone(self) -> bool:
        """Whether every row is that of one vertex."""
        return self.all is None

    @property
    def members(self) -> tuple[Indices, Indices | slice]:
        """The positions of all vertices, and which rows are theirs."""
        return (self.positions, slice(None)) if self.all is None else self.all

    @property
    def by_level(self) -> Numbers:
        """How many rows every level has, whatever they select, [batches, replicas, levels]."""
        return self.counts[:, 0] if self.counts.shape[1] == 1 else self.counts.sum(axis=1)

    @property
    def by_replica(self) -> Numbers:
        """The same of all levels, [batches, replicas]."""
        found = self.by_level
        return found[:, :, 0] if found.shape[2] == 1 else found.sum(axis=2)

    def by_owner(self, leveled: bool) -> tuple[Numbers, Numbers, tuple[int, int]]:
        """Counts and starts of the wavefronts, [batches * replicas, keys * levels], and (keys, levels).

        leveled: False for one wavefront of all levels.
        """
        counts, starts = self.counts, self.starts
        if leveled and self.posts:  # a level is behind one post, or behind none
            starts = (starts * (counts > 0)).sum(axis=1, keepdims=True)
            counts = counts.sum(axis=1, keepdims=True)
        if not leveled and counts.shape[3] > 1:
            counts, starts = counts.sum(axis=3, keepdims=True), starts[..., :1]
        batches, keys, replicas, levels = counts.shape
        if keys > 1:
            counts, starts = counts.swapaxes(1, 2), starts.swapaxes(1, 2)
        shape = batches * replicas, keys * levels
        return counts.reshape(shape), starts.reshape(shape), (keys, levels)

    def behind(self, post: int) -> tuple[Numbers, Numbers]:
        """First rows and counts, [batches], of what ends between a post and the one before; of those that no
        post is behind, by the number of posts."""
        return self.starts[:, post, 0, 0], self.counts[:, post].sum(axis=(1, 2))

    def selected(self, position: int) -> tuple[Numbers, Numbers]:
        """The rows that select a number by the index at a position among the sizes.

        First rows and counts, [batches, numbers, runs]: runs that do not lie side by side.
        """
        batches = len(self.counts)
        before, own = math.prod(self.sizes[:position]), self.sizes[position]
        shape = (batches, before, own, -1)
        counts, starts = self.counts.reshape(shape), self.starts.reshape(shape)
        return starts[..., 0].swapaxes(1, 2), counts.sum(axis=-1).swapaxes(1, 2)


def sample_rows(space: SpaceRows, samples: Ints) -> Indices:
    """Positions of all rows of the samples."""
    begin = space.begin[samples]
    counts = space.begin[samples + 1] - begin
    ends = counts.cumsum()
    found: Indices = (begin - (ends - counts)).repeat(counts) + np.arange(ends[-1])
    return found


class Spaces:
    """Spaces whose rows are found together; what depends on the data alone is worked out once.

    spans: [3, spaces, samples], of every sample the first row (counted over all spaces, one after another),
    how many rows and how many levels it has. level, key: of all rows, as in `SpaceRows`. keys: of every
    space how many there are. shift: where its rows begin.
    """

    def __init__(self, spaces: Mapping[str, SpaceRows], levels: Mapping[str, Ints]) -> None:
        """levels: others than those of the spaces, by name."""
        self.names, self.sizes = tuple(spaces), [space.sizes for space in spaces.values()]
        ends = np.cumsum([len(space.vertex) for space in spaces.values()])
        self.shift = [0, *ends[:-1].tolist()]
        self.keys = [math.prod(sizes) for sizes in self.sizes]
        own = [levels.get(name, space.level) for name, space in spaces.items()]
        self.level = np.concatenate(own).astype(np.intp)
        self._keys = np.array(self.keys)
        self.selects = max(self.keys) > 1
        self.key = np.concatenate([space.key for space in spaces.values()]) if self.selects else None
        begins = np.stack([space.begin for space in spaces.values()])
        counts, depth = np.diff(begins), np.ones((len(own), begins.shape[1] - 1), np.intp)
        for at, (level, begin) in enumerate(zip(own, begins, strict=True)):
            busy = np.flatnonzero(counts[at])
            if len(busy):
                depth[at, busy] = np.maximum.reduceat(level, begin[busy]) + 1
        depth += (1 - depth) % LEVELS
        self.spans = np.stack((begins[:, :-1] + np.array(self.shift)[:, None], counts, depth))

    def rows(self, assigned: Assignment) -> dict[str, Rows]:
        """The rows of every space, by name; without levels everything is one wavefront."""
        batches, replicas = assigned.spread.batches, assigned.replicas
        first, counts, depths = self.spans.take(assigned.samples, axis=2)
        depth, counts, owner = depths.max(axis=1), counts.reshape(-1), assigned.owner
        # Rows that lie side by side: of a batch, a key, a replica, a level; by number over all spaces.
        size = self._keys * depth * replicas  # of a batch
        sizes = size * batches
        before = sizes.cumsum() - sizes
        if assigned.owners is not None:  # of every space those of its part
            owner = assigned.owners[[assigned.of_space.get(name, 0) for name in self.names]]
        if self.selects:
            batch, replica = np.divmod(owner, replicas)
            owner = batch * replicas * self._keys[:, None] + replica
        place = before[:, None] + owner * depth[:, None]
        ends = counts.cumsum()
        both = np.array((first.reshape(-1) - (ends - counts), place.reshape(-1)))
        positions, place = both.repeat(counts, axis=1)
        positions += np.arange(len(positions))
        place += self.level[positions]
        if self.key is not None:
            step = (depth * replicas).repeat(len(assigned.samples)).repeat(counts)
            place += self.key[positions] * step
        sizes = size.repeat(batches)
        bounds = sizes.cumsum()
        positions = positions[order_below(place, int(bounds[-1]))]
        per = np.bincount(place, minlength=int(bounds[-1]))
        ends = per.cumsum()
        block = ends[bounds - 1]  # of every space and batch
        of_batch = block.copy()
        of_batch[1:] -= block[:-1]
        starts = ends - per - (block - of_batch).repeat(sizes)
        of_batch = of_batch.reshape(-1, batches)
        found, row, at = dict[str, Rows](), 0, 0
        for number, (name, keys, levels) in enumerate(
            zip(self.names, self.keys, depth.tolist(), strict=True)
        ):
            spread, shape = Spread(of_batch[number]), (batches, keys, replicas, levels)
            end = at + batches * keys * replicas * levels
            own, per_front = (
                positions[row : row + spread.total] - self.shift[number],
                per[at:end].reshape(shape),
            )
            found[name] = Rows(own, spread, per_front, starts[at:end].reshape(shape), self.sizes[number])
            row, at = row + spread.total, end
        return found
