"""Rows of a space in a group of batches: which vertices they are, replica by replica, level by level.

Rows are ordered by (batch, replica, level, sample), so a wavefront of a replica, and everything of
a replica, lie side by side (Cavs's dynamic tensor). Where stages select from stacks, the numbers
they select come before the replica: then the rows of a wavefront that share a parameter lie side by
side, and so do all rows that add to one gradient.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from dnc.ir.forest import Ints
from dnc.runtime.encoder.words import Numbers, Spread
from dnc.runtime.prepared import Indices, SpaceRows


@attrs.frozen(eq=False)
class Rows:
    """A space in a group of batches.

    positions: of every row its row in the prepared data. counts, starts: [batches, keys, replicas,
    levels], how many rows a wavefront has and the first one's number in its batch. There is one key
    for every combination of the numbers that rows select from stacks, the last one fastest; `sizes`
    says how many there are of each.
    """

    positions: Indices
    spread: Spread
    counts: Numbers
    starts: Numbers
    sizes: tuple[int, ...] = ()

    def selected(self, position: int) -> tuple[Numbers, Numbers]:
        """The rows that select a number by the index at a position among the sizes.

        First rows and counts, [numbers, runs, batches]: runs that do not lie side by side.
        """
        batches = len(self.counts)
        before, own = math.prod(self.sizes[:position]), self.sizes[position]
        shape = (batches, before, own, -1)
        counts, starts = self.counts.reshape(shape), self.starts.reshape(shape)
        return starts[..., 0].transpose(2, 1, 0), counts.sum(axis=-1).transpose(2, 1, 0)


@attrs.frozen(eq=False)
class Assignment:
    """The samples of a group ordered by (batch, replica), and of each the batch * replicas + replica."""

    samples: Ints
    owner: Numbers
    spread: Spread
    replicas: int


def assign(batches: list[Ints], weight: Ints, replicas: int) -> Assignment:
    """A replica for every sample: in each batch by falling weight, back and forth over the replicas."""
    spread = Spread(np.array([len(batch) for batch in batches]))
    samples = batches[0] if len(batches) == 1 else np.concatenate(batches)
    if replicas == 1:
        owner = spread.batch if len(batches) > 1 else np.zeros(len(samples), np.intp)
        return Assignment(samples, owner, spread, 1)
    rank = np.lexsort((-weight[samples], np.broadcast_to(spread.batch, len(samples))))
    turn, place = np.divmod(spread.local, replicas)
    owner = np.empty(len(samples), np.intp)
    owner[rank] = spread.batch * replicas + np.where(turn % 2 == 0, place, replicas - 1 - place)
    order = np.argsort(owner, kind="stable")
    return Assignment(samples[order], owner[order], spread, replicas)


def sample_rows(space: SpaceRows, samples: Ints) -> tuple[Indices, Numbers]:
    """Positions of all rows of the samples, and how many each sample has."""
    begin = space.begin[samples]
    counts = space.begin[samples + 1] - begin
    if len(samples) == 1:
        return np.arange(begin[0], begin[0] + counts[0]), counts
    ends = counts.cumsum()
    return (begin - (ends - counts)).repeat(counts) + np.arange(ends[-1]), counts


def space_rows(space: SpaceRows, assigned: Assignment, leveled: bool, levels: Ints | None = None) -> Rows:
    """The rows of a space; without levels everything is one wavefront. levels: others than the space's."""
    positions, counts = sample_rows(space, assigned.samples)
    batches, replicas = assigned.spread.batches, assigned.replicas
    owner, groups, depth = assigned.owner.repeat(counts), batches * replicas, 1
    keys = math.prod(space.sizes)
    if keys > 1:
        batch, replica = np.divmod(owner, replicas)
        owner, groups = (batch * keys + space.key[positions]) * replicas + replica, groups * keys
    leveled = leveled or levels is not None
    if leveled:
        level = (space.level if levels is None else levels)[positions]
        depth = int(level.max(initial=0)) + 1
        owner = owner * depth + level
    # The prepared rows of a sample are in the order of their own levels.
    is_sorted = len(counts) == 1 and keys == 1 and levels is None
    if (leveled or keys > 1) and not is_sorted:
        small = owner.astype(np.uint16) if groups * depth < 65536 else owner
        positions = positions[small.argsort(kind="stable")]
    per = np.bincount(owner, minlength=groups * depth).reshape(batches, -1)
    ends = per.cumsum(axis=1)
    shape = (batches, keys, replicas, depth)
    starts = (ends - per).reshape(shape)
    return Rows(positions, Spread(ends[:, -1]), per.reshape(shape), starts, space.sizes)


def wavefronts(rows: Rows, leveled: bool) -> tuple[Numbers, ...]:
    """(batch * replicas + replica, level, first row, rows) of every wavefront that is not empty; of
    every key's part of one, where rows select from stacks."""
    counts, starts = rows.counts, rows.starts
    if not leveled and counts.shape[3] > 1:
        counts, starts = counts.sum(axis=3, keepdims=True), starts[..., :1]
    _, keys, replicas, depth = counts.shape
    flat = counts.reshape(-1)
    found = flat.nonzero()[0]
    owner, level = np.divmod(found, depth)
    if keys > 1:
        rest, replica = np.divmod(owner, replicas)
        owner = rest // keys * replicas + replica
    return owner, level, starts.reshape(-1)[found], flat[found]
