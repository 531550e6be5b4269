"""Queues of a schedule: instructions up to the barrier of the grid behind all segments, and barriers.

In: a schedule whose header is right. Out: what stands from that barrier on. Guaranteed: every
queue ends, every instruction is known, barriers pair up, every segment of the mode works on every row once.
"""

from __future__ import annotations

import numpy as np

from dnc.ir import isa
from dnc.runtime.exits import exit_problem
from dnc.runtime.verifier.text import Ints, Text, need


class Queues:
    """See the module. found: the instructions of every replica, once they are checked."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.found: list[Ints] = []

    def check(self) -> Ints:
        """All checks; the instructions from the barrier behind all segments on, the same for all replicas."""
        queues = self.found = self._queues()
        tail = self._tail(queues)
        self._barriers(queues)
        self._polls(queues)
        self._coverage(np.concatenate(queues))
        problem = exit_problem(self.text.schedule, queues, self.text.workers)
        need(problem is None, str(problem))
        return tail

    def _queues(self) -> list[Ints]:
        """The instructions of every replica."""
        words, step, found = self.text.words, isa.INSTRUCTION_WORDS, []
        at = self.text.layout.queues_at
        starts = words[at : at + self.text.grid].reshape(self.text.replicas, self.text.workers)
        for replica, start in enumerate(starts[:, 0].tolist()):
            same = bool((starts[replica] == start).all())
            need(same, f"the workers of replica {replica} have different queues")
            inside = self.text.body <= start <= len(words) - step and start % 4 == 0
            need(inside, f"the queue of replica {replica} is at {start}: outside the schedule or not aligned")
            ends = np.flatnonzero(words[start : len(words) - step + 1 : step] == self.text.number[isa.END])
            need(len(ends), f"the queue of replica {replica} does not end")
            count = int(ends[0]) + 1
            queue = words[start : start + count * step].reshape(count, step)
            bad = (queue[:, 0] < 0) | (queue[:, 0] >= len(self.text.plan.opcodes))
            at_bad = int(bad.argmax())
            need(
                not bad.any(),
                f"replica {replica}, instruction {at_bad}: unknown opcode {int(queue[at_bad, 0])}",
            )
            found.append(queue)
        fields = np.array(self.text.known.fields)
        for replica, queue in enumerate(found):
            beyond = (queue != 0) & (np.arange(step) > fields[queue[:, 0]][:, None])
            at_bad = int(beyond.any(axis=1).argmax())
            name = self.text.plan.opcodes[int(queue[at_bad, 0])].name
            where = f"replica {replica}, instruction {at_bad} ({name})"
            need(not beyond.any(), f"{where}: words behind its fields")
        return found

    def _tail(self, queues: list[Ints]) -> Ints:
        """What follows the first barrier of the grid behind all segments: the same everywhere."""
        segments = [self.text.number[segment.name] for segment in self.text.plan.segments]
        meetings, before = list[Ints](), 0
        for queue in queues:
            grid = np.flatnonzero(queue[:, 0] == self.text.number[isa.GRID_BARRIER])
            last = np.flatnonzero(np.isin(queue[:, 0], segments)).max(initial=-1)
            before = max(before, int(grid.searchsorted(last)))
            meetings.append(grid)
        for replica, grid in enumerate(meetings):
            need(
                before < len(grid),
                f"the queue of replica {replica} has no barrier of the grid behind all segments",
            )
        tails = [queue[int(grid[before]) :] for queue, grid in zip(queues, meetings, strict=True)]
        for replica, tail in enumerate(tails):
            same = np.array_equal(tail, tails[0])
            need(same, f"replicas 0 and {replica} differ behind their last segments")
        return tails[0]

    def _barriers(self, queues: list[Ints]) -> None:
        counts = []
        for replica, queue in enumerate(queues):
            for name in (isa.REPLICA_BARRIER, isa.GRID_BARRIER):
                ordinals = queue[queue[:, 0] == self.text.number[name], 1]
                right = np.array_equal(ordinals, np.arange(1, len(ordinals) + 1))
                need(right, f"replica {replica}: the ordinals of '{name}' do not count 1, 2, 3, ...")
            counts.append(len(ordinals))
        need(len(set(counts)) == 1, f"replicas pass different numbers of barriers of the grid: {counts}")

    def _polls(self, queues: list[Ints]) -> None:
        """Every replica awaits its own rows, all of them, and an exchange stands before the first."""
        plan = self.text.plan
        meetings = [self.text.number[name] for name in (isa.REPLICA_BARRIER, isa.GRID_BARRIER)]
        for polled in plan.polled:
            awaited = self.text.awaited[polled.partial]
            if not awaited:
                continue
            total = self.text.rows[plan.buffer(polled.buffer).space]
            need(awaited == total, f"{awaited} rows of '{polled.buffer}' are awaited; there are {total}")
            firsts = self.text.part(self.text.awaited_from, len(queues) + 1, isa.AWAITED_FROM)
            for replica, queue in enumerate(queues):
                opcode, own = queue[:, 0], firsts[replica : replica + 2]
                levels = np.flatnonzero(opcode == self.text.number[polled.segment])
                rows = queue[levels, 1:3].astype(np.int64)
                inside = (rows[:, 0] >= own[0]) & (rows.sum(axis=1) <= own[1])
                right = inside.all() and rows[:, 1].sum() == own[1] - own[0]
                need(right, f"replica {replica} awaits other rows of '{polled.buffer}' than it has")
                before = opcode[: levels.min(initial=len(opcode))]
                meets = not len(levels) or np.isin(before, meetings).any()
                need(meets, f"'{polled.buffer}' is awaited with no exchange in front of '{polled.segment}'")

    def _coverage(self, instructions: Ints) -> None:
        """Every segment of the mode works on every row of its space once, and no other runs."""
        words = instructions[:, :3].astype(np.int64)
        words = words[np.lexsort((words[:, 1], words[:, 0]))]
        numbers = [self.text.number[segment.name] for segment in self.text.plan.segments]
        begins, behind = (words[:, 0].searchsorted(numbers, side) for side in ("left", "right"))
        for segment, begin, end in zip(self.text.plan.segments, begins, behind, strict=True):
            first, count = words[begin:end, 1], words[begin:end, 2]
            where = f"segment '{segment.name}'"
            if segment.name not in self.text.segments:
                need(begin == end, f"{where} does not run in mode '{self.text.mode}'")
                continue
            total = self.text.rows[segment.space]
            inside = (first >= 0) & (count > 0) & (first + count <= total)
            need(inside.all(), f"{where}: rows outside the {total} of space '{segment.space}'")
            ends = np.concatenate(([0], first + count))
            need((first >= ends[:-1]).all(), f"{where}: a row is worked on twice")
            need((first <= ends[:-1]).all() and ends[-1] == total, f"{where}: a row is left out")
            selects = [product.select for product in segment.products]
            selects += [transposed.select for transposed in segment.transposed]
            for name in {select for select in selects if select is not None}:
                chosen = self.text.part(self.text.list_at(name), total, name)
                new = np.flatnonzero(np.diff(chosen)) + 1
                need(np.isin(new, first).all(), f"{where}: rows of one instruction select different numbers")
