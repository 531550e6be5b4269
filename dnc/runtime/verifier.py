"""The schedule verifier: what a kernel may rely on, checked word by word before a launch.

In: a schedule. Out: nothing, or `ScheduleError` that says which word, instruction or list is
wrong. Guaranteed for what it accepts: every queue ends, every instruction is known and inside its
space, every row is worked on once by every segment of the mode, barriers pair up, every address
is a record of the right buffer, and no two buffers overlap. Whether the barriers suffice is what
the reference VM finds out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import Diagnostic, DiagnosticError
from dnc.ir import isa
from dnc.ir.forest import path_struct, program_structs
from dnc.ir.isa import float_bits
from dnc.ir.optimizers import OPTIMIZERS
from dnc.ir.plan import (
    ChildrenList,
    ClassList,
    DenseGradient,
    GatherList,
    IndexList,
    NoiseList,
    ShareList,
    SlotList,
    SlotSource,
    TableGradient,
    TableList,
    VectorList,
    padded,
    state_buffer,
    state_layout,
)
from dnc.ir.program import TABLE
from dnc.runtime.exits import exit_problem
from dnc.runtime.phases import TRAIN, sequence
from dnc.runtime.schedule import Schedule

Ints = NDArray[Any]


class ScheduleError(DiagnosticError):
    """A schedule that no kernel may run."""

    def __init__(self, message: str) -> None:
        super().__init__(Diagnostic(f"schedule: {message}"))


def verify(schedule: Schedule) -> None:
    """ScheduleError if anything about the words of `schedule` is wrong."""
    _Verifier(schedule).run()


def _need(condition: Any, message: str) -> None:
    if not condition:
        raise ScheduleError(message)


class _Verifier:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.plan, self.words = schedule, schedule.plan, schedule.words
        self.rows, self.bases = schedule.rows, schedule.bases
        self.layout = isa.layout(self.plan)
        self.program = self.plan.program
        self.mode = schedule.mode
        self.segments = {s.segment.name: s.segment for s in sequence(self.plan, self.mode)}
        self.buffers = {buffer.name: buffer for buffer in self.plan.buffers}
        self.number = {opcode.name: opcode.number for opcode in self.plan.opcodes}
        self.tokens: dict[str, int] = {}
        self.entries: dict[str, int] = {}

    def run(self) -> None:
        """All checks; each relies on those before it."""
        self._header()
        queues = self._queues()
        tail = self._tail(queues)
        self._barriers(queues)
        self._coverage(np.concatenate(queues))
        problem = exit_problem(self.schedule, queues, self.workers)
        _need(problem is None, str(problem))
        self._closing(tail)
        for item in self.plan.lists:
            at = self._list_at(item.name)
            if at:
                self._list(item, at)
        for table in self.plan.table_gradients:
            if table.parameter in self.tokens:
                self._table(table, self.tokens[table.parameter])
        self._disjoint()

    # ---- header and queues ----------------------------------------------------------------------

    def _header(self) -> None:
        words, where, size = self.words, self.layout, len(self.words)
        _need(
            size >= where.queues_at, f"{size} words cannot hold header and tables ({where.queues_at} words)"
        )
        field = {name: int(words[at]) for name, at in where.header.items()}
        _need(field["version"] == isa.VERSION, f"version {field['version']}, expected {isa.VERSION}")
        _need(field["words"] == size, f"the header says {field['words']} words; there are {size}")
        self.replicas, self.workers = field["replicas"], field["workers"]
        self.grid = self.replicas * self.workers
        _need(self.replicas > 0 and self.workers > 0, f"{self.replicas} replicas of {self.workers} workers")
        for name in ("bases", "lists", "queues"):
            right = int(getattr(where, f"{name}_at"))
            _need(field[name] == right, f"the table of {name} is said to be at {field[name]}, not {right}")
        _need(where.queues_at + self.grid <= size, f"the queue table of {self.grid} workers does not fit")
        count = len(self.schedule.samples)
        _need(field["samples"] == count, f"the header says {field['samples']} samples; there are {count}")
        sync, length = field["sync"], (isa.SYNC_REPLICAS + self.replicas) * isa.SYNC_STRIDE
        self.body = where.queues_at + self.grid
        inside = self.body <= sync <= size - length and sync % isa.SYNC_STRIDE == 0
        _need(inside, f"the words for synchronisation at {sync} are outside the schedule or not aligned")
        _need(not words[sync : sync + length].any(), "the words for synchronisation are not zero")
        results = self.schedule.address + (sync - isa.RESULT_WORDS) // 4
        _need(self.bases[isa.RESULTS] == results, "the results do not lie before the counters")
        rates = words[: len(where.header)].view(np.float32)
        scale = float(rates[where.header["loss_scale"]])
        _need(0 < scale <= 1, f"the loss scale {scale:g} is not in (0, 1]")
        for name, at in where.bases.items():
            found, right = int(words[where.bases_at + at]), self.bases.get(name, 0)
            _need(found == right, f"the base of '{name}' is {found}, expected {right}")

    def _queues(self) -> list[Ints]:
        """The instructions of every replica."""
        words, step, found = self.words, isa.INSTRUCTION_WORDS, []
        at = self.layout.queues_at
        starts = words[at : at + self.grid].reshape(self.replicas, self.workers)
        for replica, start in enumerate(starts[:, 0].tolist()):
            same = bool((starts[replica] == start).all())
            _need(same, f"the workers of replica {replica} have different queues")
            inside = self.body <= start <= len(words) - step and start % 4 == 0
            _need(
                inside, f"the queue of replica {replica} is at {start}: outside the schedule or not aligned"
            )
            ends = np.flatnonzero(words[start : len(words) - step + 1 : step] == self.number[isa.END])
            _need(len(ends), f"the queue of replica {replica} does not end")
            count = int(ends[0]) + 1
            queue = words[start : start + count * step].reshape(count, step)
            bad = (queue[:, 0] < 0) | (queue[:, 0] >= len(self.plan.opcodes))
            at_bad = int(bad.argmax())
            _need(
                not bad.any(),
                f"replica {replica}, instruction {at_bad}: unknown opcode {int(queue[at_bad, 0])}",
            )
            found.append(queue)
        fields = np.array([len(opcode.fields) for opcode in self.plan.opcodes])
        for replica, queue in enumerate(found):
            beyond = (queue != 0) & (np.arange(step) > fields[queue[:, 0]][:, None])
            at_bad = int(beyond.any(axis=1).argmax())
            name = self.plan.opcodes[int(queue[at_bad, 0])].name
            where = f"replica {replica}, instruction {at_bad} ({name})"
            _need(not beyond.any(), f"{where}: words behind its fields")
        return found

    def _tail(self, queues: list[Ints]) -> Ints:
        """What follows the first barrier of the grid: the same everywhere, and without segments."""
        tails = []
        for replica, queue in enumerate(queues):
            grid = np.flatnonzero(queue[:, 0] == self.number[isa.GRID_BARRIER])
            _need(len(grid), f"the queue of replica {replica} has no barrier of the grid")
            tails.append(queue[int(grid[0]) :])
        for replica, tail in enumerate(tails):
            same = np.array_equal(tail, tails[0])
            _need(same, f"replicas 0 and {replica} differ behind their first barrier of the grid")
        return tails[0]

    def _barriers(self, queues: list[Ints]) -> None:
        counts = []
        for replica, queue in enumerate(queues):
            for name in (isa.REPLICA_BARRIER, isa.GRID_BARRIER):
                ordinals = queue[queue[:, 0] == self.number[name], 1]
                right = np.array_equal(ordinals, np.arange(1, len(ordinals) + 1))
                _need(right, f"replica {replica}: the ordinals of '{name}' do not count 1, 2, 3, ...")
            counts.append(len(ordinals))
        _need(len(set(counts)) == 1, f"replicas pass different numbers of barriers of the grid: {counts}")

    def _coverage(self, instructions: Ints) -> None:
        """Every segment of the mode works on every row of its space once, and no other runs."""
        opcode = instructions[:, 0]
        for segment in self.plan.segments:
            mine = instructions[opcode == self.number[segment.name], 1:3].astype(np.int64)
            where = f"segment '{segment.name}'"
            if segment.name not in self.segments:
                _need(not len(mine), f"{where} does not run in mode '{self.mode}'")
                continue
            total = self.rows[segment.space]
            first, count = mine[np.argsort(mine[:, 0], kind="stable")].T
            inside = (first >= 0) & (count > 0) & (first + count <= total)
            _need(inside.all(), f"{where}: rows outside the {total} of space '{segment.space}'")
            ends = np.concatenate(([0], first + count))
            _need((first >= ends[:-1]).all(), f"{where}: a row is worked on twice")
            _need((first <= ends[:-1]).all() and ends[-1] == total, f"{where}: a row is left out")
            selects = [product.select for product in segment.products]
            selects += [transposed.select for transposed in segment.transposed]
            for name in {select for select in selects if select is not None}:
                chosen = self._part(self._list_at(name), total, name)
                new = np.flatnonzero(np.diff(chosen)) + 1
                _need(np.isin(new, first).all(), f"{where}: rows of one instruction select different numbers")

    def _closing(self, tail: Ints) -> None:
        """Fields of gradients, sums, norm and update."""
        names = [self.plan.opcodes[int(number)].name for number in tail[:, 0]]
        dense = {gradient.name: gradient for gradient in self.plan.dense_gradients}
        tables = {f"gradient {table.parameter}": table for table in self.plan.table_gradients}
        floats = isa.summed_floats(self.plan)
        norms, sums, updated = -(-floats // isa.NORM_CHUNK), [], list[tuple[int, int, int]]()
        buffers = {
            self.bases[r.buffer]: r
            for r in self.plan.results
            if r.kind in ("loss", "metric") and r.buffer in self.bases
        }
        rows_of = list(zip(names, tail.tolist(), strict=True))
        field = 1 + isa.DENSE_GRADIENT_FIELDS.index("chunks")
        chunks = self.chunks = next((row[field] for name, row in rows_of if name in dense), 1)
        self.summed = dict.fromkeys(dense, 0)
        outer = isa.OUTER in names
        if outer:
            found = tail[tail[:, 0] == self.number[isa.OUTER]]
            norms = self._outer_norms(found)
            names += [each.name for number in found[:, 1].tolist() for each in self._made_by(number)]
        for name, row in rows_of:
            _need(name not in self.segments, f"segment '{name}' stands behind a barrier of the grid")
            fields = dict(zip(self.plan.opcodes[row[0]].fields, row[1:], strict=False))
            _need(
                fields.get("accumulate", 0) in (0, 1), f"'{name}': 'accumulate' is {fields.get('accumulate')}"
            )
            self.chunks = fields.get("chunks", self.chunks)
            _need(
                self.chunks == chunks and 0 < chunks <= isa.MOST_CHUNKS,
                f"'{name}': 'chunks' is {self.chunks}, expected {chunks}",
            )
            worker = fields.get("first_worker", 0)
            _need(0 <= worker < self.grid, f"'{name}': no worker {worker}")
            if name in dense:
                _need(not outer, f"'{name}' beside '{isa.OUTER}'")
                self._gradient(dense[name], fields)
            elif name == isa.OUTER:
                for gradient in self._made_by(fields["gradient"]):
                    self._gradient(gradient, fields)
            elif name in tables:
                self.tokens[tables[name].parameter] = fields["tokens"]
                _need(fields["tokens"] >= 0, f"'{name}': {fields['tokens']} tokens")
                _need(
                    fields["first_norm"] == norms, f"'{name}': norms from {fields['first_norm']}, not {norms}"
                )
                norms += fields["tokens"] * isa.table_norms(tables[name])
            elif name == isa.REDUCE:
                result = buffers.get(fields["base"])
                _need(result, f"a sum over address {fields['base']}, where no result is")
                assert result is not None
                right = (self.rows[result.space], self.buffers[result.buffer].width)
                found = (fields["rows"], fields["stride"])
                _need(found == right, f"the sum of '{result.name}': (rows, stride) {found}, expected {right}")
                sums.append(fields["result"])
            elif name == isa.NORM:
                _need(not outer, f"'{name}' beside '{isa.OUTER}'")
                self._fields(name, fields, {"count": floats, "chunks": chunks})
            elif name == isa.FOLLOW:
                first, count = isa.trained_floats(self.plan), isa.followed_floats(self.plan)
                expected = {"first": first, "count": count, "norms": norms, "chunks": chunks}
                self._fields(name, fields, expected)
            elif name in OPTIMIZERS:
                updated.append((fields["first"], fields["count"], fields["rate"]))
                self._fields(name, fields, {"norms": norms})
                self._has_states(name)
            elif name.split(" ")[0] in OPTIMIZERS:
                optimizer, _, table = name.partition(" ")
                rate = float_bits(self.program.parameter(table).rate)
                self._fields(
                    name, fields, {"tokens": self.tokens.get(table, 0), "norms": norms, "rate": rate}
                )
                self._has_states(optimizer)
        for name, gradient in dense.items() if self.mode == TRAIN else ():
            right_rows, summed = self.rows[gradient.space], self.summed[name]
            _need(summed == right_rows, f"'{name}': {summed} rows, expected {right_rows}")
        right_sums = [word for word, _ in self.schedule.results.values()]
        _need(sums == right_sums, f"sums go to the words {sums} of the results, expected {right_sums}")
        groups = [(first, count, float_bits(rate)) for first, count, rate in isa.rate_groups(self.plan)]
        whole = updated in ([], groups)
        _need(whole, f"(first, count, rate) of the updates are {updated}, expected {groups}")
        if self.mode == TRAIN:
            missing = ({*dense, *tables} - set(names)) or {""}
            _need(missing == {""}, f"'{min(missing)}' is missing")
        self.norms = norms

    def _outer_norms(self, instructions: Ints) -> int:
        """Norms that `outer` instructions leave: the last one of a trained parameter its own, in a row."""
        found = dict[tuple[str, int], tuple[int, int]]()
        for words in instructions.tolist():
            fields = dict(zip(isa.OUTER_FIELDS, words[1:], strict=True))
            gradient, *_ = self._made_by(fields["gradient"])
            key, first = (gradient.parameter, fields["index"]), fields["first_norm"]
            before = found.pop(key, (isa.NO_NORM, 0))[0]
            _need(before == isa.NO_NORM, f"'{gradient.name}': its norm is not the last one's")
            found[key] = first, isa.outer_tiles(gradient)
        trained = {key: own for key, own in found.items() if self.program.parameter(key[0]).trained}
        right = all(own[0] == isa.NO_NORM for key, own in found.items() if key not in trained)
        _need(right, f"'{isa.OUTER}': a norm of what is no gradient")
        end = 0
        for first, count in sorted(trained.values()):
            _need(first == end, f"'{isa.OUTER}': norms from {first}, not {end}")
            end += count
        return end

    def _made_by(self, number: int) -> list[DenseGradient]:
        """The gradient with a number, and what an `outer` instruction makes beside it."""
        gradients, beside = self.plan.dense_gradients, isa.outer_beside(self.plan)
        _need(0 <= number < len(gradients), f"'{isa.OUTER}': no gradient {number}")
        found = [gradients[number], *(beside[name] for name in (gradients[number].name,) if name in beside)]
        _need(found[0] not in beside.values(), f"'{found[0].name}' is made beside another")
        return found

    def _gradient(self, gradient: DenseGradient, fields: dict[str, int]) -> None:
        """Rows that exist, and of a stack those whose index selects what they are added to."""
        name, rows = gradient.name, self.rows[gradient.space]
        first, count, index = fields["row"], fields["rows"], fields["index"]
        _need(0 <= first <= first + count <= rows, f"'{name}': rows {first} to {first + count} of {rows}")
        many = self.program.parameter(gradient.parameter).count
        _need(0 <= index < many, f"'{name}': number {index} of {many} parameters")
        if gradient.field:
            at = self._list_at(f"{gradient.space}:self.{gradient.field}")
            chosen = self._part(at + first, count, gradient.field)
            _need((chosen == index).all(), f"'{name}': a row of another index than {index}")
        self.summed[name] += count

    def _fields(self, name: str, fields: dict[str, int], expected: dict[str, int]) -> None:
        for field, right in expected.items():
            _need(fields[field] == right, f"'{name}': '{field}' is {fields[field]}, expected {right}")

    def _has_states(self, optimizer: str) -> None:
        for state, _ in zip(isa.STATES, OPTIMIZERS[optimizer].states, strict=False):
            _need(state in self.bases, f"'{optimizer}': the pool has no '{state}'")

    # ---- lists ----------------------------------------------------------------------------------

    def _list_at(self, name: str) -> int:
        return int(self.words[self.layout.lists_at + self.layout.lists[name]])

    def _part(self, at: int, count: int, name: str) -> Ints:
        """Words of a list as wide integers; they must lie behind the tables."""
        inside = self.body <= at and at + count <= len(self.words)
        _need(inside, f"list '{name}' at {at} with {count} words is outside the schedule")
        return self.words[at : at + count].astype(np.int64)

    def _list(self, item: IndexList, at: int) -> None:
        rows, name = self.rows.get(item.space), item.name
        _need(rows is not None, f"list '{name}' is of space '{item.space}', which has no rows")
        assert rows is not None
        if isinstance(item, SlotList):
            self._slots(name, item.sources, at, rows)
        elif isinstance(item, ChildrenList):
            begin = self._part(at, rows + 1, name)
            right = begin[0] > at + rows and (np.diff(begin) >= 0).all() and begin[-1] <= len(self.words)
            _need(right, f"list '{name}': its begins do not rise, or lie outside the schedule")
            self.entries[name] = int(begin[-1] - begin[0])
            self._records(
                name, self._part(int(begin[0]), self.entries[name], name), self._states(item.function)
            )
        elif isinstance(item, GatherList):
            found = self._part(at, rows, name)
            self._records(name, found[found != 0], self._states(item.function))
        elif isinstance(item, TableList):
            found = self._part(at, rows, name)
            self._records(name, found[found != 0], [self._table_rows(item.parameter)])
        elif isinstance(item, NoiseList):
            self._part(at, rows, name)
        elif isinstance(item, ClassList):
            _need((self._part(at, rows, name) >= -1).all(), f"list '{name}' holds a class below -1")
        else:
            width = 1 if isinstance(item, ShareList) else item.width
            stride, found = padded(width) // 4, self._part(at, rows, name)
            handed = self._handed(item)
            if handed is not None:  # its vectors lie in the order of another net
                first, vectors = handed
                self._records(name, found[found != 0], [(first, stride, vectors)])
                return
            found = found - self.schedule.address
            inside = ((found >= self.body // 4) & (found + stride <= len(self.words) // 4)).all()
            in_order = (np.diff(found) == stride).all()
            _need(inside and in_order, f"list '{name}': a vector is not where it lies")

    def _handed(self, item: IndexList) -> tuple[int, int] | None:
        """Where the vectors of a list begin, and how many they are, if they come from another net."""
        guest = self.schedule.guest
        if guest is None or not isinstance(item, VectorList):
            return None
        structs = program_structs(self.program)
        key = path_struct(structs, self.program.space(item.space).struct, item.path), item.field
        return None if key not in guest.handed else (guest.vectors[key], guest.handed[key].rows)

    def _states(self, function: str) -> list[tuple[int, int, int]]:
        """(base, stride, rows) of every state buffer of a function."""
        stride = state_layout(self.program, function)[""] // 4
        spaces = dict.fromkeys(s.space for s in self.program.stages if s.function == function)
        found = [(self.bases.get(state_buffer(space)), stride, self.rows.get(space, 0)) for space in spaces]
        if function in self.schedule.known:
            at, rows = self.schedule.known[function]
            first, past = at - self.schedule.address, at - self.schedule.address + rows * stride
            inside = self.body // 4 <= first and past <= len(self.words) // 4
            _need(inside, f"the known states of '{function}' are outside the schedule")
            found.append((at, stride, rows))
        return [(base, stride, rows) for base, stride, rows in found if base is not None]

    def _table_rows(self, parameter: str) -> tuple[int, int, int]:
        """(base, stride, rows) of a table: it ends before the next base at the latest."""
        base = self.bases[parameter]
        stride = padded(self.program.parameter(parameter).row_size) // 4
        end = min(other for other in self.bases.values() if other > base)
        return base, stride, (end - base) // stride

    def _records(self, name: str, found: Ints, places: list[tuple[int, int, int]]) -> None:
        """Every address is the start of a record of one of the places."""
        right = np.zeros(len(found), bool)
        for base, stride, rows in places:
            number, rest = np.divmod(found - base, stride)
            right |= (number >= 0) & (number < rows) & (rest == 0)
        bad = int((~right).argmax()) if len(right) else 0
        _need(right.all(), f"list '{name}', entry {bad}: no record of its buffer is at that address")

    def _slots(self, name: str, sources: tuple[SlotSource, ...], at: int, rows: int) -> None:
        heads = self._part(at, rows, name)
        several = heads[heads > 0]
        inside = (several >= self.body) & (several < len(self.words))
        _need(inside.all(), f"list '{name}': an offset is outside the schedule")
        counts = self.words[several].astype(np.int64)
        _need((counts > 1).all(), f"list '{name}': a count of several slots is below 2")
        _need((several + counts < len(self.words)).all(), f"list '{name}': slots outside the schedule")
        ends = np.cumsum(counts)
        index = np.repeat(several + 1 - (ends - counts), counts) + np.arange(int(counts.sum()))
        found = np.concatenate((-1 - heads[heads < 0], self.words[index]))
        places = []
        for source in sources:
            if source.buffer in self.bases and source.space in self.rows:
                buffer = self.buffers[source.buffer]
                stride = buffer.width // 4 * (self.workers if buffer.partial else 1)
                places.append((self.bases[source.buffer], stride, self._records_of(source.buffer)))
        self._records(name, found, places)

    def _table(self, table: TableGradient, tokens: int) -> None:
        names = isa.table_lists(table.parameter)
        found = self._part(self._list_at(names[0]), tokens, names[0])
        self._records(names[0], found, [self._table_rows(table.parameter)])
        _need((np.diff(found) > 0).all(), f"list '{names[0]}': its rows do not rise")
        for name, sources in ((names[1], table.plain), (names[2], table.partial)):
            self._slots(name, sources, self._list_at(name), tokens)

    # ---- memory ---------------------------------------------------------------------------------

    def _records_of(self, name: str) -> int:
        """Records in a buffer: rows of its space, or entries of its list of children."""
        buffer = self.buffers[name]
        if buffer.children is None:
            return self.rows[buffer.space]
        if buffer.children not in self.entries:
            at, rows = self._list_at(buffer.children), self.rows[buffer.space]
            begin = self._part(at, rows + 1, buffer.children)
            self.entries[buffer.children] = int(begin[-1] - begin[0])
        return self.entries[buffer.children]

    def _disjoint(self) -> None:
        """Parameters, places, buffers and the schedule itself do not overlap."""
        areas = {"the schedule": (self.schedule.address, len(self.words))}
        sizes = {
            parameter.name: 0 if parameter.kind == TABLE else isa.parameter_floats(self.plan, parameter.name)
            for parameter in self.program.parameters
        }
        sizes[isa.GRADIENTS] = isa.gradient_floats(self.plan)
        sizes[isa.CHUNKS] = (self.chunks - 1) * sizes[isa.GRADIENTS]
        ends = [self.bases[parameter.name] for parameter in self.program.parameters if parameter.frozen]
        arena = min(*ends, self.bases[isa.GRADIENTS]) if ends else self.bases[isa.GRADIENTS]
        sizes |= dict.fromkeys(isa.STATES, (arena - self.bases[isa.PARAMETERS]) * 4)
        sizes[isa.NORMS] = self.norms
        for table in self.plan.table_gradients:
            name = isa.table_base(table.parameter)
            sizes[name] = self.tokens.get(table.parameter, 0) * padded(table.width)
        for name, buffer in self.buffers.items():
            if name in self.bases:
                runs = self.workers if buffer.partial else 1
                sizes[name] = self._records_of(name) * buffer.width * runs
        areas |= {name: (self.bases[name], size) for name, size in sizes.items() if name in self.bases}
        if (guest := self.schedule.guest) is not None:
            for key, handed in guest.handed.items():
                areas[f"the vectors of {'.'.join(key)}"] = guest.vectors[key], handed.rows * handed.stride
        dynamic = {
            *self.buffers,
            isa.NORMS,
            isa.CHUNKS,
            *(isa.table_base(t.parameter) for t in self.plan.table_gradients),
        }
        end, past = (self.schedule.static_words + self.schedule.activations) // 4, 0
        before = "the row of zeros"
        for name, (base, size) in sorted(areas.items(), key=lambda item: (item[1][0], item[1][1])):
            _need(base > 0 and base % 4 == 0, f"'{name}' starts at address {base}, not at a multiple of 4")
            _need(base >= past, f"'{name}' starts at address {base}, inside '{before}'")
            past, before = max(past, base - (-size // 4)), name
            _need(name not in dynamic or past <= end, f"'{name}' reaches beyond the pool")
