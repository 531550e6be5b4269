"""The encoder: a batch of samples in, the words of a schedule out.

In: prepared data and sample numbers. Out: a `Schedule` for a number of replicas and workers.
Guaranteed: NumPy over flat arrays, never Python per vertex; the words depend on nothing but the
arguments. Rows of a space are ordered by (replica, level, sample), so a wavefront of a replica,
and everything of a replica, lie side by side (Cavs's dynamic tensor).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import Diagnostic, DiagnosticError
from dnc.ir import isa
from dnc.ir.forest import Ints, path_struct
from dnc.ir.plan import (
    Buffer,
    ChildrenList,
    ClassList,
    GatherList,
    IndexList,
    Plan,
    SlotList,
    SlotSource,
    TableGradient,
    TableList,
    VectorList,
    padded,
    state_layout,
)
from dnc.ir.program import LEVEL
from dnc.runtime.phases import BACKWARD_LEVELS, PHASES, TRAIN, Step, sequence
from dnc.runtime.pool import MAX_ADDRESS, StaticPool, units
from dnc.runtime.prepared import Prepared
from dnc.runtime.schedule import Schedule

Numbers = NDArray[np.signedinteger[Any]]


class DoesNotFit(DiagnosticError):
    """A batch too large for the pool: the words its schedule and its activations need."""

    def __init__(self, message: str, schedule_words: int, activations: int) -> None:
        super().__init__(Diagnostic(message))
        self.schedule_words, self.activations = schedule_words, activations


# Words of kept schedules: 256 MB.
KEPT_WORDS = 1 << 26


@attrs.frozen
class Hyper:
    """What a launch takes beside data: rates and the optimizer's name."""

    optimizer: str = isa.SGD
    learning_rate: float = 0.01
    clip_norm: float = float("inf")
    epsilon: float = 1e-10


@attrs.frozen
class Part:
    """Which part of an accumulated batch a launch is: `tokens` per table are those of all parts."""

    accumulate: bool = False
    update: bool = True
    total_samples: int | None = None
    tokens: dict[str, Ints] | None = None


@attrs.define(eq=False)
class _Rows:
    """A space in a batch: positions in the prepared rows, and counts[replica, level]."""

    positions: Ints
    counts: Ints
    starts: Ints

    def __len__(self) -> int:
        return len(self.positions)


@attrs.frozen(eq=False)
class _Touched:
    """The rows of a table that a batch touches, and for every slot source its slots' rows."""

    tokens: Ints
    targets: list[Numbers]


class Encoder:
    """Encodes batches of one prepared data set for one static pool.

    Schedules of single samples are kept (up to KEPT_WORDS words in all): from the second epoch on,
    training sample by sample costs a copy.
    """

    def __init__(self, prepared: Prepared, pool: StaticPool) -> None:
        self.prepared, self.pool = prepared, pool
        self.plan: Plan = prepared.plan
        self.layout = isa.layout(self.plan)
        self.program = self.plan.program
        self._sequences: dict[str, tuple[Step, ...]] = {}
        self._buffers: dict[str, list[Buffer]] = {}
        self._spaces: dict[str, list[str]] = {}
        self._lists: dict[str, list[IndexList]] = {}
        self._workers = 1
        self._kept: dict[tuple[Any, ...], Schedule] = {}
        self._kept_words, self._kept_for = 0, pool
        self._has_vectors = any(isinstance(item, VectorList) for item in self.plan.lists)
        self._buffer = {buffer.name: buffer for buffer in self.plan.buffers}
        self._number = {opcode.name: opcode.number for opcode in self.plan.opcodes}
        self._stride = {f.name: state_layout(self.program, f.name)[""] // 4 for f in self.program.functions}
        self._slot_groups = _slot_groups(self.plan)
        self._leveled = {stage.space for stage in self.program.stages if stage.placement == LEVEL}
        self._function_spaces: dict[str, list[str]] = {}
        for stage in self.program.stages:
            if stage.function is not None:
                spaces = self._function_spaces.setdefault(stage.function, [])
                if stage.space not in spaces:
                    spaces.append(stage.space)
        forest = prepared.forest
        self._address = {
            function: np.zeros(len(forest.tables[self.program.function(function).struct]) + 1, np.int32)
            for function in self._function_spaces
        }
        self._owner = {space: f for f, spaces in self._function_spaces.items() for space in spaces}
        self._row = {
            function: np.full(len(forest.tables[self.program.function(function).struct]) + 1, -1, np.int64)
            for function in self._function_spaces
        }

    # ---- what a mode needs, worked out once ----------------------------------------------------

    def _mode(self, mode: str) -> tuple[Step, ...]:
        if mode in self._sequences:
            return self._sequences[mode]
        steps = sequence(self.plan, mode)
        written = {s.buffer for step in steps for s in step.segment.stores}
        written |= {s[0] for step in steps for t in step.segment.transposed for s in t.stores}
        self._buffers[mode] = [buffer for buffer in self.plan.buffers if buffer.name in written]
        self._spaces[mode] = list(dict.fromkeys(step.segment.space for step in steps))
        used = {name for step in steps for name in _lists_of(step)}
        if mode == TRAIN:
            for gradient in self.plan.dense_gradients:
                used |= {getattr(p.address, "list", "") for p in gradient.pieces}
        self._lists[mode] = [item for item in self.plan.lists if item.name in used]
        self._sequences[mode] = steps
        return steps

    # ---- a batch --------------------------------------------------------------------------------

    def encode(
        self,
        samples: Ints,
        *,
        mode: str = TRAIN,
        replicas: int = 1,
        workers: int = 1,
        hyper: Hyper = Hyper(),
        part: Part = Part(),
        buffer: int = 0,
        pool_words: int | None = None,
    ) -> Schedule:
        """The schedule of `samples` (numbers in the data set) on replicas × workers workers.

        `buffer` chooses one of the pool's two places for schedules. DoesNotFit when the batch
        does not fit into `pool_words`, or its schedule into the place for schedules.
        """
        samples = np.asarray(samples, np.int32)
        if len(samples) != 1 or part != Part():
            return self._encode(samples, mode, replicas, workers, hyper, part, buffer, pool_words)
        if self._kept_for is not self.pool:
            self._kept, self._kept_words, self._kept_for = {}, 0, self.pool
        address = self.pool.schedules[buffer if self._has_vectors else 0]
        key = (int(samples[0]), mode, replicas, workers, hyper.optimizer, address)
        found = self._kept.get(key)
        room = self.pool.activations * 4 + (found.activations if found else 0)
        if found is None or (pool_words is not None and room > pool_words):
            found = self._encode(samples, mode, replicas, workers, hyper, part, buffer, pool_words)
            if self._kept_words + len(found.words) <= KEPT_WORDS:
                self._kept[key] = found
                self._kept_words += len(found.words)
            return found
        words = found.words.copy()
        self._write_rates(words, hyper, 1)
        return attrs.evolve(found, words=words, address=self.pool.schedules[buffer])

    def _encode(
        self,
        samples: Ints,
        mode: str,
        replicas: int,
        workers: int,
        hyper: Hyper,
        part: Part,
        buffer: int,
        pool_words: int | None,
    ) -> Schedule:
        steps = self._mode(mode)
        self._workers = workers
        assigned = self._assign(samples, replicas)
        order = np.argsort(assigned, kind="stable")
        ordered, owner = samples[order], assigned[order]
        rows = {name: self._space_rows(name, ordered, owner, replicas) for name in self._spaces[mode]}
        address = self.pool.schedules[buffer]
        touched = self._touched(mode, rows, part)
        bases, used = self._allocate(mode, rows, workers, touched)
        body = _Words(self.layout.queues_at + replicas * workers)
        lists: dict[str, int] = {}
        self._function_rows(rows, bases)
        self._encode_lists(mode, rows, bases, lists, body, address)
        tail, results = self._tail(mode, rows, bases, lists, body, replicas * workers, hyper, part, touched)
        queues = self._queues(steps, rows, replicas, workers, tail, body)
        words = self._assemble(body, bases, lists, queues, replicas, workers, hyper, part, len(samples))
        need = (len(words), (used - self.pool.activations) * 4)
        if len(words) > self.pool.schedule_words:
            have = self.pool.schedule_words
            raise DoesNotFit(f"the batch's schedule has {len(words)} words; {have} were set aside", *need)
        if used > MAX_ADDRESS or (pool_words is not None and used * 4 > pool_words):
            have = MAX_ADDRESS * 4 if pool_words is None else pool_words
            raise DoesNotFit(f"the batch needs {used * 4} words of memory; {have} are there", *need)
        return Schedule(
            self.plan,
            words,
            address,
            {name: len(found) for name, found in rows.items()},
            bases,
            bases[isa.NORMS] * 4 if part.accumulate else self.pool.words,
            need[1],
            results,
            ordered,
            {name: found.positions for name, found in rows.items()},
        )

    def _assign(self, samples: Ints, replicas: int) -> Numbers:
        """A replica for every sample: by falling weight, back and forth over the replicas."""
        if replicas == 1:
            return np.zeros(len(samples), np.int64)
        rank = np.argsort(-self.prepared.weight[samples], kind="stable")
        turn, place = np.divmod(np.arange(len(samples)), replicas)
        found = np.empty(len(samples), np.int64)
        found[rank] = np.where(turn % 2 == 0, place, replicas - 1 - place)
        return found

    def _space_rows(self, name: str, samples: Ints, owner: Numbers, replicas: int) -> _Rows:
        space = self.prepared.spaces[name]
        if len(samples) == 1:
            return self._one_sample(name, int(samples[0]), int(owner[0]), replicas)
        begin = space.begin[samples]
        counts = space.begin[samples + 1] - begin
        total = int(counts.sum())
        ends = np.cumsum(counts)
        positions = np.repeat(begin - (ends - counts), counts) + np.arange(total, dtype=np.int32)
        replica = np.repeat(owner, counts)
        if name not in self._leveled:
            per = np.bincount(replica, minlength=replicas).reshape(replicas, 1)
        else:
            level = space.level[positions]
            depth = int(level.max(initial=0)) + 1
            key = replica * depth + level
            small = key.astype(np.uint16) if replicas * depth < 65536 else key
            positions = positions[np.argsort(small, kind="stable")]
            per = np.bincount(key, minlength=replicas * depth).reshape(replicas, depth)
        starts = (np.cumsum(per.ravel()) - per.ravel()).reshape(per.shape)
        return _Rows(positions.astype(np.int32, copy=False), per.astype(np.int32), starts.astype(np.int32))

    def _one_sample(self, name: str, sample: int, owner: int, replicas: int) -> _Rows:
        """`_space_rows` of a single sample: the prepared order is the order."""
        space = self.prepared.spaces[name]
        begin, end = int(space.begin[sample]), int(space.begin[sample + 1])
        if name in self._leveled:
            own = np.bincount(space.level[begin:end], minlength=1)
        else:
            own = np.array([end - begin])
        counts = np.zeros((replicas, len(own)), np.int32)
        counts[owner] = own
        starts = np.zeros_like(counts)
        np.cumsum(own[:-1], out=starts[owner, 1:])
        return _Rows(np.arange(begin, end, dtype=np.int32), counts, starts)

    # ---- addresses ------------------------------------------------------------------------------

    def _allocate(
        self, mode: str, rows: dict[str, _Rows], workers: int, touched: dict[str, _Touched]
    ) -> tuple[dict[str, int], int]:
        """Bases of everything dynamic behind the static pool, and the first free address."""
        bases = dict(self.pool.bases)
        at = self.pool.activations
        if mode == TRAIN:
            total = -(-self.pool.dense // isa.NORM_CHUNK)
            for table in self.plan.table_gradients:
                tokens = touched[table.parameter].tokens
                total += len(tokens)
                bases[isa.table_base(table.parameter)] = at
                at += units(len(tokens) * padded(table.width))
            bases[isa.NORMS] = at
            at += units(total)
        for buffer in self._buffers[mode]:
            count = len(rows[buffer.space])
            if buffer.children is not None:
                begin, _ = self.prepared.ragged[buffer.space, self._list(buffer.children).path]
                positions = rows[buffer.space].positions
                count = int((begin[positions + 1] - begin[positions]).sum())
            bases[buffer.name] = at
            at += units(count * buffer.width * (workers if buffer.partial else 1))
        return bases, at

    def _list(self, name: str) -> ChildrenList:
        found = next(item for item in self.plan.lists if item.name == name)
        assert isinstance(found, ChildrenList)
        return found

    def _function_rows(self, rows: dict[str, _Rows], bases: dict[str, int]) -> None:
        """Where every call's record lies, and its number among the calls of its function."""
        for function, spaces in self._function_spaces.items():
            stride, first = self._stride[function], 0
            for space in spaces:
                if space not in rows:
                    continue
                vertex = self.prepared.spaces[space].vertex[rows[space].positions]
                index = np.arange(len(vertex), dtype=np.int32)
                base = bases.get(f"{space}:state")
                if base is not None:
                    self._address[function][vertex] = base + index * stride
                self._row[function][vertex] = first + index
                first += len(vertex)

    # ---- lists ----------------------------------------------------------------------------------

    def _encode_lists(
        self,
        mode: str,
        rows: dict[str, _Rows],
        bases: dict[str, int],
        lists: dict[str, int],
        body: _Words,
        address: int,
    ) -> None:
        slots: dict[tuple[int, str], dict[str, int]] = {}
        for item in self._lists[mode]:
            positions = rows[item.space].positions
            if isinstance(item, SlotList):
                function = self._owner[item.space]
                key = (self._slot_groups[item.name], function)
                if key not in slots:
                    slots[key] = self._slot_list(item, function, rows, bases, body)
                lists[item.name] = slots[key][item.space]
            elif isinstance(item, ChildrenList):
                begin, target = self._ragged(item.space, item.path, positions)
                lists[item.name] = body.ragged(begin, self._address[item.function][target])
            elif isinstance(item, GatherList):
                target = self.prepared.targets[item.space, item.path][positions]
                lists[item.name] = body.add(self._address[item.function][target])
            else:
                lists[item.name] = self._data_list(item, positions, bases, body, address)

    def _ragged(self, space: str, path: tuple[str, ...], positions: Ints) -> tuple[Ints, Ints]:
        begin, target = self.prepared.ragged[space, path]
        counts = begin[positions + 1] - begin[positions]
        out = np.zeros(len(positions) + 1, np.int32)
        np.cumsum(counts, out=out[1:])
        at = np.repeat(begin[positions] - out[:-1], counts) + np.arange(out[-1], dtype=np.int32)
        return out, target[at]

    def _data_list(
        self, item: IndexList, positions: Ints, bases: dict[str, int], body: _Words, address: int
    ) -> int:
        assert isinstance(item, TableList | ClassList | VectorList)
        target = self.prepared.targets[item.space, item.path][positions]
        struct = self.program.space(item.space).struct
        table = self.prepared.forest.tables[path_struct(self.prepared.forest.structs, struct, item.path)]
        values = _some(table.data[item.field])
        if isinstance(item, ClassList):
            found = values[target].astype(np.int32)
            return body.add(np.where(target >= 0, found, np.int32(-1)))
        if isinstance(item, TableList):
            width = int(self.program.parameter(item.parameter).dimensions[1].size or 0)
            token = values[target]
            found = bases[item.parameter] + token * np.int32(padded(width) // 4)
            return body.add(np.where((target >= 0) & (token >= 0), found, 0).astype(np.int32))
        filled = np.zeros((len(target), padded(item.width)), np.float32)
        found = values.reshape(len(values), item.width)[target]
        filled[:, : item.width] = np.where((target >= 0)[:, None], found, 0)
        at = body.add(filled.view(np.int32).ravel(), align=4)
        stride = padded(item.width) // 4
        return body.add(address + at // 4 + np.arange(len(target), dtype=np.int32) * np.int32(stride))

    def _slot_addresses(self, source: SlotSource, rows: dict[str, _Rows], bases: dict[str, int]) -> Ints:
        """The addresses of a source's slots, in order."""
        buffer = self._buffer[source.buffer]
        count = len(rows[source.space])
        if source.is_list:
            begin, _ = self._ragged(source.space, source.path, rows[source.space].positions)
            count = int(begin[-1])
        return bases[source.buffer] + np.arange(count, dtype=np.int32) * np.int32(self._slot_stride(buffer))

    def _slot_targets(self, source: SlotSource, rows: dict[str, _Rows]) -> Ints:
        """The vertex that each of a source's slots belongs to."""
        positions = rows[source.space].positions
        if source.is_list:
            return self._ragged(source.space, source.path, positions)[1]
        return self.prepared.targets[source.space, source.path][positions]

    def _slot_stride(self, buffer: Buffer) -> int:
        return buffer.width // 4 * (self._workers if buffer.partial else 1)

    def _slot_list(
        self, item: SlotList, function: str, rows: dict[str, _Rows], bases: dict[str, int], body: _Words
    ) -> dict[str, int]:
        """One ragged list over all calls of a function; every space's part of it by name."""
        spaces = [space for space in self._function_spaces[function] if space in rows]
        total = sum(len(rows[space]) for space in spaces)
        targets, addresses = [], []
        for source in item.sources:
            if source.space in rows:
                targets.append(self._row[function][self._slot_targets(source, rows)])
                addresses.append(self._slot_addresses(source, rows, bases))
        at = body.slots(targets, addresses, total)
        found, first = {}, 0
        for space in spaces:
            found[space] = at + first
            first += len(rows[space])
        return found

    # ---- gradients of tables, norm, update ------------------------------------------------------

    def _touched(self, mode: str, rows: dict[str, _Rows], part: Part) -> dict[str, _Touched]:
        """The touched rows of every trained table, and which one each slot adds to."""
        if mode != TRAIN:
            return {}
        found = {}
        for table in self.plan.table_gradients:
            sources = (*table.plain, *table.partial)
            tokens = [self._source_tokens(source, rows[source.space].positions) for source in sources]
            ends = np.cumsum([len(one) for one in tokens])[:-1]
            merged = np.concatenate(tokens)
            if part.tokens is not None:
                distinct = part.tokens[table.parameter]
                inverse = np.where(merged >= 0, np.searchsorted(distinct, merged), -1)
            else:
                distinct, inverse = np.unique(merged, return_inverse=True)
                if len(distinct) and distinct[0] < 0:  # vertices without a token
                    distinct, inverse = distinct[1:], inverse - 1
            found[table.parameter] = _Touched(distinct, np.split(inverse, ends))
        return found

    def tokens(self, table: TableGradient, samples: Ints) -> Ints:
        """The sorted distinct rows of a table that `samples` touch."""
        found = [
            self._source_tokens(source, self._sample_positions(source.space, samples))
            for source in (*table.plain, *table.partial)
        ]
        merged = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int32)
        return merged[merged >= 0].astype(np.int32)

    def _sample_positions(self, space: str, samples: Ints) -> Ints:
        begin = self.prepared.spaces[space].begin
        counts = begin[samples + 1] - begin[samples]
        ends = np.cumsum(counts)
        return np.repeat(begin[samples] - (ends - counts), counts) + np.arange(
            int(counts.sum()), dtype=np.int32
        )

    def _source_tokens(self, source: SlotSource, positions: Ints) -> Ints:
        target = self.prepared.targets[source.space, source.path][positions]
        struct = self.program.space(source.space).struct
        table = self.prepared.forest.tables[path_struct(self.prepared.forest.structs, struct, source.path)]
        assert source.field is not None
        return np.where(target >= 0, _some(table.data[source.field])[target], -1).astype(np.int32)

    def _table_lists(
        self,
        table: TableGradient,
        touched: _Touched,
        rows: dict[str, _Rows],
        bases: dict[str, int],
        lists: dict[str, int],
        body: _Words,
    ) -> None:
        names = isa.table_lists(table.parameter)
        stride = np.int32(padded(table.width) // 4)
        lists[names[0]] = body.add(bases[table.parameter] + touched.tokens * stride)
        targets = iter(touched.targets)
        for name, sources in ((names[1], table.plain), (names[2], table.partial)):
            addresses = [self._slot_addresses(source, rows, bases) for source in sources]
            lists[name] = body.slots([next(targets) for _ in sources], addresses, len(touched.tokens))

    def _tail(
        self,
        mode: str,
        rows: dict[str, _Rows],
        bases: dict[str, int],
        lists: dict[str, int],
        body: _Words,
        grid: int,
        hyper: Hyper,
        part: Part,
        touched: dict[str, _Touched],
    ) -> tuple[list[list[int]], dict[str, tuple[int, int]]]:
        """What every worker runs behind the recursion, and where the results are."""
        number = self._number
        tail: list[list[int]] = [[number[isa.GRID_BARRIER], 1]]
        results: dict[str, tuple[int, int]] = {}
        for result in self.plan.results:
            if result.kind in ("loss", "metric") and result.buffer in bases:
                word = isa.RESULT_FIRST + len(results)
                count = len(rows[result.space])
                stride = self._buffer[result.buffer].width
                tail.append([number[isa.REDUCE], bases[result.buffer], count, stride, word])
                results[f"{result.kind}:{result.name}"] = (word, count)
        if mode != TRAIN:
            return [*tail, [number[isa.END]]], results
        # A parameter's tiles keep their workers, so that its gradients add up in order.
        first, workers_of = 0, dict[str, int]()
        for gradient in self.plan.dense_gradients:
            again = int(part.accumulate or gradient.parameter in workers_of)
            worker = workers_of.setdefault(gradient.parameter, first % grid)
            tail.append([number[gradient.name], len(rows[gradient.space]), worker, again])
            columns = sum(piece.width for piece in gradient.pieces)
            first += -(-gradient.rows // 64) * max(1, -(-columns // 64))
        accumulate = int(part.accumulate)
        chunks = -(-self.pool.dense // isa.NORM_CHUNK)
        norms, counts = chunks, {}
        for table in self.plan.table_gradients:
            tokens = touched[table.parameter].tokens
            self._table_lists(table, touched[table.parameter], rows, bases, lists, body)
            counts[table.parameter] = len(tokens)
            tail.append([number[f"gradient {table.parameter}"], len(tokens), norms, accumulate])
            norms += len(tokens)
        if part.update:
            barriers = [[number[isa.GRID_BARRIER], ordinal] for ordinal in (2, 3)]
            tail += [barriers[0], [number[isa.NORM], self.pool.dense], barriers[1]]
            tail.append([number[hyper.optimizer], self.pool.dense, norms])
            for table in self.plan.table_gradients:
                name = f"{hyper.optimizer} {table.parameter}"
                tail.append([number[name], counts[table.parameter], norms])
        return [*tail, [number[isa.END]]], results

    # ---- instructions ---------------------------------------------------------------------------

    def _queues(
        self,
        steps: tuple[Step, ...],
        rows: dict[str, _Rows],
        replicas: int,
        workers: int,
        tail: list[list[int]],
        body: _Words,
    ) -> Ints:
        """Writes a queue per replica; the offset of every worker's queue.

        Instructions are sorted by (replica, phase, level, step, place in the sequence); an
        exchange stands where anything before the place changes.
        """
        depth = max((rows[step.segment.space].counts.shape[1] for step in steps), default=1)
        longest = max((step.step for step in steps), default=0) + 1
        groups: dict[tuple[str, bool], tuple[Numbers, ...]] = {}
        found = []
        for step in steps:
            where = (step.segment.space, step.phase % 3 == 1)
            if where not in groups:
                groups[where] = _groups(rows[step.segment.space], where[1])
            found.append(groups[where])
        replica, level, start, count = (np.concatenate(column) for column in zip(*found, strict=True))
        index = np.repeat(np.arange(len(steps)), [len(group[0]) for group in found])
        phase, within, code = self._columns(steps)
        phase_of = phase[index]
        level = np.where(phase_of == BACKWARD_LEVELS, depth - 1 - level, level)
        place = ((replica * PHASES + phase_of) * depth + level) * longest + within[index]
        order = np.argsort(place * len(steps) + index)
        place = place[order]
        made = np.stack((code[index], start, count))[:, order]
        last = np.zeros((len(tail), isa.INSTRUCTION_WORDS), np.int32)
        for at, instruction in enumerate(tail):
            last[at, : len(instruction)] = instruction
        owner = place // (PHASES * depth * longest)
        starts, out = self._merge(place, owner, made, last, workers)
        first = body.add(out.ravel(), align=4)
        # A replica without samples only does the work of the grid: it starts at the tail.
        offsets = np.full(replicas, first + (len(out) - len(last)) * isa.INSTRUCTION_WORDS, np.int32)
        if len(owner):
            begin = np.append(0, np.flatnonzero(owner[1:] != owner[:-1]) + 1)
            offsets[owner[begin]] = first + starts[begin] * isa.INSTRUCTION_WORDS
        return np.repeat(offsets, workers)

    def _columns(self, steps: tuple[Step, ...]) -> tuple[Numbers, Numbers, Numbers]:
        """Phase, step and opcode of every step of a mode."""
        return (
            np.array([step.phase for step in steps]),
            np.array([step.step for step in steps]),
            np.array([self._number[step.segment.name] for step in steps]),
        )

    def _merge(self, place: Ints, owner: Ints, found: Ints, last: Ints, workers: int) -> tuple[Numbers, Ints]:
        """All queues behind each other: instructions, exchanges between places, the tail.

        In: instructions in order, with their places and replicas. Out: where each stands, and the
        instructions [count, INSTRUCTION_WORDS]; the last queue ends with the array.
        """
        count, tail = len(place), len(last)
        if not count:
            return np.zeros(0, np.int64), last
        change = owner[1:] != owner[:-1]
        exchange = (place[1:] != place[:-1]) & ~change if workers > 1 else np.zeros(count - 1, bool)
        at = np.zeros(count, np.int64)
        np.cumsum(1 + exchange + tail * change, out=at[1:])
        ends = np.append(at[:-1][change], at[-1]) + 1
        out = np.zeros((int(ends[-1]) + tail, isa.INSTRUCTION_WORDS), np.int32)
        out[at, :3] = found.T
        out[ends[:, None] + np.arange(tail)] = last
        barriers = at[1:][exchange] - 1
        ordinal = np.cumsum(exchange)
        before = np.maximum.accumulate(np.where(change, ordinal, 0))
        out[barriers, 0] = self._number[isa.REPLICA_BARRIER]
        out[barriers, 1] = (ordinal - before)[exchange]
        return at, out

    def _assemble(
        self,
        body: _Words,
        bases: dict[str, int],
        lists: dict[str, int],
        queues: Ints,
        replicas: int,
        workers: int,
        hyper: Hyper,
        part: Part,
        samples: int,
    ) -> Ints:
        sync = body.add(np.zeros((isa.SYNC_REPLICAS + replicas) * isa.SYNC_STRIDE, np.int32), align=32)
        words = body.finish()
        where = self.layout
        words[where.bases_at : where.lists_at] = [bases.get(name, 0) for name in where.bases]
        words[where.lists_at : where.queues_at] = [lists.get(name, 0) for name in where.lists]
        words[where.queues_at : where.queues_at + len(queues)] = queues
        total = part.total_samples or samples
        values = {
            "version": isa.VERSION,
            "words": len(words),
            "replicas": replicas,
            "workers": workers,
            "bases": where.bases_at,
            "lists": where.lists_at,
            "queues": where.queues_at,
            "sync": sync,
            "samples": samples,
        }
        for name, value in values.items():
            words[where.header[name]] = value
        self._write_rates(words, hyper, total)
        return words

    def _write_rates(self, words: Ints, hyper: Hyper, samples: int) -> None:
        """The header's floats."""
        floats, where = words.view(np.float32), self.layout.header
        floats[where["loss_scale"]] = 1.0 / max(samples, 1)
        floats[where["learning_rate"]] = hyper.learning_rate
        floats[where["clip_norm"]] = hyper.clip_norm
        floats[where["epsilon"]] = hyper.epsilon


def _some(values: NDArray[Any]) -> NDArray[Any]:
    """`values`, or one row of zeros where there are none, so that the index -1 picks something."""
    return values if len(values) else np.zeros((1, *values.shape[1:]), values.dtype)


def _groups(rows: _Rows, leveled: bool) -> tuple[Numbers, ...]:
    """(replica, level, first row, rows) of every group that is not empty."""
    counts, starts = rows.counts, rows.starts
    if not leveled and counts.shape[1] > 1:
        counts, starts = counts.sum(axis=1, keepdims=True), starts[:, :1]
    replica, level = np.nonzero(counts)
    return replica, level, starts[replica, level], counts[replica, level]


def _slot_groups(plan: Plan) -> dict[str, int]:
    """A number for every slot list; lists with the same sources have the same one."""
    numbers: dict[tuple[SlotSource, ...], int] = {}
    return {
        item.name: numbers.setdefault(item.sources, len(numbers))
        for item in plan.lists
        if isinstance(item, SlotList)
    }


def _lists_of(step: Step) -> set[str]:
    """Names of the lists that a segment reads."""
    found: set[str] = set()
    addresses = [load.address for load in step.segment.loads]
    addresses += [piece.address for product in step.segment.products for piece in product.pieces]
    for address in addresses:
        for field in ("list", "plain", "partial"):
            name = getattr(address, field, None)
            if isinstance(name, str):
                found.add(name)
    found.update(store.children for store in step.segment.stores if store.children is not None)
    return found


def _grouped(targets: Sequence[Numbers], addresses: Sequence[Ints], groups: int) -> tuple[Ints, Ints]:
    """Addresses sorted by target (targets below 0 are dropped), in order within a target."""
    if not targets:
        return np.zeros(groups + 1, np.int32), np.zeros(0, np.int32)
    target, address = np.concatenate(targets), np.concatenate(addresses)
    if len(target) and target.min() < 0:
        keep = target >= 0
        target, address = target[keep], address[keep]
    begin = np.zeros(groups + 1, np.int32)
    np.cumsum(np.bincount(target, minlength=groups), out=begin[1:])
    small = target.astype(np.uint16) if groups < 65536 else target
    return begin, address[np.argsort(small, kind="stable")].astype(np.int32, copy=False)


class _Words:
    """Collects pieces of a schedule; offsets are known at once, the words are joined last."""

    def __init__(self, first: int) -> None:
        self.at, self.pieces = first, [np.zeros(first, np.int32)]

    def add(self, words: Ints, align: int = 1) -> int:
        """Appends words; the offset of the first."""
        gap = -self.at % align
        if gap:
            self.pieces.append(np.zeros(gap, np.int32))
        at = self.at + gap
        self.pieces.append(words.astype(np.int32, copy=False))
        self.at = at + len(words)
        return at

    def ragged(self, begin: Ints, entries: Ints) -> int:
        """Appends a ragged list: begin values become offsets of words."""
        first = self.at + len(begin)
        at = self.add(begin + np.int32(first))
        self.add(entries)
        return at

    def slots(self, targets: list[Numbers], addresses: list[Ints], rows: int) -> int:
        """Appends a list of slots: addresses by target row (below 0: dropped), in order."""
        if not targets:
            return self.add(np.zeros(rows, np.int32))
        target = targets[0] if len(targets) == 1 else np.concatenate(targets)
        address = addresses[0] if len(addresses) == 1 else np.concatenate(addresses)
        counts = np.bincount(target + 1, minlength=rows + 1)[1:]
        if counts.max(initial=0) <= 1:  # every vertex has at most one: no sorting
            heads = np.zeros(rows + 1, np.int32)  # the last one takes what is dropped
            heads[target] = -1 - address
            return self.add(heads[:rows])
        begin, entries = _grouped([target], [address], rows)
        return self._ragged_slots(counts, begin, entries)

    def _ragged_slots(self, counts: Numbers, begin: Ints, entries: Ints) -> int:
        rows = len(counts)
        heads = np.zeros(rows, np.int32)
        one, more = counts == 1, np.flatnonzero(counts > 1)
        heads[one] = -1 - entries[begin[:-1][one]]
        # Behind the heads: for every row with several slots its count, then its entries.
        sizes = counts[more] + 1
        starts = np.cumsum(sizes) - sizes
        heads[more] = self.at + rows + starts
        tail = np.zeros(int(sizes.sum()), np.int32)
        tail[starts] = counts[more]
        inner = np.ones(len(tail), bool)
        inner[starts] = False
        tail[inner] = entries[np.repeat(counts > 1, counts)]
        at = self.add(heads)
        self.add(tail)
        return at

    def finish(self) -> Ints:
        """All words, ending on a whole address."""
        self.add(np.zeros(-self.at % 16, np.int32))
        return np.concatenate(self.pieces)
