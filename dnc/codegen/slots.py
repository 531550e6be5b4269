"""The gradient slots of a row: what several users of a value leave for it, added up in order.

In: heads of a row's lists of slots (`dnc.ir.isa`), and the `Access` that reads them. Out: TIRx expressions
for their count and their sum. Guaranteed: sums run in the order of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen.emit import (
    Expr,
    fixed,
    floats,
    lanes,
    let,
    local,
    loop,
    put,
    quad_at,
    smaller,
    stride_loop,
    when,
    wide,
)
from dnc.ir.plan import SlotsAddress

if TYPE_CHECKING:
    from dnc.codegen.access import Access

SLOTS_TOGETHER = 4  # plain slots whose loads are under way together, where nobody says how many
FEW_RUNS = 4  # partial sums whose loads are under way together, where there are more and few registers
MOST_RUNS = 16  # partial sums of a slot that are loaded without a loop; of more, up to so many are one part
FEW_PARTS = 3  # all of which a thread loads before it adds them up, where it has registers


def parts_of(runs: int) -> int:
    """Parts of so many runs."""
    return -(-runs // MOST_RUNS)


def part_size(runs: int) -> int:
    """Runs of a part, of which the last one may have fewer."""
    return -(-runs // parts_of(runs))


def each_slot(words: Any, head: Expr, body: Callable[[Expr], None]) -> None:
    """Emits the body, once, for the place of every slot of a list in order."""
    count = local("slots", "int32", T.Select(head < 0, 1, 0))
    with when(head > 0):
        put(count, 0, words[head])
    with stride_loop("slot", 0, count[0], 1) as slot:
        place = local("place", "int32", -1 - head)  # a list with one slot is that slot's place
        with when(head > 0):
            put(place, 0, words[head + 1 + slot])
        body(let("slot_at", place[0]))


@attrs.frozen(eq=False)
class SlotsReader:
    """The gradient slots of a row: heads of its lists, by name."""

    access: Access
    address: SlotsAddress
    heads: dict[str, Expr]

    def count(self) -> Expr:
        """How many there are, with no branch."""
        total: Expr = 0
        for head in self.heads.values():
            several = self.access.words[T.Select(head > 0, head, 0)]
            total = total + T.Select(head > 0, several, T.Select(head < 0, 1, 0))
        return let("slots", total)

    def sum(self, i: Expr) -> Expr:
        """Element i of their sum, in order."""
        return self.start(i)()

    def start(self, i: Expr) -> Callable[[], Expr]:
        """Starts the loads of lists that have one slot, where loads may be made for nothing; the answer emits
        the sum."""
        if not self.access.eager:
            return lambda: self._in_order(i)
        partial = self.address.partial
        # Threads that add up runs together, or poll them, wait: first other loads start, sums come behind.
        waited = (self.access.add_runs, self.access.gathered, self.access.polls)
        apart = partial if any(way is not None for way in waited) else None
        single = {name: self._only(name, i) for name in self.heads if name != apart}

        def add_up() -> Expr:
            total = local("total", *floats(0.0, i))
            if apart is not None:
                single[apart] = self._partial(self.heads[apart], i)
            for name, head in self.heads.items():
                put(total, 0, total[0] + single[name])
                if name != apart:
                    with when(head > 0):
                        self._several(total, head, i, name == partial)
            return let("summed", total[0])

        return add_up

    def plain(self, i: Expr) -> Expr:
        """The only plain slot, under way: zeros where there is none or more than one."""
        assert self.address.plain is not None
        head = self.heads[self.address.plain]
        return self._if_single(head, wide(let("place", -1 - head)) * 4 + self.address.offset, i)

    def _only(self, name: str, i: Expr) -> Expr:
        """The only slot of a list, which may be there already."""
        partial, alone = name == self.address.partial, self.access.alone
        there = alone(self.address) if alone is not None and not partial else None
        return self._single(self.heads[name], i, partial) if there is None else there

    def _partial(self, head: Expr, i: Expr) -> Expr:
        """The sum of a list's partial slots, whose runs were, or are, added up together."""
        found = local("partial", *floats(0.0, i))
        if self.access.gathered is None:
            self._add_list(found, head, i, True)
        else:
            put(found, 0, self.access.gathered(self.address))
        return found[0]

    def _single(self, head: Expr, i: Expr, partial: bool) -> Expr:
        """The only slot of a list, all its runs; zeros where there is none or more than one."""
        place = let("place", -1 - head)
        at = wide(place) * 4 + self.address.offset
        total = local("single", *floats(0.0, i))

        def read(place: Expr) -> Expr:
            return self._if_single(head, place, i)

        def add(place: Expr) -> None:
            put(total, 0, total[0] + read(place))

        def from_pool() -> None:
            if self.access.workers <= MOST_RUNS:
                for run in range(self.access.workers):
                    add(at + run * self.address.width)
            else:
                self.access.add_in_parts(total, i, lambda run: read(at + wide(run) * self.address.width))

        if partial:
            self.access.runs(total, place, i, self.address, lambda: put(total, 0, read(at)), from_pool)
        else:
            add(at)
        return total[0]

    def _if_single(self, head: Expr, place: Expr, i: Expr) -> Expr:
        """Element i of what lies at a place; zeros where a list has not one slot."""
        at = place + (i if lanes(i) == 1 else i.base)
        source = T.Select(head < 0, at, T.int64(0))
        return self.access.pool[source if lanes(i) == 1 else quad_at(source)]

    def _several(self, total: Any, head: Expr, i: Expr, partial: bool) -> None:
        """Adds the slots of a list that stands elsewhere in the schedule."""
        count = let("count", self.access.words[head])
        with stride_loop("slot", 0, count, 1) as slot:
            place = let("place", self.access.words[head + 1 + slot])
            self.access.add_slot(total, place, i, self.address, partial)

    def _in_order(self, i: Expr) -> Expr:
        """The same, a slot after the other."""
        total = local("total", *floats(0.0, i))
        for name, head in self.heads.items():
            self._add_list(total, head, i, name == self.address.partial)
        return let("summed", total[0])

    def _add_list(self, total: Any, head: Expr, i: Expr, partial: bool) -> None:
        """Adds the slots of a list."""
        with T.If(head < 0):  # one slot: its address stands in the list itself
            with T.Then():
                self.access.add_slot(total, let("place", -1 - head), i, self.address, partial)
            with T.Else(), when(head > 0):
                self._several(total, head, i, partial)

    def add_every(
        self,
        totals: Sequence[Any],
        first: Expr,
        step: int,
        quads: Sequence[Expr],
        together: int = SLOTS_TOGETHER,
    ) -> None:
        """Adds every step-th slot of each list, from the one numbered `first`, to a total for every quad.

        Of plain slots so many are under way together; of partial ones, which are many loads each, the
        address of the next is read while one is added.
        """

        def add_plain(head: Expr, count: Expr) -> None:
            with stride_loop("slot", first, count, step * together) as slot:
                places = []
                for ahead in range(together):  # behind the last one zeros are added
                    there = slot + ahead * step < count
                    near = fixed("near_slot", T.Select(there, slot + ahead * step, 0))
                    place = wide(self.access.words[head + 1 + near]) * 4 + self.address.offset
                    places.append((there, fixed("place", place, "int64")))
                found = [
                    [
                        let("found", self.access.pool[quad_at(T.Select(there, place + quad, T.int64(0)))])
                        for there, place in places
                    ]
                    for quad in quads
                ]
                for total, values in zip(totals, found, strict=True):
                    for value in values:
                        put(total, 0, total[0] + value)

        def add(place: Expr, partial: bool) -> None:
            at = let("at", wide(place) * 4 + self.address.offset)
            with loop("run", self.access.workers if partial else 1, unroll=None) as run:
                for total, quad in zip(totals, quads, strict=True):
                    found = self.access.pool[quad_at(at + wide(run) * self.address.width + quad)]
                    put(total, 0, total[0] + found)

        for name, head in self.heads.items():
            partial = name == self.address.partial
            with T.If(head < 0):
                with T.Then(), when(first == 0):
                    add(let("place", -1 - head), partial)
                with T.Else(), when(head > 0):
                    count = let("count", self.access.words[head])
                    if not partial:
                        add_plain(head, count)
                        continue
                    with when(first < count):
                        following = local("following", "int32", self.access.words[head + 1 + first])
                        with stride_loop("slot", first, count, step) as slot:
                            place = fixed("place", following[0])
                            behind = smaller(slot + step, count - 1)
                            put(following, 0, self.access.words[head + 1 + behind])
                            add(place, partial)
