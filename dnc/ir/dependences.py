"""Which row of a stage waits for which: the wavefronts of a program on a forest.

In: a program and a forest. Out: arrays of nodes that are ready together; a node is one row of one
stage. Guaranteed: a node comes after every node whose state, saved value or slot it reads, and
comes once; a structure with a cycle is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import fail
from dnc.ir.forest import Forest
from dnc.ir.program import GradientInput, Program, SavedInput, SlotOutput, StateInput, StateOutput

Ints = NDArray[np.int32]
Nodes = NDArray[np.int64]


class Dependences:
    """nodes[stage]: the node of every row of the stage; stages are numbered one after another."""

    def __init__(self, program: Program, forest: Forest) -> None:
        self.program = program
        self.forest = forest
        self.rows: dict[str, Ints] = {}
        self.nodes: dict[str, Nodes] = {}
        self.total = 0
        for stage in program.stages:
            rows = forest.vertices(program.space(stage.space))
            self.rows[stage.name] = rows
            self.nodes[stage.name] = np.arange(self.total, self.total + len(rows), dtype=np.int64)
            self.total += len(rows)

    def _reached(self, stage: str, path: tuple[str, ...], is_list: bool) -> tuple[Ints, Nodes]:
        """The vertices at `path` seen from the rows of a stage, and the node that sees each."""
        struct = self.program.space(self.program.stage(stage).space).struct
        if is_list:
            begin, entries = self.forest.resolve_list(struct, path, self.rows[stage])
            return entries, np.repeat(self.nodes[stage], np.diff(begin))
        vertices = self.forest.resolve(struct, path, self.rows[stage])
        return vertices[vertices >= 0], self.nodes[stage][vertices >= 0]

    def _by_vertex(self, stage: str) -> Nodes:
        """The stage's node for every row of the struct's table, -1 where it does not run."""
        table = self.forest.tables[self.program.space(self.program.stage(stage).space).struct]
        found = np.full(len(table), -1, np.int64)
        found[self.rows[stage]] = self.nodes[stage]
        return found

    def edges(self) -> Iterator[tuple[Nodes, Nodes]]:
        """Pairs of arrays: producing nodes and the nodes that wait for them (-1: none)."""
        producers: dict[tuple[str, str], list[str]] = {}
        writers: dict[tuple[str, str], list[tuple[Ints, Nodes]]] = {}
        for stage in self.program.stages:
            for output in stage.outputs:
                if isinstance(output, StateOutput):
                    producers.setdefault((str(stage.function), output.component), []).append(stage.name)
                elif isinstance(output, SlotOutput):
                    written = self._reached(stage.name, output.path, output.is_list)
                    writers.setdefault((output.function, output.component), []).append(written)
        for stage in self.program.stages:
            for source in stage.inputs:
                if isinstance(source, SavedInput):
                    yield self.nodes[source.stage], self.nodes[stage.name]
                elif isinstance(source, StateInput):
                    vertices, users = self._reached(stage.name, source.path, source.is_list)
                    for producer in producers.get((source.function, source.component), ()):
                        yield self._by_vertex(producer)[vertices], users
                elif isinstance(source, GradientInput):
                    own = self._by_vertex(stage.name)
                    for vertices, nodes in writers.get((source.function, source.component), ()):
                        yield nodes, own[vertices]

    def wavefronts(self) -> Iterator[Nodes]:
        """Arrays of nodes that are ready together, until all have come."""
        pairs: list[tuple[Any, Any]] = [*self.edges(), (np.zeros(0, np.int64), np.zeros(0, np.int64))]
        before = np.concatenate([producing for producing, _ in pairs])
        after = np.concatenate([waiting for _, waiting in pairs])
        real = (before >= 0) & (after >= 0)
        order = np.argsort(before[real], kind="stable")
        before, after = before[real][order], after[real][order]
        begin = np.searchsorted(before, np.arange(self.total + 1))
        waiting = np.bincount(after, minlength=self.total)
        ready = np.flatnonzero(waiting == 0)
        done = 0
        while len(ready):
            done += len(ready)
            yield ready
            counts = begin[ready + 1] - begin[ready]
            first = np.repeat(begin[ready] - (np.cumsum(counts) - counts), counts)
            reached, times = np.unique(after[first + np.arange(len(first))], return_counts=True)
            waiting[reached] -= times
            ready = reached[waiting[reached] == 0]
        if done < self.total:
            stuck = [name for name, nodes in self.nodes.items() if (waiting[nodes] > 0).any()]
            raise fail(
                f"{self.total - done} of {self.total} rows wait for each other: the structure has a cycle",
                f"in the stages {', '.join(stuck)}",
            )
