"""Where devices that train together meet: what they add up, between which barriers.

In: the instructions behind the recursion, touched rows by table. Out: how many norms there are behind it.
Guaranteed: all gradients are added up, once; what a device adds up or uses stands behind a barrier of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dnc.ir import isa
from dnc.ir.optimizers import OPTIMIZERS
from dnc.ir.plan import padded
from dnc.runtime.verifier.text import Ints, Text, need


class Meeting:
    """See the module."""

    def __init__(self, text: Text, names: Sequence[str], tail: Ints) -> None:
        self.text, self._names = text, [name for name in names if name != isa.NOP]
        self._among = set[tuple[int, int]]()
        self._added, self._turns = list[tuple[int, ...]](), list[int]()
        for name, words in zip(names, tail.tolist(), strict=True):
            if name == isa.DEVICE_BARRIER:
                self._turns.append(words[1])
                self._among.add((words[2], words[3]))
            elif name == isa.ALL_REDUCE:
                self._added.append(tuple(words[1:5]))
                self._among.add((words[5], words[6]))

    def norms(self, tokens: Mapping[str, int]) -> int:
        """All checks; tokens: touched rows of every table."""
        need(len(self._among) == 1, f"several numbers of a device, of so many: {sorted(self._among)}")
        ((device, devices),) = self._among
        need(0 <= device < devices == self.text.schedule.devices, f"device {device} of {devices}")
        self._order()
        right_turns = list(range(1, isa.MEETINGS + 1))
        need(self._turns == right_turns, f"barriers of all devices count {self._turns}, not {right_turns}")
        plan, bases, count = self.text.plan, self.text.bases, 0
        right: list[tuple[int, ...]] = []
        areas = [(bases[isa.GRADIENTS], isa.summed_floats(plan), 0)]
        for table in plan.table_gradients:
            base, floats = bases[isa.table_base(table.parameter)], padded(table.width)
            width = table.width if table.width != floats else 0
            areas.append((base, tokens.get(table.parameter, 0) * floats, width))
        for base, floats, width in areas:
            right.append((base, floats, count, width))
            count += -(-floats // isa.NORM_CHUNK)
        if followed := isa.followed_floats(plan):
            first = bases[isa.GRADIENTS] + isa.trained_floats(plan) // 4
            right.append((first, followed, isa.NO_NORM, 0))
        found = sorted(self._added)
        need(found == sorted(right), f"'{isa.ALL_REDUCE}' adds up {found}, expected {sorted(right)}")
        return count

    def _order(self) -> None:
        """A barrier of the grid stands on both sides of one of all devices, and one of these on both sides
        of what is added up; in front of them is no update, and nothing else behind them."""
        names = self._names
        first = names.index(isa.DEVICE_BARRIER) - 1
        one, both = isa.GRID_BARRIER, [isa.DEVICE_BARRIER, isa.GRID_BARRIER]
        right = [one, *both, *[isa.ALL_REDUCE] * len(self._added), one, *both]
        found = names[max(first, 0) :][: len(right)]
        need(found == right, f"where devices meet stand {found}, expected {right}")
        early = [name for name in names[:first] if _uses(name)]
        need(not early, f"'{min(early, default='')}' in front of a barrier of all devices")
        late = [name for name in names[first + len(right) :] if not _uses(name) and name != isa.END]
        need(not late, f"'{min(late, default='')}' behind the barriers of all devices")


def _uses(name: str) -> bool:
    """Whether an instruction uses what was added up."""
    return name == isa.FOLLOW or name.split(" ")[0] in OPTIMIZERS
