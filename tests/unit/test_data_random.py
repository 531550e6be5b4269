"""Random data: both forms mean the same; damaged lines are read or refused, never worse."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dnc.diagnostics import DiagnosticError
from dnc.ir.forest import Forest
from dnc.ir.program import Program
from dnc.ir.structure import CHILD, LIST, OPTIONAL, TOKEN, VECTOR, VERTEX_KINDS
from dnc.runtime.data import read, read_samples
from tests.support.data_programs import ALL_PROGRAMS, contents, write

PROGRAMS = st.sampled_from(sorted(ALL_PROGRAMS))
SEEDS = st.integers(0, 2**32 - 1)


def grow(program: Program, name: str, rng: random.Random, budget: int) -> dict[str, Any]:
    """A random nested object of a struct; every object names its arm."""
    arms = program.struct(name).arms
    arm = rng.choice(arms) if budget > 0 else arms[0]
    result: dict[str, Any] = {"arm": arm.name}
    for field in arm.fields:
        below = budget // 2 - 1
        if field.kind == CHILD or (field.kind == OPTIONAL and budget > 0 and rng.random() < 0.5):
            result[field.name] = grow(program, str(field.target), rng, below)
        elif field.kind == LIST:
            count = rng.randint(0, 3) if budget > 0 else 0
            result[field.name] = [grow(program, str(field.target), rng, below) for _ in range(count)]
        elif field.kind == VECTOR:
            numbers = [rng.choice([rng.randint(-3, 3), rng.random()]) for _ in range(max(field.width, 1))]
            result[field.name] = numbers if field.width else numbers[0]
        elif field.kind != OPTIONAL:
            result[field.name] = rng.choice("abcdé\u00a0") if field.kind == TOKEN else rng.randint(0, 4)
    return result


def flatten(program: Program, sample: dict[str, Any], rng: random.Random | None) -> dict[str, Any]:
    """A nested object in flat form: children first, or with `rng` in random order."""
    rows: dict[str, list[dict[str, Any]]] = {struct.name: [] for struct in program.structs}

    def visit(name: str, value: dict[str, Any]) -> int:
        arm = program.struct(name).arm(value["arm"])
        row = {"arm": arm.name}
        for field in arm.fields:
            held = value.get(field.name)
            if field.kind in VERTEX_KINDS and held is not None:
                target = str(field.target)
                held = [visit(target, each) for each in held] if field.kind == LIST else visit(target, held)
            row[field.name] = held
        rows[name].append(row)
        return len(rows[name]) - 1

    root = visit(program.root, sample)
    place = {name: list(range(len(each))) for name, each in rows.items()}
    if rng is not None:
        for each in place.values():
            rng.shuffle(each)
    flat: dict[str, Any] = {}
    for struct in program.structs:
        fields = {field.name: field for arm in struct.arms for field in arm.fields}
        table: dict[str, list[Any]] = {key: [None] * len(rows[struct.name]) for key in ("arm", *fields)}
        for index, row in enumerate(rows[struct.name]):
            for key, value in row.items():
                if key in fields and fields[key].kind in VERTEX_KINDS and value is not None:
                    moved = place[str(fields[key].target)]
                    value = [moved[each] for each in value] if isinstance(value, list) else moved[value]
                table[key][place[struct.name][index]] = value
        flat[struct.name] = table
    return flat | {"root": place[program.root][root]}


def unfold(forest: Forest) -> list[Any]:
    """Every sample as nested tuples."""

    def visit(name: str, row: int) -> Any:
        table, struct = forest.tables[name], forest.structs[name]
        arm = struct.arms[table.arm[row]]
        parts: list[Any] = [arm.name]
        for field in arm.fields:
            if field.kind == LIST:
                begin, entries = table.lists[field.name]
                held = entries[begin[row] : begin[row + 1]]
                parts.append([visit(str(field.target), int(each)) for each in held])
            elif field.kind in VERTEX_KINDS:
                child = int(table.children[field.name][row])
                parts.append(None if child < 0 else visit(str(field.target), child))
                assert field.target != name or child < row
            else:
                parts.append(table.data[field.name][row].tolist())
        return parts

    return [visit(forest.root, int(root)) for root in forest.roots]


@settings(max_examples=150, deadline=None)
@given(PROGRAMS, SEEDS)
def test_both_forms_mean_the_same(name: str, seed: int) -> None:
    program, rng = ALL_PROGRAMS[name], random.Random(seed)
    nested = [grow(program, program.root, rng, rng.randint(0, 40)) for _ in range(rng.randint(1, 4))]
    flat = [flatten(program, sample, None) for sample in nested]
    mixed = [rng.choice(pair) for pair in zip(nested, flat, strict=True)]
    shuffled = [flatten(program, sample, rng) for sample in nested]
    expected = read_samples(nested, program)
    for other in (flat, mixed):
        assert contents(read_samples(other, program).forest) == contents(expected.forest)
    assert unfold(read_samples(shuffled, program).forest) == unfold(expected.forest)


@settings(max_examples=300, deadline=None)
@given(PROGRAMS, SEEDS, st.booleans())
@example("twins", 6713, False)  # an arm with a line break in its name
def test_damaged_lines_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, flat: bool
) -> None:
    program, rng = ALL_PROGRAMS[name], random.Random(seed)
    sample = grow(program, program.root, rng, 20)
    line = bytearray(msgspec.json.encode(flatten(program, sample, rng) if flat else sample))
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(line))
        edit = rng.randrange(4)
        if edit == 0:
            line[at] = rng.choice(b'0123456789{}[]",:-.eEnNaIt \\\n\x00\xff')
        elif edit == 1:
            del line[at : at + rng.randint(1, 4)]
        elif edit == 2:
            line[at:at] = rng.choice([b"null", b"1e99", b"99999999999", b"[]", b"{}", b'"', b"-1", b"true"])
        else:
            line[at : at + 1] = line[at : at + 1] * 2
        if not line:
            break
    path = write(tmp_path_factory.getbasetemp() / "damaged.jsonl", bytes(line))
    try:
        assert read(path, program).samples >= 1
    except DiagnosticError as error:
        assert all(text.startswith(str(path)) for text in str(error).split("\n"))
