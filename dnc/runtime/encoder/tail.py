"""What every worker runs behind the recursion: results, weight gradients, their norm, the update.

In: the rows of a group of batches and where everything lies. Out: one list of instructions a batch, and
where its results are. Guaranteed: which elements of a gradient a worker adds up, and in which order,
follows from the batch and the grid alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

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

# A field of an instruction: the same in every batch, or one per batch.
Field = int | Numbers


@attrs.frozen
class Part:
    """Which part of an accumulated batch a launch is: `tokens` per table are those of all parts, and so
    are the rows that `followed` counts, as `Encoder.followed` does."""

    accumulate: bool = False
    update: bool = True
    total_samples: int | None = None
    tokens: dict[str, Ints] | None = None
    followed: dict[str, Numbers] | None = None


@attrs.frozen(eq=False)
class Shapes:
    """The tile shapes of a gradient: how many tiles each makes of it, and what a tile costs: [shapes].

    row, fixed: of a row and of a tile, as in `isa.GradientTile`. position: among the numbers that rows
    select, for a stack.
    """

    gradient: DenseGradient
    counts: Numbers
    row: Numbers
    fixed: Numbers
    position: int | None

    def cheapest(self, rows: Numbers, chunks: Numbers, grid: int) -> tuple[Numbers, Numbers]:
        """The cheapest shape for every batch, [batches], and the tiles of a chunk."""
        if len(self.counts) == 1:
            return np.zeros_like(rows), np.broadcast_to(self.counts[0], np.shape(rows))
        rounds = -(-self.counts[:, None] * chunks // grid)
        cost = rounds * (-(-rows // chunks) * self.row[:, None] + self.fixed[:, None])
        chosen = cost.argmin(axis=0).astype(np.int32)
        return chosen, self.counts[chosen]

    def summed_rows(self, rows: Rows) -> Numbers:
        """How many rows add to the gradient, [batches, parameters of the stack]."""
        if self.position is None:
            return rows.spread.counts[:, None]
        counts: Numbers = rows.selected(self.position)[1].sum(axis=1).T
        return counts

    def runs(self, rows: Rows) -> list[list[tuple[Field, Numbers]]]:
        """Those rows as runs (first, count); of a stack for each of its parameters."""
        if self.position is None:
            return [[(0, rows.spread.counts)]]
        starts, counts = rows.selected(self.position)
        return [
            [
                (starts[index, run], counts[index, run])
                for run in range(counts.shape[1])
                if run == 0 or counts[index, run].any()
            ]
            for index in range(len(counts))
        ]


@attrs.frozen(eq=False)
class Batches:
    """A group of batches behind their recursion. grid: workers in all. touched: rows of tables, by
    parameter. chunks: as `Tail.chunks` has them."""

    group: Group
    grid: int
    optimizer: str
    part: Part
    touched: Mapping[str, Touched]
    chunks: Numbers


class Tail:
    """See the module; what depends on the plan alone is worked out once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._number = {opcode.name: opcode.number for opcode in plan.opcodes}
        self._width = {buffer.name: buffer.width for buffer in plan.buffers}
        self._splits = machine(plan.target).splits_gradients
        self._rates = isa.rate_groups(plan)
        self.summed = isa.summed_floats(plan)
        self._trained, self._followed = isa.trained_floats(plan), isa.followed_floats(plan)
        products = {gradient.parameter for gradient in self.plan.dense_gradients if gradient.pieces}
        # Gradients that share out a parameter alike; sums of deltas of matrices that products share out.
        alike, others = list[Shapes](), list[Shapes]()
        for gradient in self.plan.dense_gradients:
            lone = not gradient.pieces and gradient.parameter in products
            (others if lone else alike).append(self._shapes(gradient))
        self._shared_out, self._others = (*alike, *others), others
        tiles = sum(
            int(each.counts[0]) * self.plan.program.parameter(each.gradient.parameter).count
            for each in self._shared_out
        )
        self._most_chunks = min(isa.MOST_CHUNKS, -(-PIECES // max(tiles, 1)))
        running = {each.name for each in self.plan.program.parameters if each.running}
        self.followers = tuple(each for each in self._shared_out if each.gradient.parameter in running)

    def _shapes(self, gradient: DenseGradient) -> Shapes:
        shapes = isa.gradient_tiles(gradient)
        selectors = self.plan.program.selectors(gradient.space)
        return Shapes(
            gradient,
            np.array([isa.tile_count(gradient, shape) for shape in shapes], np.int32),
            np.array([shape.row for shape in shapes]),
            np.array([shape.fixed for shape in shapes]),
            selectors.index(gradient.field) if gradient.field else None,
        )

    def followed(self, rows: Mapping[str, Rows]) -> dict[str, Numbers]:
        """How many rows move every running parameter, [batches, parameters of the stack]."""
        found: dict[str, Numbers] = {}
        for each in self.followers:
            if each.gradient.space in rows:
                name, counts = each.gradient.parameter, each.summed_rows(rows[each.gradient.space])
                found[name] = found.get(name, 0) + counts
        return found

    def chunks(self, rows: Mapping[str, Rows], mode: str, part: Part) -> Numbers:
        """Chunks of rows of the weight gradients, [batches]: enough pieces of work for many workers.

        They depend on the batch alone, and so do the bits. Gradients that add up over launches have one.
        """
        if mode != TRAIN or not self._splits or part != Part() or not self._shared_out:
            return np.ones(1, np.int32)
        most = [each.summed_rows(rows[each.gradient.space]).max(axis=1) for each in self._shared_out]
        chunks: Numbers = np.clip(np.stack(most).max(axis=0) // CHUNK_ROWS, 1, self._most_chunks)
        return chunks

    def encode(self, mode: str, batches: Batches) -> tuple[Ints, dict[str, tuple[int, Numbers]]]:
        """The instructions, [batches, count, INSTRUCTION_WORDS], and results: (word, rows summed)."""
        group, number, bases = batches.group, self._number, batches.group.bases
        tail: list[list[Field]] = [[number[isa.GRID_BARRIER], 1]]
        results: dict[str, tuple[int, Numbers]] = {}
        for result in self.plan.results:
            if result.kind in ("loss", "metric") and result.buffer in bases:
                word = isa.RESULT_FIRST + len(results)
                counts = group.rows[result.space].spread.counts
                stride = self._width[result.buffer]
                tail.append([number[isa.REDUCE], bases[result.buffer], counts, stride, word])
                results[f"{result.kind}:{result.name}"] = (word, counts)
        if mode == TRAIN:
            tail += self._gradients(batches)
        tail.append([number[isa.END]])
        words = np.zeros((group.body.batches, len(tail), isa.INSTRUCTION_WORDS), np.int32)
        for at, instruction in enumerate(tail):
            for field, value in enumerate(instruction):
                words[:, at, field] = value
        return words, results

    def _gradients(self, batches: Batches) -> list[list[Field]]:
        group, grid, part, chunks = batches.group, batches.grid, batches.part, batches.chunks
        summed, touched = self.summed, batches.touched
        number, found = self._number, list[list[Field]]()
        ordinals = itertools.count(2)

        def exchange() -> list[Field]:
            return [number[isa.GRID_BARRIER], next(ordinals)]

        # A parameter's tiles keep their shape and their workers, so that its gradients add up in order.
        first = np.zeros(group.body.batches, np.int32)
        dealt: dict[tuple[str, int], tuple[Numbers, Numbers]] = {}
        for each in self._shared_out:
            gradient = each.gradient
            if self._others and each is self._others[0]:  # other workers add to the same elements
                found.append(exchange())
            for index, runs in enumerate(each.runs(group.rows[gradient.space])):
                target = gradient.parameter, index
                tile, tiles = each.cheapest(runs[0][1], chunks, grid)
                known = target in dealt
                tile, worker = dealt.setdefault(target, (tile, first % grid))
                for run, (row, rows) in enumerate(runs):
                    again = int(part.accumulate or run > 0 or known)
                    found.append([number[gradient.name], row, rows, worker, again, chunks, index, tile])
                if gradient.pieces:  # sums of deltas are light work
                    first = first + chunks * tiles
        norms: Field = -(-summed // isa.NORM_CHUNK)
        for table in self.plan.table_gradients:
            tokens = touched[table.parameter].spread.counts
            # Those who have the fewest tiles take the first tokens, often the most frequent ones.
            again, turn = int(part.accumulate), first % grid
            found.append([number[f"gradient {table.parameter}"], tokens, norms, again, turn])
            norms = norms + tokens
        if part.update:
            found += [exchange(), [number[isa.NORM], summed, chunks], exchange()]
            for begin, count, rate in self._rates:
                found.append([number[batches.optimizer], begin, count, norms, isa.float_bits(rate)])
            if self._followed:
                found.append([number[isa.FOLLOW], self._trained, self._followed, norms, chunks])
            for table in self.plan.table_gradients:
                tokens = touched[table.parameter].spread.counts
                rate = isa.float_bits(self.plan.program.parameter(table.parameter).rate)
                found.append([number[f"{batches.optimizer} {table.parameter}"], tokens, norms, rate])
        return found
