"""The arithmetic of a UNIT segment: one row and one hidden unit at a time.

In: a segment, addresses and the target's scalar functions. Out: TIRx statements. Every value is one
scalar per gate, so nothing is kept in memory between the products and the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from dnc.codegen.access import Access, ListReader
from dnc.codegen.cells.lists import list_op
from dnc.codegen.cells.values import Element, as_declared, as_number
from dnc.codegen.emit import Expr, floats, let, let_of, loop, put, shift
from dnc.ir.cell import Op, Value
from dnc.ir.opdef import INDEXED
from dnc.ir.ops import OPS
from dnc.ir.plan import ChildrenAddress, Load, Segment, SlotsAddress, Store

Started = Callable[[], Any]  # what emits the value of a load that is under way


def placed(
    loads: Sequence[Load], load: Callable[[Load], Callable[[], Started]]
) -> Callable[[], Callable[[], dict[Value, Any]]]:
    """Loads in three steps: where all of them read; the answer starts the reads, those of slots last; and its
    answer emits the sums of these, and has the values.

    A GPU's thread goes on until it needs what it has asked for: so the reads are under way together.
    """
    places = [(each, load(each)) for each in loads]
    places.sort(key=lambda place: isinstance(place[0].address, SlotsAddress))

    def start() -> Callable[[], dict[Value, Any]]:
        started = [(each, begin()) for each, begin in places]
        return lambda: {each.value: finish() for each, finish in started}

    return start


@attrs.define(eq=False)
class UnitCell:
    """Evaluates a UNIT segment for one row and one unit.

    `product(result, gate)` answers with a product's pre-activation. Values: a list of scalars, one
    per gate; for a list value, per gate (count, child -> scalar).
    """

    access: Access
    math: Any
    segment: Segment
    row: Expr
    unit: Expr
    product: Callable[[Value, int], Expr]
    values: dict[Value, list[Any]] = attrs.field(factory=dict)

    def gates(self, value: Value) -> int:
        """Gates of a value; a scalar counts as one."""
        found = value.tensor
        return found.size // self.segment.units if found.shape else 1

    def run(self) -> None:
        """Emits loads that `values` does not hold, and operations; `values` then holds everything."""
        self.start()()

    def start(self) -> Callable[[], None]:
        """Starts these loads; the answer emits the rest."""
        missing = [load for load in self.segment.loads if load.value not in self.values]
        finish = placed(missing, self.load)()

        def rest() -> None:
            self.values |= finish()
            self.compute()

        return rest

    def compute(self) -> None:
        """Emits products and operations, where `values` holds the loads."""
        for product in self.segment.products:
            count = self.gates(product.result)
            self.values[product.result] = [self.product(product.result, gate) for gate in range(count)]
        for op in self.segment.cell.ops:
            self.values[op.result] = self._op(op)

    def element(self, value: Value, gate: int) -> Expr:
        """Where a gate of the unit stands in a value."""
        return shift(gate * self.segment.units, self.unit) if value.tensor.shape else 0

    def load(self, load: Load) -> Callable[[], Started]:
        """Emits where a load reads; the answer the reads, and its answer the value, gate by gate."""
        value, address = load.value, load.address
        elements = [self.element(value, gate) for gate in range(self.gates(value))]
        if isinstance(address, SlotsAddress):
            slots = self.access.slots(address, self.row)

            def start() -> Started:
                sums = [slots.start(element) for element in elements]
                return lambda: [let_of(value.name, add_up()) for add_up in sums]

            return start

        def known(values: list[Any]) -> Started:
            return lambda: values

        if isinstance(address, ChildrenAddress):
            reader = self.access.children(address, self.row)
            return lambda: known([self._child(reader, element) for element in elements])
        read = self.access.reader(address, self.row)
        return lambda: known([let_of(value.name, as_declared(load, read(element))) for element in elements])

    @staticmethod
    def _child(reader: ListReader, element: Expr) -> tuple[Expr, Element]:
        return reader.count, lambda child: reader.read(child, element)

    def _op(self, op: Op) -> list[Any]:
        definition = OPS[op.opcode]
        operands = [self.values[value] for value in op.operands]
        units = self.segment.units
        if op.opcode == "slice":
            begin, end = int(op.attribute("begin")), int(op.attribute("end"))  # type: ignore[arg-type]
            return operands[0][begin // units : end // units]
        if op.opcode == "concat":
            return [gate for operand in operands for gate in operand]

        def at(gate: int) -> list[Any]:
            return [
                found[gate if value.tensor.shape else 0]
                for value, found in zip(op.operands, operands, strict=True)
            ]

        count = self.gates(op.result)
        if definition.scalar is None:
            return [list_op(op, at(gate), floats(0.0, self.unit)[1]) for gate in range(count)]
        scalar, attributes = definition.scalar, dict(op.attributes)

        def element(gate: int) -> list[Expr]:
            return [as_number(self.element(op.result, gate))] if definition.has(INDEXED) else []

        return [
            let_of(op.result.name, scalar(self.math, *element(gate), *at(gate), **attributes))
            for gate in range(count)
        ]

    def store(self) -> None:
        """Emits the stores of the segment."""
        for store in self.segment.stores:
            self.store_one(store)

    def store_one(self, store: Store) -> None:
        """Emits one of them."""
        for gate, found in enumerate(self.values[store.value]):
            element = self.element(store.value, gate)
            if store.children is None:
                at = self.access.record(store.buffer, self.row) + store.offset
                if self.access.is_polled(store.buffer, store.offset):
                    assert self.access.publish is not None
                    self.access.publish(shift(at, element), (found,))
                else:
                    put(self.access.pool, shift(at, element), found)
            else:
                self._store_children(store, found, element)

    def _store_children(self, store: Store, found: Any, element: Expr) -> None:
        count, read = found
        assert store.children is not None
        first = let("first_child", self.access.first_child(store.children, self.row))
        with loop("child", count) as child:
            at = self.access.record(store.buffer, first + child) + store.offset
            put(self.access.pool, shift(at, element), read(child))
