"""The schedules of a group of batches, which lie side by side: what they share once, and each by need.

In: the words of all, counts and places by batch. Out: a sequence of `Schedule`s. Guaranteed: a schedule is
made when somebody asks for it; who copies words and adds up results asks for none, and that is all that a
batch of one sentence has time for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.plan import NoiseList, Plan
from dnc.runtime.schedule import Schedule, Words

if TYPE_CHECKING:
    from dnc.runtime.encoder.guest import Guest
    from dnc.runtime.encoder.readout import Readout
    from dnc.runtime.encoder.words import Spread

Results = dict[str, tuple[int, int]]


@attrs.define(eq=False)
class Schedules(Sequence[Schedule]):
    """words: [batches, words of a schedule]. address: where the first one will lie.

    bases: by name, those of the first; moving: of those that are not alike in all batches, [batches]. rows,
    positions: by space how the rows of all batches are divided, and which they are
    (not where a group came from another process). results: by name (word, rows summed of every batch).
    samples, division: of all batches, and how they are divided. lanes: batch i runs beside those of other
    lanes than i % lanes. lean: of every batch. devices: where they are several, so many schedules behind each
    other are the shares of a batch, one a device. Everything else is as in `Schedule`.
    """

    plan: Plan
    words: Words
    address: int
    bases: dict[str, int]
    moving: dict[str, NDArray[Any]]
    rows: dict[str, NDArray[Any]]
    positions: dict[str, tuple[Spread, NDArray[np.intp]]]
    static_words: int
    activations: int
    results: dict[str, tuple[int, NDArray[Any]]]
    samples: Words
    division: Spread
    mode: str
    guest: Guest | None
    known: dict[str, tuple[int, int]]
    readout: Readout | None
    lanes: int
    lean: NDArray[np.bool_]
    devices: int = 1
    forward: int = 0

    def __len__(self) -> int:
        return self.division.batches

    @overload
    def __getitem__(self, index: int) -> Schedule: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Schedule]: ...

    def __getitem__(self, index: int | slice) -> Schedule | Sequence[Schedule]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        bases = self.bases | {name: int(each[at]) for name, each in self.moving.items()}
        return Schedule(
            self.plan,
            self.words[at],
            self.address + at // self.devices * self.words.shape[1] // 4,
            {name: int(counts[at]) for name, counts in self.rows.items()},
            bases,
            self.static_words,
            self.activations,
            self.results_of(at),
            self.samples[self.division.of(at)],
            {name: found[spread.of(at)] for name, (spread, found) in self.positions.items()},
            self.mode,
            None if self.guest is None else self.guest.of(at),
            self.known,
            self.readout,
            bool(self.lean[at]),
            self.devices,
            self.forward,
        )

    def of_device(self, device: int) -> Schedules:
        """Those of one of several devices."""
        own = slice(device, None, self.devices)
        numbers = range(len(self))[own]
        return attrs.evolve(
            self,
            words=self.words[own],
            moving={name: each[own] for name, each in self.moving.items()},
            rows={name: counts[own] for name, counts in self.rows.items()},
            positions={},
            results={name: (word, counts[own]) for name, (word, counts) in self.results.items()},
            samples=np.concatenate([self.samples[self.division.of(number)] for number in numbers]),
            division=type(self.division)(self.division.counts[own]),
            lean=self.lean[own],
            devices=1,
        )

    def results_of(self, index: int) -> Results:
        """Name -> (word in the results area, rows summed) of one of them."""
        return {name: (word, int(counts[index])) for name, (word, counts) in self.results.items()}

    def bare(self) -> Schedules:
        """Without the words, the plan, and the positions that nobody asks for: what is sent elsewhere.

        Who gets it has the plan. Who reads columns asks whose their rows are, and so does who shares a batch
        and draws its random numbers later.
        """
        nothing: Any = None
        columns = set() if self.readout is None else self.readout.column_names
        spaces = {each.space for each in self.plan.results if each.name in columns}
        guest = self.guest
        if guest is not None:
            guest = guest.bare()
            spaces |= {item.space for item in self.plan.lists if isinstance(item, NoiseList)}
        positions = {name: found for name, found in self.positions.items() if name in spaces}
        return attrs.evolve(self, plan=nothing, words=self.words[:0], positions=positions, guest=guest)


def words_of(schedules: Sequence[Schedule]) -> Words:
    """[schedules, words of each]: as they are to be copied."""
    if isinstance(schedules, Schedules):
        return schedules.words
    if len(schedules) == 1:
        return schedules[0].words[None]
    return np.stack([schedule.words for schedule in schedules])


def lanes_of(schedules: Sequence[Schedule]) -> int:
    """How many of some schedules may run beside each other."""
    return schedules.lanes if isinstance(schedules, Schedules) else 1


def lean_of(schedules: Sequence[Schedule]) -> list[bool]:
    """Which of some schedules a lean kernel runs."""
    if isinstance(schedules, Schedules):
        found: list[bool] = schedules.lean.tolist()
        return found
    return [schedule.lean for schedule in schedules]


def first_of(schedules: Sequence[Schedule]) -> Schedule | Schedules:
    """What knows the address of the first of some schedules, and the readout of all."""
    return schedules if isinstance(schedules, Schedules) else schedules[0]


def results_of(schedules: Sequence[Schedule], index: int) -> Results:
    """Where one of some schedules leaves its sums, and over how many rows."""
    if isinstance(schedules, Schedules):
        return schedules.results_of(index)
    return schedules[index].results
