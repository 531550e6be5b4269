"""Example lines of a program's data, made from its structs alone.

In: a program. Out: one small sample in nested and in flat form. Guaranteed: both read back as the
same sample, if the structs have a finite instance at all.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dnc.diagnostics import fail
from dnc.ir.program import Program
from dnc.ir.structure import ARM, CHILD, LIST, ROOT, TOKEN, VECTOR, VERTEX_KINDS, Arm, Field
from dnc.runtime.data.layout import Layout, field_names
from dnc.runtime.data.problems import Problem
from dnc.runtime.data.usage import layout_of, reachable

_WORDS = ("a", "good", "film", "with", "some", "long", "words")


def examples(program: Program) -> tuple[str, str]:
    """One sample as a line in nested form and as a line in flat form."""
    sample = _Example(layout_of(program)).sample()
    flat = to_flat(sample, layout_of(program))
    return _spaced(sample), _spaced(flat)


def _spaced(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


class _Example:
    """Makes a small sample: every arm once, of those of a struct the one with most children first; else
    the shallowest arms."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.words = 0
        self.made: set[tuple[str, str]] = set()  # structs with arms
        self.depth: dict[str, int] = {}
        kinds: dict[str, set[str]] = {}
        for struct in layout.structs.values():
            for field in (field for arm in struct.arms for field in arm.fields):
                if field.dimension is not None:
                    kinds.setdefault(field.dimension.name, set()).add(field.kind)
        # Tokens that share a dimension with classes: numbers, as those are.
        self.numbered = {name for name, found in kinds.items() if len(found) > 1}
        before: dict[str, int] | None = None
        while before != self.depth:  # a struct's depth is that of its shallowest arm
            before = dict(self.depth)
            for name, struct in layout.structs.items():
                depths = [each for arm in struct.arms if (each := self._arm_depth(name, arm)) is not None]
                if depths:
                    self.depth[name] = min(depths)

    def _recursive(self, struct: str, field: Field) -> bool:
        return struct == field.target or struct in reachable(self.layout.structs, str(field.target))

    def _arm_depth(self, struct: str, arm: Arm) -> int | None:
        """1 + the depth of the deepest child that there must be; None while that is unknown."""
        depth = 1
        for field in arm.fields:
            if field.kind == CHILD or (field.kind == LIST and not self._recursive(struct, field)):
                below = self.depth.get(str(field.target))
                if below is None:
                    return None
                depth = max(depth, 1 + below)
        return depth

    def sample(self) -> dict[str, Any]:
        """The sample in nested form."""
        root = self.layout.root
        if root not in self.depth:
            raise fail(f"struct {root} has no finite instance: every arm needs another {root}")
        return self._another(root)

    def _instance(self, struct: str, arm: Arm, first: bool) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for field in arm.fields:
            if field.kind not in VERTEX_KINDS:
                result[field.name] = self._value(field)
                continue
            recursive = self._recursive(struct, field)
            if field.kind == LIST:
                count = 2 if first or not recursive else 0
                result[field.name] = [self._another(str(field.target)) for _ in range(count)]
            elif (field.kind == CHILD or first) and str(field.target) in self.depth:
                result[field.name] = self._another(str(field.target))
        if not self._recognised(struct, arm, frozenset(result)):
            result[ARM] = arm.name
        return result

    def _recognised(self, name: str, arm: Arm, keys: frozenset[str]) -> bool:
        """Whether an object's keys alone say its arm."""
        struct = self.layout.structs[name]
        try:
            return struct.arms[self.layout.choose(struct, keys, None)].name == arm.name
        except Problem:
            return False

    def _another(self, struct: str) -> dict[str, Any]:
        """An instance of an arm that was not made yet; of the shallowest where all were."""
        depths = [(arm, self._arm_depth(struct, arm)) for arm in self.layout.structs[struct].arms]
        new = [arm for arm, depth in depths if depth is not None and (struct, arm.name) not in self.made]
        if not new:
            return self._instance(struct, next(a for a, d in depths if d == self.depth[struct]), False)
        arm = max(new, key=lambda arm: sum(field.kind in VERTEX_KINDS for field in arm.fields))
        self.made.add((struct, arm.name))
        return self._instance(struct, arm, True)

    def _value(self, field: Field) -> Any:
        if field.kind == VECTOR:
            return [0.5] * field.width if field.width else 0.5
        size = field.dimension.size if field.dimension is not None else None
        is_word = field.kind == TOKEN and (
            field.dimension is None or field.dimension.name not in self.numbered
        )
        self.words += is_word
        if is_word:
            return _WORDS[(self.words - 1) % len(_WORDS)]
        return 1 if size is None or size > 1 else 0


def to_flat(sample: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """A nested sample in flat form, children before parents, all columns of a struct present."""
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in layout.structs}
    place: dict[int, int] = {}
    stack: list[tuple[dict[str, Any], str, bool]] = [(sample, layout.root, False)]
    while stack:
        value, name, finished = stack.pop()
        struct = layout.structs[name]
        keys = frozenset(key for key, each in value.items() if each is not None) - {ARM}
        arm = struct.arms[layout.choose(struct, keys, value.get(ARM))]
        links = [
            field for field in arm.fields if field.kind in VERTEX_KINDS and value.get(field.name) is not None
        ]
        if not finished:
            stack.append((value, name, True))
            for field in reversed(links):
                below = value[field.name] if field.kind == LIST else [value[field.name]]
                stack.extend((each, str(field.target), False) for each in reversed(below))
            continue
        row: dict[str, Any] = {ARM: arm.name} | {key: value[key] for key in value if key in field_names(arm)}
        for field in links:
            below = value[field.name]
            row[field.name] = [place[id(each)] for each in below] if field.kind == LIST else place[id(below)]
        place[id(value)] = len(tables[name])
        tables[name].append(row)
    flat: dict[str, Any] = {}
    for name, rows in tables.items():
        struct = layout.structs[name]
        fields = struct.fields
        columns = [ARM, *fields] if len(struct.arms) > 1 or not fields else list(fields)
        if rows:
            flat[name] = {column: [row.get(column) for row in rows] for column in columns}
    return flat | {ROOT: place[id(sample)]}
