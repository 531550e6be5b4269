"""Which weight gradients are made early, and from which level on: see `dnc/ir/early.py`.

In: a plan, the rows of a group of batches. Out: of every batch the levels behind which replicas post, and who
has no rows; or nothing, where all are busy. Rows of levels that ended before a post come in front of those
that end later, whoever has them, so that an instruction has all rows of a post. Guaranteed: it follows from
the batch, the plan and the grid.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir import cutting, isa
from dnc.ir.costs import Costs, nanoseconds
from dnc.ir.early import POSTS, Early
from dnc.ir.forest import Ints
from dnc.ir.machine import H200, machine
from dnc.ir.phases import Phases
from dnc.ir.plan import Plan
from dnc.runtime.encoder.assign import bare_price
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.scopes import Scopes
from dnc.runtime.encoder.shares import outer_cycles
from dnc.runtime.encoder.tail import Tail
from dnc.runtime.encoder.words import Numbers
from dnc.runtime.phases import Step

NEVER = np.iinfo(np.int32).max  # a level behind all: no row ends before a post
CYCLES = 1.98  # of an H200, in which tiles are priced, a nanosecond
# What a level takes beside its segment and an exchange, of the time of an instruction, as what comes next was
# known before; and the share of the time of all levels within which rows are added up. Seen on an H200.
AHEAD, WITHIN = 0.7, 0.95
# What a post costs those who go on, and what has to be gained for it to be worth while, in cycles.
POST, LEAST = 3000, 4000


@attrs.frozen(eq=False)
class Posts:
    """levels: of every batch the last level that is behind every post, [batches, POSTS]; NEVER where there is
    none. first: the first replica without rows, [batches]. spaces: whose rows end level by level."""

    levels: Numbers
    first: Numbers
    spaces: tuple[str, ...]

    @property
    def there(self) -> NDArray[np.bool_]:
        """The batches that have posts."""
        found: NDArray[np.bool_] = self.levels[:, 0] != NEVER
        return found

    def parted(self, rows: Mapping[str, Rows]) -> dict[str, Rows]:
        """The rows of these spaces, in the order of posts."""
        return {name: _parted(rows[name], self.levels) for name in self.spaces}


@attrs.frozen(eq=False)
class EarlyQueues:
    """Of the queues of a group: replicas post with `opcode` behind step `step` of levels of `phase`; who has
    no rows has `words` in front of the tail, [batches, count, INSTRUCTION_WORDS]."""

    posts: Posts
    phase: int
    step: int
    opcode: int
    words: Ints


def _parted(rows: Rows, levels: Numbers) -> Rows:
    """The rows of a space with those behind every post in front of others, by replica and level; levels: as
    in `Posts`."""
    assert rows.stand_alone
    of_level = np.arange(rows.counts.shape[3])
    part = np.count_nonzero(of_level < levels[:, :, None], axis=1)  # [batches, levels]
    own = part[:, None, None, :] == np.arange(levels.shape[1] + 1)[:, None, None]
    counts, before = rows.counts * own, np.broadcast_to(rows.starts, own.shape[:2] + rows.counts.shape[2:])
    blocks = counts.reshape(len(counts), -1)
    starts = (blocks.cumsum(axis=1) - blocks).reshape(counts.shape)
    there = counts.reshape(-1).nonzero()[0]
    sizes = counts.reshape(-1)[there]
    first = (before + rows.spread.first[:, None, None, None]).reshape(-1)[there]
    index = (first - (sizes.cumsum() - sizes)).repeat(sizes) + np.arange(rows.spread.total)
    return attrs.evolve(
        rows, positions=rows.positions[index], counts=counts, starts=starts, posts=levels.shape[1]
    )


class EarlyChoice:
    """The choice for a mode of a plan, and what who has no rows does."""

    def __init__(self, plan: Plan, early: Early, steps: tuple[Step, ...], tail: Tail) -> None:
        self._tail, self._spaces = tail, early.spaces
        self._number = {opcode.name: opcode.number for opcode in plan.opcodes}
        names = [each.name for each in plan.dense_gradients]
        self._gradients = [
            (names.index(name), plan.dense_gradients[names.index(name)]) for name in early.gradients
        ]
        self._tiles = np.array([cutting.outer_tiles(gradient) for _, gradient in self._gradients])
        self._rows = [outer_cycles(gradient, plan.precision) for _, gradient in self._gradients]
        assert plan.tiling is not None
        constants, costs = machine(plan.target).constants, Costs(plan, 1, plan.tiling.workers)
        meeting = AHEAD * constants.instruction + nanoseconds(costs.exchange(), constants)
        self._cycles = CYCLES * H200.tiled_flop / constants.tiled_flop
        # What a row of a space costs in these levels, and a level beside its rows, in ns.
        self._prices = dict[str, tuple[float, float]]()
        within = [step for step in steps if step.phase == early.phase]
        for step in within:
            row, level = self._prices.get(step.segment.space, (0.0, 0.0))
            price = bare_price(step.segment.name, costs, constants)
            self._prices[step.segment.space] = row + price.row, level + price.level + meeting
        self._phase, self._last = early.phase, max(step.step for step in within)
        # Phases in which a replica has one instruction for all its rows of these spaces.
        phases = Phases.of(plan.program)
        own = {step.phase for step in steps if step.segment.space in self._spaces}
        self._whole = sorted(phase for phase in own if not phases.has_levels(phase))

    def choose(
        self, rows: Mapping[str, Rows], replicas: int, workers: int, scopes: Scopes | None, most: int
    ) -> Posts | None:
        """Where replicas post, as far as that is predicted to pay; None if no batch does. most: chunks of
        rows that the rest may be cut into."""
        counts = self._by_level(rows)
        busy = np.any([each.any(axis=2) for each in counts.values()], axis=0)  # [batches, replicas]
        first = busy.shape[1] - busy[:, ::-1].argmax(axis=1)
        may = busy.any(axis=1) & (first < replicas)
        if self._whole:
            may &= np.bool_(False) if scopes is None else scopes[:, self._whole].all(axis=1)
        if not may.any():
            return None
        levels = self._levels(counts, np.maximum(replicas - first, 1) * workers)
        ended = dict[str, Numbers]()
        for space in self._spaces:
            own = counts[space].sum(axis=1)
            ended[space] = (own * (np.arange(own.shape[1]) >= levels[:, -1:])).sum(axis=1)
        may &= self._tail.saved(rows, ended, most) > POSTS * POST + LEAST
        if not may.any():
            return None
        levels[~may] = NEVER
        return Posts(levels, np.where(may, first, replicas), self._spaces)

    def _by_level(self, rows: Mapping[str, Rows]) -> dict[str, Numbers]:
        """Rows of every space of these levels, [batches, replicas, levels], of as many levels each."""
        found = {space: rows[space].by_level for space in self._prices}
        most = max(each.shape[2] for each in found.values())
        return {
            space: np.pad(each, ((0, 0), (0, 0), (0, most - each.shape[2]))) for space, each in found.items()
        }

    def _levels(self, counts: Mapping[str, Numbers], idle: Numbers) -> Numbers:
        """Of every batch the last level behind each post, [batches, POSTS].

        Whoever adds up the rows of a post should end as the next one comes, and with the levels, of whose
        time all rows take `ratio`.
        """
        time: Numbers = np.zeros_like(next(iter(counts.values())), np.float64)
        for space, (row, level) in self._prices.items():
            time += row * counts[space] + level * (counts[space] > 0)
        behind = time[:, :, ::-1].cumsum(axis=2)[:, :, ::-1].max(axis=1)  # [batches, levels]
        whole, tiles = np.maximum(behind[:, 0], 1.0), int(self._tiles.sum())
        rounds, cycles = -(-tiles // idle), np.zeros(len(whole))
        for (_, gradient), own, row in zip(self._gradients, self._tiles.tolist(), self._rows, strict=True):
            cycles += counts[gradient.space].sum(axis=(1, 2)) * (own * row / tiles)
        ratio = cycles * rounds / self._cycles / whole
        start = rounds * cutting.OUTER_TILE.fixed / self._cycles
        # From a post to the next one as long as its rows take, of which `start` whatever their number; all of
        # these times are a multiple of the first one and a rest.
        multiple, rest = [np.ones_like(whole)], [np.zeros_like(whole)]
        for _ in range(POSTS):
            multiple.append(ratio * multiple[-1])
            rest.append(ratio * rest[-1] + start)
        first = np.maximum(WITHIN * whole - sum(rest), 0.0) / sum(multiple)
        posts = np.cumsum([m * first + r for m, r in zip(multiple, rest, strict=True)][:-1], axis=0)
        # The last level that ends at such a time, or behind it.
        reached = behind[:, None, :] >= np.minimum(posts.T, whole[:, None])[:, :, None]
        there: NDArray[np.bool_] = np.any(time > 0, axis=1)
        last = there.shape[1] - 1 - there[:, ::-1].argmax(axis=1)  # of a batch's own levels
        found: Numbers = np.minimum(np.count_nonzero(reached, axis=2) - 1, last[:, None])
        return found

    def encode(
        self, posts: Posts, rows: Mapping[str, Rows], replicas: int, workers: int, accumulate: bool
    ) -> EarlyQueues:
        """What a group's queues have of it; accumulate: to gradients of an earlier part of the batch."""
        early, outer, found = self._number[isa.EARLY], self._number[isa.OUTER], list[list[int | Numbers]]()
        idle = np.maximum(replicas - posts.first, 1) * workers
        turns = (self._tiles.cumsum() - self._tiles).tolist()
        for post in range(POSTS):
            found.append([early, posts.first * workers, post, posts.first * workers])
            for (number, gradient), turn in zip(self._gradients, turns, strict=True):
                start, count = rows[gradient.space].behind(post)
                adds = int(accumulate or post > 0)
                found.append([outer, number, start, count, turn % idle, adds, 0, isa.NO_NORM])
        found.append([early, 0, 0, 0])
        words = np.zeros((len(posts.first), len(found), isa.INSTRUCTION_WORDS), np.int32)
        for at, fields in enumerate(found):
            for field, value in enumerate(fields):
                words[:, at, field] = value
        return EarlyQueues(posts, self._phase, self._last, self._number[isa.POST], words)
