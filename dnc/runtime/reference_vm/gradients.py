"""Weight gradients, norm and update on the VM: work that the whole grid shares.

In: the gradients of a plan and the fields of their instructions. Out: gradients, norms and new
parameters in the pool. Chunks are dealt out to workers as the kernels deal them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dnc.ir import cutting, isa
from dnc.ir.opdef import NUMPY_MATH
from dnc.ir.optimizers import COEFFICIENTS, OPTIMIZERS
from dnc.ir.plan import DenseGradient, SlotsAddress, TableProduct, padded
from dnc.ir.program import TABLE
from dnc.runtime.reference_vm.memory import Array, Worker
from dnc.runtime.reference_vm.operands import (
    elements_of,
    load_matrix,
    load_operands,
    load_rows,
    load_value,
    padding_of,
    slice_at,
)

if TYPE_CHECKING:
    from dnc.runtime.reference_vm.machine import ReferenceVM


def _share(vm: ReferenceVM, count: int, size: int, first: int, worker: Worker) -> Iterator[tuple[int, int]]:
    """Chunks [begin, end) of `count` that are this worker's, dealt out over the whole grid."""
    grid = vm.replicas * vm.per_replica
    for chunk in range(-(-count // size)):
        if (chunk + first) % grid == worker.number:
            yield chunk * size, min(count, (chunk + 1) * size)


def dense_gradient(vm: ReferenceVM, gradient: DenseGradient, fields: dict[str, int], worker: Worker) -> None:
    """This worker's blocks of rows of a dense parameter's gradient, for its chunks of rows of the space; and
    of a vector that is made along."""
    declared = vm.plan.program.parameter(gradient.parameter)
    assert declared.kind != TABLE
    into = slice_at(vm, gradient.parameter, fields["index"], worker) - vm.base(isa.PARAMETERS)
    place = elements_of(vm, gradient.parameter).reshape(gradient.rows, -1)
    padding = padding_of(vm, gradient.parameter)
    height = cutting.GRADIENT_BLOCK.rows
    blocks, step = -(-gradient.rows // height), isa.chunk_rows(fields["rows"], fields["chunks"])
    along, vector = cutting.made_along(vm.plan).get(gradient.name), 0
    if along is not None:
        vector = slice_at(vm, along.parameter, fields["index"], worker) - vm.base(isa.PARAMETERS)
    for item, _ in _share(vm, fields["chunks"] * blocks, 1, fields["first_worker"], worker):
        chunk, block = divmod(item, blocks)
        begin, end = block * height, min(gradient.rows, (block + 1) * height)
        at = _arena(vm, chunk) + into
        if block == 0:  # arenas are added up whole, and those of chunks are not cleared
            vm.write(at + padding, 0.0, worker)
            if along is not None:
                rest = np.arange(gradient.rows, vm.plan.weight_format.floats((gradient.rows,)))
                vm.write(_arena(vm, chunk) + vector + rest, 0.0, worker)
        own = range(chunk * step, min(fields["rows"], (chunk + 1) * step))
        rows = range(fields["row"] + own.start, fields["row"] + max(own.start, own.stop))
        total, deltas = _outer_sums(vm, gradient, rows, np.arange(begin, end), worker)
        sums: list[tuple[Array, Array]] = [(at + place[begin:end], total)]
        if along is not None:
            sums.append((_arena(vm, chunk) + vector + np.arange(begin, end), deltas))
        for where, found in sums:
            adds = fields["accumulate"] and (chunk == 0 or gradient.name not in vm.early)
            vm.write(where, found + vm.read(where, worker) if adds else found, worker)


def _outer_sums(
    vm: ReferenceVM, gradient: DenseGradient, rows: range, index: Array, worker: Worker
) -> tuple[Array, Array]:
    """The sum over some rows of deltas times operands, [elements, operands], and of deltas alone."""
    deltas = load_rows(vm, gradient.delta, rows, index, worker)
    if not gradient.pieces:
        return deltas.sum(axis=0)[:, None], deltas.sum(axis=0)
    return deltas.T @ load_operands(vm, gradient.pieces, rows, worker), deltas.sum(axis=0)


def outer(vm: ReferenceVM, fields: dict[str, int], worker: Worker) -> None:
    """This worker's tiles of a gradient over all its rows, a vector's beside it, and their squares."""
    gradient = vm.plan.dense_gradients[fields["gradient"]]
    sharers, number = int(vm.words[vm.layout.header[isa.SHARERS]]), worker.number - worker.first
    if worker.first:
        sharers = vm.replicas * vm.per_replica - worker.first
    turn = (number - fields["first_worker"]) % sharers if number < sharers else 1 << 30
    tiles = range(turn, cutting.outer_tiles(gradient), sharers)
    if not tiles:
        return
    tile = cutting.outer_tile(gradient)
    beside = cutting.outer_beside(vm.plan).get(gradient.name)
    shape = vm.plan.program.parameter(gradient.parameter).type.shape

    def place_of(parameter: str) -> int:
        found = slice_at(vm, parameter, fields["index"], worker) - vm.base(isa.PARAMETERS)
        return vm.base(isa.GRADIENTS) + found

    at = place_of(gradient.parameter)
    rows = range(fields["row"], fields["row"] + fields["rows"])
    total, delta_sums = _outer_sums(vm, gradient, rows, np.arange(gradient.rows), worker)
    if not gradient.pieces:
        total = delta_sums[None]
    height, width = total.shape
    places = at + np.arange(height)[:, None] * padded(width) + np.arange(padded(width))
    across = -(-width // tile.columns)
    for item in tiles:
        if item == 0:
            rest = np.arange(height * padded(width), vm.plan.weight_format.floats(shape))
            vm.write(at + rest, 0.0, worker)
        row, column = item // across * tile.rows, item % across * tile.columns
        own = slice(row, row + tile.rows), slice(column, column + tile.columns)
        found = np.pad(total, ((0, 0), (0, padded(width) - width)))[own]
        if fields["accumulate"]:
            found = found + vm.read(places[own], worker)
        vm.write(places[own], found, worker)
        square = float((found**2).sum())
        if beside is not None and column == 0:
            found = delta_sums[row : row + tile.rows]
            where = place_of(beside.parameter) + np.arange(row, row + len(found))
            if fields["accumulate"]:
                found = found + vm.read(where, worker)
            vm.write(where, found, worker)
            square += float((found**2).sum())
            if item == 0:
                size = vm.plan.weight_format.floats((gradient.rows,))
                rest = place_of(beside.parameter) + np.arange(gradient.rows, size)
                vm.write(rest, 0.0, worker)
        if fields["first_norm"] != isa.NO_NORM:
            norm = vm.base(isa.NORMS) + fields["first_norm"] + item
            vm.write(np.array([norm]), square, worker)


def _arena(vm: ReferenceVM, chunk: int) -> int:
    """Where the gradients of a chunk of rows lie."""
    if chunk == 0:
        return vm.base(isa.GRADIENTS)
    return vm.base(isa.CHUNKS) + (chunk - 1) * isa.gradient_floats(vm.plan)


def token_sums(vm: ReferenceVM, product: TableProduct, fields: dict[str, int], worker: Worker) -> None:
    """The sums of the deltas of this worker's tokens."""
    index, width = np.arange(product.rows), vm.buffers[product.sums].width
    slots = SlotsAddress(product.deltas, None, width)
    for token, _ in _share(vm, fields["tokens"], 1, fields["first_worker"], worker):
        total = load_value(vm, slots, token, index, worker)
        vm.write(vm.base(product.sums) + token * width + index, total, worker)


def table_gradient(vm: ReferenceVM, parameter: str, fields: dict[str, int], worker: Worker) -> None:
    """The sums and products of this worker's tokens, and the squares of their norms."""
    table = vm.tables[parameter]
    index, slots = np.arange(table.width), isa.table_slots(table)
    for token in _tokens(vm, fields, worker):
        total = load_value(vm, slots, token, index, worker)
        for product in table.products:
            terms = SlotsAddress(product.terms, None, padded(product.rows))
            delta = load_value(vm, terms, token, np.arange(product.rows), worker)
            elements = elements_of(vm, product.parameter)
            total = total + load_matrix(vm, product.parameter, None, elements, 0, worker).T @ delta
        at = vm.base(isa.table_base(parameter)) + token * padded(table.width) + index
        if fields["accumulate"]:
            total = total + vm.read(at, worker)
        vm.write(at, total, worker)
        parts = isa.table_norms(table)
        norm = vm.base(isa.NORMS) + fields["first_norm"] + token * parts + np.arange(parts)
        vm.write(norm, np.append((total**2).sum(), np.zeros(parts - 1)), worker)


def _tokens(vm: ReferenceVM, fields: dict[str, int], worker: Worker) -> Iterator[int]:
    """This worker's tokens: workers take turns, but for those that are left out."""
    grid = vm.replicas * vm.per_replica
    turn = (worker.number - fields["first_worker"]) % grid
    before, left_out = fields.get("before", 0), fields.get("left_out", 0)
    if not before <= turn < before + left_out:
        mine = turn - (left_out if turn >= before else 0)
        yield from range(mine, fields["tokens"], grid - left_out)


def square_norm(vm: ReferenceVM, fields: dict[str, int], worker: Worker) -> None:
    """Adds up the arenas of this worker's spans of a run, and the squares of what comes out."""
    chunks, first = fields["chunks"], fields["first_norm"]
    for begin, end in _share(vm, fields["count"], isa.NORM_CHUNK, first, worker):
        index = fields["first"] + np.arange(begin, end)
        found = vm.read(_arena(vm, 0) + index, worker)
        for chunk in range(1, chunks):
            found = found + vm.read(_arena(vm, chunk) + index, worker)
        if chunks > 1:
            vm.write(_arena(vm, 0) + index, found, worker)
        at = vm.base(isa.NORMS) + first + begin // isa.NORM_CHUNK
        vm.write(np.array([at]), float((found**2).sum()), worker)


def all_reduce(vm: ReferenceVM, fields: dict[str, int], worker: Worker) -> None:
    """Adds up what all devices have of this worker's spans, and the squares of what comes out, for all."""
    count, width, size = fields["count"], fields["width"], isa.NORM_CHUNK
    spans = range(fields["device"], -(-count // size), fields["devices"])
    for number, _ in _share(vm, len(spans), 1, fields["first_norm"], worker):
        span = spans[number]
        index = np.arange(span * size, min(count, (span + 1) * size))
        counts = index % (padded(width) or 1) < (width or 1)
        index, found = index + fields["base"] * 4, np.zeros(len(index))
        for each in vm.devices:
            found[counts] += each.memory.read_from_outside(index[counts], each)
        written = [(index, found)]
        if fields["first_norm"] != isa.NO_NORM:
            norm = vm.base(isa.NORMS) + fields["first_norm"] + span
            written.append((np.array([norm]), np.array([(found**2).sum()])))
        for each in vm.devices:
            for at, values in written:
                each.memory.write_from_outside(at, values, each)


def follow(vm: ReferenceVM, fields: dict[str, int], worker: Worker) -> None:
    """Adds what the chunks of rows gave to the running parameters; nothing where the norm is not finite."""
    norms = vm.read(vm.base(isa.NORMS) + np.arange(fields["norms"]), worker)
    if not np.isfinite(np.sqrt(norms.sum())):
        return
    for begin, end in _share(vm, fields["count"], isa.NORM_CHUNK, 0, worker):
        index = fields["first"] + np.arange(begin, end)
        value = vm.read(vm.base(isa.PARAMETERS) + index, worker)
        for chunk in range(fields["chunks"]):
            value = value + vm.read(_arena(vm, chunk) + index, worker)
        vm.write(vm.base(isa.PARAMETERS) + index, value, worker)


def update(vm: ReferenceVM, optimizer: str, table: str, fields: dict[str, int], worker: Worker) -> None:
    """An optimizer's step on this worker's elements; none where the norm is not finite."""
    norms = vm.read(vm.base(isa.NORMS) + np.arange(fields["norms"]), worker)
    norm = float(np.sqrt(norms.sum()))
    results = vm.base(isa.RESULTS)
    if worker.number == 0 and not table:
        vm.write(np.array([results + isa.RESULT_NORM]), norm, worker)
        vm.write(np.array([results + isa.RESULT_UPDATED]), float(np.isfinite(norm)), worker)
    if not np.isfinite(norm):
        return
    clip = vm.header_float("clip_norm")
    scale = clip / norm if norm > clip else 1.0
    coefficients = {name: vm.header_float(name) for name in COEFFICIENTS}
    coefficients["learning_rate"] *= float(np.int32(fields["rate"]).view(np.float32))
    parameters = vm.base(isa.PARAMETERS)
    if not table:
        for begin, end in _share(vm, fields["count"], isa.NORM_CHUNK, 0, worker):
            index = fields["first"] + np.arange(begin, end)
            gradient = vm.read(vm.base(isa.GRADIENTS) + index, worker) * scale
            keeps = bool(fields.get(isa.KEEPS_ZEROS))
            _step(vm, optimizer, coefficients, parameters + index, gradient, worker, keeps)
        return
    width = padded(vm.tables[table].width)
    for token, _ in _share(vm, fields["tokens"], 1, 0, worker):
        index = np.arange(vm.tables[table].width)
        gradient = vm.read(vm.base(isa.table_base(table)) + token * width + index, worker) * scale
        at = vm.word(vm.list(isa.table_lists(table)[0]) + token, worker) * 4 + index
        _step(vm, optimizer, coefficients, at, gradient, worker)


def _step(
    vm: ReferenceVM,
    optimizer: str,
    coefficients: dict[str, float],
    at: Array,
    gradient: Array,
    worker: Worker,
    keeps_zeros: bool = False,
) -> None:
    entry, shift = OPTIMIZERS[optimizer], at - vm.base(isa.PARAMETERS)
    places = [at, *(vm.base(isa.STATES[i]) + shift for i in range(len(entry.states)))]
    old, *state = (vm.read(place, worker) for place in places)
    new, *kept = entry.step(NUMPY_MATH, coefficients, old, gradient, *state)
    new = np.where(old == 0, old, new) if keeps_zeros else new
    for place, value in zip(places, (new, *kept), strict=True):
        vm.write(place, value, worker)
