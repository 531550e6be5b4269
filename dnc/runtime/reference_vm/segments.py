"""Segments on the VM: a worker's units of all rows (UNIT), or its rows in whole (VERTEX).

In: a segment, first row and number of rows. Out: what the segment stores, in the pool. The values of
operations come from the op table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dnc.ir.cell import Op, Value
from dnc.ir.opdef import INDEXED
from dnc.ir.ops import OPS
from dnc.ir.plan import (
    UNIT,
    Address,
    ParameterAddress,
    Product,
    Segment,
    Store,
    TransposedProduct,
    unit_range,
)
from dnc.runtime.reference_vm.memory import Array, Finish, Worker
from dnc.runtime.reference_vm.operands import (
    FIRST,
    check_selected,
    elements_of,
    kept,
    load_matrix,
    load_values,
    shaped,
)

if TYPE_CHECKING:
    from dnc.runtime.reference_vm.machine import ReferenceVM

Use = TypeVar("Use", Product, TransposedProduct)
Stored = tuple[Store, Array, Any, int]  # the elements of a value of a row that go to where the store says


class Share:
    """Units [begin, end) of a segment: what is read, computed and written of each of its rows.

    elements: by value which of its elements they are.
    """

    def __init__(self, vm: ReferenceVM, segment: Segment, begin: int, end: int) -> None:
        self.segment = segment
        self._units, self._own = segment.units, np.arange(begin, end)
        self.elements = {
            value: self._elements(value)
            for value in (
                *(load.value for load in segment.loads),
                *(product.result for product in segment.products),
                *(store.value for store in segment.stores),
                *(transposed.delta for transposed in segment.transposed),
            )
        }
        self.selects = {use.select for use in segment.products} | {use.select for use in segment.transposed}
        # The own rows of the matrices, which are the same for all rows of a group.
        self.forward = [
            (use, elements_of(vm, use.parameter)[self.elements[use.result]]) for use in segment.products
        ]
        self.backward = [
            (use, elements_of(vm, use.parameter)[self.elements[use.delta]]) for use in segment.transposed
        ]
        # What is read of a row, at once: the values of the cell, and behind them the operands of products.
        self.reads = [(load.address, self.elements[load.value]) for load in segment.loads]
        for product in segment.products:
            self.reads += [(piece.address, np.arange(piece.width)) for piece in product.pieces]
        self.operations = [(op, self._evaluation(op)) for op in segment.cell.ops]

    def _elements(self, value: Value) -> Array:
        if not value.tensor.shape:
            return FIRST
        gates = np.arange(value.tensor.size // self._units)
        return (gates[:, None] * self._units + self._own).ravel()

    def _evaluation(self, op: Op) -> Callable[[list[Any]], Any]:
        attributes: dict[str, Any] = dict(op.attributes)
        units, own = self._units, len(self._own)
        if OPS[op.opcode].has(INDEXED) and op.result.tensor.shape:
            attributes["index"] = self._elements(op.result)
        if op.opcode == "slice":
            begin, end = (int(attributes[name]) // units * own for name in ("begin", "end"))
            return lambda operands: operands[0][begin:end]
        if "shape" in attributes and op.result.tensor.shape:
            if own == 0:
                return lambda operands: np.zeros(0)
            attributes["shape"] = (op.result.tensor.size // units * own,)
        evaluate = OPS[op.opcode].evaluate
        return lambda operands: evaluate(operands, attributes)


class Whole:
    """A segment whose rows are made in whole: what is read, computed and stored of each."""

    def __init__(self, vm: ReferenceVM, segment: Segment) -> None:
        self.matrices, self.vectors = list[tuple[Value, ParameterAddress, Array]](), list[Value]()
        self.reads = list[tuple[Address, Array]]()
        for load in segment.loads:
            if isinstance(load.address, ParameterAddress) and len(load.value.tensor.shape) > 1:
                self.matrices.append((load.value, load.address, elements_of(vm, load.address.parameter)))
            else:
                self.vectors.append(load.value)
                self.reads.append((load.address, np.arange(load.value.tensor.size)))
        self.operations = [
            (op, OPS[op.opcode].evaluate, dict[str, Any](op.attributes)) for op in segment.cell.ops
        ]
        self.stores = [(store, np.arange(store.value.tensor.size)) for store in segment.stores]

    def values(self, vm: ReferenceVM, rows: range, worker: Worker) -> Iterator[dict[Value, Any]]:
        """The values of the cell, row by row."""
        for row, vectors in zip(rows, load_values(vm, self.reads, rows, worker), strict=True):
            values = dict[Value, Any]()
            for value, address, elements in self.matrices:
                values[value] = load_matrix(vm, address.parameter, address.select, elements, row, worker)
            for value, found in zip(self.vectors, vectors, strict=True):
                values[value] = shaped(value, found)
            for op, evaluate, attributes in self.operations:
                values[op.result] = evaluate([values[operand] for operand in op.operands], attributes)
            yield values


def unit_segment(vm: ReferenceVM, segment: Segment, first: int, rows: int, worker: Worker) -> Finish | None:
    """All rows of a group, for this worker's own units; and then its share of what the workers add up.

    What is repeated comes before, for all units.
    """
    begin, end = unit_range(segment.units, vm.per_replica, worker.rank)
    if not segment.repeated:
        _units(vm, vm.share(segment, begin, end), first, rows, worker)
    else:
        whole, rest = vm.repeated[segment.name]
        for row in range(first, first + rows):
            if whole.mapping == UNIT:
                worker.repeated = _units(vm, vm.share(whole, 0, segment.units), row, 1, worker)
            else:
                worker.repeated = _scalars(vm, whole, row, worker)
            _units(vm, vm.share(rest, begin, end), row, 1, worker)
    return (lambda sent: _add_up(vm, sent, worker)) if worker.sent else None


def _units(vm: ReferenceVM, share: Share, first: int, rows: int, worker: Worker) -> dict[Value, Any]:
    """All rows of a group, for some units; the values of the last row."""
    segment, elements, values = share.segment, share.elements, dict[Value, Any]()
    if not rows:
        return values
    check_selected(vm, share.selects, first, rows, worker)
    forward = _matrices(vm, share.forward, first, worker)
    backward = _matrices(vm, share.backward, first, worker)
    group, stored = range(first, first + rows), list[Stored]()
    for row, found in zip(group, load_values(vm, share.reads, group, worker), strict=True):
        read = iter(found)
        for load in segment.loads:
            values[load.value] = shaped(load.value, next(read))
        for product, matrix in forward:
            pieces = [next(read) for _ in product.pieces]
            operand = np.concatenate(pieces) if len(pieces) > 1 else np.asarray(pieces[0])
            values[product.result] = matrix @ operand
        for op, evaluate in share.operations:
            values[op.result] = evaluate([values[operand] for operand in op.operands])
        stored += [(store, elements[store.value], values[store.value], row) for store in segment.stores]
        for transposed, matrix in backward:
            partial = matrix.T @ values[transposed.delta]
            for name, offset, low, high in transposed.stores:
                if vm.runs_of(name) == 1 < vm.per_replica:
                    worker.sent[name, offset, row] = partial[low:high].astype(np.float32)
                    continue
                width = vm.buffers[name].width
                at = vm.base(name) + (row * vm.per_replica + worker.rank) * width + offset
                vm.write(at + np.arange(high - low), partial[low:high], worker)
    _store(vm, stored, worker)
    return values


def _matrices(
    vm: ReferenceVM, uses: list[tuple[Use, Array]], row: int, worker: Worker
) -> list[tuple[Use, Array]]:
    """The own rows of matrices; with a use come the elements that these are."""
    return [(use, load_matrix(vm, use.parameter, use.select, own, row, worker)) for use, own in uses]


def _add_up(vm: ReferenceVM, sent: list[dict[Any, Array]], worker: Worker) -> None:
    """Writes the worker's share of the columns of all records: one run, the sum of those of all."""
    for name, offset, row in worker.sent:
        parts = [each[name, offset, row].astype(np.float64) for each in sent]
        share = len(parts[0]) // vm.per_replica
        own = worker.rank * share + np.arange(share)
        at = vm.base(name) + row * vm.buffers[name].width + offset
        vm.write(at + own, np.add.reduce(parts)[own], worker)


def _scalars(vm: ReferenceVM, whole: Segment, row: int, worker: Worker) -> dict[Value, Any]:
    """What every worker makes of whole vectors, as vectors of one element; the first one stores it."""
    values = next(vm.whole(whole).values(vm, range(row, row + 1), worker))
    if worker.rank == 0:
        _store(vm, [(store, FIRST, values[store.value], row) for store in whole.stores], worker)
    return {value: np.atleast_1d(values[value]) for value in whole.cell.results}


def vertex_segment(vm: ReferenceVM, segment: Segment, first: int, rows: int, worker: Worker) -> None:
    """This worker's rows of a group, each in whole."""
    share = -(-rows // vm.per_replica)
    begin = min(rows, worker.rank * share)
    end = min(rows, begin + share)
    whole, stored = vm.whole(segment), list[Stored]()
    group = range(first + begin, first + end)
    for row, values in zip(group, whole.values(vm, group, worker), strict=True):
        for place in segment.scratch:
            vm.write(kept(vm, place, row, worker), values[place.value], worker)
        stored += [(store, index, values[store.value], row) for store, index in whole.stores]
    _store(vm, stored, worker)


def _store(vm: ReferenceVM, stored: list[Stored], worker: Worker) -> None:
    """Writes elements of values to rows' records; of a list to those of a row's children."""
    places, values = list[Array](), list[Array]()
    for store, index, value, row in stored:
        width, entries, first = vm.buffers[store.buffer].width, [value], row
        if store.children is not None:
            begin = vm.list(store.children)
            entries, first = value, vm.word(begin + row, worker) - vm.word(begin, worker)
        for entry, found in enumerate(entries):
            places.append(vm.base(store.buffer) + (first + entry) * width + store.offset + index)
            flat = np.asarray(found, np.float64).ravel()
            values.append(flat if len(flat) == len(index) else np.full(index.shape, flat.item()))
    if len(places) == 1:
        vm.write(places[0], values[0], worker)
    elif places:
        vm.write(np.concatenate(places), np.concatenate(values), worker)
