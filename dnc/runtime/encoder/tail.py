"""What every worker runs behind the recursion: results, weight gradients, their norm, the update.

In: the rows of a group of batches and where everything lies. Out: one list of instructions a batch, and
where its results are. Guaranteed: which elements of a gradient a worker adds up, and in which order,
follows from the batch and the grid alone. Which instructions there are is worked out once (`Template`);
a group fills in what depends on its batches, for all of them and all gradients at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir import cutting, isa
from dnc.ir.early import made_early
from dnc.ir.forest import Ints
from dnc.ir.machine import machine
from dnc.ir.plan import Plan, TableGradient
from dnc.runtime.encoder import devices
from dnc.runtime.encoder.known import Known
from dnc.runtime.encoder.lists import Group, Touched
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.shares import MOST_KNOWN, Shapes, Summed, summed
from dnc.runtime.encoder.template import Field, Template
from dnc.runtime.encoder.words import Numbers
from dnc.runtime.phases import trains

# Of so many vertices on, with this share of tokens at most, deltas are added up before products.
MANY_DELTAS, FEWER_TOKENS = 500, 0.75


@attrs.frozen
class Part:
    """Which part of an accumulated batch a launch is: `tokens` per table are those of all parts, and so
    are the rows that `followed` counts, as `Encoder.followed` does."""

    accumulate: bool = False
    update: bool = True
    total_samples: int | None = None
    tokens: dict[str, Ints] | None = None
    followed: dict[str, Numbers] | None = None


WHOLE = Part()


@attrs.frozen(eq=False)
class Decisions:
    """How the gradients of a group of batches are summed; it follows from the batches and the workers that
    are expected, as the bits do.

    touched: rows of tables, by parameter. apart: whether the deltas of tokens are added up before products,
    [batches]. of_summed: how many rows add to the gradients that differ in that, one after another; rows: the
    same of every target, [batches, targets]. few: whether `outer` instructions sum them, [batches]. chunks:
    of rows, for enough pieces of work; shape: of the tiles, [batches, targets].
    """

    touched: Mapping[str, Touched]
    apart: NDArray[np.bool_]
    of_summed: Numbers
    rows: Numbers
    few: NDArray[np.bool_]
    chunks: Numbers
    shape: Numbers

    @property
    def most_chunks(self) -> int:
        """Of any batch."""
        return int(self.chunks.max(initial=1))


@attrs.define(eq=False)
class Batches:
    """A group of batches behind their recursion, or of shares of them. grid: workers in all. optimizer: None
    where gradients are made for another net, which updates the parameters. devices: shares of a batch. early:
    [batches], where some rows of some gradients were added up before (`early.py`)."""

    group: Group
    grid: int
    optimizer: str | None
    part: Part
    decisions: Decisions
    devices: int = 1
    early: NDArray[np.bool_] | None = None


@attrs.frozen(eq=False)
class Dealt:
    """How workers share the work behind the recursion: fields of the products of tables, and how many take
    turns at tiles of `outer` instructions, [batches]."""

    values: dict[str, Numbers]
    sharers: Numbers


def _joined(columns: list[Numbers]) -> Numbers:
    """[batches, columns] of several side by side."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)


def expected_grid(plan: Plan) -> int:
    """Workers that a plan is made for: as many replicas as the machine is said to hold."""
    if plan.tiling is None:
        return 1
    return machine(plan.target).replicas(plan.tiling.workers, plan.tiling.cluster) * plan.tiling.workers


class Tail:
    """See the module; what depends on the plan alone is worked out once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._number = {opcode.name: opcode.number for opcode in plan.opcodes}
        self._width = {buffer.name: buffer.width for buffer in plan.buffers}
        self._splits = machine(plan.target).splits_gradients
        products = {gradient.parameter for gradient in plan.dense_gradients if gradient.pieces}
        beside = cutting.along_with_others(plan)
        # Gradients that share out a parameter alike; sums of deltas of matrices that products share out.
        alike, others = list[Summed](), list[Summed]()
        early_ones = made_early(plan)
        for gradient in plan.dense_gradients:
            if gradient.name in beside:
                continue
            lone = not gradient.pieces and gradient.parameter in products
            (others if lone else alike).append(summed(plan, gradient, gradient.name in early_ones))
        self._shared_out, self._others = (*alike, *others), others
        self._shapes = Shapes(plan, self._shared_out)
        # Those that differ in the rows that add to them.
        known = {each.key: each for each in self._shared_out}
        self._summed = tuple(known.values())
        ends = np.cumsum([0, *(each.targets * each.runs for each in self._summed)]).tolist()
        runs_of = {key: range(*ends[at : at + 2]) for at, key in enumerate(known)}
        runs = [number for each in self._shared_out for number in runs_of[each.key]]
        # Of all gradients the runs of rows among those of `_summed`.
        self._runs = np.array(runs, np.intp)
        # Of all targets the numbers among what `Summed.rows` says of those of `_summed`.
        ends = np.cumsum([0, *(each.targets for each in self._summed)]).tolist()
        targets_of = {key: range(*ends[at : at + 2]) for at, key in enumerate(known)}
        self._targets = np.array([t for each in self._shared_out for t in targets_of[each.key]], np.intp)
        self._grid = expected_grid(plan)
        self.outer_norms, self._outer_norms = self._count_norms()
        # Of all runs the number of the gradient.
        numbers = {gradient.name: number for number, gradient in enumerate(plan.dense_gradients)}
        names = [each.gradient.name for each in self._shared_out for _ in range(each.targets * each.runs)]
        self._outer_numbers = np.array([numbers[name] for name in names], np.intp)
        self._are_early = np.array(
            [each.early for each in self._shared_out for _ in range(each.targets * each.runs)], bool
        )
        self._has_stacks = any(each.position is not None for each in self._summed)
        # Of every parameter a target.
        own = [each.gradient.parameter for each in self._shared_out for _ in range(each.targets)]
        self._target = {name: number for number, name in enumerate(own)}
        self._norms, self._norm_count = isa.norm_groups(plan), isa.norm_count(plan)
        running = {each.name for each in plan.program.parameters if each.running}
        self.followers = tuple(each for each in self._shared_out if each.gradient.parameter in running)
        self._sums = [result for result in plan.results if result.kind in ("loss", "metric")]
        self._with_products = [table for table in plan.table_gradients if table.products]
        # In the order of their instructions: who has nothing else to do begins with products.
        self._tables = (*self._with_products, *(each for each in plan.table_gradients if not each.products))
        self._has_outer = cutting.has_outer(plan)
        self._templates: dict[tuple[object, ...], Template] = {}
        self._deals = Known[tuple[object, ...], tuple[Numbers, Numbers, Numbers, Numbers]](MOST_KNOWN)

    @property
    def most_norms(self) -> int:
        """Norms that dense gradients leave, either way."""
        return max(self._norm_count, self.outer_norms)

    def _count_norms(self) -> tuple[int, Numbers]:
        """How many norms the tiles of `outer` instructions leave, and the first one of every target."""
        shapes, count = self._shapes, 0
        found = np.full(len(shapes.outer), isa.NO_NORM, np.int64)
        own = [each.gradient.parameter for each in self._shared_out for _ in range(each.targets)]
        for target in np.unique(shapes.whose).tolist():
            if shapes.outer[target] and not self.plan.program.parameter(own[target]).running:
                found[target] = count
                count += int(shapes.outer[target])
        return count, found

    def followed(self, rows: Mapping[str, Rows]) -> dict[str, Numbers]:
        """How many rows move every running parameter, [batches, parameters of the stack]."""
        found: dict[str, Numbers] = {}
        for each in self.followers:
            if each.gradient.space in rows:
                name = each.gradient.parameter
                found[name] = found.get(name, 0) + each.rows(rows)
        return found

    def decide(
        self, rows: Mapping[str, Rows], mode: str, part: Part, touched: Mapping[str, Touched], devices: int
    ) -> Decisions:
        """How the gradients of a group are summed."""
        batches = len(next(iter(rows.values())).counts) if rows else 1
        apart, few = self.apart(batches, rows, touched), np.zeros(batches, bool)
        targets = len(self._targets) if trains(mode) else 0
        chunks, shape = np.ones((batches, targets), np.int64), np.zeros((batches, targets), np.int64)
        if not targets:
            none = np.zeros((batches, 0), np.int64)
            return Decisions(touched, apart, none, none, few, chunks, shape)
        found = _joined([self._rows_of(each, rows, touched, apart) for each in self._summed])
        own, most = found[:, self._targets], self.most_chunks(part, devices)
        if self._has_outer:
            products = np.zeros(batches)
            for table in self._with_products:
                products = products + self._shapes.products(table, touched[table.parameter].spread.counts)
            few = self._shapes.few(own, products, most, self._grid)
        if self._splits and not few.all():
            chunks[~few], shape[~few] = self._shapes.cut(own[~few], most, self._grid)
        return Decisions(touched, apart, found, own, few, chunks, shape)

    def most_chunks(self, part: Part, devices: int) -> int:
        """Chunks of rows that gradients may be cut into: one where they add up over launches, or where
        running values add up over devices."""
        return isa.MOST_CHUNKS if part == WHOLE and not (devices > 1 and self.followers) else 1

    def saved(self, rows: Mapping[str, Rows], ended: Mapping[str, Numbers], most: int) -> Numbers:
        """How many cycles sooner all weight gradients are predicted to be made, in so many chunks at most, if
        of a space so many rows, [batches], have been added up before."""
        found = [each.rows(rows) for each in self._summed]
        left = [
            own - ended[each.gradient.space][:, None] if each.early else own
            for each, own in zip(self._summed, found, strict=True)
        ]
        ends = [self._shapes.end(_joined(own)[:, self._targets], most, self._grid) for own in (found, left)]
        sooner: Numbers = ends[0] - ends[1]
        return sooner

    def apart(
        self, batches: int, rows: Mapping[str, Rows], touched: Mapping[str, Touched]
    ) -> NDArray[np.bool_]:
        """Whether the deltas of tokens are added up before products, [batches]: where there are many, of
        words that occur again."""
        found = np.zeros(batches, bool)
        for table in self.plan.table_gradients if touched else ():
            tokens = touched[table.parameter].spread.counts
            for product in table.products:
                deltas = rows[product.source.space].spread.counts
                found |= (deltas >= MANY_DELTAS) & (tokens <= deltas * FEWER_TOKENS)
        return found

    def encode(self, mode: str, batches: Batches) -> tuple[Ints, dict[str, tuple[int, Numbers]], Numbers]:
        """The instructions, [batches, count, INSTRUCTION_WORDS]; results: (word, rows summed); and how many
        workers share the tiles of `outer` instructions, [batches]."""
        group, part = batches.group, batches.part
        results: dict[str, tuple[int, Numbers]] = {}
        values: dict[str, int | Numbers] = {}
        for result in self._sums:
            if result.buffer in group.bases:
                counts = group.rows[result.space].spread.counts
                key = f"{result.kind}:{result.name}"
                results[key] = isa.RESULT_FIRST + len(results), counts
                values[f"base {key}"], values[f"rows {key}"] = group.base(result.buffer), counts
        learns = trains(mode)
        decisions, optimizer, few = batches.decisions, batches.optimizer, batches.decisions.few
        # Sums of chunks meet in the instructions of the norm, and running statistics follow them.
        ends = part.update and bool(optimizer or self.followers or (decisions.chunks > 1).any())
        meets = ends and batches.devices > 1
        kind = learns, tuple(results), optimizer, int(part.accumulate), ends, meets
        if kind not in self._templates:
            self._templates[kind] = self._make(*kind)
        template = self._templates[kind]
        if not learns:
            return template.filled(group.body.batches, values), results, np.full(len(few), batches.grid)
        if len(template.sums):
            sums, values["turn"] = self._gradients(batches, template)
        else:
            sums, values["turn"] = template.words[template.sums], 0
        which = few.nonzero()[0][:, None]
        dealt = self._deal(batches, few)
        values |= dealt.values
        sharers = dealt.sharers
        if len(which):
            values["turn"] = np.where(few, self._shapes.behind(sharers, batches.grid), values["turn"])
        norms: int | Numbers = np.where(few, self.outer_norms, self._norm_count)
        for table in self._tables:
            tokens = decisions.touched[table.parameter].spread.counts
            values[f"tokens {table.parameter}"], values[f"norms {table.parameter}"] = tokens, norms
            norms = norms + tokens * isa.table_norms(table)
        values["norms"] = norms
        if batches.devices > 1:
            touched = {name: each.spread.counts for name, each in decisions.touched.items()}
            values |= devices.values(self.plan, group.base, touched, len(few), batches.devices)
        for name, target in self._target.items():
            values[f"chunks {name}"] = decisions.chunks[:, target]
        words = template.filled(group.body.batches, values)
        words[:, template.sums] = sums
        kept = np.ones(len(template.words), bool)
        if len(self._shapes.leading) < len(template.sums):  # of other runs than the first those with rows
            kept[template.sums] = sums[:, :, 2].any(axis=0)
            kept[template.sums[self._shapes.leading]] = True
        together = (~decisions.apart).nonzero()[0][:, None] if len(template.tokens) else ()
        if len(together):
            words[together, template.behind(template.tokens), 1] -= 1
            words[together, template.tokens] = 0  # `nop`
            kept[template.tokens] = len(together) < len(words)
        if len(which):
            words[which, template.sums] = self._as_outer(sums[few], sharers[few], kept[template.sums])
            if len(template.norm):
                words[which, template.behind(template.norm), 1] -= 1
            words[which, template.norm] = 0  # `nop`
            if len(which) == len(words):
                kept[template.norm] = False
        return words[:, kept], results, sharers

    def _as_outer(self, sums: Ints, sharers: Numbers, kept: NDArray[np.bool_]) -> Ints:
        """Instructions of weight gradients, [batches, runs, INSTRUCTION_WORDS], as `outer` instructions.

        The last one that is kept of a target has its norm.
        """
        whose, found = self._shapes.whose, np.empty_like(sums)
        worker = self._shapes.first_workers(sharers)
        last, numbers = np.zeros(len(whose), bool), np.flatnonzero(kept)
        last[list(dict(zip(whose[kept].tolist(), numbers.tolist(), strict=True)).values())] = True
        fields: dict[str, Ints | Numbers] = {
            "gradient": self._outer_numbers,
            "row": sums[:, :, 1],
            "rows": sums[:, :, 2],
            "first_worker": worker[:, whose],
            "accumulate": sums[:, :, 4],
            "index": sums[:, :, 6],
            "first_norm": np.where(last, self._outer_norms[whose], isa.NO_NORM),
        }
        found[:, :, 0] = self._number[isa.OUTER]
        for at, name in enumerate(isa.OUTER_FIELDS, 1):
            found[:, :, at] = fields[name]
        return found

    def _gradients(self, batches: Batches, template: Template) -> tuple[Ints, Numbers]:
        """The instructions of all weight gradients, [batches, runs, INSTRUCTION_WORDS]; and the worker behind
        the last one, [batches]: those who have the fewest tiles take the first rows of tables, often the
        most frequent ones."""
        shapes, decisions = self._shapes, batches.decisions
        counts = decisions.of_summed
        has_starts = self._has_stacks or batches.early is not None
        if has_starts:
            found = [self._runs_of(each, batches) for each in self._summed]
            counts = _joined([count for _, count in found])
        worker, turn = shapes.share_out(decisions.chunks, decisions.shape, batches.grid)
        words = template.words[None, template.sums].repeat(len(counts), axis=0)
        words[:, :, 2] = counts[:, self._runs]
        words[:, :, 3], words[:, :, 7] = worker[:, shapes.whose], decisions.shape[:, shapes.whose]
        words[:, :, 5] = decisions.chunks[:, shapes.whose]
        if has_starts:
            words[:, :, 1] = _joined([start for start, _ in found])[:, self._runs]
        if batches.early is not None:
            words[:, :, 4] |= batches.early[:, None] & self._are_early
        return words, turn

    def _runs_of(self, each: Summed, batches: Batches) -> tuple[Numbers, Numbers]:
        """As `Summed.runs_of`; of touched rows where their deltas were added up first."""
        rows, decisions = batches.group.rows, batches.decisions
        starts, counts = each.runs_of(rows)
        if each.gradient.table:
            counts = self._rows_of(each, rows, decisions.touched, decisions.apart)
        return starts, counts

    def _rows_of(
        self,
        each: Summed,
        rows: Mapping[str, Rows],
        touched: Mapping[str, Touched],
        apart: NDArray[np.bool_],
    ) -> Numbers:
        """As `Summed.rows`; of touched rows where their deltas were added up first."""
        counts = each.rows(rows)
        if not each.gradient.table:
            return counts
        tokens = touched[each.gradient.table].spread.counts
        return np.where(apart[:, None], tokens[:, None], counts)

    def _deal(self, batches: Batches, few: NDArray[np.bool_]) -> Dealt:
        """Which workers share the products of tables, and in tiles of how many groups of tokens."""
        decisions = batches.decisions
        rows, tables = decisions.rows, self._with_products
        values, sharers = dict[str, Numbers](), np.full(len(few), batches.grid)
        for table in tables:
            tokens = decisions.touched[table.parameter].spread.counts
            deal = partial(self._shapes.deal, table, tokens, rows, few, batches.grid, len(tables) == 1)
            if len(few) > 1:
                found = deal()
            else:  # batches that come alone are often small, and alike in their numbers of rows
                key = table.parameter, tokens.tobytes(), rows.tobytes(), few.tobytes(), batches.grid
                found = self._deals.get(key, deal)
            names = ("before", "left_out", "groups")
            values |= {f"{name} {table.parameter}": each for name, each in zip(names, found, strict=False)}
            sharers = found[-1]
        return Dealt(values, sharers)

    def _make(
        self,
        learns: bool,
        results: tuple[str, ...],
        optimizer: str | None,
        accumulate: int,
        ends: bool,
        meets: bool,
    ) -> Template:
        number, plan, ordinals = self._number, self.plan, itertools.count(1)
        width = {f"{result.kind}:{result.name}": self._width[result.buffer] for result in self._sums}

        def exchange() -> list[Field]:
            return [number[isa.GRID_BARRIER], next(ordinals)]

        def table_gradient(table: TableGradient) -> list[Field]:
            name = table.parameter
            places: list[Field] = [f"tokens {name}", f"norms {name}", accumulate, "turn"]
            if table.products:
                places += [f"{field} {name}" for field in ("before", "left_out", "groups")]
            return [number[f"gradient {name}"], *places]

        found, sums, norm, tokens = [exchange()], list[int](), list[int](), list[int]()
        tables = self._tables if learns else ()
        for table in tables:
            for product in table.products:
                tokens.append(len(found))
                found.append([number[isa.sum_opcode(product)], f"tokens {table.parameter}", 0])
        if tokens:
            tokens.append(len(found))
            found.append(exchange())
        for word, key in enumerate(results, isa.RESULT_FIRST):
            found.append([number[isa.REDUCE], f"base {key}", f"rows {key}", width[key], word])
        found += [table_gradient(table) for table in tables if table.products]
        if learns:
            known = set[tuple[str, int]]()
            for each in self._shared_out:
                if self._others and each is self._others[0]:  # other workers add to the same elements
                    found.append(exchange())
                for run in range(each.targets * each.runs):
                    index = run // each.runs
                    target = each.gradient.parameter, index
                    again = int(accumulate or target in known)
                    known.add(target)
                    sums.append(len(found))
                    found.append([number[each.gradient.name], 0, 0, 0, again, 0, index, 0])
            found += [table_gradient(table) for table in tables if not table.products]
        if learns and ends:
            found.append(exchange())
            norm, before = list(range(len(found), len(found) + len(self._norms) + 1)), 0
            for begin, count, name in self._norms:
                chunks = f"chunks {name}" if count else 1
                found.append([number[isa.NORM], begin, count, chunks, before])
                before += -(-count // isa.NORM_CHUNK)
            found.append(exchange())
            found += devices.meeting(plan, number, exchange) if meets else []
            if optimizer is not None:
                for group in isa.update_groups(plan):
                    own: dict[str, int | str] = {"norms": "norms", **isa.update_words(plan, group)}
                    found.append([number[optimizer], *(own[field] for field in isa.update_fields(plan))])
            if followed := isa.followed_floats(plan):
                chunks = f"chunks {self.followers[0].gradient.parameter}"
                found.append([number[isa.FOLLOW], isa.trained_floats(plan), followed, "norms", chunks])
            for table in () if optimizer is None else plan.table_gradients:
                rate = isa.float_bits(plan.program.parameter(table.parameter).rate)
                update_of = number[f"{optimizer} {table.parameter}"]
                found.append([update_of, f"tokens {table.parameter}", "norms", rate])
        found.append([number[isa.END]])
        exchanges = [at for at, words in enumerate(found) if words[0] == number[isa.GRID_BARRIER]]
        return Template(found, sums, norm, tokens, exchanges)
