"""Queues of a group of batches: the instructions of every replica, in order, with their exchanges.

In: the steps of a mode, the rows of their spaces, what every worker runs behind the recursion.
Out: the queues' words, and the offset of every worker's queue. Which instructions a queue may have, and in
which order, follows from the steps and from how deep the recursion is; a group picks those that have rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir import isa
from dnc.ir.forest import Ints
from dnc.ir.phases import Phases
from dnc.ir.plan import Plan
from dnc.runtime.encoder.early import EarlyQueues
from dnc.runtime.encoder.ending import Exits
from dnc.runtime.encoder.known import Known
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.scopes import Scopes
from dnc.runtime.encoder.words import Numbers, Spread, Words
from dnc.runtime.phases import Step

WIDTH = isa.INSTRUCTION_WORDS
MOST_GRIDS = 256  # that are kept
# A space, and whether its rows run level by level, not all at once.
Fronts = tuple[str, bool]
# Keys, and levels.
Shape = tuple[int, int]


@attrs.frozen(eq=False)
class Grid:
    """All instructions that a queue may have, in order, for fronts of some shapes: [instructions].

    column: of every one its wavefront, counted over all fronts. place: where it stands; an exchange parts
    two places. turn: orders those of a place. opcode: its number.
    """

    column: Numbers
    place: Numbers
    turn: Numbers
    opcode: Numbers


class Columns:
    """The steps of a mode, and what follows from them for every queue; worked out once a mode."""

    def __init__(self, plan: Plan, steps: tuple[Step, ...]) -> None:
        self.steps, self.phases = steps, Phases.of(plan.program)
        self.last_levels = self.phases.last_levels(step.phase for step in steps)
        self.fronts = tuple(dict.fromkeys(self._front(step) for step in steps))
        numbers = {opcode.name: opcode.number for opcode in plan.opcodes}
        self.opcodes = [numbers[step.segment.name] for step in steps]
        self.nop = numbers[isa.NOP]
        self.barrier, self.grid_barrier = numbers[isa.REPLICA_BARRIER], numbers[isa.GRID_BARRIER]
        self.leave = numbers.get(isa.LEAVE, -1)  # only where the recursion chooses classes
        self._longest = max((step.step for step in steps), default=0) + 1
        self._grids = Known[tuple[object, ...], Grid](MOST_GRIDS)

    def place(self, phase: int, level: Numbers, within: int, depth: int) -> Numbers:
        """Where a step of a phase stands in a queue, by level."""
        level = depth - 1 - level if self.phases.from_last(phase) else level
        return phase * self.places(depth) + level * self._longest + within

    def places(self, depth: int) -> int:
        """How many places a phase has."""
        return depth * self._longest

    def _front(self, step: Step) -> Fronts:
        return step.segment.space, self.phases.has_levels(step.phase)

    def grid(self, shapes: tuple[Shape, ...], depth: int, leaves: bool) -> Grid:
        """The grid for shapes of all fronts, and levels at most; leaves: for a batch whose recursion can be
        left, without what runs behind it."""
        return self._grids.get((shapes, depth, leaves), lambda: self._make(shapes, depth, leaves))

    def _make(self, shapes: tuple[Shape, ...], depth: int, leaves: bool) -> Grid:
        first, at = dict[Fronts, tuple[int, Shape]](), 0
        for front, shape in zip(self.fronts, shapes, strict=True):
            first[front], at = (at, shape), at + shape[0] * shape[1]
        found = []
        for turn, (step, opcode) in enumerate(zip(self.steps, self.opcodes, strict=True)):
            if not (leaves and step.phase == self.phases.behind):
                at, (keys, levels) = first[self._front(step)]
                number = np.arange(keys * levels)
                place = self.place(step.phase, number % levels, step.step, depth)
                same = np.ones_like(number)
                found.append(np.stack((number + at, place, same * turn, same * opcode)))
        joined = np.concatenate([*found, np.zeros((4, 0), np.intp)], axis=1)
        return Grid(*joined[:, np.lexsort((joined[2], joined[1]))])


@attrs.define(eq=False)
class Instructions:
    """The instructions of all queues in order: [count].

    owner: batch * replicas + replica, of replicas that have samples, or of all. start, count: rows.
    shared: whether the place is of a phase that the grid shares out.
    """

    owner: Numbers
    place: Numbers
    turn: Numbers
    opcode: Numbers
    start: Numbers
    count: Numbers
    shared: NDArray[np.bool_]

    def of(self, which: NDArray[np.bool_]) -> Instructions:
        """Some of them."""
        return Instructions(*(column[which] for column in attrs.astuple(self, recurse=False)))

    def joined(self, *others: Instructions) -> Instructions:
        """These and others, in order."""
        parts = [attrs.astuple(each, recurse=False) for each in (self, *others)]
        found = [np.concatenate(column) for column in zip(*parts, strict=True)]
        owner, place, turn, *_ = found
        order = np.lexsort((turn, place, owner))
        return Instructions(*(column[order] for column in found))

    def with_few(self, owner: Numbers, place: Numbers, opcode: Numbers, start: Numbers) -> Instructions:
        """These and a few others, in the order of their owners, each the last of its place."""
        bound = max(int(self.place.max(initial=0)), int(place.max(initial=0))) + 1
        at = (self.owner * bound + self.place).searchsorted(owner * bound + place, side="right")
        others: tuple[Any, ...] = (owner, place, 0, opcode, start, 0, False)
        columns = zip(attrs.astuple(self, recurse=False), others, strict=True)
        return Instructions(*(np.insert(column, at, more) for column, more in columns))


def _same(
    owner: Numbers, place: Numbers | int, turn: int, opcode: int, *rows: Numbers | int, shared: bool = False
) -> Instructions:
    """Instructions of one opcode."""
    columns = (np.broadcast_to(value, owner.shape) for value in (place, turn, opcode, *rows, shared))
    return Instructions(owner, *columns)


def encode_queues(
    mode: Columns,
    rows: Mapping[str, Rows],
    replicas: int,
    workers: int,
    tail: Ints,
    body: Words,
    exits: Exits | None = None,
    scopes: Scopes | None = None,
    early: EarlyQueues | None = None,
) -> Ints:
    """Appends the queues, one a replica; [batches, replicas * workers] offsets.

    tail: [batches, count, INSTRUCTION_WORDS]. Instructions are in the order of (batch, replica, phase,
    level, step, place in the sequence); an exchange stands where anything before the place changes.
    exits: of the only batch; then what follows the recursion is made within it, window by window.
    scopes: phases that the grid shares out, if any batch has such; then every replica has a queue. early:
    what those do who have no rows, if any batch makes gradients early.
    """
    batches = body.batches
    used = next(iter(rows.values())).counts.shape[2] if rows else 1
    made = _of_steps(mode, rows, exits)
    if scopes is not None:
        made, used = _shared_out(mode, made, rows, replicas, scopes), replicas
    if early is not None:
        made = attrs.evolve(made, owner=made.owner // used * replicas + made.owner % used)
        made, used = _with_posts(mode, made, _depth(rows), replicas, early), replicas
    batch = made.owner // used
    idle = _idle(batch, batches)
    if len(idle):
        made = made.joined(_same(idle * used, 0, 0, mode.nop, 0, 0))
        batch = made.owner // used
    at, first, out = _merge(mode, made, tail, batch, workers, early, used)
    if exits is not None:
        own = np.flatnonzero(made.opcode == mode.leave)
        begin = made.owner.searchsorted(made.owner[own])
        behind = made.owner.searchsorted(made.owner[own], side="right")
        exits.aim(out, at[own], made.start[own], at[behind - 1] + 1 - at[begin])
    counts = np.array([len(out)])
    if batches > 1:
        bounds = np.append(at, len(out))[batch.searchsorted(np.arange(batches + 1))]
        counts = bounds[1:] - bounds[:-1]
    spread = Spread(counts)
    body.align(4)
    word = body.add(_matrix(spread, out))
    # A replica without samples only does the work of the grid: it starts at its batch's last tail.
    offsets = np.empty((batches, replicas), np.int32)
    offsets[:] = (word + (counts - tail.shape[1]) * WIDTH)[:, None]
    whose, replica = np.divmod(made.owner[first], used)
    offsets[whose, replica] = word + (at[first] - spread.first[whose]) * WIDTH
    return offsets.repeat(workers, axis=1)


def _of_steps(mode: Columns, rows: Mapping[str, Rows], exits: Exits | None) -> Instructions:
    """An instruction of every step for every wavefront that is not empty; and the tests of `exits`."""
    if not mode.fronts:
        none = np.zeros(0, np.intp)
        return Instructions(none, none, none, none, none, none, none > 0)
    depth = _depth(rows) if exits is None else exits.depth
    fronts = [rows[space].by_owner(leveled) for space, leveled in mode.fronts]
    counts, starts, shapes = zip(*fronts, strict=True)
    grid = mode.grid(shapes, depth, exits is not None)
    count = np.concatenate(counts, axis=1).take(grid.column, axis=1).reshape(-1)
    start = np.concatenate(starts, axis=1).take(grid.column, axis=1).reshape(-1)
    found = count.nonzero()[0]
    owner = found // len(grid.column) if len(grid.column) else found
    which = found - owner * len(grid.column)
    columns = grid.place[which], grid.turn[which], grid.opcode[which]
    made = Instructions(owner, *columns, start[found], count[found], np.zeros(len(found), np.bool_))
    if exits is None:
        return made
    others, number = [], np.arange(len(exits.owner))
    for turn, (step, opcode) in enumerate(zip(mode.steps, mode.opcodes, strict=True)):
        if step.phase == mode.phases.behind:
            owner, level, start, count = exits.windows(rows[step.segment.space])
            place = mode.place(mode.last_levels, level, step.step, depth)
            others.append(_same(owner, place, turn, opcode, start, count))
    # Of what stands at one place a test comes first: without an exchange of its own.
    place = mode.place(mode.last_levels, exits.level, 0, depth)
    return made.joined(*others, _same(exits.owner, place, -1, mode.leave, number, number * 0))


def _depth(rows: Mapping[str, Rows]) -> int:
    """Levels of a phase, at most."""
    return max(int(found.counts.shape[3]) for found in rows.values())


def _shared_out(
    mode: Columns, made: Instructions, rows: Mapping[str, Rows], replicas: int, scopes: Scopes
) -> Instructions:
    """The same work with the rows of some phases shared out evenly, as they lie, over all replicas.

    All replicas meet around a place of such a phase, so that each has an instruction there, and one in every
    other phase in which any has; if need be it is a no-op. From here on owners count all replicas.
    """
    used, size = next(iter(rows.values())).counts.shape[2], mode.places(_depth(rows))
    batch, replica = np.divmod(made.owner, used)
    phase = made.place // size
    made = attrs.evolve(made, owner=batch * replicas + replica)
    stays = ~scopes[batch, phase]
    there: NDArray[np.bool_] = np.zeros((len(scopes), mode.phases.count, replicas), np.bool_)
    there[batch[stays], phase[stays], replica[stays]] = True
    others = []
    for turn, (step, opcode) in enumerate(zip(mode.steps, mode.opcodes, strict=True)):
        which = scopes[:, step.phase].nonzero()[0]
        ends = rows[step.segment.space].spread.counts[which, None] * np.arange(replicas + 1) // replicas
        start, count = ends[:, :-1], ends[:, 1:] - ends[:, :-1]
        owner = which[:, None] * replicas + np.arange(replicas)
        place = step.phase * size + step.step
        for some, number in ((count > 0, opcode), (count == 0, mode.nop)):
            found = owner[some], place, turn, number, start[some] * (number == opcode), count[some]
            others.append(_same(*found, shared=True))
    meets = np.count_nonzero(scopes, axis=1) > 0
    missing = there.any(axis=2, keepdims=True) & ~there & meets[:, None, None]
    whose, where, replica = missing.nonzero()
    others.append(_same(whose * replicas + replica, where * size, 0, mode.nop, 0, 0))
    return made.of(stays).joined(*others)


def _with_posts(
    mode: Columns, made: Instructions, depth: int, replicas: int, early: EarlyQueues
) -> Instructions:
    """Replicas post behind levels; those without rows, who wait for that, have a queue in any case."""
    posts = early.posts
    has_rows = np.arange(replicas) < posts.first[:, None]
    batch, replica = (~has_rows & posts.there[:, None]).nonzero()
    missing = np.setdiff1d(batch * replicas + replica, made.owner)
    if len(missing):
        made = made.joined(_same(missing, 0, 0, mode.nop, 0, 0))
    batch, replica = (has_rows & posts.there[:, None]).nonzero()
    count = posts.levels.shape[1]
    owner, number = (batch * replicas + replica).repeat(count), np.arange(len(batch) * count) % count
    place = mode.place(early.phase, posts.levels[batch].reshape(-1), early.step, depth)
    return made.with_few(owner, place, np.full_like(owner, early.opcode), number)


def _idle(batch: Numbers, batches: int) -> Numbers:
    """The batches in which no step has a row: their first replica waits out a no-op."""
    if batches == 1:
        return np.zeros(0 if len(batch) else 1, np.intp)
    busy = np.zeros(batches, bool)
    busy[batch] = True
    return np.flatnonzero(~busy)


def _merge(
    mode: Columns,
    made: Instructions,
    tail: Ints,
    batch: Numbers,
    workers: int,
    early: EarlyQueues | None,
    replicas: int,
) -> tuple[Numbers, Numbers, Ints]:
    """All queues behind each other: instructions, exchanges between places, what is made early, the tails.

    replicas: as owners count them. Out: where each instruction stands; the first one of every queue; the
    words [count, WIDTH].
    """
    count, length = len(made.place), tail.shape[1]
    change = made.owner[1:] != made.owner[:-1]
    first = np.zeros(np.count_nonzero(change) + 1, np.intp)
    first[1:] = change.nonzero()[0] + 1
    sizes = np.empty_like(first)
    sizes[:-1], sizes[-1] = first[1:] - first[:-1], count - first[-1]
    queue = np.arange(len(first)).repeat(sizes)
    waits, tails = np.zeros(len(first), np.intp), tail[batch[first]]
    if early is not None:  # what some have in front of their tail
        which = made.owner[first] % replicas >= early.posts.first[batch[first]]
        waits[which] = early.words.shape[1]
    at = np.arange(count) + ((waits + length).cumsum() - waits - length)[queue]
    # Exchanges behind instructions: of all replicas around a place that these share.
    meets = (made.place[1:] != made.place[:-1]) & ~change
    of_grid = meets & (made.shared[1:] | made.shared[:-1]) if made.shared.any() else None
    exchange = of_grid if workers == 1 else meets
    if exchange is not None:
        at += _before(exchange, count)
    words = np.zeros((count, WIDTH), np.int32)
    words[:, 0], words[:, 1], words[:, 2] = made.opcode, made.start, made.count
    last = first + sizes - 1
    ends = at[last] + 1
    out = np.zeros((int(ends[-1] + waits[-1]) + length, WIDTH), np.int32)
    out[at] = words
    if early is not None:
        own = np.flatnonzero(waits)
        out[ends[own][:, None] + np.arange(early.words.shape[1])] = early.words[batch[first][own]]
    ends += waits

    def meet(which: NDArray[np.bool_], opcode: int) -> Numbers:
        """Writes exchanges, counted in each queue; how many each has."""
        number, behind = _before(which, count), which.nonzero()[0]
        out[at[behind] + 1, 0] = opcode
        out[at[behind] + 1, 1] = number[behind] + 1 - number[first][queue[behind]]
        passed: Numbers = number[last] - number[first]
        return passed

    if workers > 1:
        meet(meets if of_grid is None else meets & ~of_grid, mode.barrier)
    if of_grid is not None:  # those of the tail count on
        passed = meet(of_grid, mode.grid_barrier).astype(np.int32)
        tails[:, :, 1] += (tails[:, :, 0] == mode.grid_barrier) * passed[:, None]
    out[ends[:, None] + np.arange(length)] = tails
    return at, first, out


def _before(which: NDArray[np.bool_], count: int) -> Numbers:
    """How many of the gaps between `count` instructions in front of each of these are chosen."""
    found = np.zeros(count, np.intp)
    which.cumsum(out=found[1:])
    return found


def _matrix(spread: Spread, instructions: Ints) -> Ints:
    """[batches, words]: every batch's instructions, then nothing."""
    if spread.batches == 1:
        return instructions.reshape(1, -1)
    out = np.zeros((spread.batches * spread.most, WIDTH), np.int32)
    out[spread.place] = instructions
    return out.reshape(spread.batches, -1)
