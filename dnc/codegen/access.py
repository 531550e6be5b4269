"""Access: reads and writes of the pool and the schedule, as every target emits them.

In: a plan, the buffers `pool` (float32) and `words` (int32, from the start of the schedule), the
worker's rank; maybe `tables`, a nearer copy of the schedule's header and tables. Out: TIRx
expressions for every kind of address of `dnc.ir.plan`. Guaranteed: the positions are those of
`dnc.ir.isa`; sums over slots run in the order of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen.emit import (
    Expr,
    either,
    fixed,
    floats,
    let,
    local,
    loop,
    put,
    shift,
    smaller,
    when,
    wide,
)
from dnc.codegen.slots import FEW_PARTS, FEW_RUNS, MOST_RUNS, SlotsReader, part_size, parts_of
from dnc.ir import isa
from dnc.ir.plan import (
    Address,
    BufferAddress,
    ChildrenAddress,
    EntriesAddress,
    GatherAddress,
    IndexAddress,
    ParameterAddress,
    Plan,
    RepeatedAddress,
    SeedAddress,
    SlotsAddress,
)
from dnc.ir.program import STACK

# (position of the first, words to the next, how many, the last one that there is) -> what they are, all there
PollRuns = Callable[[Expr, int, int, Expr], list[Expr]]


@attrs.frozen(eq=False)
class NearLists:
    """Words of lists that a target keeps near: from begin() + places[name] on those of rows from `first` on.

    begin: emits a look-up, as registers are short.
    """

    words: Any
    begin: Callable[[], Expr]
    places: Mapping[str, int]
    first: Expr

    def word(self, place: Expr, row: Expr) -> Expr:
        """A row's word of the list at a place."""
        return self.words[self.begin() + place + (row - self.first)]


@attrs.frozen(eq=False)
class Access:
    """Emits reads and writes. `workers` is the replica's size, a number or an expression.

    eager: loads that may not be needed are made, from the pool's zeros, so that none waits for another.
    added: whether the runs of reduced buffers were added up, where that is known. near: what of the lists is
    nearer than the schedule. arrived: whether the partial slot at an address, and
    with an offset, is nearer than the pool, and then the reader of element i of a run. add_runs: adds up
    what a reader finds in every run, where several threads do that together. gathered, alone: read the
    sum of a row's partial slots, all their runs, and its only plain slot, where they are there already.
    repeated: the reader of a repeated value in a row, where there are such. runs_together: of many, whose
    loads are under way together. publish: writes an element, or four, that others poll. polls: waits for
    runs of polled sums.
    """

    plan: Plan
    pool: Any
    words: Any
    workers: Any
    rank: Any
    tables: Any = None
    eager: bool = False
    runs_together: int = FEW_RUNS
    near: NearLists | None = None
    added: bool | None = None
    arrived: Callable[[Expr, int], tuple[Expr, Callable[[Expr, Expr], Expr]]] | None = None
    add_runs: Callable[[Runs], Expr] | None = None
    gathered: Callable[[SlotsAddress], Expr] | None = None
    alone: Callable[[SlotsAddress], Expr | None] | None = None
    repeated: Callable[[RepeatedAddress, Expr], Callable[[Expr], Expr]] | None = None
    publish: Callable[[Expr, Sequence[Expr]], None] | None = None
    polls: PollRuns | None = None
    layout: isa.Layout = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "layout", isa.layout(self.plan))
        if self.tables is None:
            object.__setattr__(self, "tables", self.words)

    def header(self, name: str) -> Expr:
        """A word of the header."""
        return self.tables[self.layout.header[name]]

    def header_float(self, name: str) -> Expr:
        """A header word that holds the bits of a float."""
        return T.reinterpret("float32", self.header(name))

    def by_runs(self, body: Callable[[Access], None]) -> None:
        """The body twice: where reduced buffers have one run, which the workers added up, and where not."""
        whole, runs = (attrs.evolve(self, added=added) for added in (True, False))
        either(self.header(isa.RUNS) == 1, lambda: body(whole), lambda: body(runs))

    def base(self, name: str) -> Expr:
        """Position in the pool (int64, in words) of a base."""
        return wide(self.base_word(name)) * 4

    def base_word(self, name: str) -> Expr:
        """The same as addresses count, in units of 4 words."""
        return self.tables[self.layout.bases_at + self.layout.bases[name]]

    def weights(self, parameter: str, select: str | None, row: Expr) -> Expr:
        """Position of a dense parameter, of a stack that of the one which the list selects for a row."""
        if select is None:
            return self.base(parameter)
        return self.slice(parameter, self.row_word(select, row))

    def slice(self, parameter: str, index: Expr) -> Expr:
        """Position of a dense parameter, of a stack that of the one with a number."""
        if self.plan.program.parameter(parameter).kind != STACK:
            return self.base(parameter)
        return self.base(parameter) + wide(index) * isa.slice_floats(self.plan, parameter)

    def arena(self, chunk: Expr) -> Expr:
        """Position of the gradients of a chunk of rows."""
        others = self.base(isa.CHUNKS) + wide(chunk - 1) * isa.gradient_floats(self.plan)
        return T.Select(chunk == 0, self.base(isa.GRADIENTS), others)

    def list_at(self, name: str) -> Expr:
        """Offset in the schedule of a list."""
        return self.tables[self.layout.lists_at + self.layout.lists[name]]

    def row_word(self, name: str, row: Expr) -> Expr:
        """A row's word of a list with one word a row."""
        if self.near is not None and name in self.near.places:
            return self.near.word(self.near.places[name], row)
        return self.words[self.list_at(name) + row]

    def entry(self, at: Expr) -> Expr:
        """Position in the pool that the list word at `at` names."""
        return wide(self.words[at]) * 4

    def record(self, buffer: str, row: Expr) -> Expr:
        """Position of a row's record; of the worker's own run where the buffer is partial."""
        found = self.plan.buffer(buffer)
        if found.partial:
            return self.base(buffer) + (wide(row) * self.workers + self.rank) * found.width
        return self.base(buffer) + wide(row) * found.width

    def is_polled(self, buffer: str, offset: int) -> bool:
        """Whether others poll what is stored there."""
        polled = (each for each in self.plan.polled if each.buffer == buffer)
        return any(each.partial or each.offset == offset for each in polled)

    def reader(self, address: Address, row: Expr) -> Callable[[Expr], Expr]:
        """Emits what depends on the row only; the answer reads element i (any number of times).

        For IndexAddress the element is an int32. List addresses have their own readers.
        """
        if self.is_plain(address):
            at = self.position(address, row)
            return lambda i: self.pool[shift(at, i)]
        if isinstance(address, IndexAddress):
            value = let("index", self.row_word(address.list, row))
            return lambda i: value
        if isinstance(address, SeedAddress):
            return lambda i: self.header_float("loss_scale")
        if isinstance(address, BufferAddress):
            return self._buffer_reader(address, row)
        if isinstance(address, RepeatedAddress):
            assert self.repeated is not None
            return self.repeated(address, row)
        assert isinstance(address, SlotsAddress), address
        return self._slots_reader(address, row)

    def is_plain(self, address: Address) -> bool:
        """Whether the elements lie side by side at one position."""
        if isinstance(address, BufferAddress):
            return not self.plan.buffer(address.buffer).partial
        return isinstance(address, ParameterAddress | GatherAddress)

    def is_aligned(self, address: Address) -> bool:
        """Whether the elements lie side by side from a whole address on."""
        return self.is_plain(address) and address.offset % 4 == 0  # type: ignore[union-attr]

    def position(self, address: Address, row: Expr) -> Expr:
        """Position of element 0 of a plain address."""
        if isinstance(address, ParameterAddress):
            base = self.weights(address.parameter, address.select, row)
            return let("parameter", base + address.offset)
        if isinstance(address, GatherAddress):
            return let("gathered", wide(self.row_word(address.list, row)) * 4 + address.offset)
        assert isinstance(address, BufferAddress)
        width = self.plan.buffer(address.buffer).width
        return let("record", self.base(address.buffer) + wide(row) * width + address.offset)

    def _buffer_reader(self, address: BufferAddress, row: Expr) -> Callable[[Expr], Expr]:
        buffer = self.plan.buffer(address.buffer)
        base = self.base(address.buffer) + wide(row) * (buffer.width * self.workers)
        at = let("record", base + address.offset)

        def summed(i: Expr) -> Expr:
            runs = Runs(attrs.evolve(self, polls=None), at, i, buffer.width)
            if self.add_runs is not None:
                return self.add_runs(runs)
            total = local("total", *floats(0.0, i))
            with loop("run", self.workers, unroll=None) as run:  # independent loads
                put(total, 0, total[0] + runs.read(run))
            return let("summed", total[0])

        return summed

    def _slots_reader(self, address: SlotsAddress, row: Expr) -> Callable[[Expr], Expr]:
        return self.slots(address, row).sum

    def slots(self, address: SlotsAddress, row: Expr) -> SlotsReader:
        """The slots of a row."""
        heads = {
            name: let("head", self.row_word(name, row))
            for name in (address.plain, address.partial)
            if name is not None
        }
        return SlotsReader(self, address, heads)

    def add_slot(self, total: Any, place: Expr, i: Expr, address: SlotsAddress, partial: bool) -> None:
        """Adds element i of the slot at an address, of a partial slot that of all its runs."""
        at = let("at", wide(place) * 4 + address.offset)
        if not partial:
            put(total, 0, total[0] + self.pool[shift(at, i)])
            return

        def one_run() -> None:
            put(total, 0, total[0] + self.pool[shift(at, i)])

        runs = Runs(self, at, i, address.width)

        def from_pool() -> None:
            if self.add_runs is not None:
                put(total, 0, total[0] + self.add_runs(runs))
            elif self.polls is not None:
                self._add_polled(total, runs)
            elif self.eager and self.workers > MOST_RUNS:
                self.add_in_parts(total, i, runs.read)
            else:
                with loop("run", self.workers, unroll=None) as run:  # independent loads
                    put(total, 0, total[0] + runs.read(run))

        self.runs(total, place, i, address, one_run, from_pool)

    def runs(
        self,
        total: Any,
        place: Expr,
        i: Expr,
        address: SlotsAddress,
        one_run: Callable[[], None],
        from_pool: Callable[[], None],
    ) -> None:
        """Adds element i of all runs of the partial slot at a place; one_run: where these were added up."""
        if self.plan.is_reduced(address.partial):
            assert self.added is not None
            (one_run if self.added else from_pool)()
            return
        if self.arrived is None:
            from_pool()
            return
        near, read = self.arrived(place, address.offset)

        def arrived() -> None:
            for run in range(self.workers):
                put(total, 0, total[0] + read(run, i))

        either(near, arrived, from_pool)

    def add_in_parts(self, total: Any, i: Expr, read: Callable[[Expr], Expr]) -> None:
        """Adds what is read of every run of many: part by part the sum."""
        parts, size = parts_of(self.workers), part_size(self.workers)
        all_at_once = self.runs_together == MOST_RUNS and parts <= FEW_PARTS
        with loop("part", parts, unroll=parts if all_at_once else False) as part:
            some = local("some", *floats(0.0, i))
            with loop("of_part", size, unroll=self.runs_together) as number:
                run = part * size + number
                if self.workers % size:
                    with when(run < self.workers):
                        put(some, 0, some[0] + read(run))
                else:
                    put(some, 0, some[0] + read(run))
            put(total, 0, total[0] + some[0])

    def _add_polled(self, total: Any, runs: Runs) -> None:
        """The same of runs that are polled, with the same bits."""
        parts, size, last = parts_of(self.workers), part_size(self.workers), self.workers - 1
        if self.runs_together == MOST_RUNS and parts <= FEW_PARTS:
            found = runs.some(0, self.workers, last)
            for begin in range(0, self.workers, size):
                put(total, 0, total[0] + reduce(add, found[begin : begin + size]))
            return
        with loop("part", parts) as part:
            some = local("some", "float32", T.float32(0.0))
            with loop("of_part", -(-size // self.runs_together)) as number:
                first = let("first_run", part * size + number * self.runs_together)
                end = let("part_end", smaller(part * size + size, self.workers))
                for k, value in enumerate(runs.some(first, self.runs_together, last)):
                    there = first + k < end
                    put(some, 0, some[0] + T.Select(there, value, T.float32(0.0)))
            put(total, 0, total[0] + some[0])

    def bounds(self, name: str, row: Expr) -> tuple[Expr, Expr]:
        """Offsets [begin, end) in the schedule of a row's entries in a ragged list."""
        at = let("ragged", self.list_at(name) + row)
        return let("begin", self.words[at]), let("end", self.words[at + 1])

    def children(self, address: ChildrenAddress, row: Expr) -> ListReader:
        """The children's values of a row."""
        begin, end = self.bounds(address.list, row)
        return ListReader(
            let("children", end - begin),
            lambda child, i: self.pool[shift(self.entry(begin + child) + address.offset, i)],
        )

    def entries(self, address: EntriesAddress, row: Expr) -> ListReader:
        """The scalars per child that an earlier segment kept for a row."""
        begin, end = self.bounds(address.children, row)
        place = self.entry_place(address.buffer, address.children, row)
        return ListReader(let("children", end - begin), lambda child, i: self.pool[place(child)])

    def entry_place(self, buffer: str, children: str, row: Expr) -> Callable[[Expr], Expr]:
        """Position of the record of a row's child in a buffer with one record per entry of a list."""
        at = let("entries", self.record(buffer, self.first_child(children, row)))
        width = self.plan.buffer(buffer).width
        return lambda child: at + wide(child) * width

    def weight(self, parameter: str) -> Callable[[Expr, Expr], Expr]:
        """Position of element [r, k] of a dense matrix behind its base, in the plan's format."""
        shape = self.plan.program.parameter(parameter).type.shape
        down, across = self.plan.weight_format.strides(shape)[-2:]
        return lambda r, k: r * down + k * across

    def has_whole_rows(self, address: ParameterAddress) -> bool:
        """Whether every row of a dense matrix lies side by side from a whole address on."""
        shape = self.plan.program.parameter(address.parameter).type.shape
        down, across = self.plan.weight_format.strides(shape)[-2:]
        return address.offset % 4 == down % 4 == shape[-1] % 4 == 0 and across == 1

    def flat_position(self, parameter: str, index: Expr) -> Expr:
        """Position of element `index` (rows behind each other) of a dense parameter of any shape."""
        shape = self.plan.program.parameter(parameter).type.shape
        if len(shape) < 2:
            return index
        return self.weight(parameter)(index // shape[-1], index % shape[-1])

    def first_child(self, name: str, row: Expr) -> Expr:
        """How many entries of a ragged list stand before those of `row`."""
        at = self.list_at(name)
        return self.words[at + row] - self.words[at]


@attrs.frozen(eq=False)
class Runs:
    """Element i of the runs of a partial slot or record, which begins at `at`, `width` words a run."""

    access: Access
    at: Expr
    i: Expr
    width: int

    def read(self, run: Expr) -> Expr:
        """That of a run; nobody waits for it."""
        return self.access.pool[shift(self.at + wide(run) * self.width, self.i)]

    def some(self, first: Expr, count: int, last: Expr | None = None) -> list[Expr]:
        """Those of `count` runs, under way together; behind the `last` one any numbers. last: None if all
        are there."""
        if self.access.polls is None and last is not None:
            return [let("run", self.read(smaller(first + k, last))) for k in range(count)]
        at = fixed("run_at", self.at + wide(first) * self.width + self.i, "int64")
        if self.access.polls is not None:
            return self.access.polls(at, self.width, count, count - 1 if last is None else last - first)
        return [let("run", self.access.pool[at + k * self.width]) for k in range(count)]

    def part_sums(self, first: Expr, together: int) -> list[Expr]:
        """The sums of so many parts from the one numbered `first` on, a multiple of them; zeros behind the
        last one. All runs are under way before any are added."""
        runs = self.access.workers
        size, parts = part_size(runs), parts_of(runs)
        count, zero = together * size, T.float32(0.0)
        alike = runs % size == 0 and parts % together == 0  # all of these parts are there, or none
        if alike:
            found = self.some(smaller(first, parts - together) * size, count)
        else:
            begin = let("first_run", first * size)
            found = self.some(begin, count, runs - 1)
            found = [T.Select(begin + k < runs, run, zero) for k, run in enumerate(found)]
        sums = [let("part_sum", reduce(add, found[k : k + size])) for k in range(0, count, size)]
        return [T.Select(first < parts, one, zero) for one in sums] if alike else sums


@attrs.frozen(eq=False)
class ListReader:
    """A list value: how many children, and element i of child c."""

    count: Expr
    read: Callable[[Expr, Expr], Expr]
