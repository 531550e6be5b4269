"""Queues of a group of batches: the instructions of every replica, in order, with their exchanges.

In: the steps of a mode, the rows of their spaces, what every worker runs behind the recursion.
Out: the queues' words, and the offset of every worker's queue.
"""

from __future__ import annotations

import attrs
import numpy as np

from dnc.ir import isa
from dnc.ir.forest import Ints
from dnc.ir.plan import Plan
from dnc.runtime.encoder.ending import BEHIND, LEVELS, Exits
from dnc.runtime.encoder.rows import Rows, wavefronts
from dnc.runtime.encoder.words import Numbers, Spread, Words
from dnc.runtime.phases import BACKWARD_LEVELS, PHASES, Step

WIDTH = isa.INSTRUCTION_WORDS


@attrs.frozen(eq=False)
class Columns:
    """The steps of a mode as arrays: phase, place within it, opcode; last those of a no-op."""

    steps: tuple[Step, ...]
    phase: Numbers
    within: Numbers
    opcode: Numbers
    longest: int


def columns(plan: Plan, steps: tuple[Step, ...]) -> Columns:
    """Worked out once a mode."""
    within = np.array([step.step for step in steps])
    return Columns(
        steps,
        np.array([*(step.phase for step in steps), 0]),
        np.append(within, 0),
        np.array([*(plan.opcode(step.segment.name).number for step in steps), plan.opcode(isa.NOP).number]),
        int(within.max(initial=0)) + 1,
    )


def encode_queues(
    plan: Plan,
    mode: Columns,
    rows: dict[str, Rows],
    replicas: int,
    workers: int,
    tail: Ints,
    body: Words,
    exits: Exits | None = None,
) -> Ints:
    """Appends the queues, one a replica; [batches, replicas * workers] offsets.

    tail: [batches, count, INSTRUCTION_WORDS]. Instructions are sorted by (batch, replica, phase,
    level, step, place in the sequence); an exchange stands where anything before the place changes.
    exits: of the only batch; then what follows the recursion is made within it, window by window.
    """
    steps, batches = mode.steps, body.batches
    depth = max((rows[step.segment.space].counts.shape[3] for step in steps), default=1)
    groups: dict[tuple[str, bool], tuple[Numbers, ...]] = {}
    found = []
    for step in steps:
        if exits is not None and step.phase == BEHIND:
            found.append(exits.windows(rows[step.segment.space]))
            continue
        where = (step.segment.space, step.phase % 3 == 1)
        if where not in groups:
            groups[where] = wavefronts(rows[where[0]], where[1])
        found.append(groups[where])
    idle = _idle(found, replicas, batches)
    found.append((idle, *np.zeros((3, len(idle)), np.int64)))
    phases, within, opcodes = mode.phase, mode.within, mode.opcode
    if exits is not None:
        found.append((exits.owner, exits.level, np.arange(len(exits.owner)), np.zeros_like(exits.owner)))
        phases, within = np.append(np.where(phases == BEHIND, LEVELS, phases), LEVELS), np.append(within, 0)
        opcodes, depth = np.append(opcodes, plan.opcode(isa.LEAVE).number), exits.depth
    owner, level, start, count = (np.concatenate(column) for column in zip(*found, strict=True))
    index = np.arange(len(found)).repeat([len(group[0]) for group in found])
    phase = phases[index]
    level = np.where(phase == BACKWARD_LEVELS, depth - 1 - level, level)
    place = ((owner * PHASES + phase) * depth + level) * mode.longest + within[index]
    # Of what stands at one place a test comes first: without an exchange of its own.
    first_of_all = len(found) - 1 if exits is not None else len(found)
    turn = index if exits is None else np.where(index == first_of_all, -1, index)
    order = (place * len(found) + turn).argsort(kind="stable")
    place, owner = place[order], owner[order]
    made = np.stack((opcodes[index], start, count))[:, order]
    at, ends, out = _merge(plan, place, owner, made, tail, owner // replicas, workers)
    if exits is not None:
        own = np.flatnonzero(made[0] == opcodes[-1])
        begin, behind = (np.searchsorted(owner, owner[own], side=side) for side in ("left", "right"))
        exits.aim(out, at[own], made[1, own], at[behind - 1] + 1 - at[begin])
    bounds = ends[(owner // replicas).searchsorted(np.arange(batches + 1))]
    spread = Spread(bounds[1:] - bounds[:-1])
    body.align(4)
    first = body.add(_matrix(spread, out))
    # A replica without samples only does the work of the grid: it starts at its batch's last tail.
    last = first + (spread.counts - tail.shape[1]) * WIDTH
    offsets = last.repeat(replicas).astype(np.int32)
    begin = _with(0, (owner[1:] != owner[:-1]).nonzero()[0] + 1)
    offsets[owner[begin]] = first + (at[begin] - spread.first[owner[begin] // replicas]) * WIDTH
    every: Ints = offsets.reshape(batches, replicas).repeat(workers, axis=1)
    return every


def _idle(found: list[tuple[Numbers, ...]], replicas: int, batches: int) -> Numbers:
    """The first replica of every batch in which no step has a row: it waits out a no-op."""
    if batches == 1:
        return np.zeros(0 if any(len(owner) for owner, *_ in found) else 1, np.intp)
    busy = np.zeros(batches, bool)
    for owner, *_ in found:
        busy[owner // replicas] = True
    return np.flatnonzero(~busy) * replicas


def _with(first: int, numbers: Numbers) -> Numbers:
    """A number, then others."""
    out = np.empty(len(numbers) + 1, np.intp)
    out[0], out[1:] = first, numbers
    return out


def _merge(
    plan: Plan, place: Numbers, owner: Numbers, made: Numbers, tail: Ints, batch: Numbers, workers: int
) -> tuple[Numbers, Numbers, Ints]:
    """All queues behind each other: instructions, exchanges between places, the tails.

    Out: where each instruction stands; where each one's queue begins, and the end of all; the
    instructions [count, WIDTH].
    """
    count, length = len(place), tail.shape[1]
    change = owner[1:] != owner[:-1]
    exchange = (place[1:] != place[:-1]) & ~change if workers > 1 else np.zeros(count - 1, bool)
    at = np.zeros(count, np.int64)
    (1 + exchange + length * change).cumsum(out=at[1:])
    lasts = np.empty(int(change.sum()) + 1, np.intp)  # of every queue the last instruction
    lasts[:-1], lasts[-1] = change.nonzero()[0], count - 1
    ends = at[lasts] + 1
    out = np.zeros((int(ends[-1]) + length, WIDTH), np.int32)
    out[at, :3] = made.T
    out[ends[:, None] + np.arange(length)] = tail[batch[lasts]]
    barriers = at[1:][exchange] - 1
    ordinal = exchange.cumsum()
    before = np.maximum.accumulate(np.where(change, ordinal, 0))
    out[barriers, 0] = plan.opcode(isa.REPLICA_BARRIER).number
    out[barriers, 1] = (ordinal - before)[exchange]
    return at, np.concatenate((at, (len(out),))), out


def _matrix(spread: Spread, instructions: Ints) -> Ints:
    """[batches, words]: every batch's instructions, then nothing."""
    if spread.batches == 1:
        return instructions.reshape(1, -1)
    out = np.zeros((spread.batches * spread.most, WIDTH), np.int32)
    out[spread.place] = instructions
    return out.reshape(spread.batches, -1)
