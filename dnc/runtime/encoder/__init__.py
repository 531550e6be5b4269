"""The encoder: batches of samples in, the words of a schedule for each of them out.

In: prepared data and sample numbers. Out: a `Schedule` a batch, for a number of replicas and
workers. Guaranteed: NumPy over flat arrays, never Python per vertex; the words depend on nothing
but the arguments. Several batches are encoded at once, because a batch of one sentence is too
little work for an array: their schedules have the same layout, that of the largest.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import Diagnostic, DiagnosticError
from dnc.ir import isa
from dnc.ir.forest import Ints
from dnc.ir.noise import NONE
from dnc.ir.optimizers import Update
from dnc.ir.plan import ChildrenList, DenseGradient, Plan, TableGradient, padded
from dnc.runtime.encoder.guest import Guest
from dnc.runtime.encoder.lists import Group, Lists, Touched
from dnc.runtime.encoder.modes import Mode, Modes
from dnc.runtime.encoder.queues import encode_queues
from dnc.runtime.encoder.rows import Rows, assign, space_rows
from dnc.runtime.encoder.words import Numbers, Words
from dnc.runtime.phases import TRAIN
from dnc.runtime.pool import MAX_ADDRESS, StaticPool, units
from dnc.runtime.prepared import Prepared
from dnc.runtime.schedule import Schedule

# Weight gradients are cut into chunks until there are so many pieces of work, or so few rows in each.
PIECES = 1024
CHUNK_ROWS = 128

# A field of an instruction: the same in every batch, or one per batch.
Field = int | Numbers


class DoesNotFit(DiagnosticError):
    """Batches too large for the pool: the words their schedules and their activations need."""

    def __init__(self, message: str, schedule_words: int, activations: int) -> None:
        super().__init__(Diagnostic(message))
        self.schedule_words, self.activations = schedule_words, activations


@attrs.frozen
class Part:
    """Which part of an accumulated batch a launch is: `tokens` per table are those of all parts, and so
    are the rows that `followed` counts, as `Encoder.followed` does."""

    accumulate: bool = False
    update: bool = True
    total_samples: int | None = None
    tokens: dict[str, Ints] | None = None
    followed: dict[str, Numbers] | None = None


class Encoder:
    """Encodes batches of one prepared data set for one static pool."""

    def __init__(self, prepared: Prepared, pool: StaticPool, modes: Modes | None = None) -> None:
        """modes: what other encoders of the plan know of it too."""
        self.prepared, self.pool = prepared, pool
        self.plan: Plan = prepared.plan
        self.modes = modes or Modes(self.plan)
        self.layout = self.modes.layout
        self.lists = Lists(prepared)
        self._arena, self._running = isa.gradient_floats(self.plan), isa.running_floats(self.plan)
        running = {each.name for each in self.plan.program.parameters if each.running}
        self._followers = [each for each in self.plan.dense_gradients if each.parameter in running]

    # ---- batches --------------------------------------------------------------------------------

    def encode(
        self,
        samples: Ints,
        *,
        mode: str = TRAIN,
        replicas: int = 1,
        workers: int = 1,
        update: Update = Update(),
        part: Part = Part(),
        buffer: int = 0,
        pool_words: int | None = None,
        noise: int = NONE,
        guest: Guest | None = None,
    ) -> Schedule:
        """The schedule of `samples` (numbers in the data set) on replicas × workers workers.

        `noise`: that of a training step; without it nothing is dropped. `guest`: what the batch shares
        with another net; its places are filled in.
        `buffer` chooses one of the pool's two places for schedules. DoesNotFit when the batch
        does not fit into `pool_words`, or its schedule into the place for schedules.
        """
        chosen = [np.asarray(samples, np.int32)]
        noises = np.array([noise], np.uint32)
        updates = [update]
        return self._encode(
            chosen, mode, replicas, workers, updates, part, buffer, pool_words, noises, guest
        )[0]

    def encode_group(
        self,
        batches: Sequence[Ints],
        *,
        replicas: int = 1,
        workers: int = 1,
        updates: Sequence[Update] = (),
        buffer: int = 0,
        pool_words: int | None = None,
        noises: NDArray[np.uint32] | None = None,
    ) -> list[Schedule]:
        """Training schedules of several batches, one behind the other in the place for schedules.

        updates: one a batch, all of one optimizer; none for plain SGD with a rate of zero. noises: the
        noise of every step. No sample may occur twice. The activations share memory: the batches run one
        after another.
        """
        chosen = [np.asarray(batch, np.int32) for batch in batches]
        noise = np.full(len(chosen), NONE, np.uint32) if noises is None else noises
        updates = updates or [Update()] * len(chosen)
        return self._encode(chosen, TRAIN, replicas, workers, updates, Part(), buffer, pool_words, noise)

    def _encode(
        self,
        batches: list[Ints],
        mode: str,
        replicas: int,
        workers: int,
        updates: Sequence[Update],
        part: Part,
        buffer: int,
        pool_words: int | None,
        noise: NDArray[np.uint32],
        guest: Guest | None = None,
    ) -> list[Schedule]:
        known = self.modes.mode(mode)
        assigned = assign(batches, self.prepared.weight, replicas)
        rows = {
            name: space_rows(self.prepared.spaces[name], assigned, name in self.modes.leveled)
            for name in known.spaces
        }
        touched = self._touched(mode, rows, part)
        chunks = self._chunks(rows, mode, part)
        bases, used = self._allocate(known, mode, rows, workers, touched, int(chunks.max()))
        self._check_addresses(used)  # before any of them is written
        body = Words(len(batches), self.layout.queues_at + replicas * workers)
        followed = self._followed(rows) if part.followed is None else part.followed
        group = Group(rows, bases, workers, self.pool.schedules[buffer], body, noise, followed, guest)
        if guest is not None:
            guest.reserve(body)
            guest.write_numbers(self.plan, self.prepared, rows, body)
            for parameter, found in touched.items():
                guest.write_touched(parameter, found.tokens, body)
        self.lists.number_calls(group)
        known_states = self.lists.place_known(group)
        lists = self.lists.encode(known.lists, group)
        if mode == TRAIN:
            for table in self.plan.table_gradients:
                lists |= self.lists.encode_table(table, touched[table.parameter], group)
        tail, results = self._tail(
            mode, group, replicas * workers, updates[0].optimizer, part, touched, chunks
        )
        queues = encode_queues(self.plan, known.columns, rows, replicas, workers, tail, body)
        samples = assigned.spread.counts
        words = self._assemble(group, lists, queues, (replicas, workers), updates, part, samples)
        activations = (used - self.pool.activations) * 4
        self._check_room(words.size, activations, used, pool_words)
        size = words.shape[1]
        result_base = bases[isa.RESULTS]
        return [
            Schedule(
                self.plan,
                words[index],
                group.address + index * size // 4,
                {name: int(found.spread.counts[index]) for name, found in rows.items()},
                {**bases, isa.RESULTS: result_base + index * size // 4},
                bases[isa.NORMS] * 4 if part.accumulate else self.pool.words,
                activations,
                {name: (word, int(counts[index])) for name, (word, counts) in results.items()},
                assigned.samples[assigned.spread.of(index)],
                {name: found.positions[found.spread.of(index)] for name, found in rows.items()},
                mode,
                guest,
                known_states,
            )
            for index in range(len(batches))
        ]

    def _check_room(self, words: int, activations: int, used: int, pool_words: int | None) -> None:
        if words > self.pool.schedule_words:
            have = self.pool.schedule_words
            message = f"the schedule of the batch has {words} words; {have} were set aside"
            raise DoesNotFit(message, words, activations)
        if pool_words is not None and used * 4 > pool_words:
            message = f"the batch needs {used * 4} words of memory; {pool_words} are there"
            raise DoesNotFit(message, words, activations)

    def _check_addresses(self, used: int) -> None:
        if used > MAX_ADDRESS:
            message = f"the batch needs {used * 4} words of memory; addresses reach {MAX_ADDRESS * 4}"
            raise DoesNotFit(message, self.pool.schedule_words, (used - self.pool.activations) * 4)

    # ---- addresses ------------------------------------------------------------------------------

    def _touched(self, mode: str, rows: dict[str, Rows], part: Part) -> dict[str, Touched]:
        """The touched rows of every trained table."""
        if mode != TRAIN:
            return {}
        known, sizes = part.tokens or {}, self.pool.table_rows
        return {
            table.parameter: self.lists.touched(
                table, rows, sizes[table.parameter], known.get(table.parameter)
            )
            for table in self.plan.table_gradients
        }

    def tokens(self, table: TableGradient, samples: Ints) -> Ints:
        """The sorted distinct rows of a table that `samples` touch."""
        return self.lists.sample_tokens(table, samples)

    def followed(self, samples: Ints) -> dict[str, Numbers]:
        """How many rows of `samples` move every running parameter, [1, parameters of the stack]."""
        batch = assign([np.asarray(samples, np.int32)], self.prepared.weight, 1)
        spaces = {each.space for each in self._followers}
        return self._followed({name: space_rows(self.prepared.spaces[name], batch, False) for name in spaces})

    def _followed(self, rows: dict[str, Rows]) -> dict[str, Numbers]:
        """The same for a group, [batches, parameters of the stack]."""
        found: dict[str, Numbers] = {}
        for each in self._followers:
            if each.space in rows:
                counts = self._summed_rows(each, rows[each.space])
                found[each.parameter] = found.get(each.parameter, 0) + counts
        return found

    def _summed_rows(self, gradient: DenseGradient, rows: Rows) -> Numbers:
        """How many rows add to a gradient, [batches, parameters of the stack]."""
        if not gradient.field:
            return rows.spread.counts[:, None]
        position = self.plan.program.selectors(gradient.space).index(gradient.field)
        counts: Numbers = rows.selected(position)[1].sum(axis=1).T
        return counts

    def _allocate(
        self,
        known: Mode,
        mode: str,
        rows: dict[str, Rows],
        workers: int,
        touched: dict[str, Touched],
        chunks: int,
    ) -> tuple[dict[str, int], int]:
        """Bases of everything dynamic behind the static pool, and the first free address."""
        bases = dict(self.pool.bases)
        at = self.pool.activations
        if mode == TRAIN:
            total = -(-self.pool.dense // isa.NORM_CHUNK)
            for table in self.plan.table_gradients:
                tokens = touched[table.parameter].spread.most
                total += tokens
                bases[isa.table_base(table.parameter)] = at
                at += units(tokens * padded(table.width))
            bases[isa.NORMS] = at
            at += units(total)
            if chunks > 1:
                bases[isa.CHUNKS] = at
                at += units((chunks - 1) * self._arena)
        for buffer in known.buffers:
            count = rows[buffer.space].spread.most
            if buffer.children is not None:
                path = self._children(buffer.children).path
                count = self.lists.most_entries(buffer.space, path, rows[buffer.space])
            bases[buffer.name] = at
            at += units(count * buffer.width * (workers if buffer.partial else 1))
        return bases, at

    def _children(self, name: str) -> ChildrenList:
        found = next(item for item in self.plan.lists if item.name == name)
        assert isinstance(found, ChildrenList)
        return found

    # ---- behind the recursion -------------------------------------------------------------------

    def _tail(
        self,
        mode: str,
        group: Group,
        grid: int,
        optimizer: str,
        part: Part,
        touched: dict[str, Touched],
        chunks: Numbers,
    ) -> tuple[Ints, dict[str, tuple[int, Numbers]]]:
        """What every worker runs behind the recursion, and where the results are."""
        number, bases = self.modes.number, group.bases
        tail: list[list[Field]] = [[number[isa.GRID_BARRIER], 1]]
        results: dict[str, tuple[int, Numbers]] = {}
        for result in self.plan.results:
            if result.kind in ("loss", "metric") and result.buffer in bases:
                word = isa.RESULT_FIRST + len(results)
                counts = group.rows[result.space].spread.counts
                stride = self.modes.buffer[result.buffer].width
                tail.append([number[isa.REDUCE], bases[result.buffer], counts, stride, word])
                results[f"{result.kind}:{result.name}"] = (word, counts)
        if mode == TRAIN:
            tail += self._gradients(group, grid, optimizer, part, touched, chunks)
        tail.append([number[isa.END]])
        words = np.zeros((group.body.batches, len(tail), isa.INSTRUCTION_WORDS), np.int32)
        for at, instruction in enumerate(tail):
            for field, value in enumerate(instruction):
                words[:, at, field] = value
        return words, results

    def _gradients(
        self,
        group: Group,
        grid: int,
        optimizer: str,
        part: Part,
        touched: dict[str, Touched],
        chunks: Numbers,
    ) -> list[list[Field]]:
        """Weight gradients, their norm, the update."""
        number, found = self.modes.number, list[list[Field]]()
        ordinals = itertools.count(2)

        def exchange() -> list[Field]:
            return [number[isa.GRID_BARRIER], next(ordinals)]

        # A parameter's tiles keep their shape and their workers, so that its gradients add up in order.
        first, dealt = (
            np.zeros(group.body.batches, np.int32),
            dict[tuple[str, int], tuple[Numbers, Numbers]](),
        )
        alike, others = _by_tiling(self.plan)
        for gradient in (*alike, *others):
            if others and gradient is others[0]:  # other workers add to the same elements
                found.append(exchange())
            for index, runs in enumerate(self._summed(gradient, group)):
                target = gradient.parameter, index
                tile, tiles = _tiles(gradient, runs[0][1], chunks, grid)
                known = target in dealt
                tile, worker = dealt.setdefault(target, (tile, first % grid))
                for run, (row, rows) in enumerate(runs):
                    again = int(part.accumulate or run > 0 or known)
                    found.append([number[gradient.name], row, rows, worker, again, chunks, index, tile])
                if gradient.pieces:  # sums of deltas are light work
                    first = first + chunks * tiles
        norms: Field = -(-self.pool.dense // isa.NORM_CHUNK)
        for table in self.plan.table_gradients:
            tokens = touched[table.parameter].spread.counts
            found.append([number[f"gradient {table.parameter}"], tokens, norms, int(part.accumulate)])
            norms = norms + tokens
        if part.update:
            found += [exchange(), [number[isa.NORM], self.pool.dense, chunks], exchange()]
            for begin, count, rate in self.modes.rates:
                found.append([number[optimizer], begin, count, norms, isa.float_bits(rate)])
            if self._running:
                found.append([number[isa.FOLLOW], self.pool.dense, self._running, norms, chunks])
            for table in self.plan.table_gradients:
                tokens = touched[table.parameter].spread.counts
                rate = isa.float_bits(self.plan.program.parameter(table.parameter).rate)
                found.append([number[f"{optimizer} {table.parameter}"], tokens, norms, rate])
        return found

    def _summed(self, gradient: DenseGradient, group: Group) -> list[list[tuple[Field, Numbers]]]:
        """The rows that add to a gradient, as runs (first, count); of a stack to each of its parameters."""
        rows = group.rows[gradient.space]
        if not gradient.field:
            return [[(0, rows.spread.counts)]]
        position = self.plan.program.selectors(gradient.space).index(gradient.field)
        starts, counts = rows.selected(position)
        return [
            [
                (starts[index, run], counts[index, run])
                for run in range(counts.shape[1])
                if run == 0 or counts[index, run].any()
            ]
            for index in range(len(counts))
        ]

    def _chunks(self, rows: dict[str, Rows], mode: str, part: Part) -> Numbers:
        """Chunks of rows of the weight gradients, [batches]: enough pieces of work for many workers.

        They depend on the batch alone, and so do the bits. Gradients that add up over launches have one.
        """
        gradients = self.plan.dense_gradients
        if mode != TRAIN or not self.modes.splits or part != Part() or not gradients:
            return np.ones(1, np.int32)
        each_most = [self._summed_rows(each, rows[each.space]).max(axis=1) for each in gradients]
        counts = np.stack(each_most)
        tiles = sum(
            isa.tile_count(each, isa.gradient_tiles(each)[0])
            * self.plan.program.parameter(each.parameter).count
            for each in gradients
        )
        most = min(isa.MOST_CHUNKS, -(-PIECES // tiles))
        chunks: Numbers = np.clip(counts.max(axis=0) // CHUNK_ROWS, 1, most)
        return chunks

    # ---- the whole ------------------------------------------------------------------------------

    def _assemble(
        self,
        group: Group,
        lists: dict[str, int],
        queues: Ints,
        grid: tuple[int, int],
        updates: Sequence[Update],
        part: Part,
        samples: Numbers,
    ) -> Ints:
        """Joins the words, and fills in header and tables."""
        body, where = group.body, self.layout
        # Results lie just before the counters, so that both come back in one copy.
        body.align(isa.SYNC_STRIDE)
        results = body.add(np.zeros((body.batches, isa.RESULT_WORDS), np.int32))
        sync = (isa.SYNC_REPLICAS + grid[0]) * isa.SYNC_STRIDE
        body.add(np.zeros((body.batches, sync), np.int32))
        words = body.finish()
        group.bases[isa.RESULTS] = group.address + results // 4
        words[:, where.bases_at : where.lists_at] = [group.bases.get(name, 0) for name in where.bases]
        shift = np.arange(body.batches) * (words.shape[1] // 4)
        words[:, where.bases_at + where.bases[isa.RESULTS]] += shift.astype(np.int32)
        words[:, where.lists_at : where.queues_at] = [lists.get(name, 0) for name in where.lists]
        words[:, where.queues_at : where.queues_at + queues.shape[1]] = queues
        values: dict[str, Field] = {
            "version": isa.VERSION,
            "words": words.shape[1],
            "replicas": grid[0],
            "workers": grid[1],
            "bases": where.bases_at,
            "lists": where.lists_at,
            "queues": where.queues_at,
            "sync": results + isa.RESULT_WORDS,
            "samples": samples,
        }
        for name, value in values.items():
            words[:, where.header[name]] = value
        floats = words.view(np.float32)
        total = part.total_samples or samples
        floats[:, where.header["loss_scale"]] = 1.0 / np.maximum(total, 1)
        floats[:, where.header["clip_norm"]] = [update.clip_norm for update in updates]
        for name in updates[0].coefficients:
            floats[:, where.header[name]] = [update.coefficients[name] for update in updates]
        return words


def _by_tiling(plan: Plan) -> tuple[list[DenseGradient], list[DenseGradient]]:
    """Gradients that share out a parameter alike; sums of deltas of matrices that products share out."""
    products = {gradient.parameter for gradient in plan.dense_gradients if gradient.pieces}
    found: tuple[list[DenseGradient], list[DenseGradient]] = ([], [])
    for gradient in plan.dense_gradients:
        found[not gradient.pieces and gradient.parameter in products].append(gradient)
    return found


def _tiles(gradient: DenseGradient, rows: Numbers, chunks: Numbers, grid: int) -> tuple[Numbers, Numbers]:
    """The cheapest of a gradient's tile shapes for every batch, [batches], and the tiles of a chunk."""
    shapes = isa.gradient_tiles(gradient)
    counts = np.array([isa.tile_count(gradient, shape) for shape in shapes], np.int32)
    if len(shapes) == 1:
        return np.zeros_like(rows), np.broadcast_to(counts[0], np.shape(rows))
    rounds = -(-counts[:, None] * chunks // grid)
    length = -(-rows // chunks)
    cost = rounds * (length * np.array([[s.row] for s in shapes]) + np.array([[s.fixed] for s in shapes]))
    chosen = cost.argmin(axis=0).astype(np.int32)
    return chosen, counts[chosen]
