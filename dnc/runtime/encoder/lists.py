"""Index lists of a group of batches: where every row finds its states, table rows, data and slots.

In: the rows of every space and the bases. Out: the lists' words, and their offsets by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir import isa
from dnc.ir.forest import Ints, path_struct
from dnc.ir.noise import vertex_keys
from dnc.ir.plan import (
    ChildrenList,
    ClassList,
    GatherList,
    IndexList,
    NoiseList,
    OperandList,
    Plan,
    ShareList,
    SlotList,
    SlotSource,
    TableGradient,
    TableList,
    TableProduct,
    VectorList,
    padded,
)
from dnc.ir.program import TABLE
from dnc.ir.states import state_buffer, state_layout
from dnc.ir.structure import Path
from dnc.runtime.encoder.guest import Guest
from dnc.runtime.encoder.rows import Rows, sample_rows
from dnc.runtime.encoder.words import Numbers, Spread, Words, chosen, in_order
from dnc.runtime.prepared import Indices, Prepared

Found = TypeVar("Found")


@attrs.define(eq=False)
class Touched:
    """The rows of a table that every batch touches, and their slots.

    tokens: of all batches, rising within each. slots, rows: of all slots, row by row, which one of all
    sources one after another it is, and whose, as `Words.ordered_slots` takes it.
    """

    tokens: Numbers
    spread: Spread
    slots: Indices
    rows: Indices


@attrs.define(eq=False)
class Group:
    """What the lists of a group are made from: rows by space, bases by name, workers of a replica.
    runs: of the records of reduced buffers, [batches] where they differ.

    moving: bases that not all batches have in common, [batches]. address: where the first batch's schedule
    will lie. followed: how many rows move every running parameter, [batches, parameters of the stack].
    guest: what a batch, the only one then, shares.
    """

    rows: dict[str, Rows]
    bases: dict[str, int]
    moving: dict[str, Numbers]
    workers: int
    runs: int | Numbers
    address: int
    body: Words
    noise: NDArray[np.uint32]
    followed: dict[str, Numbers]
    guest: Guest | None = None
    found: dict[object, Any] = attrs.field(factory=dict)

    def base(self, name: str) -> int | Numbers:
        """A base; [batches] where they differ."""
        return self.moving[name] if name in self.moving else self.bases[name]

    def base_of(self, name: str, spread: Spread) -> int | Numbers:
        """The same for every item of a spread."""
        base = self.base(name)
        return base if isinstance(base, int) else base[spread.batch]

    def once(self, key: object, make: Callable[[], Found]) -> Found:
        """What several lists need: made by the first that asks for it."""
        if key not in self.found:
            self.found[key] = make()
        found: Found = self.found[key]
        return found


class Lists:
    """Encodes lists; what depends on the plan and the data alone is worked out once."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self.plan = prepared, prepared.plan
        self.program = self.plan.program
        self._buffers = {buffer.name: buffer for buffer in self.plan.buffers}
        self._sources = _source_numbers(self.plan)
        self._spaces: dict[str, list[str]] = {}  # of every function
        for stage in self.program.stages:
            if stage.function is not None:
                spaces = self._spaces.setdefault(stage.function, [])
                if stage.space not in spaces:
                    spaces.append(stage.space)
        self._owner = {space: f for f, spaces in self._spaces.items() for space in spaces}
        self._stride = {name: state_layout(self.program, name)[""] // 4 for name in self._spaces}
        # By vertex, the last entry standing for none: its record, and its number among the calls of
        # its function; -1 where a mode has no rows for its space. Of records only what a group writes is
        # read for that group.
        self._record = {name: np.zeros(self._vertices(name) + 1, np.int32) for name in self._spaces}
        self._call = {name: np.full(self._vertices(name) + 1, -1, np.intp) for name in self._spaces}
        self._numbered: dict[str, list[Indices]] = {}  # by function the vertices that have a number
        self._single: dict[int, bool] = {}  # by number of slot lists
        self._table_stride = {
            parameter.name: padded(parameter.row_size) // 4
            for parameter in self.program.parameters
            if parameter.kind == TABLE
        }
        self._known: dict[tuple[str, Path, str], tuple[NDArray[Any], bool]] = {}

    def _vertices(self, function: str) -> int:
        return len(self.prepared.forest.tables[self.program.function(function).struct])

    # ---- calls of functions ---------------------------------------------------------------------

    def number_calls(self, group: Group, has_slots: bool) -> None:
        """Notes where every call's record lies; and where there are slots of gradients its number among the
        calls of its function."""
        for function, spaces in self._spaces.items():
            record, stride, call = self._record[function], self._stride[function], self._call[function]
            there = [space for space in spaces if space in group.rows]
            if has_slots and len(there) < len(spaces):
                for vertex in self._numbered.get(function, ()):
                    call[vertex] = -1
            calls, first, numbered = self._calls(function, group.rows), 0, list[Indices]()
            for space in there:
                rows, buffer = group.rows[space], state_buffer(space)
                (positions, row), spread = rows.members, rows.spread
                vertex = self.prepared.spaces[space].vertex[positions]
                if buffer in group.bases:
                    record[vertex] = (spread.local * stride + group.base_of(buffer, spread))[row]
                if has_slots:
                    call[vertex] = spread.numbers(calls, first)[row]
                    first += spread.most
                    numbered.append(vertex)
            if has_slots:
                self._numbered[function] = numbered

    def place_known(self, group: Group) -> dict[str, tuple[int, int]]:
        """Appends the states that are known already; by function their first address, and how many."""
        found = {}
        for function, (vertices, records) in self.prepared.forest.known.items():
            assert group.body.batches == 1 and records.shape[1] == self._stride[function] * 4
            group.body.align(4)
            at = group.address + group.body.add(records.reshape(1, -1).view(np.int32)) // 4
            self._record[function][vertices] = at + np.arange(len(vertices)) * self._stride[function]
            found[function] = at, len(vertices)
        return found

    def record(self, function: str, vertex: int) -> int:
        """The address of a call's record in what was encoded last; 0 where there was no call."""
        return int(self._record[function][vertex])

    def _calls(self, function: str, rows: dict[str, Rows]) -> int:
        """Calls of a function in a batch, in numbers that hold for all batches of the group."""
        return sum(rows[space].spread.most for space in self._spaces[function] if space in rows)

    # ---- lists of the recursion -----------------------------------------------------------------

    def encode(self, items: Iterable[IndexList], group: Group) -> dict[str, int]:
        """Appends lists to the words; the offset of every one."""
        found: dict[str, int] = {}
        slots: dict[tuple[int, str], dict[str, int]] = {}
        for item in items:
            rows = group.rows[item.space]
            if isinstance(item, SlotList):
                function = self._owner[item.space]
                key = (self._sources[item.name], function)
                if key not in slots:
                    slots[key] = self._slot_list(item, function, group)
                found[item.name] = slots[key][item.space]
            elif isinstance(item, ChildrenList):
                counts, target = self._entries(item.space, item.path, group)
                records = self._record[item.function][target]
                found[item.name] = group.body.ragged(counts, rows.spread, records)
            elif isinstance(item, GatherList):
                target = self._targets(item.space, item.path, group)
                found[item.name] = group.body.add(rows.spread.matrix(self._record[item.function][target]))
            elif not isinstance(item, OperandList):  # that is another name of a list
                found[item.name] = self._data_list(item, rows, group)
        return found

    def _targets(self, space: str, path: Path, group: Group) -> Indices:
        """The vertex at `path` of every row; -1 for none."""
        positions = group.rows[space].positions
        return group.once(("targets", space, path), lambda: self.prepared.targets[space, path][positions])

    def _entries(self, space: str, path: Path, group: Group) -> tuple[Numbers, Indices]:
        """Entries of every row in a list of children, and the vertices they are."""
        positions = group.rows[space].positions
        return group.once(("entries", space, path), lambda: self._entries_at(space, path, positions))

    def _entries_at(self, space: str, path: Path, positions: Indices) -> tuple[Numbers, Indices]:
        begin, target = self.prepared.ragged[space, path]
        first = begin[positions]
        counts = begin[positions + 1] - first
        ends = counts.cumsum()
        total = int(ends[-1]) if len(ends) else 0
        at = (first - (ends - counts)).repeat(counts) + np.arange(total)
        return counts, target[at]

    def most_entries(self, space: str, path: Path, rows: Rows) -> int:
        """The most entries that a batch has in a list of children."""
        begin, _ = self.prepared.ragged[space, path]
        counts = begin[rows.positions + 1] - begin[rows.positions]
        return self._entry_spread(counts, rows).most

    def _entry_spread(self, counts: Numbers, rows: Rows) -> Spread:
        before = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=before[1:])
        first = rows.spread.first
        return Spread(before[first + rows.spread.counts] - before[first])

    def _field(self, space: str, path: Path, field: str) -> tuple[NDArray[Any], Indices]:
        """A field's values over the data, and of every prepared row the vertex at `path` (-1: none)."""
        struct = self.program.space(space).struct
        table = self.prepared.forest.tables[path_struct(self.prepared.forest.structs, struct, path)]
        return _some(table.data[field]), self.prepared.targets[space, path]

    def numbers(self, space: str, path: Path, field: str) -> tuple[NDArray[Any], bool]:
        """A field's number of every prepared row, -1 for none; and whether every row has one."""
        key = space, path, field
        if key not in self._known:
            values, target = self._field(*key)
            found = np.where(target >= 0, values[target], -1).astype(np.intp)
            self._known[key] = found, bool((found >= 0).all())
        return self._known[key]

    def _data_list(self, item: IndexList, rows: Rows, group: Group) -> int:
        assert isinstance(item, TableList | ClassList | VectorList | NoiseList | ShareList)
        body, spread = group.body, rows.spread
        if isinstance(item, NoiseList):
            vertex = self.prepared.spaces[item.space].vertex[rows.positions]
            return body.add(spread.matrix(vertex_keys(group.noise[spread.batch], vertex, item.draws)))
        if isinstance(item, VectorList):
            return self._vectors(item, rows, group)
        if isinstance(item, ShareList):
            return self._shares(item, rows, group)
        numbers, everywhere = self.numbers(item.space, item.path, item.field)
        number = numbers[rows.positions]
        if isinstance(item, TableList):
            found = number * self.table_stride(item.parameter) + group.bases[item.parameter]
            number = found if everywhere else np.where(number >= 0, found, 0)
        return body.add(spread.matrix(number))

    def _vectors(self, item: VectorList, rows: Rows, group: Group) -> int:
        values, targets = self._field(item.space, item.path, item.field)
        target = targets[rows.positions]
        structs, space = self.prepared.forest.structs, self.program.space(item.space)
        key = path_struct(structs, space.struct, item.path), item.field
        if group.guest is not None and key in group.guest.handed:
            return group.body.add(rows.spread.matrix(group.guest.addresses(key, target)))
        found = values.reshape(len(values), item.width)[target]
        return self._records_of(np.where((target >= 0)[:, None], found, 0), rows.spread, group)

    def _shares(self, item: ShareList, rows: Rows, group: Group) -> int:
        spread, own = rows.spread, np.zeros(len(rows.positions), np.intp)
        if item.field:
            own = self.numbers(item.space, (), item.field)[0][rows.positions]
        counts = group.followed[item.parameter]
        return self._records_of((1.0 / counts[spread.batch, own])[:, None], spread, group)

    def _records_of(self, values: NDArray[Any], spread: Spread, group: Group) -> int:
        """Appends the values of every row, side by side, and the list of where they lie."""
        body, stride = group.body, padded(values.shape[1])
        filled = np.zeros((spread.batches, spread.most, stride), np.float32)
        filled[spread.batch, spread.local, : values.shape[1]] = values
        body.align(4)
        at = body.add(filled.reshape(spread.batches, -1).view(np.int32))
        return body.add_addresses(spread.matrix(group.address + at // 4 + spread.local * (stride // 4)))

    def table_stride(self, parameter: str) -> int:
        """The distance of a table's rows, in addresses."""
        return self._table_stride[parameter]

    # ---- slots ----------------------------------------------------------------------------------

    def _slot_list(self, item: SlotList, function: str, group: Group) -> dict[str, int]:
        """One list over all calls of a function; every space's part of it by name."""
        sources = [source for source in item.sources if source.space in group.rows]
        targets = [self._called(source, function, group) for source in sources]
        addresses = [self._slot_addresses(source, group) for source in sources]
        calls = self._calls(function, group.rows)
        are_alone = all(
            group.rows[space].stand_alone for space in self._spaces[function] if space in group.rows
        )
        are_single = are_alone and self._are_single(item)
        at = group.body.slots(targets, addresses, calls, are_single)
        found = {}
        for space in self._spaces[function]:
            if space in group.rows:
                found[space] = at
                at += group.rows[space].spread.most
        return found

    def _called(self, source: SlotSource, function: str, group: Group) -> Indices:
        """The call of a function that each of a source's slots belongs to, by number; -1 for none."""
        space, path, key = source.space, source.path, ("called", source.space, source.path, function)
        if source.is_list:
            return group.once(key, lambda: self._call[function][self._entries(space, path, group)[1]])
        return group.once(key, lambda: self._call[function][self._targets(space, path, group)])

    def _are_single(self, item: SlotList) -> bool:
        """Whether no vertex of the data has several of a list's slots."""
        number = self._sources[item.name]
        if number not in self._single:
            of_source = [
                self.prepared.ragged[source.space, source.path][1]
                if source.is_list
                else self.prepared.targets[source.space, source.path]
                for source in item.sources
            ]
            counts = np.bincount(np.concatenate(of_source) + 1) if of_source else np.zeros(1, np.intp)
            self._single[number] = int(counts[1:].max(initial=0)) <= 1
        return self._single[number]

    def _slot_addresses(self, source: SlotSource, group: Group) -> Numbers:
        """The addresses of a source's slots, in order."""
        rows, buffer = group.rows[source.space], self._buffers[source.buffer]
        spread = rows.spread
        if source.is_list:
            spread = self._entry_spread(self._entries(source.space, source.path, group)[0], rows)
        runs = self.plan.runs_in(buffer, group.runs, group.workers)
        stride = buffer.width // 4 * (runs if isinstance(runs, int) else runs[spread.batch])
        return spread.local * stride + group.base_of(source.buffer, spread)

    # ---- gradients of tables --------------------------------------------------------------------

    def touched(
        self,
        table: TableGradient,
        rows: dict[str, Rows],
        table_rows: int,
        tokens: Ints | None,
        devices: int = 1,
    ) -> Touched:
        """The rows of a table that the batches touch, with shares of a batch those that any of them does;
        `tokens` where they are known (one batch)."""
        keys, batches = [], 1
        for source in table.sources:
            found, spread = (
                self._source_tokens(source, rows[source.space].positions),
                rows[source.space].spread,
            )
            batches = spread.batches
            if batches > 1:
                found = np.where(found >= 0, found + spread.batch * table_rows, -1)
            keys.append(found)
        key, slots = in_order(_joined(keys))
        if devices > 1:
            return _touched_by_any(key, slots, table_rows, batches, devices, tokens)
        if tokens is not None:
            return Touched(tokens, Spread(np.array([len(tokens)])), slots, tokens.searchsorted(key))
        change = np.empty(len(key), bool)
        change[:1], change[1:] = True, key[1:] != key[:-1]
        number, distinct = change.cumsum() - 1, key[change]
        if batches == 1:
            return Touched(distinct, Spread(np.array([len(distinct)])), slots, number)
        batch, own = np.divmod(distinct, table_rows)
        spread = Spread(np.bincount(batch, minlength=batches))
        return Touched(own, spread, slots, spread.place[number])

    def sample_tokens(self, table: TableGradient, samples: Ints) -> Ints:
        """The sorted distinct rows of a table that `samples` touch."""
        found = [
            self._source_tokens(source, sample_rows(self.prepared.spaces[source.space], samples))
            for source in table.sources
        ]
        merged = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int32)
        tokens: Ints = merged[merged >= 0].astype(np.int32)
        return tokens

    def _source_tokens(self, source: SlotSource, positions: Indices) -> Indices:
        assert source.field is not None
        return self.numbers(source.space, source.path, source.field)[0][positions]

    def encode_table(
        self, table: TableGradient, touched: Touched, group: Group, apart: NDArray[np.bool_]
    ) -> dict[str, int | Numbers]:
        """Appends the lists of a table's gradient; apart: of every batch, whether the deltas are added up
        before the products."""
        names, body, spread = isa.table_lists(table.parameter), group.body, touched.spread
        stride = self.table_stride(table.parameter)
        found: dict[str, int] = {}
        found[names[0]] = body.add(spread.matrix(group.bases[table.parameter] + touched.tokens * stride))
        begin, slots, rows = 0, touched.slots, touched.rows
        parts = [(names[1], table.plain), (names[2], table.partial)]
        parts += [(product.deltas, (product.source,)) for product in table.products]
        for name, sources in parts:
            if not sources:
                if not table.products:
                    found[name] = body.no_slots(spread.most)
                continue
            addresses = _joined([self._slot_addresses(source, group) for source in sources])
            end, own, target = begin + len(addresses), slots, rows
            if len(sources) < len(table.sources):
                there = (slots >= begin) & (slots < end)
                own, target = slots[there] - begin, rows[there]
            found[name] = body.ordered_slots(target, addresses[own], spread.most)
            begin = end
        terms: dict[str, int | Numbers] = {}
        for product in table.products:
            slots_at = found[product.deltas]
            sums_at = body.add(self._sums(product, spread, group)) if apart.any() else slots_at
            terms[product.terms] = chosen(apart, sums_at, slots_at)
        return found | terms

    def _sums(self, product: TableProduct, spread: Spread, group: Group) -> Ints:
        """A list of slots in which every row has its record of the product's sums."""
        stride = self._buffers[product.sums].width // 4
        addresses = spread.local * stride + group.bases[product.sums]
        return spread.matrix(~addresses)


def _joined(arrays: Sequence[Numbers]) -> Numbers:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _some(values: NDArray[Any]) -> NDArray[Any]:
    """`values`, or one row of zeros where there are none, so that the index -1 picks something."""
    return values if len(values) else np.zeros((1, *values.shape[1:]), values.dtype)


def _source_numbers(plan: Plan) -> dict[str, int]:
    """A number for every slot list; lists with the same sources have the same one."""
    numbers: dict[tuple[SlotSource, ...], int] = {}
    return {
        item.name: numbers.setdefault(item.sources, len(numbers))
        for item in plan.lists
        if isinstance(item, SlotList)
    }


def _touched_by_any(
    key: Numbers, slots: Indices, table_rows: int, shares: int, devices: int, tokens: Ints | None
) -> Touched:
    """As `Lists.touched`, for shares of batches. key: share * table_rows + row of every slot, in order."""
    share, row = np.divmod(key, table_rows)
    whole = share // devices * table_rows + row
    distinct = np.unique(whole) if tokens is None else tokens
    batch, own = np.divmod(distinct, table_rows)
    first = Spread(np.bincount(batch, minlength=shares // devices))
    spread = Spread(first.counts.repeat(devices))
    before = (first.counts.cumsum() - first.counts).repeat(devices)
    place = distinct.searchsorted(whole) - before[share]
    return Touched(own[before[spread.batch] + spread.local], spread, slots, share * spread.most + place)
