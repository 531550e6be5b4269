"""Quads: the cell of a UNIT segment for four neighbouring units of a row at a time.

In: what `UnitCell` takes. Out: the same TIRx as four of them, but with one access of 16 bytes where
each would load or store 4. Guaranteed: the same operations in the same order, so the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import tirx

from dnc.codegen.access import Access
from dnc.codegen.cells import Started, UnitCell, placed
from dnc.codegen.emit import Expr, lane4, store_four
from dnc.ir.cell import Value
from dnc.ir.plan import ChildrenAddress, Load, Segment, Store

QUAD = 4


def fits_quads(segment: Segment, units: int) -> bool:
    """Whether every access of a segment is whole addresses, for `units` units a worker."""
    offsets = [getattr(load.address, "offset", 0) for load in segment.loads]
    offsets += [store.offset for store in segment.stores]
    return segment.units % QUAD == 0 and units % QUAD == 0 and all(at % 4 == 0 for at in offsets)


class UnitQuad:
    """Evaluates a UNIT segment for one row and the units `unit` .. + 3, a multiple of 4.

    `product(result, gate, i)` answers with the pre-activation of unit + i.
    """

    def __init__(
        self,
        access: Access,
        math: Any,
        segment: Segment,
        row: Expr,
        unit: Expr,
        product: Callable[[Value, int, int], Expr],
    ) -> None:
        self.segment = segment

        def cell(at: Expr, i: int) -> UnitCell:
            return UnitCell(access, math, segment, row, at, partial(self._product, product, i))

        self.cells = [cell(unit + i, i) for i in range(QUAD)]
        self.together = cell(tirx.Ramp(unit, 1, QUAD), 0)

    @staticmethod
    def _product(product: Callable[[Value, int, int], Expr], i: int, result: Value, gate: int) -> Expr:
        return product(result, gate, i)

    def run(self) -> None:
        """Emits loads and operations; `values` then holds everything."""
        self.load()
        self.compute()

    def load(self) -> None:
        """Emits the loads that `values` does not hold."""
        self.place()()()

    def place(self) -> Callable[[], Callable[[], None]]:
        """The same in three steps, see `placed`: the last one fills `values`."""
        missing = [load for load in self.segment.loads if load.value not in self.cells[0].values]
        start = placed(missing, self._load)

        def begin() -> Callable[[], None]:
            finish = start()

            def keep() -> None:
                for value, found in finish().items():
                    for cell, own in zip(self.cells, found, strict=True):
                        cell.values[value] = own

            return keep

        return begin

    def compute(self) -> None:
        """Emits the operations, where `values` holds the loads."""
        for cell in self.cells:
            cell.compute()

    def _load(self, load: Load) -> Callable[[], Started]:
        """Emits where a load reads; the answer the reads, and its answer the value of every unit, gate by
        gate."""
        if isinstance(load.address, ChildrenAddress):
            single = [cell.load(load) for cell in self.cells]

            def start() -> Started:
                started = [each() for each in single]
                return lambda: [finish() for finish in started]

            return start
        together = self.together.load(load)

        def units(finish: Started) -> list[list[Any]]:
            found = finish()
            if not load.value.tensor.shape:
                return [found] * QUAD
            return [[lane4(vector, i) for vector in found] for i in range(QUAD)]

        return lambda: partial(units, together())

    def values(self, value: Value) -> list[list[Expr]]:
        """A value of every unit, gate by gate."""
        return [cell.values[value] for cell in self.cells]

    def store(self) -> None:
        """Emits the stores of the segment."""
        for store in self.segment.stores:
            if store.children is not None:
                for cell in self.cells:
                    cell.store_one(store)
            else:
                self._store(store)

    def _store(self, store: Store) -> None:
        first = self.cells[0]
        for gate, quad in enumerate(zip(*self.values(store.value), strict=True)):
            at = first.access.record(store.buffer, first.row) + store.offset
            place = at + first.element(store.value, gate)
            if first.access.is_polled(store.buffer, store.offset):
                assert first.access.publish is not None
                first.access.publish(place, quad)
            else:
                store_four(first.access.pool, place, quad)
