"""Queues of a group of batches: the instructions of every replica, in order, with their exchanges.

In: the steps of a mode, the rows of their spaces, what every worker runs behind the recursion.
Out: the queues' words, and the offset of every worker's queue. Which instructions a queue may have, and in
which order, follows from the steps and from how deep the recursion is; a group picks those that have rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np

from dnc.ir import isa
from dnc.ir.forest import Ints
from dnc.ir.plan import Plan
from dnc.runtime.encoder.ending import BEHIND, LEVELS, Exits
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Numbers, Spread, Words
from dnc.runtime.phases import BACKWARD_LEVELS, Step

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
        self.steps = steps
        self.fronts = tuple(dict.fromkeys(_fronts(step) for step in steps))
        numbers = {opcode.name: opcode.number for opcode in plan.opcodes}
        self.opcodes = [numbers[step.segment.name] for step in steps]
        self.nop, self.barrier = numbers[isa.NOP], numbers[isa.REPLICA_BARRIER]
        self.leave = numbers.get(isa.LEAVE, -1)  # only where the recursion chooses classes
        self._longest = max((step.step for step in steps), default=0) + 1
        self._grids: dict[tuple[object, ...], Grid] = {}

    def place(self, phase: int, level: Numbers, within: int, depth: int) -> Numbers:
        """Where a step of a phase stands in a queue, by level."""
        level = depth - 1 - level if phase == BACKWARD_LEVELS else level
        return (phase * depth + level) * self._longest + within

    def grid(self, shapes: tuple[Shape, ...], depth: int, leaves: bool) -> Grid:
        """The grid for shapes of all fronts, and levels at most; leaves: for a batch whose recursion can be
        left, without what runs behind it."""
        key = shapes, depth, leaves
        if key not in self._grids:
            if len(self._grids) >= MOST_GRIDS:
                self._grids.clear()
            self._grids[key] = self._make(*key)
        return self._grids[key]

    def _make(self, shapes: tuple[Shape, ...], depth: int, leaves: bool) -> Grid:
        first, at = dict[Fronts, tuple[int, Shape]](), 0
        for front, shape in zip(self.fronts, shapes, strict=True):
            first[front], at = (at, shape), at + shape[0] * shape[1]
        found = []
        for turn, (step, opcode) in enumerate(zip(self.steps, self.opcodes, strict=True)):
            if not (leaves and step.phase == BEHIND):
                at, (keys, levels) = first[_fronts(step)]
                number = np.arange(keys * levels)
                place = self.place(step.phase, number % levels, step.step, depth)
                same = np.ones_like(number)
                found.append(np.stack((number + at, place, same * turn, same * opcode)))
        joined = np.concatenate([*found, np.zeros((4, 0), np.intp)], axis=1)
        return Grid(*joined[:, np.lexsort((joined[2], joined[1]))])


def _fronts(step: Step) -> Fronts:
    return step.segment.space, step.phase % 3 == 1


@attrs.define(eq=False)
class Instructions:
    """The instructions of all queues in order: [count].

    owner: batch * replicas + replica, of replicas that have samples. start, count: rows.
    """

    owner: Numbers
    place: Numbers
    turn: Numbers
    opcode: Numbers
    start: Numbers
    count: Numbers

    def joined(self, *others: Instructions) -> Instructions:
        """These and others, in order."""
        parts = [attrs.astuple(each, recurse=False) for each in (self, *others)]
        found = [np.concatenate(column) for column in zip(*parts, strict=True)]
        owner, place, turn, *_ = found
        order = np.lexsort((turn, place, owner))
        return Instructions(*(column[order] for column in found))


def _same(owner: Numbers, place: Numbers | int, turn: int, opcode: int, *rows: Numbers) -> Instructions:
    """Instructions of one opcode."""
    columns = (np.broadcast_to(value, owner.shape) for value in (place, turn, opcode, *rows))
    return Instructions(owner, *columns)


def encode_queues(
    mode: Columns,
    rows: Mapping[str, Rows],
    replicas: int,
    workers: int,
    tail: Ints,
    body: Words,
    exits: Exits | None = None,
) -> Ints:
    """Appends the queues, one a replica; [batches, replicas * workers] offsets.

    tail: [batches, count, INSTRUCTION_WORDS]. Instructions are in the order of (batch, replica, phase,
    level, step, place in the sequence); an exchange stands where anything before the place changes.
    exits: of the only batch; then what follows the recursion is made within it, window by window.
    """
    batches = body.batches
    used = next(iter(rows.values())).counts.shape[2] if rows else 1
    made = _of_steps(mode, rows, exits)
    idle = _idle(made.owner // used, batches)
    if len(idle):
        none = np.zeros_like(idle)
        made = made.joined(_same(idle * used, 0, 0, mode.nop, none, none))
    batch = made.owner // used
    at, first, out = _merge(mode, made, tail, batch, workers)
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
        return Instructions(*np.zeros((6, 0), np.intp))
    depth = max(found.counts.shape[3] for found in rows.values()) if exits is None else exits.depth
    fronts = [rows[space].by_owner(leveled) for space, leveled in mode.fronts]
    counts, starts, shapes = zip(*fronts, strict=True)
    grid = mode.grid(shapes, depth, exits is not None)
    count = np.concatenate(counts, axis=1).take(grid.column, axis=1).reshape(-1)
    start = np.concatenate(starts, axis=1).take(grid.column, axis=1).reshape(-1)
    found = count.nonzero()[0]
    owner = found // len(grid.column) if len(grid.column) else found
    which = found - owner * len(grid.column)
    columns = grid.place[which], grid.turn[which], grid.opcode[which]
    made = Instructions(owner, *columns, start[found], count[found])
    if exits is None:
        return made
    others, number = [], np.arange(len(exits.owner))
    for turn, (step, opcode) in enumerate(zip(mode.steps, mode.opcodes, strict=True)):
        if step.phase == BEHIND:
            owner, level, start, count = exits.windows(rows[step.segment.space])
            place = mode.place(LEVELS, level, step.step, depth)
            others.append(_same(owner, place, turn, opcode, start, count))
    # Of what stands at one place a test comes first: without an exchange of its own.
    place = mode.place(LEVELS, exits.level, 0, depth)
    return made.joined(*others, _same(exits.owner, place, -1, mode.leave, number, number * 0))


def _idle(batch: Numbers, batches: int) -> Numbers:
    """The batches in which no step has a row: their first replica waits out a no-op."""
    if batches == 1:
        return np.zeros(0 if len(batch) else 1, np.intp)
    busy = np.zeros(batches, bool)
    busy[batch] = True
    return np.flatnonzero(~busy)


def _merge(
    mode: Columns, made: Instructions, tail: Ints, batch: Numbers, workers: int
) -> tuple[Numbers, Numbers, Ints]:
    """All queues behind each other: instructions, exchanges between places, the tails.

    Out: where each instruction stands; the first one of every queue; the words [count, WIDTH].
    """
    count, length = len(made.place), tail.shape[1]
    change = made.owner[1:] != made.owner[:-1]
    first = np.zeros(np.count_nonzero(change) + 1, np.intp)
    first[1:] = change.nonzero()[0] + 1
    sizes = np.empty_like(first)
    sizes[:-1], sizes[-1] = first[1:] - first[:-1], count - first[-1]
    queue = np.arange(len(first)).repeat(sizes)
    at = np.arange(count) + queue * length
    if workers > 1:
        exchange = (made.place[1:] != made.place[:-1]) & ~change
        behind = exchange.nonzero()[0]  # instructions that an exchange follows
        ordinal = np.zeros(count, np.intp)
        exchange.cumsum(out=ordinal[1:])
        at += ordinal
    words = np.zeros((count, WIDTH), np.int32)
    words[:, 0], words[:, 1], words[:, 2] = made.opcode, made.start, made.count
    ends = at[first + sizes - 1] + 1
    out = np.zeros((int(ends[-1]) + length, WIDTH), np.int32)
    out[at] = words
    out[ends[:, None] + np.arange(length)] = tail[batch[first]]
    if workers > 1:
        barriers = at[behind] + 1
        out[barriers, 0] = mode.barrier
        out[barriers, 1] = ordinal[behind] + 1 - ordinal[first][queue[behind]]
    return at, first, out


def _matrix(spread: Spread, instructions: Ints) -> Ints:
    """[batches, words]: every batch's instructions, then nothing."""
    if spread.batches == 1:
        return instructions.reshape(1, -1)
    out = np.zeros((spread.batches * spread.most, WIDTH), np.int32)
    out[spread.place] = instructions
    return out.reshape(spread.batches, -1)
