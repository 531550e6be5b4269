"""What every worker runs behind the recursion: results, weight gradients, their norm, the update.

In: the rows of a group of batches and where everything lies. Out: one list of instructions a batch, and
where its results are. Guaranteed: which elements of a gradient a worker adds up, and in which order,
follows from the batch and the grid alone. Which instructions there are is worked out once (`Template`);
a group fills in what depends on its batches, for all of them and all gradients at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import attrs
import numpy as np

from dnc.ir import isa
from dnc.ir.forest import Ints
from dnc.ir.machine import machine
from dnc.ir.plan import Plan
from dnc.runtime.encoder.lists import Group, Touched
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.shares import Shapes, Summed, summed
from dnc.runtime.encoder.words import Numbers
from dnc.runtime.phases import TRAIN

# Weight gradients are cut into chunks until there are so many pieces of work, or so few rows in each.
PIECES = 1024
CHUNK_ROWS = 128

# A field of an instruction: a number, or the name of a value that depends on the batch.
Field = int | str


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
            (others if lone else alike).append(summed(plan, gradient))
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
