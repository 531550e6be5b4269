"""Phases of a launch: what stands before a recursion, its levels, what stands behind it, both ways.

In: how many strata of recursions a program has. Out: the number of the phase that a stage runs in, in the
order in which phases run.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from dnc.ir.program import FORWARD, Program, Stage

FIRST = 0  # the phase before all recursions


@attrs.frozen
class Phases:
    """The phases of a program with so many recursions behind each other, by number.

    Forward, what stands before a recursion and its levels, of every stratum, then what stands behind the last
    one; backward the same from the end.
    """

    strata: int = 1

    @classmethod
    def of(cls, program: Program) -> Phases:
        """Those of a program."""
        return cls(program.strata)

    @property
    def count(self) -> int:
        """How many there are."""
        return 2 * self.starts

    @property
    def behind(self) -> int:
        """The one behind all recursions."""
        return 2 * self.strata

    @property
    def starts(self) -> int:
        """The one in which gradients start."""
        return self.behind + 1

    def of_stage(self, stage: Stage) -> int:
        """The one that a stage runs in."""
        return stage.turn if stage.direction == FORWARD else self.starts + self.behind - 2 + stage.turn

    def stratum(self, phase: int) -> int:
        """The one of a phase with levels; of others the one in front of which, forwards, they stand."""
        return min(phase, self.count - 1 - phase) // 2

    def has_levels(self, phase: int) -> bool:
        """Whether what runs in it runs level by level."""
        return phase % 2 == (phase < self.starts)

    def from_last(self, phase: int) -> bool:
        """Whether its levels run from the last to the first."""
        return phase >= self.starts and self.has_levels(phase)

    def last_levels(self, used: Iterable[int]) -> int:
        """Of phases that a mode uses the one of the last recursion, forwards; FIRST if there is none."""
        forwards = [phase for phase in used if phase < self.behind]
        return max(filter(self.has_levels, forwards), default=FIRST)
