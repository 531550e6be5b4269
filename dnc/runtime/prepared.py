"""Prepared data: what the encoder needs to know of a data set, worked out once.

In: a plan and the forest of all samples. Out: for every space its vertices, sample by sample and
level by level, and for every list where its entries point. Guaranteed: encoding a batch touches
only flat arrays from here; nothing is recomputed from the structures.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.forest import Forest, Ints
from dnc.ir.plan import (
    ChildrenList,
    NoiseList,
    OperandList,
    Plan,
    ShareList,
    SlotList,
)
from dnc.ir.program import FORWARD, LEVEL, Program, Space, Stage, StateInput
from dnc.ir.structure import Path

Indices = NDArray[np.intp]
FEW = 1024  # nodes and edges of a graph that Python walks through sooner than NumPy


@attrs.frozen(eq=False)
class SpaceRows:
    """The rows of a space over the whole data set.

    vertex: row of the struct's table. level: wavefront (0 outside the recursion). begin:
    [samples + 1], the rows of each sample, ordered by level. key: the numbers that a row selects from
    stacks, joined to one, the last one fastest; sizes: how many there are of each.
    """

    vertex: Indices
    level: Ints
    begin: Indices
    key: Indices
    sizes: tuple[int, ...]


@attrs.frozen(eq=False)
class Prepared:
    """Spaces by name, targets by (space, path), ragged targets by (space, path).

    What is used as an index is of the machine's index type: NumPy converts any other at every use.
    """

    plan: Plan
    forest: Forest
    spaces: dict[str, SpaceRows]
    targets: dict[tuple[str, Path], Indices]
    ragged: dict[tuple[str, Path], tuple[Indices, Indices]]
    weight: Ints

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return self.forest.samples


def prepare(plan: Plan, forest: Forest) -> Prepared:
    """Works out levels, orders and targets; time is linear in vertices plus levels."""
    program = plan.program
    levels = stage_levels(program, forest)
    spaces: dict[str, SpaceRows] = {}
    vertices: dict[str, Ints] = {}
    weight = np.zeros(forest.samples, np.int64)
    for space in program.spaces:
        vertex, level = levels[space.name]
        begin = forest.tables[space.struct].begin
        sample = np.searchsorted(begin, vertex, side="right").astype(np.int64) - 1
        order = np.argsort(sample * (int(level.max(initial=0)) + 1) + level, kind="stable")
        counts = np.bincount(sample, minlength=forest.samples)
        rows = np.zeros(forest.samples + 1, np.int32)
        np.cumsum(counts, out=rows[1:])
        vertices[space.name] = vertex[order]
        key, sizes = _keys(program, forest, space, vertex[order])
        spaces[space.name] = SpaceRows(
            vertex[order].astype(np.intp), level[order], rows.astype(np.intp), key, sizes
        )
        weight += counts
    targets: dict[tuple[str, Path], Indices] = {}
    ragged: dict[tuple[str, Path], tuple[Indices, Indices]] = {}

    def need(space: str, path: Path, is_list: bool) -> None:
        struct = program.space(space).struct
        if is_list and (space, path) not in ragged:
            begin, target = forest.resolve_list(struct, path, vertices[space])
            ragged[space, path] = begin.astype(np.intp), target.astype(np.intp)
        elif not is_list and (space, path) not in targets:
            targets[space, path] = forest.resolve(struct, path, vertices[space]).astype(np.intp)

    for item in plan.lists:
        if isinstance(item, SlotList):
            for source in item.sources:
                need(source.space, source.path, source.is_list)
        elif not isinstance(item, NoiseList | ShareList | OperandList):
            need(item.space, item.path, isinstance(item, ChildrenList))
    for table in plan.table_gradients:
        for source in table.sources:
            need(source.space, source.path, source.is_list)
    return Prepared(plan, forest, spaces, targets, ragged, weight.astype(np.int32))


def _keys(program: Program, forest: Forest, space: Space, vertex: Ints) -> tuple[Indices, tuple[int, ...]]:
    """What rows select from stacks, as one number, and of how many each part is."""
    key, sizes = np.zeros(len(vertex), np.intp), []
    for name in program.selectors(space.name):
        dimension = program.struct(space.struct).field(name).dimension
        assert dimension is not None and dimension.size is not None
        sizes.append(dimension.size)
        numbers = forest.tables[space.struct].data[name][vertex].astype(np.intp)
        key = key * dimension.size + numbers
    return key, tuple(sizes)


def stage_levels(program: Program, forest: Forest) -> dict[str, tuple[Ints, Ints]]:
    """Vertices and levels of every space: the longest path through LEVEL stages of its stratum, from 0."""
    vertices = {space.name: forest.vertices(space) for space in program.spaces}
    leveled = [s for s in program.stages if s.direction == FORWARD and s.placement == LEVEL]
    offset: dict[str, int] = {}
    total = 0
    for stage in leveled:
        if stage.space not in offset:
            offset[stage.space] = total
            total += len(vertices[stage.space])
    owners: dict[tuple[str, int], list[Stage]] = {}
    for stage in leveled:
        if stage.function is not None:
            owners.setdefault((stage.function, stage.stratum), []).append(stage)
    number = {
        calls: _numbers(forest, [program.space(s.space) for s in stages], vertices, offset)
        for calls, stages in owners.items()
    }
    consumers, producers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for stage in leveled:
        struct = program.space(stage.space).struct
        own = offset[stage.space] + np.arange(len(vertices[stage.space]), dtype=np.int64)
        for bound in {bound for bound in stage.inputs if isinstance(bound, StateInput)}:
            if (numbers := number.get((bound.function, stage.stratum))) is None:
                continue  # known before the stratum begins
            if bound.is_list:
                begin, target = forest.resolve_list(struct, bound.path, vertices[stage.space])
                user = np.repeat(own, np.diff(begin))
            else:
                target, user = forest.resolve(struct, bound.path, vertices[stage.space]), own
            found = numbers[target]  # -1 picks the last entry, which is -1
            consumers.append(user[found >= 0])
            producers.append(found[found >= 0])
    level = longest_paths(total, np.concatenate(producers), np.concatenate(consumers))
    return {
        name: (
            rows,
            level[offset[name] :][: len(rows)] if name in offset else np.zeros(len(rows), np.int32),
        )
        for name, rows in vertices.items()
    }


def _numbers(
    forest: Forest, spaces: list[Space], vertices: dict[str, Ints], offset: dict[str, int]
) -> np.ndarray:
    """Node number of a function's call by table row; -1 where it is no call of these spaces."""
    found = np.full(len(forest.tables[spaces[0].struct]) + 1, -1, np.int64)
    for space in spaces:
        rows = vertices[space.name]
        found[rows] = offset[space.name] + np.arange(len(rows))
    return found


def longest_paths(nodes: int, sources: np.ndarray, targets: np.ndarray) -> Ints:
    """The number of edges on the longest path to every node of an acyclic graph."""
    if nodes + len(sources) <= FEW:
        return _few_paths(nodes, sources.tolist(), targets.tolist())
    level = np.zeros(nodes, np.int32)
    order = np.argsort(sources, kind="stable")
    begin = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(sources, minlength=nodes), out=begin[1:])
    heads = targets[order]
    waiting = np.bincount(targets, minlength=nodes)
    frontier = np.flatnonzero(waiting == 0)
    depth = 0
    while len(frontier):
        level[frontier] = depth
        counts = begin[frontier + 1] - begin[frontier]
        total = int(counts.sum())
        if total == 0:
            break
        starts = np.repeat(begin[frontier] - np.cumsum(counts) + counts, counts)
        reached = heads[starts + np.arange(total)]
        np.subtract.at(waiting, reached, 1)
        frontier = np.unique(reached[waiting[reached] == 0])
        depth += 1
    return level


def _few_paths(nodes: int, sources: list[int], targets: list[int]) -> Ints:
    """The same for a small graph, where a look at every edge takes less time than arrays for every level."""
    heads: list[list[int]] = [[] for _ in range(nodes)]
    waiting, depth, level = [0] * nodes, [0] * nodes, np.zeros(nodes, np.int32)
    for source, target in zip(sources, targets, strict=True):
        heads[source].append(target)
        waiting[target] += 1
    ready = [node for node in range(nodes) if not waiting[node]]
    for node in ready:  # grows meanwhile
        below = depth[node] + 1
        for target in heads[node]:
            waiting[target] -= 1
            depth[target] = max(depth[target], below)
            if not waiting[target]:
                ready.append(target)
    level[ready] = [depth[node] for node in ready]
    return level
