"""Places in the pool: addresses that lists hold, and memory that buffers take.

In: a schedule whose instructions are right, and what these leave behind. Guaranteed: every address is a
record of the right buffer, and no two buffers overlap.
"""

from __future__ import annotations

import numpy as np

from dnc.ir import isa
from dnc.ir.forest import path_struct, program_structs
from dnc.ir.plan import (
    ChildrenList,
    ClassList,
    GatherList,
    IndexList,
    NoiseList,
    OperandList,
    ShareList,
    SlotList,
    SlotSource,
    TableGradient,
    TableList,
    TableProduct,
    VectorList,
    padded,
)
from dnc.ir.states import state_buffer, state_layout
from dnc.runtime.pool import units
from dnc.runtime.verifier.closing import Closing
from dnc.runtime.verifier.text import Ints, Text, need


class Places:
    """See the module."""

    def __init__(self, text: Text, closing: Closing) -> None:
        self.text, self.closing = text, closing
        self.entries: dict[str, int] = {}

    def check(self) -> None:
        """All checks."""
        for item in self.text.plan.lists:
            at = self.text.list_at(item.name)
            if at:
                self._list(item, at)
        for table in self.text.plan.table_gradients:
            if table.parameter in self.closing.tokens:
                self._table(table, self.closing.tokens[table.parameter])
        self._disjoint()

    def _list(self, item: IndexList, at: int) -> None:
        rows, name = self.text.rows.get(item.space), item.name
        need(rows is not None, f"list '{name}' is of space '{item.space}', which has no rows")
        assert rows is not None
        if isinstance(item, SlotList):
            self._slots(name, item.sources, at, rows)
        elif isinstance(item, ChildrenList):
            begin = self.text.part(at, rows + 1, name)
            right = begin[0] > at + rows and (np.diff(begin) >= 0).all() and begin[-1] <= len(self.text.words)
            need(right, f"list '{name}': its begins do not rise, or lie outside the schedule")
            self.entries[name] = int(begin[-1] - begin[0])
            self._records(
                name, self.text.part(int(begin[0]), self.entries[name], name), self._states(item.function)
            )
        elif isinstance(item, GatherList):
            found = self.text.part(at, rows, name)
            self._records(name, found[found != 0], self._states(item.function))
        elif isinstance(item, TableList):
            found = self.text.part(at, rows, name)
            self._records(name, found[found != 0], [self._table_rows(item.parameter)])
        elif isinstance(item, OperandList):
            known = (item.list, isa.table_lists(item.parameter)[0])
            need(at in map(self.text.list_at, known), f"list '{name}' is neither of {known}")
        elif isinstance(item, NoiseList):
            self.text.part(at, rows, name)
        elif isinstance(item, ClassList):
            need((self.text.part(at, rows, name) >= -1).all(), f"list '{name}' holds a class below -1")
        else:
            width = 1 if isinstance(item, ShareList) else item.width
            stride, found = padded(width) // 4, self.text.part(at, rows, name)
            handed = self._handed(item)
            if handed is not None:  # its vectors lie in the order of another net
                first, vectors = handed
                self._records(name, found[found != 0], [(first, stride, vectors)])
                return
            found = found - self.text.schedule.address
            inside = ((found >= self.text.body // 4) & (found + stride <= len(self.text.words) // 4)).all()
            in_order = (np.diff(found) == stride).all()
            need(inside and in_order, f"list '{name}': a vector is not where it lies")

    def _handed(self, item: IndexList) -> tuple[int, int] | None:
        """Where the vectors of a list begin, and how many they are, if they come from another net."""
        guest = self.text.schedule.guest
        if guest is None or not isinstance(item, VectorList):
            return None
        structs = program_structs(self.text.program)
        key = path_struct(structs, self.text.program.space(item.space).struct, item.path), item.field
        return None if key not in guest.handed else (guest.vectors[key], guest.handed[key].rows)

    def _states(self, function: str) -> list[tuple[int, int, int]]:
        """(base, stride, rows) of every state buffer of a function."""
        text = self.text
        stride = state_layout(text.program, function)[""] // 4
        spaces = dict.fromkeys(s.space for s in text.program.stages if s.function == function)
        found = [(text.bases.get(state_buffer(space)), stride, text.rows.get(space, 0)) for space in spaces]
        if function in text.schedule.known:
            at, rows = text.schedule.known[function]
            first, past = at - text.schedule.address, at - text.schedule.address + rows * stride
            inside = text.body // 4 <= first and past <= len(text.words) // 4
            need(inside, f"the known states of '{function}' are outside the schedule")
            found.append((at, stride, rows))
        return [(base, stride, rows) for base, stride, rows in found if base is not None]

    def _table_rows(self, parameter: str) -> tuple[int, int, int]:
        """(base, stride, rows) of a table: it ends before the next base at the latest."""
        base = self.text.bases[parameter]
        stride = padded(self.text.program.parameter(parameter).row_size) // 4
        end = min(other for other in self.text.bases.values() if other > base)
        return base, stride, (end - base) // stride

    def _records(self, name: str, found: Ints, places: list[tuple[int, int, int]]) -> None:
        """Every address is the start of a record of one of the places."""
        right = np.zeros(len(found), bool)
        for base, stride, rows in places:
            number, rest = np.divmod(found - base, stride)
            right |= (number >= 0) & (number < rows) & (rest == 0)
        bad = int((~right).argmax()) if len(right) else 0
        need(right.all(), f"list '{name}', entry {bad}: no record of its buffer is at that address")

    def _slots(self, name: str, sources: tuple[SlotSource, ...], at: int, rows: int) -> None:
        heads = self.text.part(at, rows, name)
        several = heads[heads > 0]
        inside = (several >= self.text.body) & (several < len(self.text.words))
        need(inside.all(), f"list '{name}': an offset is outside the schedule")
        counts = self.text.words[several].astype(np.int64)
        need((counts > 1).all(), f"list '{name}': a count of several slots is below 2")
        need((several + counts < len(self.text.words)).all(), f"list '{name}': slots outside the schedule")
        ends = np.cumsum(counts)
        index = np.repeat(several + 1 - (ends - counts), counts) + np.arange(int(counts.sum()))
        found = np.concatenate((-1 - heads[heads < 0], self.text.words[index]))
        places = []
        for source in sources:
            if source.buffer in self.text.bases and source.space in self.text.rows:
                buffer = self.text.buffers[source.buffer]
                stride = buffer.width // 4 * self.text.plan.runs_in(buffer, self.text.runs, self.text.workers)
                places.append((self.text.bases[source.buffer], stride, self._records_of(source.buffer)))
        self._records(name, found, places)

    def _table(self, table: TableGradient, tokens: int) -> None:
        names = isa.table_lists(table.parameter)
        found = self.text.part(self.text.list_at(names[0]), tokens, names[0])
        self._records(names[0], found, [self._table_rows(table.parameter)])
        need((np.diff(found) > 0).all(), f"list '{names[0]}': its rows do not rise")
        slots = isa.table_slots(table)
        for name, sources in ((slots.plain, table.plain), (slots.partial, table.partial)):
            if name is not None:
                self._slots(name, sources, self.text.list_at(name), tokens)
        for product in table.products:
            self._slots(product.deltas, (product.source,), self.text.list_at(product.deltas), tokens)
            self._terms(product, tokens)

    def _terms(self, product: TableProduct, tokens: int) -> None:
        """What a product adds up: records of sums, one a token; or the slots themselves."""
        at, bases = self.text.list_at(product.terms), self.text.bases
        if product.sums in self.closing.first:
            stride = self.text.buffers[product.sums].width // 4
            right = -1 - (bases[product.sums] + np.arange(tokens) * stride)
            same = (self.text.part(at, tokens, product.terms) == right).all()
            need(same, f"list '{product.terms}': not the records of '{product.sums}' in their order")
        else:
            same = at == self.text.list_at(product.deltas)
            same = same and bases[product.sums] == bases[product.source.buffer]
            need(same, f"'{product.sums}' is not another name of '{product.source.buffer}'")

    # ---- memory ---------------------------------------------------------------------------------

    def _records_of(self, name: str) -> int:
        """Records in a buffer: rows of its space, or entries of its list of children."""
        buffer = self.text.buffers[name]
        if buffer.children is None:
            return self.closing.first.get(name, self.text.rows[buffer.space])
        if buffer.children not in self.entries:
            at, rows = self.text.list_at(buffer.children), self.text.rows[buffer.space]
            begin = self.text.part(at, rows + 1, buffer.children)
            self.entries[buffer.children] = int(begin[-1] - begin[0])
        return self.entries[buffer.children]

    def _disjoint(self) -> None:
        """Parameters, places, buffers and the schedule itself do not overlap."""
        text = self.text
        areas = {"the schedule": (text.schedule.address, len(text.words))}
        sizes = dict(text.known.sizes)
        sizes[isa.CHUNKS] = (self.closing.chunks - 1) * sizes[isa.GRADIENTS]
        frozen = [parameter.name for parameter in text.program.parameters if parameter.frozen]
        packed = map(isa.packed_base, isa.packed_parameters(text.plan))
        ends = [text.bases[name] for name in (*frozen, *packed)]
        gradients = text.bases[isa.GRADIENTS]
        if isa.STATES[0] in text.bases:  # behind the first arena, which need not be the launch's
            gradients = min(gradients, text.bases[isa.STATES[0]] - units(sizes[isa.GRADIENTS]))
        arena = min([*ends, gradients])
        sizes |= dict.fromkeys(isa.STATES, (arena - text.bases[isa.PARAMETERS]) * 4)
        sizes[isa.NORMS] = self.closing.norms
        for table in text.plan.table_gradients:
            name = isa.table_base(table.parameter)
            sizes[name] = self.closing.tokens.get(table.parameter, 0) * padded(table.width)
        aliases = {product.sums for product in text.plan.table_products} - self.closing.first.keys()
        for name, buffer in text.buffers.items():
            if name in text.bases and name not in aliases:
                sizes[name] = (
                    self._records_of(name) * buffer.width * text.plan.runs_in(buffer, text.runs, text.workers)
                )
        areas |= {name: (text.bases[name], size) for name, size in sizes.items() if name in text.bases}
        if (guest := text.schedule.guest) is not None:
            for key, handed in guest.handed.items():
                areas[f"the vectors of {'.'.join(key)}"] = guest.vectors[key], handed.rows * handed.stride
        dynamic = {
            *text.buffers,
            isa.NORMS,
            isa.CHUNKS,
            *(isa.table_base(t.parameter) for t in text.plan.table_gradients),
        }
        end, past = (text.schedule.static_words + text.schedule.activations) // 4, 0
        before = "the row of zeros"
        for name, (base, size) in sorted(areas.items(), key=lambda item: (item[1][0], item[1][1])):
            need(base > 0 and base % 4 == 0, f"'{name}' starts at address {base}, not at a multiple of 4")
            need(base >= past, f"'{name}' starts at address {base}, inside '{before}'")
            past, before = max(past, base - (-size // 4)), name
            need(name not in dynamic or past <= end, f"'{name}' reaches beyond the pool")
