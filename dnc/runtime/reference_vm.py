"""The reference VM: executes the encoded words in NumPy, one worker's instruction at a time.

In: a schedule and the words of a pool. Out: the pool after the launch. Workers are interleaved at
random; every read and write is checked: inside the pool, of words that were written, and ordered
by happens-before (the barriers) against every other worker's access. Guaranteed: a missing
barrier, a wrong address or a wrong list is an error that names worker, instruction and place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir import isa
from dnc.ir.cell import Op, Value
from dnc.ir.opdef import INDEXED, NUMPY_MATH
from dnc.ir.ops import OPS
from dnc.ir.optimizers import COEFFICIENTS, OPTIMIZERS
from dnc.ir.plan import (
    UNIT,
    Address,
    BufferAddress,
    ChildrenAddress,
    DenseGradient,
    EntriesAddress,
    GatherAddress,
    IndexAddress,
    ListScratch,
    ParameterAddress,
    Piece,
    Plan,
    SeedAddress,
    Segment,
    SlotsAddress,
    padded,
    unit_range,
)
from dnc.ir.program import DENSE
from dnc.ir.types import ListType
from dnc.runtime.schedule import list_words, queue

Array = NDArray[Any]


class MachineError(Exception):
    """An execution that a real machine may not perform: a race, a bad address, a deadlock."""


@attrs.define(eq=False)
class _Worker:
    number: int
    replica: int
    rank: int
    instructions: Array
    counter: int = 0
    waiting: str | None = None


class _Memory:
    """The pool with a log of who touched each word last, and in which epoch."""

    def __init__(self, words: Array, static: int) -> None:
        self.words = words
        size = len(words)
        self.written = np.zeros(size, bool)
        self.written[:static] = True
        self.writer = np.full(size, -1, np.int32)
        self.write_epoch = np.zeros((2, size), np.int32)
        self.reader = np.full(size, -1, np.int32)
        self.read_epoch = np.zeros((2, size), np.int32)

    def check(self, at: Array, machine: ReferenceVM, worker: _Worker, write: bool) -> None:
        if len(at) == 0:
            return
        if at.min() < 0 or at.max() >= len(self.words):
            raise machine.error(worker, f"address {int(at.min())}..{int(at.max())} outside the pool")
        if not write and not self.written[at].all():
            bad = int(at[~self.written[at]][0])
            raise machine.error(worker, f"word {bad} is read before anything was written there")
        if write and at.min() < machine.zero_words:
            raise machine.error(worker, f"word {int(at.min())} of the row of zeros is overwritten")
        self._ordered(at, self.writer, self.write_epoch, machine, worker, "written")
        if write:
            self._ordered(at, self.reader, self.read_epoch, machine, worker, "read")

    def _ordered(
        self, at: Array, who: Array, epochs: Array, machine: ReferenceVM, worker: _Worker, verb: str
    ) -> None:
        other = who[at]
        foreign = (other >= 0) & (other != worker.number)
        if not foreign.any():
            return
        same = other // machine.per_replica == worker.replica
        replica_now, grid_now = machine.epochs(worker)
        raced = foreign & np.where(same, epochs[0, at] == replica_now, epochs[1, at] == grid_now)
        if raced.any():
            bad = int(np.flatnonzero(raced)[0])
            raise machine.error(
                worker, f"race: word {int(at[bad])} was {verb} by worker {int(other[bad])} in the same epoch"
            )

    def read(self, at: Array, machine: ReferenceVM, worker: _Worker) -> Array:
        flat = at.ravel()
        self.check(flat, machine, worker, write=False)
        self.reader[flat] = worker.number
        self.read_epoch[0, flat], self.read_epoch[1, flat] = machine.epochs(worker)
        return self.words[at].astype(np.float64)

    def write(self, at: Array, values: Array, machine: ReferenceVM, worker: _Worker) -> None:
        flat = at.ravel()
        self.check(flat, machine, worker, write=True)
        self.words[flat] = np.broadcast_to(values, at.shape).astype(np.float32).ravel()
        self.written[flat] = True
        self.writer[flat] = worker.number
        self.write_epoch[0, flat], self.write_epoch[1, flat] = machine.epochs(worker)


class ReferenceVM:
    """Executes schedules of one plan. `run` is the launch."""

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self.plan = plan
        self.layout = isa.layout(plan)
        self.random = np.random.default_rng(seed)
        self.segments = {segment.name: segment for segment in plan.segments}
        self.gradients = {gradient.name: gradient for gradient in plan.dense_gradients}
        self.tables = {table.parameter: table for table in plan.table_gradients}
        self.buffers = {buffer.name: buffer for buffer in plan.buffers}

    # ---- scheduling -----------------------------------------------------------------------------

    def run(self, words: Array, pool: Array, activations: int) -> None:
        """Executes a schedule on `pool` (float32, changed in place).

        `activations` is the first word behind the static part. MachineError on any violation.
        """
        plan = self.plan
        self.words = words
        self.floats = words.view(np.float32)
        field = {name: int(words[at]) for name, at in self.layout.header.items()}
        self.replicas, self.per_replica = field["replicas"], field["workers"]
        self.header = field
        total = self.replicas * self.per_replica
        self.zero_words = self._base(isa.PARAMETERS)
        self.memory = _Memory(pool, activations)
        self.replica_epoch = np.zeros(self.replicas, np.int64)
        self.grid_epoch = 0
        self.workers = [
            _Worker(n, n // self.per_replica, n % self.per_replica, queue(words, plan, n))
            for n in range(total)
        ]
        running = set(range(total))
        while running:
            ready = [n for n in running if self.workers[n].waiting is None]
            if not ready:
                names = ", ".join(f"{n}: {self.workers[n].waiting}" for n in sorted(running))
                raise MachineError(f"deadlock: every worker waits ({names})")
            number = int(self.random.choice(ready))
            if self._advance(self.workers[number]):
                running.discard(number)
            self._release(running)

    def _advance(self, worker: _Worker) -> bool:
        """Executes one instruction; True when the worker has ended."""
        if worker.counter >= len(worker.instructions):
            raise self.error(worker, "ran past the end of its queue")
        instruction = [int(word) for word in worker.instructions[worker.counter]]
        if not 0 <= instruction[0] < len(self.plan.opcodes):
            raise self.error(worker, f"unknown opcode {instruction[0]}")
        opcode = self.plan.opcodes[instruction[0]]
        fields = dict(zip(opcode.fields, instruction[1:], strict=False))
        if opcode.name == isa.END:
            return True
        if opcode.name in (isa.REPLICA_BARRIER, isa.GRID_BARRIER):
            worker.waiting = opcode.name
            return False
        self._execute(opcode.name, fields, worker)
        worker.counter += 1
        return False

    def _release(self, running: set[int]) -> None:
        for replica in range(self.replicas):
            mine = [w for w in self.workers if w.replica == replica]
            if mine and all(w.waiting == isa.REPLICA_BARRIER for w in mine):
                self._pass(mine)
                self.replica_epoch[replica] += 1
        if all(w.waiting == isa.GRID_BARRIER for w in self.workers):
            self._pass(self.workers)
            self.replica_epoch += 1
            self.grid_epoch += 1

    def _pass(self, workers: list[_Worker]) -> None:
        for worker in workers:
            worker.waiting = None
            worker.counter += 1

    def epochs(self, worker: _Worker) -> tuple[int, int]:
        """The epochs in which a worker's accesses happen."""
        return int(self.replica_epoch[worker.replica]), self.grid_epoch

    def error(self, worker: _Worker, what: str) -> MachineError:
        """An error with its place."""
        name = "?"
        if worker.counter < len(worker.instructions):
            number = int(worker.instructions[worker.counter][0])
            if 0 <= number < len(self.plan.opcodes):
                name = self.plan.opcodes[number].name
        return MachineError(f"worker {worker.number}, instruction {worker.counter} ({name}): {what}")

    # ---- instructions ---------------------------------------------------------------------------

    def _execute(self, name: str, fields: dict[str, int], worker: _Worker) -> None:
        if name in self.segments:
            segment = self.segments[name]
            if segment.mapping == UNIT:
                self._unit_segment(segment, fields["row"], fields["rows"], worker)
            else:
                self._vertex_segment(segment, fields["row"], fields["rows"], worker)
        elif name in self.gradients:
            self._dense_gradient(self.gradients[name], fields, worker)
        elif name.startswith("gradient "):
            self._table_gradient(name.removeprefix("gradient "), fields, worker)
        elif name == isa.NORM:
            self._norm(fields["count"], fields["chunks"], worker)
        elif name == isa.REDUCE:
            if worker.number == 0:
                at = fields["base"] * 4 + np.arange(fields["rows"]) * fields["stride"]
                total = self._read(at, worker).sum()
                self._write(np.array([self._base(isa.RESULTS) + fields["result"]]), total, worker)
        elif name != isa.NOP:
            optimizer, _, table = name.partition(" ")
            self._update(optimizer, table, fields, worker)

    def _base(self, name: str) -> int:
        """Word address of a base."""
        return int(self.words[self.layout.bases_at + self.layout.bases[name]]) * 4

    def _list(self, name: str) -> int:
        return list_words(self.words, self.layout, name)

    def _word(self, at: int, worker: _Worker) -> int:
        if not 0 <= at < len(self.words):
            raise self.error(worker, f"list entry {at} outside the schedule")
        return int(self.words[at])

    def _read(self, at: Array, worker: _Worker) -> Array:
        return self.memory.read(at, self, worker)

    def _write(self, at: Array, values: Array | float, worker: _Worker) -> None:
        self.memory.write(at, np.asarray(values), self, worker)

    def _entries(self, name: str, row: int, worker: _Worker) -> list[int]:
        at = self._list(name) + row
        begin, end = self._word(at, worker), self._word(at + 1, worker)
        return [self._word(i, worker) * 4 for i in range(begin, end)]

    def _kept(self, place: EntriesAddress | ListScratch, row: int, worker: _Worker) -> Array:
        """Where a row's scalars per child lie."""
        base, width = self._base(place.buffer), self.buffers[place.buffer].width
        start, at = self._word(self._list(place.children), worker), self._list(place.children) + row
        begin, end = self._word(at, worker) - start, self._word(at + 1, worker) - start
        return base + np.arange(begin, end) * width

    def _slots(self, name: str, row: int, worker: _Worker) -> list[int]:
        head = self._word(self._list(name) + row, worker)
        if head < 0:
            return [(-1 - head) * 4]
        count = self._word(head, worker) if head else 0
        return [self._word(head + 1 + i, worker) * 4 for i in range(count)]

    def _load(self, address: Address, row: int, index: Array, worker: _Worker) -> Any:
        """Elements `index` of what `address` stands for in `row`; a list of them for a list."""
        if isinstance(address, ParameterAddress):
            return self._read(self._base(address.parameter) + address.offset + index, worker)
        if isinstance(address, BufferAddress):
            buffer = self.buffers[address.buffer]
            runs = self.per_replica if buffer.partial else 1
            first = self._base(address.buffer) + row * buffer.width * runs + address.offset + index
            parts = [self._read(first + run * buffer.width, worker) for run in range(runs)]
            return np.add.reduce(parts)
        if isinstance(address, GatherAddress):
            record = self._word(self._list(address.list) + row, worker) * 4
            return self._read(record + address.offset + index, worker)
        if isinstance(address, ChildrenAddress):
            found = self._entries(address.list, row, worker)
            children = [self._read(at + address.offset + index, worker) for at in found]
            return np.array(children, np.float64).reshape(len(found), len(index))
        if isinstance(address, EntriesAddress):
            return self._read(self._kept(address, row, worker), worker)
        if isinstance(address, SlotsAddress):
            total = np.zeros(len(index))
            for at in self._slots(address.plain, row, worker) if address.plain else ():
                total = total + self._read(at + address.offset + index, worker)
            for at in self._slots(address.partial, row, worker) if address.partial else ():
                for run in range(self.per_replica):
                    total = total + self._read(at + run * address.width + address.offset + index, worker)
            return total
        if isinstance(address, IndexAddress):
            return np.array([self._word(self._list(address.list) + row, worker)])
        assert isinstance(address, SeedAddress)
        return np.array([self.floats[self.layout.header["loss_scale"]]], np.float64)

    def _matrix(self, parameter: str, worker: _Worker) -> Array:
        """A dense parameter's matrix, out of the plan's weight format."""
        declared = self.plan.program.parameter(parameter)
        shape = declared.type.shape
        size = self.plan.weight_format.floats(shape)
        flat = self._read(self._base(parameter) + np.arange(size), worker)
        return self.plan.weight_format.unpack(flat, shape).astype(np.float64)

    def _operand(self, pieces: tuple[Piece, ...], row: int, worker: _Worker) -> Array:
        return np.concatenate([self._load(p.address, row, np.arange(p.width), worker) for p in pieces])

    # ---- segments -------------------------------------------------------------------------------

    def _unit_segment(self, segment: Segment, first: int, rows: int, worker: _Worker) -> None:
        begin, end = unit_range(segment.units, self.per_replica, worker.rank)
        own = np.arange(begin, end)
        matrices = {
            name: self._matrix(name, worker)
            for name in [p.parameter for p in segment.products] + [t.parameter for t in segment.transposed]
        }

        def index(value: Value) -> Array:
            width = _width(value)
            if not _shape(value):
                return np.zeros(1, np.int64)
            gates = width // segment.units
            return (np.arange(gates)[:, None] * segment.units + own).ravel()

        for row in range(first, first + rows):
            values: dict[Value, Any] = {}
            for load in segment.loads:
                found = self._load(load.address, row, index(load.value), worker)
                values[load.value] = _shaped(load.value, found)
            for product in segment.products:
                operand = self._operand(product.pieces, row, worker)
                values[product.result] = matrices[product.parameter][index(product.result)] @ operand
            for op in segment.cell.ops:
                values[op.result] = self._unit_op(op, values, segment.units, len(own), index(op.result))
            for store in segment.stores:
                self._store(store, row, index(store.value), values[store.value], worker)
            for transposed in segment.transposed:
                delta = values[transposed.delta]
                partial = matrices[transposed.parameter][index(transposed.delta)].T @ delta
                for name, offset, low, high in transposed.stores:
                    width = self.buffers[name].width
                    at = self._base(name) + (row * self.per_replica + worker.rank) * width + offset
                    self._write(at + np.arange(high - low), partial[low:high], worker)

    def _unit_op(self, op: Op, values: dict[Value, Any], units: int, own: int, elements: Array) -> Any:
        attributes: dict[str, Any] = dict(op.attributes)
        if OPS[op.opcode].has(INDEXED) and _shape(op.result):
            attributes["index"] = elements
        if op.opcode == "slice":
            begin, end = (int(attributes[name]) // units * own for name in ("begin", "end"))
            return values[op.operands[0]][begin:end]
        if "shape" in attributes and _shape(op.result):
            if own == 0:
                return np.zeros(0)
            attributes["shape"] = (_width(op.result) // units * own,)
        return OPS[op.opcode].evaluate([values[v] for v in op.operands], attributes)

    def _vertex_segment(self, segment: Segment, first: int, rows: int, worker: _Worker) -> None:
        share = -(-rows // self.per_replica)
        begin = min(rows, worker.rank * share)
        end = min(rows, begin + share)
        for row in range(first + begin, first + end):
            values: dict[Value, Any] = {}
            for load in segment.loads:
                shape = _shape(load.value)
                if isinstance(load.address, ParameterAddress) and len(shape) > 1:
                    values[load.value] = self._matrix(load.address.parameter, worker)
                    continue
                found = self._load(load.address, row, np.arange(_width(load.value)), worker)
                values[load.value] = _shaped(load.value, found)
            for op in segment.cell.ops:
                operands = [values[v] for v in op.operands]
                values[op.result] = OPS[op.opcode].evaluate(operands, dict(op.attributes))
            for place in segment.scratch:
                self._write(self._kept(place, row, worker), values[place.value], worker)
            for store in segment.stores:
                self._store(store, row, np.arange(_width(store.value)), values[store.value], worker)

    def _store(self, store: Any, row: int, index: Array, value: Any, worker: _Worker) -> None:
        width = self.buffers[store.buffer].width
        if store.children is None:
            at = self._base(store.buffer) + row * width + store.offset + index
            self._write(at, np.asarray(value).ravel(), worker)
            return
        begin = self._list(store.children)
        first = self._word(begin + row, worker) - self._word(begin, worker)
        for entry, found in enumerate(value):
            at = self._base(store.buffer) + (first + entry) * width + store.offset + index
            self._write(at, np.asarray(found).ravel(), worker)

    # ---- gradients and update -------------------------------------------------------------------

    def _share(self, count: int, size: int, first: int, worker: _Worker) -> Iterator[tuple[int, int]]:
        """Chunks [begin, end) of `count` that are this worker's, dealt out over the whole grid."""
        grid = self.replicas * self.per_replica
        for chunk in range(-(-count // size)):
            if (chunk + first) % grid == worker.number:
                yield chunk * size, min(count, (chunk + 1) * size)

    def _dense_gradient(self, gradient: DenseGradient, fields: dict[str, int], worker: _Worker) -> None:
        declared = self.plan.program.parameter(gradient.parameter)
        assert declared.kind == DENSE
        shape = declared.type.shape
        into = self._base(gradient.parameter) - self._base(isa.PARAMETERS)
        size = self.plan.weight_format.floats(shape)
        numbers: Any = np.arange(size, dtype=np.float64)
        place = self.plan.weight_format.unpack(numbers, shape).astype(np.int64).reshape(gradient.rows, -1)
        padding = np.setdiff1d(np.arange(size), place)
        blocks, step = -(-gradient.rows // 64), isa.chunk_rows(fields["rows"], fields["chunks"])
        for item, _ in self._share(fields["chunks"] * blocks, 1, fields["first_worker"], worker):
            chunk, block = divmod(item, blocks)
            begin, end = block * 64, min(gradient.rows, block * 64 + 64)
            at = self._arena(chunk) + into
            if block == 0:  # arenas are added up whole, and those of chunks are not cleared
                self._write(at + padding, 0.0, worker)
            total = np.zeros((end - begin, place.shape[1]))
            for row in range(chunk * step, min(fields["rows"], (chunk + 1) * step)):
                delta = self._load(gradient.delta, row, np.arange(begin, end), worker)
                x = self._operand(gradient.pieces, row, worker) if gradient.pieces else np.ones(1)
                total += np.outer(delta, x)
            where = at + place[begin:end]
            if fields["accumulate"]:
                total += self._read(where, worker)
            self._write(where, total, worker)

    def _arena(self, chunk: int) -> int:
        """Where the gradients of a chunk of rows lie."""
        if chunk == 0:
            return self._base(isa.GRADIENTS)
        return self._base(isa.CHUNKS) + (chunk - 1) * isa.trained_floats(self.plan)

    def _table_gradient(self, parameter: str, fields: dict[str, int], worker: _Worker) -> None:
        table = self.tables[parameter]
        names = isa.table_lists(parameter)
        index = np.arange(table.width)
        slots = SlotsAddress(names[1], names[2], padded(table.width))
        for token, _ in self._share(fields["tokens"], 1, 0, worker):
            total = self._load(slots, token, index, worker)
            at = self._base(isa.table_base(parameter)) + token * padded(table.width) + index
            if fields["accumulate"]:
                total = total + self._read(at, worker)
            self._write(at, total, worker)
            norm = self._base(isa.NORMS) + fields["first_norm"] + token
            self._write(np.array([norm]), float((total**2).sum()), worker)

    def _norm(self, count: int, chunks: int, worker: _Worker) -> None:
        for begin, end in self._share(count, isa.NORM_CHUNK, 0, worker):
            index = np.arange(begin, end)
            found = self._read(self._arena(0) + index, worker)
            for chunk in range(1, chunks):
                found = found + self._read(self._arena(chunk) + index, worker)
            if chunks > 1:
                self._write(self._arena(0) + index, found, worker)
            at = self._base(isa.NORMS) + begin // isa.NORM_CHUNK
            self._write(np.array([at]), float((found**2).sum()), worker)

    def _update(self, optimizer: str, table: str, fields: dict[str, int], worker: _Worker) -> None:
        norms = self._read(self._base(isa.NORMS) + np.arange(fields["norms"]), worker)
        norm = float(np.sqrt(norms.sum()))
        results = self._base(isa.RESULTS)
        if worker.number == 0 and not table:
            self._write(np.array([results + isa.RESULT_NORM]), norm, worker)
            self._write(np.array([results + isa.RESULT_UPDATED]), float(np.isfinite(norm)), worker)
        if not np.isfinite(norm):
            return
        clip = self._header_float("clip_norm")
        scale = clip / norm if norm > clip else 1.0
        coefficients = {name: self._header_float(name) for name in COEFFICIENTS}
        coefficients["learning_rate"] *= float(np.int32(fields["rate"]).view(np.float32))
        parameters = self._base(isa.PARAMETERS)
        if not table:
            for begin, end in self._share(fields["count"], isa.NORM_CHUNK, 0, worker):
                index = fields["first"] + np.arange(begin, end)
                gradient = self._read(self._base(isa.GRADIENTS) + index, worker) * scale
                self._step(optimizer, coefficients, parameters + index, gradient, worker)
            return
        width = padded(self.tables[table].width)
        for token, _ in self._share(fields["tokens"], 1, 0, worker):
            index = np.arange(self.tables[table].width)
            gradient = self._read(self._base(isa.table_base(table)) + token * width + index, worker) * scale
            at = self._word(self._list(isa.table_lists(table)[0]) + token, worker) * 4 + index
            self._step(optimizer, coefficients, at, gradient, worker)

    def _step(
        self, optimizer: str, coefficients: dict[str, float], at: Array, gradient: Array, worker: _Worker
    ) -> None:
        entry, shift = OPTIMIZERS[optimizer], at - self._base(isa.PARAMETERS)
        places = [at, *(self._base(isa.STATES[i]) + shift for i in range(len(entry.states)))]
        old, *state = (self._read(place, worker) for place in places)
        for place, value in zip(
            places, entry.step(NUMPY_MATH, coefficients, old, gradient, *state), strict=True
        ):
            self._write(place, value, worker)

    def _header_float(self, name: str) -> float:
        return float(self.floats[self.layout.header[name]])


def _shape(value: Value) -> tuple[int, ...]:
    return value.type.element.shape if isinstance(value.type, ListType) else value.type.shape


def _width(value: Value) -> int:
    return value.type.element.size if isinstance(value.type, ListType) else value.type.size


def _shaped(value: Value, found: Any) -> Any:
    """A loaded value in its shape: () for scalars, integers for i32, matrices as such."""
    if isinstance(value.type, ListType):
        return found if len(_shape(value)) == 1 else found.reshape(len(found), *_shape(value))
    if not value.type.shape:
        scalar = np.asarray(found)[0]
        return np.int64(scalar) if value.type.dtype == "i32" else np.float64(scalar)
    return found.reshape(value.type.shape) if len(value.type.shape) > 1 else found
