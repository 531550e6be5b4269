"""Where a schedule may be left before its end: the recursion of lists that have all come to their last word.

In: which class of which declared output ends a list, and the rows of a batch. Out: `Exits`, which
`encode_queues` sets into the recursion. Guaranteed: the output's words are made while the recursion
goes on, a window of levels at a time; a replica leaves once every one of its lists has a word that
ends it among those that an exchange has made visible; nothing before these words is left out.
"""

from __future__ import annotations

import attrs
import numpy as np

from dnc.ir import isa
from dnc.ir.forest import Ints
from dnc.ir.phases import Phases
from dnc.ir.program import Program, Stage, StateInput
from dnc.runtime.encoder.assign import Assignment
from dnc.runtime.encoder.lists import Group
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Numbers
from dnc.runtime.phases import Step, prediction_of, results_of
from dnc.runtime.prepared import Prepared

# Levels of a window: a replica goes on for half a window and a level or two behind its last word. On a CPU,
# with one sentence (600 levels), windows of 2, 8, 16 levels add 15, 5, 3 % to a launch that no word ends,
# and one that ends behind 9 words takes 61, 63, 65 us (2026-11-22). Not measured on a GPU.
WINDOW = 16


@attrs.frozen
class Ending:
    """A list ends with the class `word` in the declared output called `output`."""

    output: str
    word: int

    @property
    def mode(self) -> str:
        """The mode of its schedules: they make this output and no other."""
        return prediction_of(self.output)


@attrs.frozen(eq=False)
class Exits:
    """Tests of a batch's queues. owner, level: the replica and the level before which each of them stands.

    fields: of each, what follows `to` in `isa.LEAVE_FIELDS`. depth: levels of the recursion, with those
    behind it at which the last words are made.
    """

    owner: Numbers
    level: Numbers
    fields: Ints
    depth: int

    def windows(self, rows: Rows) -> tuple[Numbers, ...]:
        """(replica, level, first row, rows) of what is made of every window, one level behind it."""
        counts, starts, (_, windows) = _by_window(rows).by_owner(True)
        owner, column = counts.nonzero()
        level = (column % windows + 1) * WINDOW
        return owner, level, starts[owner, column], counts[owner, column]

    def aim(self, instructions: Ints, at: Numbers, number: Numbers, to: Numbers) -> None:
        """Fills in the tests: those at places `at` are these by number, and go on at `to` in their queue."""
        instructions[at, 1] = to
        instructions[at, 2 : 1 + len(isa.LEAVE_FIELDS)] = self.fields[number]


def _by_window(rows: Rows) -> Rows:
    """The rows with windows for levels; those of a window lie side by side."""
    pad = [(0, 0)] * 3 + [(0, -rows.counts.shape[3] % WINDOW)]
    counts = np.pad(rows.counts, pad)
    counts = counts.reshape(*counts.shape[:3], -1, WINDOW).sum(axis=4)
    return attrs.evolve(rows, counts=counts, starts=rows.starts[..., ::WINDOW])


def late_levels(prepared: Prepared, steps: tuple[Step, ...]) -> dict[str, Ints]:
    """Of every space of steps behind the mode's last recursion the level of it, by row, at which all is there
    that they read.

    Nothing where a space has levels of its own: part of it runs within the recursion. Nor where some of what
    stands behind it is in front of another recursion, which the mode does not run.
    """
    program, forest, phases = prepared.plan.program, prepared.forest, Phases.of(prepared.plan.program)
    last = phases.last_levels(step.phase for step in steps)
    stages = _of_phase(program, steps, phases.behind)
    spaces = {step.segment.space for step in steps if phases.has_levels(step.phase)}
    if any(last < step.phase < phases.behind for step in steps) or spaces & {s.space for s in stages}:
        return {}
    leveled = _of_phase(program, steps, last)
    of_calls = {
        stage.function: np.full(len(forest.tables[program.space(stage.space).struct]) + 1, -1, np.int32)
        for stage in (*leveled, *stages)
        if stage.function is not None
    }
    for stage in leveled:
        if stage.function is not None:
            space = prepared.spaces[stage.space]
            of_calls[stage.function][space.vertex] = space.level
    found = {stage.space: np.zeros(len(prepared.spaces[stage.space].vertex), np.int32) for stage in stages}
    rises = True
    while rises:
        rises = False
        for stage in stages:
            struct, vertex = program.space(stage.space).struct, prepared.spaces[stage.space].vertex
            level = found[stage.space].copy()
            for bound in stage.inputs:
                if not isinstance(bound, StateInput) or bound.function not in of_calls:
                    continue
                if bound.is_list:
                    begin, target = forest.resolve_list(struct, bound.path, vertex.astype(np.int32))
                    row = np.repeat(np.arange(len(vertex)), np.diff(begin))
                    np.maximum.at(level, row, of_calls[bound.function][target])
                else:
                    target = forest.resolve(struct, bound.path, vertex.astype(np.int32))
                    level = np.maximum(level, of_calls[bound.function][target])
            rises |= bool((level > found[stage.space]).any())
            found[stage.space] = level
            if stage.function is not None:
                of_calls[stage.function][vertex] = level
    return found


def _of_phase(program: Program, steps: tuple[Step, ...], phase: int) -> list[Stage]:
    """The stages that run in a phase."""
    return [program.stage(name) for name in {s.segment.stage: None for s in steps if s.phase == phase}]


def exits(
    group: Group,
    assigned: Assignment,
    prepared: Prepared,
    ending: Ending,
    steps: tuple[Step, ...],
    levels: dict[str, Ints],
) -> Exits | None:
    """The tests of one batch, their lists appended to the words; None where they are of no use.

    steps: those of the ending's mode. levels: what `late_levels` found.
    """
    (result,) = results_of(prepared.plan, ending.mode)
    if result.space not in levels:  # made before the recursion
        return None
    rows, body = group.rows, group.body
    own, space, level = rows[result.space], prepared.spaces[result.space], levels[result.space]
    sample = np.searchsorted(space.begin, own.positions, side="right") - 1
    replica_of = np.zeros(prepared.samples, np.int64)
    replica_of[assigned.samples] = assigned.owner
    # Words in the order of their lists; they have to come in that order too.
    order = np.lexsort((space.vertex[own.positions], sample, replica_of[sample]))
    sample, window = sample[order], level[own.positions][order] // WINDOW
    starts = np.flatnonzero(np.append(True, sample[1:] != sample[:-1])[: len(sample)])
    inner = np.ones(max(len(sample) - 1, 0), bool)
    inner[starts[1:] - 1] = False
    rises = np.diff(level[own.positions][order]) >= 0
    if not len(sample) or not rises[inner].all():
        return None
    lists, owner = len(starts), replica_of[sample[starts]]
    count = int(window.max()) + 1
    key = np.repeat(np.arange(lists), np.diff(np.append(starts, len(sample)))) * count + window
    known = np.searchsorted(key, np.arange(lists * count).reshape(lists, count), side="right").T
    # By replica the last level: what can still be left out.
    inside = Phases.of(prepared.plan.program).last_levels(step.phase for step in steps)
    leveled = {step.segment.space for step in steps if step.phase == inside}
    last = np.zeros(assigned.replicas, np.int64)
    for found in (found for name, found in rows.items() if name in leveled):
        depth = found.counts.shape[3]
        there = found.counts.sum(axis=(0, 1)) > 0
        last = np.maximum(last, (there * np.arange(depth)).max(axis=1))
    busy = np.bincount(owner, minlength=assigned.replicas)
    begun = np.stack([np.bincount(owner[row > starts], minlength=assigned.replicas) for row in known])
    there_is_more = (np.arange(count)[:, None] + 1) * WINDOW < last
    test, replica = np.nonzero((begun == busy) & (busy > 0) & there_is_more)
    if not len(test):
        return None
    stride = prepared.plan.buffer(result.buffer).width // 4
    at = body.add((group.bases[result.buffer] + order * stride).astype(np.int32).reshape(1, -1))
    begins = body.add((at + starts).astype(np.int32).reshape(1, -1))
    ends = body.add((at + known).astype(np.int32).reshape(1, -1))
    first = np.searchsorted(owner, replica)
    fields = np.stack((busy[replica], begins + first, ends + test * lists + first), axis=1)
    words = np.full((len(test), 1), ending.word)
    most = max(found.counts.shape[3] for found in rows.values())
    return Exits(
        replica,
        (test + 1) * WINDOW + 1,
        np.concatenate((fields, words), axis=1).astype(np.int32),
        max(most, count * WINDOW) + 2,
    )
