"""What every worker runs behind the recursion: results, weight gradients, their norm, the update.

In: the rows of a group of batches and where everything lies. Out: one list of instructions a batch, and
where its results are. Guaranteed: which elements of a gradient a worker adds up, and in which order,
follows from the batch and the grid alone. Which instructions there are is worked out once (`Template`);
a group fills in what depends on its batches, for all of them and all gradients at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import attrs
import numpy as np

from dnc.ir import isa
from dnc.ir.forest import Ints
from dnc.ir.machine import machine
from dnc.ir.plan import DenseGradient, Plan
from dnc.runtime.encoder.lists import Group, Touched
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Numbers
from dnc.runtime.phases import TRAIN

# Weight gradients are cut into chunks until there are so many pieces of work, or so few rows in each.
PIECES = 1024
CHUNK_ROWS = 128

# A field of an instruction: a number, or the name of a value that depends on the batch.
Field = int | str
NO_SHAPE = np.iinfo(np.int32).max  # what a shape costs that a gradient does not have


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
class Summed:
    """A weight gradient and the rows that add to it.

    position: among the numbers that rows select, for a stack. targets: parameters of the stack. runs: of
    rows of each that do not lie side by side, at most.
    """

    gradient: DenseGradient
    position: int | None
    targets: int
    runs: int

    @property
    def key(self) -> tuple[str, int | None]:
        """What it has in common with others to which the same rows add."""
        return self.gradient.space, self.position

    def rows(self, rows: Mapping[str, Rows]) -> Numbers:
        """How many rows add to the gradient, [batches, targets]."""
        own = rows[self.gradient.space]
        if self.position is None:
            return own.spread.counts[:, None]
        counts: Numbers = own.selected(self.position)[1].sum(axis=2)
        return counts

    def runs_of(self, rows: Mapping[str, Rows]) -> tuple[Numbers, Numbers]:
        """First rows and counts of all runs, [batches, targets * runs]."""
        own = rows[self.gradient.space]
        if self.position is None:
            return own.starts[:, 0, 0, :1], own.spread.counts[:, None]
        starts, counts = own.selected(self.position)
        return starts.reshape(len(starts), -1), counts.reshape(len(counts), -1)


class Shapes:
    """The tile shapes of all weight gradients, [targets, shapes], a target being a parameter of a gradient.

    tiles: that each makes of a gradient. row, fixed: what a row and a tile cost, as in `isa.GradientTile`.
    work: the tiles that count; those of sums of deltas are light work. leading: of all runs of rows those
    that come first of their target. whose: of every run the first target of the same parameter: there
    tiles keep their shape and their workers, so that its gradients add up in order.
    """

    def __init__(self, gradients: Iterable[Summed]) -> None:
        found = [(each, isa.gradient_tiles(each.gradient)) for each in gradients]
        most = max((len(shapes) for _, shapes in found), default=1)
        counts, costs, busy = list[list[int]](), list[list[list[int]]](), list[int]()
        leading, whose = list[int](), list[int]()
        known: dict[tuple[str, int], int] = {}
        for each, shapes in found:
            absent = [NO_SHAPE] * (most - len(shapes))
            for index in range(each.targets):
                first = known.setdefault((each.gradient.parameter, index), len(counts))
                leading.append(len(whose))
                whose += [first] * each.runs
                counts.append([*(isa.tile_count(each.gradient, s) for s in shapes), *(1 for _ in absent)])
                costs.append([[*(s.row for s in shapes), *absent], [*(s.fixed for s in shapes), *absent]])
                busy.append(int(bool(each.gradient.pieces)))
        self.tiles = np.array(counts, np.int64).reshape(-1, most)
        self.row, self.fixed = np.array(costs, np.int64).reshape(-1, 2, most).transpose(1, 0, 2)
        self.work = self.tiles * np.array(busy, np.int64)[:, None]
        self.leading, self.whose = np.array(leading, np.intp), np.array(whose, np.intp)
        self._each = np.arange(len(counts))
        self._costs: dict[int, tuple[Numbers, Numbers]] = {}

    def share_out(self, rows: Numbers, chunks: Numbers, grid: int) -> tuple[Numbers, Numbers, Numbers]:
        """By rows the cheapest shape and the first worker, [batches, targets]; and the one behind all."""
        row, fixed = self._costs_on(grid)
        chunks = chunks[:, None]
        cost = (-(-rows // chunks))[:, :, None] * row[chunks[:, 0]] + fixed[chunks[:, 0]]
        shape = cost.argmin(axis=2)
        behind = (self.work[self._each, shape] * chunks).cumsum(axis=1)
        worker = np.zeros_like(behind)
        worker[:, 1:] = behind[:, :-1]
        worker %= grid
        return shape, worker, behind[:, -1] % grid

    def _costs_on(self, grid: int) -> tuple[Numbers, Numbers]:
        """What a row and a chunk cost on so many workers, [chunks, targets, shapes]."""
        if grid not in self._costs:
            chunks = np.arange(isa.MOST_CHUNKS + 1)[:, None, None]
            rounds = -(-self.tiles * chunks // grid)
            self._costs[grid] = rounds * self.row, rounds * self.fixed
        return self._costs[grid]


@attrs.define(eq=False)
class Batches:
    """A group of batches behind their recursion. grid: workers in all. touched: rows of tables, by
    parameter. chunks: as `Tail.chunks` has them."""

    group: Group
    grid: int
    optimizer: str
    part: Part
    touched: Mapping[str, Touched]
    chunks: Numbers


class Template:
    """The instructions of a tail. words: [count, INSTRUCTION_WORDS], zeros where a batch fills them in.

    places: of each value by name, (instruction, field). sums: the instructions of weight gradients, a
    run of rows each.
    """

    def __init__(self, instructions: list[list[Field]], sums: list[int]) -> None:
        self.words = np.zeros((len(instructions), isa.INSTRUCTION_WORDS), np.int32)
        self.places: list[tuple[str, int, int]] = []
        self.sums = np.array(sums, np.intp)
        for at, instruction in enumerate(instructions):
            for field, value in enumerate(instruction):
                if isinstance(value, str):
                    self.places.append((value, at, field))
                else:
                    self.words[at, field] = value

    def filled(self, batches: int, values: Mapping[str, int | Numbers]) -> Ints:
        """The words of every batch, with values [batches]."""
        words = np.empty((batches, *self.words.shape), np.int32)
        words[:] = self.words
        for name, at, field in self.places:
            words[:, at, field] = values[name]
        return words


class Tail:
    """See the module; what depends on the plan alone is worked out once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._number = {opcode.name: opcode.number for opcode in plan.opcodes}
        self._width = {buffer.name: buffer.width for buffer in plan.buffers}
        self._splits = machine(plan.target).splits_gradients
        self.summed = isa.summed_floats(plan)
        products = {gradient.parameter for gradient in plan.dense_gradients if gradient.pieces}
        # Gradients that share out a parameter alike; sums of deltas of matrices that products share out.
        alike, others = list[Summed](), list[Summed]()
        for gradient in plan.dense_gradients:
            lone = not gradient.pieces and gradient.parameter in products
            (others if lone else alike).append(_summed(plan, gradient))
        self._shared_out, self._others = (*alike, *others), others
        self._shapes = Shapes(self._shared_out)
        # Those that differ in the rows that add to them.
        known = {each.key: each for each in self._shared_out}
        self._summed = tuple(known.values())
        ends = np.cumsum([0, *(each.targets * each.runs for each in self._summed)]).tolist()
        runs_of = {key: range(*ends[at : at + 2]) for at, key in enumerate(known)}
        runs = [number for each in self._shared_out for number in runs_of[each.key]]
        # Of all gradients the runs of rows among those of `_summed`, and the first ones of every target.
        self._runs = np.array(runs, np.intp)
        self._leading = self._runs[self._shapes.leading]
        self._has_stacks = any(each.position is not None for each in self._summed)
        tiles = sum(
            isa.tile_count(each.gradient, isa.gradient_tiles(each.gradient)[0])
            * plan.program.parameter(each.gradient.parameter).count
            for each in self._shared_out
        )
        self._most_chunks = min(isa.MOST_CHUNKS, -(-PIECES // max(tiles, 1)))
        running = {each.name for each in plan.program.parameters if each.running}
        self.followers = tuple(each for each in self._shared_out if each.gradient.parameter in running)
        self._sums = [result for result in plan.results if result.kind in ("loss", "metric")]
        self._templates: dict[tuple[object, ...], Template] = {}

    def followed(self, rows: Mapping[str, Rows]) -> dict[str, Numbers]:
        """How many rows move every running parameter, [batches, parameters of the stack]."""
        found: dict[str, Numbers] = {}
        for each in self.followers:
            if each.gradient.space in rows:
                name = each.gradient.parameter
                found[name] = found.get(name, 0) + each.rows(rows)
        return found

    def chunks(self, rows: Mapping[str, Rows], mode: str, part: Part) -> Numbers:
        """Chunks of rows of the weight gradients, [batches]: enough pieces of work for many workers.

        They depend on the batch alone, and so do the bits. Gradients that add up over launches have one.
        """
        if mode != TRAIN or not self._splits or part != WHOLE or not self._shared_out:
            return np.ones(1, np.int64)
        most = np.concatenate([each.rows(rows) for each in self._summed], axis=1).max(axis=1)
        chunks: Numbers = (most // CHUNK_ROWS).clip(1, self._most_chunks)
        return chunks

    def encode(self, mode: str, batches: Batches) -> tuple[Ints, dict[str, tuple[int, Numbers]]]:
        """The instructions, [batches, count, INSTRUCTION_WORDS], and results: (word, rows summed)."""
        group, part, bases = batches.group, batches.part, batches.group.bases
        results: dict[str, tuple[int, Numbers]] = {}
        values: dict[str, int | Numbers] = {}
        for result in self._sums:
            if result.buffer in bases:
                counts = group.rows[result.space].spread.counts
                key = f"{result.kind}:{result.name}"
                results[key] = isa.RESULT_FIRST + len(results), counts
                values[f"base {key}"], values[f"rows {key}"] = bases[result.buffer], counts
        trains = mode == TRAIN
        template = self._template(
            trains, tuple(results), batches.optimizer, int(part.accumulate), part.update
        )
        if not trains:
            return template.filled(group.body.batches, values), results
        if len(template.sums):
            sums, values["turn"] = self._gradients(batches, template)
        else:
            sums, values["turn"] = template.words[template.sums], 0
        norms: int | Numbers = -(-self.summed // isa.NORM_CHUNK)
        for table in self.plan.table_gradients:
            tokens = batches.touched[table.parameter].spread.counts
            values[f"tokens {table.parameter}"], values[f"norms {table.parameter}"] = tokens, norms
            norms = norms + tokens
        values["norms"], values["chunks"] = norms, batches.chunks
        words = template.filled(group.body.batches, values)
        words[:, template.sums] = sums
        if len(self._shapes.leading) < len(template.sums):  # of other runs than the first those with rows
            kept = np.ones(len(template.words), bool)
            kept[template.sums] = sums[:, :, 2].any(axis=0)
            kept[template.sums[self._shapes.leading]] = True
            words = words[:, kept]
        return words, results

    def _gradients(self, batches: Batches, template: Template) -> tuple[Ints, Numbers]:
        """The instructions of all weight gradients, [batches, runs, INSTRUCTION_WORDS]; and the worker behind
        the last one, [batches]: those who have the fewest tiles take the first rows of tables, often the
        most frequent ones."""
        shapes, chunks = self._shapes, batches.chunks
        found = [each.runs_of(batches.group.rows) for each in self._summed]
        counts = np.concatenate([count for _, count in found], axis=1)
        shape, worker, turn = shapes.share_out(counts[:, self._leading], chunks, batches.grid)
        words = template.words[None, template.sums].repeat(len(counts), axis=0)
        words[:, :, 2] = counts[:, self._runs]
        words[:, :, 3], words[:, :, 7] = worker[:, shapes.whose], shape[:, shapes.whose]
        words[:, :, 5] = chunks[:, None]
        if self._has_stacks:
            words[:, :, 1] = np.concatenate([start for start, _ in found], axis=1)[:, self._runs]
        return words, turn

    def _template(
        self, trains: bool, results: tuple[str, ...], optimizer: str, accumulate: int, update: bool
    ) -> Template:
        key = trains, results, optimizer, accumulate, update
        if key not in self._templates:
            self._templates[key] = self._make(*key)
        return self._templates[key]

    def _make(
        self, trains: bool, results: tuple[str, ...], optimizer: str, accumulate: int, update: bool
    ) -> Template:
        number, plan, ordinals = self._number, self.plan, itertools.count(1)
        width = {f"{result.kind}:{result.name}": self._width[result.buffer] for result in self._sums}

        def exchange() -> list[Field]:
            return [number[isa.GRID_BARRIER], next(ordinals)]

        found, sums = [exchange()], list[int]()
        for word, key in enumerate(results, isa.RESULT_FIRST):
            found.append([number[isa.REDUCE], f"base {key}", f"rows {key}", width[key], word])
        if trains:
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
            for table in plan.table_gradients:
                name = table.parameter
                places = f"tokens {name}", f"norms {name}", accumulate, "turn"
                found.append([number[f"gradient {name}"], *places])
        if trains and update:
            found += [exchange(), [number[isa.NORM], self.summed, "chunks"], exchange()]
            for begin, count, rate in isa.rate_groups(plan):
                found.append([number[optimizer], begin, count, "norms", isa.float_bits(rate)])
            if followed := isa.followed_floats(plan):
                found.append([number[isa.FOLLOW], isa.trained_floats(plan), followed, "norms", "chunks"])
            for table in plan.table_gradients:
                rate = isa.float_bits(plan.program.parameter(table.parameter).rate)
                update_of = number[f"{optimizer} {table.parameter}"]
                found.append([update_of, f"tokens {table.parameter}", "norms", rate])
        found.append([number[isa.END]])
        return Template(found, sums)


def _summed(plan: Plan, gradient: DenseGradient) -> Summed:
    if not gradient.field:
        return Summed(gradient, None, 1, 1)
    selectors, struct = plan.program.selectors(gradient.space), plan.program.space(gradient.space).struct
    sizes = []
    for name in selectors:
        dimension = plan.program.struct(struct).field(name).dimension
        assert dimension is not None and dimension.size is not None
        sizes.append(dimension.size)
    position = selectors.index(gradient.field)
    return Summed(gradient, position, sizes[position], math.prod(sizes[:position]))
