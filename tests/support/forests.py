"""Random structures for any program: the forests that executors are compared on."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnc.ir.forest import Forest, VertexTable, neighbours
from dnc.ir.program import Program
from dnc.ir.structure import (
    CHILD,
    CLASS,
    LIST,
    NUMBERED_KINDS,
    OPTIONAL,
    OUTSIDE,
    VECTOR,
    Arm,
    Struct,
)

MISSING = 0.3
"""The part of tokens and classes that are absent, of those that may be."""
SHAPES = ("single", "chain", "comb", "complete", "random")


class _Sample:
    """Grows one sample; vertices are appended to the columns of their struct."""

    def __init__(self, grower: ForestGrower, budget: int, shape: str, sharing: float) -> None:
        self.grower, self.shape, self.sharing = grower, shape, sharing
        self.budget = budget
        self.made: dict[str, list[int]] = {name: [] for name in grower.structs}

    def grow(self, struct: str, budget: int) -> int:
        made = self.made[struct]
        if made and budget <= 1 and self.grower.rng.random() < self.sharing:
            return int(self.grower.rng.choice(made))
        arm = self._arm(self.grower.structs[struct], budget)
        record: dict[str, Any] = {"arm": arm.name}
        links = [field for field in arm.fields if field.kind in (CHILD, OPTIONAL, LIST)]
        shares = self._split(max(budget - 1, 0), len(links))
        for field, share in zip(links, shares, strict=True):
            assert field.target is not None
            if field.kind == CHILD:
                record[field.name] = self.grow(field.target, share)
            elif field.kind == OPTIONAL:
                record[field.name] = self.grow(field.target, share) if share > 0 else -1
            else:
                least = 0 if self.grower.leads(field.target, struct) else 1
                count = int(self.grower.rng.integers(least, max(share, least) + 1)) if share else least
                if least:
                    count = max(share, 1)
                parts = self._split(share, count)
                record[field.name] = [self.grow(field.target, part) for part in parts]
        return self._add(struct, record)

    def _add(self, struct: str, record: dict[str, Any]) -> int:
        column = self.grower.rows[struct]
        column.append(record)
        self.made[struct].append(len(column) - 1)
        return len(column) - 1

    def _arm(self, struct: Struct, budget: int) -> Arm:
        def grows(arm: Arm) -> bool:
            return any(field.kind == CHILD and field.target == struct.name for field in arm.fields)

        small = [arm for arm in struct.arms if not grows(arm)]
        large = [arm for arm in struct.arms if grows(arm)]
        pool = large if large and budget > 1 else small or large
        return pool[int(self.grower.rng.integers(len(pool)))]

    def _split(self, budget: int, parts: int) -> list[int]:
        if parts == 0:
            return []
        if self.shape == "chain" or self.shape == "comb":
            big = 0 if self.shape == "chain" else int(self.grower.rng.integers(parts))
            if budget < parts:
                return [1 if i < budget else 0 for i in range(parts)]
            return [budget - (parts - 1) if i == big else 1 for i in range(parts)]
        if self.shape == "complete":
            return [budget // parts] * parts
        cuts = np.sort(self.grower.rng.integers(0, budget + 1, parts - 1))
        return np.diff(np.concatenate([[0], cuts, [budget]])).astype(int).tolist()


class ForestGrower:
    """Grows forests for `program`; the same seed gives the same forest."""

    def __init__(self, program: Program, seed: int, vocabulary: int = 11) -> None:
        self.program, self.vocabulary = program, vocabulary
        self.structs = {struct.name: struct for struct in program.structs}
        self.rng = np.random.default_rng(seed)
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in self.structs}

    def leads(self, start: str, end: str) -> bool:
        """Whether vertices of `start` may have some of `end` below them: then lists may be empty."""
        found, todo = {start}, [start]
        while todo:
            for arm in self.structs[todo.pop()].arms:
                new = {field.target for field in arm.fields if field.target is not None} - found
                found |= new
                todo += new
        return end in found

    def grow(
        self,
        samples: int,
        size: int,
        shape: str = "random",
        sharing: float = 0.0,
        unlabelled: float = 0.0,
    ) -> Forest:
        """`samples` samples of about `size` vertices each; a part of the classes is missing."""
        begins: dict[str, list[int]] = {name: [0] for name in self.structs}
        roots = []
        for _ in range(samples):
            budget = 1 if shape == "single" else int(self.rng.integers(1, size + 1))
            roots.append(_Sample(self, budget, shape, sharing).grow(self.program.root, budget))
            for name, rows in self.rows.items():
                begins[name].append(len(rows))
        forest = self._forest(begins, roots)
        if unlabelled:
            for name, struct in self.structs.items():
                for field in (field for arm in struct.arms for field in arm.fields if field.kind == CLASS):
                    column = forest.tables[name].data[field.name]
                    column[self.rng.random(len(column)) < unlabelled] = -1
        return forest

    def _forest(self, begins: dict[str, list[int]], roots: list[int]) -> Forest:
        children: dict[str, dict[str, Any]] = {}
        lists: dict[str, dict[str, Any]] = {}
        data: dict[str, dict[str, Any]] = {}
        for name, struct in self.structs.items():
            rows = self.rows[name]
            children[name], lists[name], data[name] = {}, {}, {}
            fields = {field.name: field for arm in struct.arms for field in arm.fields}
            for field in fields.values():
                if field.kind in (CHILD, OPTIONAL):
                    children[name][field.name] = np.array([row.get(field.name, -1) for row in rows], np.int32)
                elif field.kind == LIST:
                    found = [row.get(field.name, []) for row in rows]
                    begin = np.zeros(len(rows) + 1, np.int32)
                    np.cumsum([len(entry) for entry in found], out=begin[1:])
                    entries = np.array([item for entry in found for item in entry], np.int32)
                    lists[name][field.name] = (begin, entries)
                elif field.kind in NUMBERED_KINDS:
                    assert field.dimension is not None
                    size = field.dimension.size or self.vocabulary
                    found = self.rng.integers(0, size, len(rows)).astype(np.int32)
                    if field.may_miss:
                        found[self.rng.random(len(rows)) < MISSING] = -1
                    data[name][field.name] = found
                elif field.kind in (VECTOR, OUTSIDE):
                    width = max(field.width, 1)
                    data[name][field.name] = self.rng.normal(size=(len(rows), width)).astype(np.float32)
        sizes = {name: len(rows) for name, rows in self.rows.items()}
        links = neighbours(self.structs, children, lists, sizes)
        tables = {}
        for name, struct in self.structs.items():
            arms = [arm.name for arm in struct.arms]
            tables[name] = VertexTable(
                arm=np.array([arms.index(row["arm"]) for row in self.rows[name]], np.int8),
                begin=np.array(begins[name], np.int32),
                data=data[name],
                children=children[name],
                lists=lists[name],
                previous=links[name][0],
                next=links[name][1],
                parent=links[name][2],
            )
        return Forest(self.structs, self.program.root, tables, np.array(roots, np.int32))
