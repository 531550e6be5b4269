"""What a program's data look like, for people.

In: a program, or a dataset. Out: text: the declarations with example lines that read back, or a
summary of what was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dnc.ir.forest import target_of
from dnc.ir.program import Program
from dnc.ir.structure import CHILD, LIST, OPTIONAL, TOKEN, VECTOR, Field
from dnc.runtime.data.examples import examples
from dnc.runtime.data.layout import handed_in, in_data
from dnc.runtime.data.reader import Dataset


def describe(program: Program) -> str:
    """The declarations of the data, and one sample in both forms."""
    nested, flat = examples(program)
    lines = ["Data: one sample a line, as JSON."]
    for struct in map(in_data, program.structs):
        arms = " | ".join(f"{arm.name}({', '.join(map(_declared, arm.fields))})" for arm in struct.arms)
        lines.append(f"  {struct.name}{' (root)' if struct.name == program.root else ''} = {arms}")
    pulled = [f"{each.name}.{name}" for each in program.structs for name in sorted(handed_in(each))]
    if pulled:
        lines.append(f"Handed in with every batch, and not in the data: {', '.join(pulled)}")
    lines += ["Nested form:", f"  {nested}", "Flat form (any depth, shared vertices; children are indices):"]
    lines.append(f"  {flat}")
    return "\n".join(lines)


def _declared(field: Field) -> str:
    """A field as the program declares it."""
    if field.kind == VECTOR and not field.width:
        kind = "float"
    elif field.kind == VECTOR:
        kind = f"vector<{field.width}>"
    elif field.dimension is not None:
        name, size = field.dimension.name, field.dimension.size
        bound = name if size is None or name == str(size) else f"{name} = {size}"
        kind = f"{field.kind}<{bound}>{'?' * field.may_miss}"
    else:
        kind = {CHILD: "{}", OPTIONAL: "{}?", LIST: "[{}]"}[field.kind].format(field.target)
    return f"{field.name}: {kind}"


def summarize(dataset: Dataset) -> str:
    """Samples, vertices per arm, depth, vocabulary sizes: a line each."""
    forest = dataset.forest
    lines = [f"{dataset.path}: {dataset.samples:,} samples"]
    for name, struct in forest.structs.items():
        counts = np.bincount(forest.tables[name].arm, minlength=len(struct.arms))
        arms = ", ".join(f"{arm.name} {count:,}" for arm, count in zip(struct.arms, counts, strict=True))
        lines.append(f"  {name}: {counts.sum():,} vertices" + (f" ({arms})" if len(struct.arms) > 1 else ""))
    for field, missing, count in _missing(dataset):
        lines.append(f"  {field}: {missing:,} of {count:,} are missing")
    for name, levels in depths(dataset).items():
        lines.append(f"  depth of {name}: mean {levels.mean():.1f}, at most {levels.max()}")
    for name, vocabulary in dataset.vocabularies.items():
        what = (
            "numbers"
            if vocabulary.words is None
            else "words, <unk> included"
            if vocabulary.unknown
            else "labels"
        )
        tokens, unknown = _tokens(dataset, name)
        rare = f"; {unknown:,} of {tokens:,} tokens are <unk>" if unknown and vocabulary.words else ""
        lines.append(f"  {name}: {vocabulary.size:,} {what}{rare}")
    return "\n".join(lines)


def missing_everywhere(dataset: Dataset) -> list[str]:
    """Of every token and class that no vertex has where it may be, what that comes to."""
    return [
        f"{field} is missing at all {count:,} vertices of {dataset.path}"
        for field, missing, count in _missing(dataset)
        if missing == count > 0
    ]


def _missing(dataset: Dataset) -> Iterator[tuple[str, int, int]]:
    """Every token and class that may be missing, at how many vertices it is, and of how many."""
    for name, struct in dataset.forest.structs.items():
        table = dataset.forest.tables[name]
        for field in struct.fields.values():
            if field.may_miss:
                arms = [at for at, arm in enumerate(struct.arms) if arm.field(field.name) is not None]
                found = table.data[field.name][np.isin(table.arm, arms)]
                yield f"{name}.{field.name}", int(np.count_nonzero(np.less(found, 0))), len(found)


def _tokens(dataset: Dataset, dimension: str) -> tuple[int, int]:
    """How many tokens of a dimension there are, and how many of them are unknown words."""
    tokens, unknown, number = 0, 0, dataset.vocabularies[dimension].unknown_number
    for name, struct in dataset.forest.structs.items():
        for arm, each in enumerate(struct.arms):
            for field in each.fields:
                if field.kind == TOKEN and field.dimension is not None and field.dimension.name == dimension:
                    table = dataset.forest.tables[name]
                    found = table.data[field.name][table.arm == arm]
                    tokens += len(found)
                    unknown += int(np.count_nonzero(found == number))
    return tokens, unknown


def depths(dataset: Dataset) -> dict[str, Any]:
    """Per self-recursive struct the longest chain of its vertices in each sample, in edges."""
    result = {}
    for name, struct in dataset.forest.structs.items():
        table = dataset.forest.tables[name]
        links = [field for field in table.children if target_of(struct, field) == name]
        lists = [field for field in table.lists if target_of(struct, field) == name]
        if not (links or lists) or not len(table):
            continue
        below = [table.children[field] for field in links]
        owner = [np.arange(len(table))] * len(below)
        for field in lists:
            begin, entries = table.lists[field]
            owner.append(np.repeat(np.arange(len(table)), np.diff(begin)))
            below.append(entries)
        parents, children = np.concatenate(owner), np.concatenate(below)
        kept = children >= 0
        result[name] = _heights(parents[kept], children[kept], table.begin, len(table))
    return result


def _heights(parents: Any, children: Any, begin: Any, rows: int) -> Any:
    """The height of each sample's highest vertex; children stand before their parents."""
    height = [0] * rows
    order = np.argsort(parents, kind="stable")
    for parent, child in zip(parents[order].tolist(), children[order].tolist(), strict=True):
        if height[child] >= height[parent]:
            height[parent] = height[child] + 1
    filled = begin[:-1] < begin[1:]
    return np.maximum.reduceat(np.asarray(height), begin[:-1][filled])
