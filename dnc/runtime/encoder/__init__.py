"""The encoder: batches of samples in, the words of a schedule for each of them out.

In: prepared data and sample numbers. Out: a `Schedule` a batch, for a number of replicas and
workers. Guaranteed: NumPy over flat arrays, never Python per vertex; the words depend on nothing
but the arguments. Several batches are encoded at once, because a batch of one sentence is too
little work for an array: their schedules have the same layout, that of the largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import Diagnostic, DiagnosticError
from dnc.ir import isa, lean
from dnc.ir.forest import Ints
from dnc.ir.noise import NONE
from dnc.ir.optimizers import Update
from dnc.ir.plan import Buffer, ChildrenList, OperandList, Plan, Result, TableGradient, padded
from dnc.ir.regions import generates
from dnc.runtime.encoder.alike import Alike
from dnc.runtime.encoder.assign import Assignment, Burdens, assign
from dnc.runtime.encoder.awaited import encode_awaited
from dnc.runtime.encoder.devices import of_batch, shares_of
from dnc.runtime.encoder.ending import Ending, exits, late_levels
from dnc.runtime.encoder.guest import Guest
from dnc.runtime.encoder.lists import Group, Lists, Touched
from dnc.runtime.encoder.modes import Mode, Modes
from dnc.runtime.encoder.parts import PartBurdens
from dnc.runtime.encoder.queues import encode_queues
from dnc.runtime.encoder.readout import Readout, Readouts
from dnc.runtime.encoder.rows import Rows, Spaces
from dnc.runtime.encoder.runs import runs_of
from dnc.runtime.encoder.scopes import Scopes
from dnc.runtime.encoder.tail import Batches, Decisions, Part
from dnc.runtime.encoder.words import Numbers, Words, chosen
from dnc.runtime.phases import BOTH, FORWARD_ONLY, TRAIN, trains
from dnc.runtime.pool import MAX_ADDRESS, StaticPool, units
from dnc.runtime.prepared import Prepared
from dnc.runtime.schedule import Schedule
from dnc.runtime.schedules import Schedules


class DoesNotFit(DiagnosticError):
    """Batches too large for the pool: the words their schedules and their activations need."""

    def __init__(self, message: str, schedule_words: int, activations: int) -> None:
        super().__init__(Diagnostic(message))
        self.schedule_words, self.activations = schedule_words, activations


class Encoder:
    """Encodes batches of one prepared data set for one static pool."""

    def __init__(
        self, prepared: Prepared, pool: StaticPool, modes: Modes | None = None, shares_rows: bool = True
    ) -> None:
        """modes: what other encoders of the plan know of it too. shares_rows: False for samples that stand
        for others, whose leaves may be less alike."""
        self.prepared, self.pool = prepared, pool
        self.plan: Plan = prepared.plan
        self.modes = modes or Modes(self.plan)
        self.layout = self.modes.layout
        self.lists = Lists(prepared)
        self._alike = Alike(prepared, self.lists) if shares_rows else None
        self.readouts = Readouts(prepared)
        self._arena = isa.gradient_floats(self.plan)
        self._read_words: dict[str, float] = {}
        self._spaces: dict[tuple[str, ...], Spaces] = {}
        self._part_burdens: dict[str, PartBurdens] = {}

    @cached_property
    def _burdens(self) -> Burdens:
        return Burdens.of(self.modes.prices, self.prepared.spaces)

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
        ending: Ending | None = None,
    ) -> Schedule:
        """The schedule of `samples` (numbers in the data set) on replicas × workers workers.

        `noise`: that of a training step; without it nothing is dropped. `guest`: what the batch shares
        with another net; its places are filled in. `ending`: makes one output, and a replica may leave
        the recursion once all its lists have come to their last word; `mode` is the ending's.
        `buffer` chooses one of the pool's two places for schedules. DoesNotFit when the batch
        does not fit into `pool_words`, or its schedule into the place for schedules.
        """
        chosen = [np.asarray(samples, np.int32)]
        noises = np.array([noise], np.uint32)
        updates = [update]
        return self._encode(
            chosen, mode, replicas, workers, updates, part, buffer, pool_words, noises, guest, ending
        )[0]

    def encode_group(
        self,
        batches: Sequence[Ints] | Ints,
        *,
        mode: str = TRAIN,
        replicas: int = 1,
        workers: int = 1,
        updates: Sequence[Update] = (),
        part: Part = Part(),
        buffer: int = 0,
        pool_words: int | None = None,
        noises: NDArray[np.uint32] | None = None,
        guest: Guest | None = None,
        lanes: int = 1,
        devices: int = 1,
    ) -> Schedules:
        """Schedules of several batches, one behind the other in the place for schedules.

        updates: one a batch, all of one optimizer; none for plain SGD with a rate of zero. noises: the
        noise of every step. No sample may occur twice. Batch i is in lane i % lanes; the activations of
        a lane share memory: its batches run one after another, beside those of other lanes (not in
        training). What the host reads row by row does not: it lies behind the schedules, and their
        `readout` says whose it is. guest: as for `encode`; the host reads nothing row by row then. devices:
        in training, those that each run a share of every batch; shares stand behind each other, and lie at
        the same place of their devices.
        """
        chosen = [np.asarray(batch, np.int32) for batch in batches]
        noise = np.full(len(chosen), NONE, np.uint32) if noises is None else noises
        updates = updates or [Update()] * len(chosen)
        place = part, buffer, pool_words, noise
        reads = guest is None and devices == 1
        return self._encode(
            chosen, mode, replicas, workers, updates, *place, guest, reads=reads, lanes=lanes, devices=devices
        )

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
        ending: Ending | None = None,
        reads: bool = False,
        lanes: int = 1,
        devices: int = 1,
    ) -> Schedules:
        batches = shares_of(batches, self._burdens, devices)
        updates, noise = [each for each in updates for _ in range(devices)], noise.repeat(devices)
        known = self.modes.mode(mode)
        assigned = self._assign(batches, mode, replicas, ending)
        late = self._late_levels(known, ending)
        rows = self._rows(known.spaces, assigned, late)
        if trains(mode) and self._alike is not None:
            rows = {name: self._alike.merged(name, own) for name, own in rows.items()}
        grid = replicas, workers
        scopes = known.scopes(rows, replicas, assigned.apart)
        if posts := known.posts(rows, *grid, scopes, self.modes.tail.most_chunks(part, devices)):
            rows |= posts.parted(rows)
        touched = self._touched(mode, rows, part, devices)
        tail = self.modes.tail
        decisions = tail.decide(rows, mode, part, touched, devices)
        first = self.pool.activations if guest is None else guest.reserve(self.pool.activations)
        values, buffers = (known.values, known.inner) if reads else ((), known.buffers)
        is_lean = self._lean(known, rows, decisions, mode)
        runs = runs_of(self.plan, rows, workers, is_lean)
        bases, used, moving = self._allocate(buffers, mode, rows, runs, workers, decisions, first)
        least = first + lanes * (used - first)
        if lanes > 1:
            room = _room_of_lane(lanes, first, used, pool_words)
            shift = np.arange(len(batches), dtype=np.int32) % lanes * np.int32(room)
            moving |= {buffer.name: bases[buffer.name] + shift for buffer in buffers}
            used += (lanes - 1) * room
        self._check_addresses(least)  # before any of them is written
        body = Words(len(batches), self.layout.queues_at + replicas * workers, devices)
        if part.followed is None:
            followed = {name: of_batch(counts, devices) for name, counts in tail.followed(rows).items()}
        else:
            followed = {name: counts.repeat(devices, axis=0) for name, counts in part.followed.items()}
        place = self.pool.schedules[buffer]
        group = Group(rows, bases, moving, workers, runs, place, body, noise, followed, guest)
        lists, known_states = self._lists(known, group, mode, decisions)
        optimizer = updates[0].optimizer if guest is None else None
        there = None if posts is None else posts.there
        behind = Batches(group, replicas * workers, optimizer, part, decisions, devices, there)
        closing, results, sharers = tail.encode(mode, behind)
        steps = known.columns.steps
        awaited = encode_awaited(self.plan, steps, known.common, rows, replicas, workers, body)
        left = exits(group, assigned, self.prepared, ending, steps, late) if ending and late else None
        scopes = None if left else scopes
        early = known.early_queues(posts, rows, *grid, part.accumulate)
        queues = encode_queues(known.columns, rows, *grid, closing, body, left, scopes, early)
        forward = self._forward(rows, behind, grid, scopes) if mode == BOTH else 0
        samples = assigned.spread.counts
        words = self._assemble(
            group, lists, queues, grid, {isa.SHARERS: sharers, **awaited}, updates, part, samples
        )
        readout, own = self._read_behind(group, values, batches, words)
        behind_words = 0 if readout is None else readout.count
        self._check_room(words.size // devices + behind_words, least, pool_words)
        own[isa.RESULTS] = bases[isa.RESULTS] + body.turns * (words.shape[1] // 4)
        return Schedules(
            self.plan,
            words,
            group.address,
            bases | {name: int(each[0]) for name, each in own.items()},
            moving | own,
            {name: found.spread.counts for name, found in rows.items()},
            {name: (found.spread, found.positions) for name, found in rows.items()},
            (bases[isa.NORMS] if part.accumulate else first) * 4,
            (used - self.pool.activations) * 4,
            results,
            assigned.samples,
            assigned.spread,
            mode,
            guest,
            known_states,
            readout,
            lanes,
            is_lean,
            devices,
            forward,
        )

    def _forward(
        self, rows: dict[str, Rows], behind: Batches, grid: tuple[int, int], scopes: Scopes | None
    ) -> int:
        """Appends what FORWARD_ONLY runs, of the same rows in the same places; offset of its queue table."""
        columns, body = self.modes.mode(FORWARD_ONLY).columns, behind.group.body
        closing, _, _ = self.modes.tail.encode(FORWARD_ONLY, behind)
        return body.add(encode_queues(columns, rows, *grid, closing, body, scopes=scopes))

    def _lean(
        self, known: Mode, rows: Mapping[str, Rows], decisions: Decisions, mode: str
    ) -> NDArray[np.bool_]:
        """Which batches the plan's lean kernel runs: it follows from the batch, as the bits do."""
        found = np.full(len(decisions.few), known.products is not None)
        if trains(mode) and self.modes.lean_needs_few:
            found &= decisions.few
        for space, leveled in known.products or ():
            most = rows[space].by_level.max(axis=(1, 2)) if leveled else rows[space].by_replica.max(axis=1)
            found &= most <= lean.MOST_ROWS
        return found

    def _read_behind(
        self, group: Group, values: Sequence[Result], batches: list[Ints], words: Ints
    ) -> tuple[Readout | None, dict[str, Numbers]]:
        """Gives every batch its own place for what the host reads, behind the words of all; where it is."""
        if not values:
            return None, {}
        address = group.address + words.size // 4
        readout, places = self.readouts.make(values, group.rows, batches, address)
        where, turn = self.layout, np.arange(len(batches), dtype=np.int32)
        own: dict[str, Numbers] = {}
        for name, (base, distance) in places.items():
            own[name] = words[:, where.bases_at + where.bases[name]] = base + turn * distance
        return readout, own

    def _lists(
        self, known: Mode, group: Group, mode: str, decisions: Decisions
    ) -> tuple[dict[str, int | Numbers], dict[str, tuple[int, int]]]:
        """Appends all that rows find others by: offsets of lists by name, places of known states."""
        if group.guest is not None:
            group.guest.write_numbers(self.plan, self.prepared, group.rows, group.body)
            for parameter, found in decisions.touched.items():
                group.guest.write_touched(parameter, found.tokens, found.spread, group.body)
        self.lists.number_calls(group, known.has_slots)
        states = self.lists.place_known(group)
        lists: dict[str, int | Numbers] = dict(self.lists.encode(known.lists, group))
        if trains(mode):
            for table in self.plan.table_gradients:
                touched = decisions.touched[table.parameter]
                lists |= self.lists.encode_table(table, touched, group, decisions.apart)
            lists |= self._operands(lists, decisions.apart)
        return lists, states

    def _operands(self, lists: Mapping[str, Any], apart: NDArray[np.bool_]) -> dict[str, int | Numbers]:
        """Where the lists are that have two names; apart: as for `Lists.encode_table`."""
        return {
            item.name: chosen(apart, lists[isa.table_lists(item.parameter)[0]], lists[item.list])
            for item in self.plan.lists
            if isinstance(item, OperandList)
        }

    def _late_levels(self, known: Mode, ending: Ending | None) -> dict[str, Ints]:
        """Levels of the rows behind the recursion, by space; nothing if it is not left before its end."""
        if ending is None or not generates(self.plan):
            return {}
        return late_levels(self.prepared, known.columns.steps)

    def _check_room(self, words: int, used: int, pool_words: int | None) -> None:
        activations = (used - self.pool.activations) * 4
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

    def _touched(self, mode: str, rows: dict[str, Rows], part: Part, devices: int) -> dict[str, Touched]:
        """The touched rows of every trained table, of a batch that devices share those of all shares."""
        if not trains(mode):
            return {}
        known, sizes = part.tokens or {}, self.pool.table_rows
        return {
            table.parameter: self.lists.touched(
                table, rows, sizes[table.parameter], known.get(table.parameter), devices
            )
            for table in self.plan.table_gradients
        }

    def read_words(self, mode: str) -> float:
        """Words that the host reads of a sample row by row, on the average; at least one."""
        if mode not in self._read_words:
            spaces = self.prepared.spaces
            found = sum(
                len(spaces[result.space].vertex) * self.plan.buffer(result.buffer).width
                for result in self.modes.mode(mode).values
            )
            self._read_words[mode] = max(1.0, found / max(1, self.prepared.samples))
        return self._read_words[mode]

    def tokens(self, table: TableGradient, samples: Ints) -> Ints:
        """The sorted distinct rows of a table that `samples` touch."""
        return self.lists.sample_tokens(table, samples)

    def followed(self, samples: Ints) -> dict[str, Numbers]:
        """How many rows of `samples` move every running parameter, [1, parameters of the stack]."""
        batch = assign([np.asarray(samples, np.int32)], self._burdens, 1)
        tail = self.modes.tail
        names = tuple(dict.fromkeys(each.gradient.space for each in tail.followers))
        return tail.followed(self._rows(names, batch, {}))

    def _assign(self, batches: list[Ints], mode: str, replicas: int, ending: Ending | None) -> Assignment:
        """A replica for every sample, or for every sample and part of the recursion."""
        parts = self.modes.mode(mode).parts
        if parts is None or ending is not None:
            spares = self.modes.mode(mode).early is not None
            return assign(batches, self._burdens, replicas, spares)
        if mode not in self._part_burdens:
            self._part_burdens[mode] = PartBurdens(parts, self.modes.prices, self.prepared.spaces)
        return self._part_burdens[mode].assign(batches, self._burdens, replicas)

    def _rows(
        self, names: tuple[str, ...], assigned: Assignment, levels: Mapping[str, Ints]
    ) -> dict[str, Rows]:
        """The rows of spaces; levels: others than their own, by name."""
        if not names:
            return {}
        spaces = self._spaces.get(names)
        if spaces is None or levels:
            spaces = Spaces({name: self.prepared.spaces[name] for name in names}, levels)
            if not levels:
                self._spaces[names] = spaces
        return spaces.rows(assigned)

    def _allocate(
        self,
        buffers: Sequence[Buffer],
        mode: str,
        rows: dict[str, Rows],
        runs: int | Numbers,
        workers: int,
        decisions: Decisions,
        at: int,
    ) -> tuple[dict[str, int], int, dict[str, Numbers]]:
        """Bases of everything dynamic from address `at` on, the first free address, and of what not all
        batches have at the same place the bases of each."""
        bases, moving = dict(self.pool.bases), dict[str, Numbers]()
        if trains(mode):
            tail, any_apart = self.modes.tail, bool(decisions.apart.any())
            total = tail.most_norms
            for table in self.plan.table_gradients:
                tokens = decisions.touched[table.parameter].spread.most
                total += tokens * isa.table_norms(table)
                bases[isa.table_base(table.parameter)] = at
                at += units(tokens * padded(table.width))
            bases[isa.NORMS] = at
            at += units(total)
            # Behind all that later parts of the batch add to: not all of them add up deltas apart.
            for table in self.plan.table_gradients if any_apart else ():
                tokens = decisions.touched[table.parameter].spread.most
                for product in table.products:
                    bases[product.sums] = at
                    at += units(tokens * self.plan.buffer(product.sums).width)
            if (most_chunks := decisions.most_chunks) > 1:
                bases[isa.CHUNKS] = at
                at += units((most_chunks - 1) * self._arena)
        most = {space: found.spread.most for space, found in rows.items()}
        most_runs = runs if isinstance(runs, int) else int(runs.max())
        for buffer in buffers:
            count = most[buffer.space]
            if buffer.children is not None:
                path = self._children(buffer.children).path
                count = self.lists.most_entries(buffer.space, path, rows[buffer.space])
            bases[buffer.name] = at
            at += units(count * buffer.width * self.plan.runs_in(buffer, most_runs, workers))
        if trains(mode) and not decisions.apart.all():
            for product in self.plan.table_products:
                deltas = bases[product.source.buffer]
                place = chosen(decisions.apart, bases.get(product.sums, 0), deltas)
                if isinstance(place, int):
                    bases[product.sums] = place
                else:
                    moving[product.sums] = place
        return bases, at, moving

    def _children(self, name: str) -> ChildrenList:
        found = next(item for item in self.plan.lists if item.name == name)
        assert isinstance(found, ChildrenList)
        return found

    # ---- the whole ------------------------------------------------------------------------------

    def _assemble(
        self,
        group: Group,
        lists: Mapping[str, int | Numbers],
        queues: Ints,
        grid: tuple[int, int],
        some: Mapping[str, int | Numbers],
        updates: Sequence[Update],
        part: Part,
        samples: Numbers,
    ) -> Ints:
        """Joins the words, and fills in header and tables. some: header's words that not all plans have."""
        body, where = group.body, self.layout
        # Results lie just before the counters, so that both come back in one copy.
        body.align(isa.SYNC_STRIDE)
        results = body.room(isa.RESULT_WORDS)
        body.room((isa.SYNC_REPLICAS + grid[0]) * isa.SYNC_STRIDE)
        words = body.finish()
        length = words.shape[1]
        group.bases[isa.RESULTS] = group.address + results // 4
        header = {
            "version": isa.VERSION,
            "words": length,
            "replicas": grid[0],
            "workers": grid[1],
            "bases": where.bases_at,
            "lists": where.lists_at,
            "queues": where.queues_at,
            "sync": results + isa.RESULT_WORDS,
            isa.RUNS: group.runs,
            **some,
        }
        bases = group.bases | group.moving
        tables = ((where.header, header), (where.bases, bases), (where.lists, lists))
        front = [found.get(name, 0) for names, found in tables for name in names]
        several = [(at, each) for at, each in enumerate(front) if type(each) is not int]
        for at, _ in several:
            front[at] = 0
        words[:, : len(front)] = front
        for at, each in several:  # one a batch
            words[:, at] = each
        words[:, len(front) : len(front) + queues.shape[1]] = queues
        words[:, where.header["samples"]] = samples
        if body.batches > 1:
            words[:, where.bases_at + where.bases[isa.RESULTS]] += body.turns * np.int32(length // 4)
        floats = words.view(np.float32)
        total = part.total_samples or of_batch(samples, body.devices)
        floats[:, where.header["loss_scale"]] = 1.0 / np.maximum(total, 1)
        floats[:, where.header["clip_norm"]] = [update.clip_norm for update in updates]
        for name in updates[0].coefficients:
            floats[:, where.header[name]] = [update.coefficients[name] for update in updates]
        return words


def _room_of_lane(lanes: int, first: int, used: int, pool_words: int | None) -> int:
    """Addresses from the activations of a lane to those of the next one: as many in every group that there is
    as much memory for, as lanes do not wait for other lanes."""
    share = 0 if pool_words is None else (pool_words // 4 - first) // lanes // 4 * 4
    return max(share, used - first)
