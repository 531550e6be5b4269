"""What an instruction reads: the values behind the addresses of a plan.

In: an address and a row. Out: elements in float64, a list of them per child for a list. Every word
goes through the VM's checked memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dnc.ir import isa
from dnc.ir.cell import Value
from dnc.ir.plan import (
    Address,
    BufferAddress,
    ChildrenAddress,
    EntriesAddress,
    GatherAddress,
    IndexAddress,
    ListScratch,
    ParameterAddress,
    Piece,
    RepeatedAddress,
    SeedAddress,
    SlotsAddress,
)
from dnc.ir.types import ListType
from dnc.ir.weight_format import WeightFormat
from dnc.runtime.reference_vm.memory import Array, Worker

if TYPE_CHECKING:
    from dnc.runtime.reference_vm.machine import ReferenceVM


FIRST = np.zeros(1, np.int64)  # the element of a scalar


def shaped(value: Value, found: Any) -> Any:
    """A loaded value in its shape: () for scalars, integers for i32, matrices as such."""
    if isinstance(value.type, ListType):
        return found if len(value.tensor.shape) == 1 else found.reshape(len(found), *value.tensor.shape)
    if not value.type.shape:
        scalar = np.asarray(found)[0]
        return np.int64(scalar) if value.type.dtype == "i32" else np.float64(scalar)
    return found.reshape(value.type.shape) if len(value.type.shape) > 1 else found


def entries(vm: ReferenceVM, name: str, row: int, worker: Worker) -> list[int]:
    """Where the records of a row's children lie."""
    at = vm.list(name) + row
    begin, end = vm.word(at, worker), vm.word(at + 1, worker)
    return [vm.word(i, worker) * 4 for i in range(begin, end)]


def kept(vm: ReferenceVM, place: EntriesAddress | ListScratch, row: int, worker: Worker) -> Array:
    """Where a row's scalars per child lie."""
    base, width = vm.base(place.buffer), vm.buffers[place.buffer].width
    start, at = vm.word(vm.list(place.children), worker), vm.list(place.children) + row
    begin, end = vm.word(at, worker) - start, vm.word(at + 1, worker) - start
    return base + np.arange(begin, end) * width


def slots(vm: ReferenceVM, name: str, row: int, worker: Worker) -> list[int]:
    """Where the slots of a row lie: none, one, or as many as a count says."""
    head = vm.word(vm.list(name) + row, worker)
    if head < 0:
        return [(-1 - head) * 4]
    count = vm.word(head, worker) if head else 0
    return [vm.word(head + 1 + i, worker) * 4 for i in range(count)]


def places(vm: ReferenceVM, address: Address, row: int, index: Array, worker: Worker) -> Array | None:
    """Where elements `index` of what `address` stands for in `row` lie, if each of them is one word."""
    if isinstance(address, ParameterAddress):
        at = weights_at(vm, address.parameter, address.select, row, worker)
        return at + address.offset + index
    if isinstance(address, BufferAddress):
        if vm.runs_of(address.buffer) > 1:
            return None
        return vm.base(address.buffer) + row * vm.buffers[address.buffer].width + address.offset + index
    if isinstance(address, GatherAddress):
        record = vm.word(vm.list(address.list) + row, worker) * 4
        return record + address.offset + index
    if isinstance(address, EntriesAddress):
        return kept(vm, address, row, worker)
    return None


def load_values(
    vm: ReferenceVM, wanted: Sequence[tuple[Address, Array]], rows: range, worker: Worker
) -> Iterator[list[Any]]:
    """What `load_value` gives for some addresses, row by row; what is one word each is read at once for all
    rows, of which none may read what another one of the same instruction writes."""
    places_of = [places(vm, address, row, index, worker) for row in rows for address, index in wanted]
    simple = [each for each in places_of if each is not None]
    if not simple:
        read: Array = FIRST
    else:
        read = vm.read(np.concatenate(simple) if len(simple) > 1 else simple[0], worker)
    begin, at = 0, iter(places_of)
    for row in rows:
        found = list[Any]()
        for address, index in wanted:
            each = next(at)
            if each is None:
                found.append(_made(vm, address, row, index, worker))
            else:
                found.append(read[begin : begin + len(each)])
                begin += len(each)
        yield found


def load_value(vm: ReferenceVM, address: Address, row: int, index: Array, worker: Worker) -> Any:
    """Elements `index` of what `address` stands for in `row`; a list of them for a list."""
    return next(load_values(vm, [(address, index)], range(row, row + 1), worker))[0]


def _made(vm: ReferenceVM, address: Address, row: int, index: Array, worker: Worker) -> Any:
    """The same of what is more than words that lie somewhere."""
    if isinstance(address, BufferAddress):
        width, runs = vm.buffers[address.buffer].width, vm.runs_of(address.buffer)
        first = vm.base(address.buffer) + row * width * runs + address.offset
        return added_up(vm, first, runs, width, index, worker)
    if isinstance(address, ChildrenAddress):
        found = entries(vm, address.list, row, worker)
        return vm.read(np.array(found, np.int64)[:, None] + address.offset + index, worker)
    if isinstance(address, SlotsAddress):
        total = np.zeros(len(index))
        for at in slots(vm, address.plain, row, worker) if address.plain else ():
            total = total + vm.read(at + address.offset + index, worker)
        runs = vm.runs if address.partial in vm.reduced else vm.per_replica
        for at in slots(vm, address.partial, row, worker) if address.partial else ():
            total = total + added_up(vm, at + address.offset, runs, address.width, index, worker)
        return total
    if isinstance(address, IndexAddress):
        return np.array([vm.word(vm.list(address.list) + row, worker)])
    if isinstance(address, RepeatedAddress):
        return worker.repeated[address.value][address.offset + index]
    assert isinstance(address, SeedAddress)
    return np.array([vm.floats[vm.layout.header["loss_scale"]]], np.float64)


def load_rows(vm: ReferenceVM, address: Address, rows: range, index: Array, worker: Worker) -> Array:
    """What `load_value` gives of vectors for some rows: [rows, elements]."""
    if isinstance(address, BufferAddress):
        width, runs = vm.buffers[address.buffer].width, vm.runs_of(address.buffer)
        first = vm.base(address.buffer) + np.arange(rows.start, rows.stop) * (width * runs) + address.offset
        at = first[:, None, None] + np.arange(runs)[:, None] * width + index
        total: Array = np.add.reduce(vm.read(at, worker), axis=1)
        return total
    found = [load_value(vm, address, row, index, worker) for row in rows]
    return np.array(found, np.float64).reshape(len(rows), len(index))


def added_up(vm: ReferenceVM, first: int, runs: int, width: int, index: Array, worker: Worker) -> Array:
    """Elements `index` of a record of so many runs: their sum, in order."""
    if runs == 1:
        return vm.read(first + index, worker)
    total: Array = np.add.reduce(vm.read(first + np.arange(runs)[:, None] * width + index, worker))
    return total


def weights_at(vm: ReferenceVM, parameter: str, select: str | None, row: int, worker: Worker) -> int:
    """Word address of a dense parameter, of a stack that of the one which a list selects for a row."""
    if select is None:
        return vm.base(parameter)
    return slice_at(vm, parameter, vm.word(vm.list(select) + row, worker), worker)


def slice_at(vm: ReferenceVM, parameter: str, index: int, worker: Worker) -> int:
    """Word address of a dense parameter, of a stack that of the one with a number."""
    count = vm.plan.program.parameter(parameter).count
    if not 0 <= index < count:
        raise vm.error(worker, f"'{parameter}' has {count} parameters; number {index} is selected")
    return vm.base(parameter) + index * isa.slice_floats(vm.plan, parameter)


def check_selected(vm: ReferenceVM, lists: set[str | None], first: int, rows: int, worker: Worker) -> None:
    """All rows of an instruction select the same parameter of a stack."""
    for name in lists - {None}:
        found = {vm.word(vm.list(str(name)) + row, worker) for row in range(first, first + rows)}
        if len(found) > 1:
            raise vm.error(worker, f"the rows select {sorted(found)} by '{name}', expected one number")


def elements_of(vm: ReferenceVM, parameter: str) -> Array:
    """Where the elements of a dense parameter lie behind its first word, in its shape."""
    return _layout(vm.plan.weight_format, vm.plan.program.parameter(parameter).type.shape)[0]


def padding_of(vm: ReferenceVM, parameter: str) -> Array:
    """Where its padding lies."""
    return _layout(vm.plan.weight_format, vm.plan.program.parameter(parameter).type.shape)[1]


@lru_cache(64)
def _layout(weights: WeightFormat, shape: tuple[int, ...]) -> tuple[Array, Array]:
    numbers = np.arange(weights.floats(shape))
    elements = weights.unpack(numbers, shape)
    is_padding = np.ones(len(numbers), bool)
    is_padding[elements] = False
    return elements, np.flatnonzero(is_padding)


def load_matrix(
    vm: ReferenceVM, parameter: str, select: str | None, elements: Array, row: int, worker: Worker
) -> Array:
    """Elements of the matrix that a dense parameter is: some of `elements_of` it."""
    return vm.read(weights_at(vm, parameter, select, row, worker) + elements, worker)


def load_operands(vm: ReferenceVM, pieces: tuple[Piece, ...], rows: range, worker: Worker) -> Array:
    """The elements of several pieces, one behind the other, for some rows: [rows, elements]."""
    found = [load_rows(vm, p.address, rows, np.arange(p.width), worker) for p in pieces]
    return np.concatenate(found, axis=1)
