"""Makes dags.jsonl: random arithmetic over shared vertices, in flat form, for examples/dag.dn.

A source holds a number in -1..1 (x[0]); a join applies the operator marked in x[1:6] to the values
of its children: mean, half difference, largest, smallest, or negation of the only child. The target
of every vertex is its value. In: nothing. Out: always the same bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEED, COUNT, WIDTH = 93, 160, 32
OPERATORS = ("mean", "half difference", "largest", "smallest", "negation")


def apply(operator: int, a: float, b: float) -> float:
    """The value of a join."""
    return ((a + b) / 2, (a - b) / 2, max(a, b), min(a, b), -a)[operator]


def sample(rng: random.Random) -> Any:
    """A DAG: sources, then joins of what is there; every vertex is used, the last one is the root."""
    columns: dict[str, list[Any]] = {"arm": [], "a": [], "b": [], "x": [], "target": []}
    unused: list[int] = []

    def add(arm: str, a: int | None, b: int | None, x: dict[int, float], target: float) -> None:
        row = [x.get(position, 0) for position in range(WIDTH)]
        for name, value in (("arm", arm), ("a", a), ("b", b), ("x", row), ("target", round(target, 3))):
            columns[name].append(value)
        unused.append(len(columns["arm"]) - 1)

    def take() -> int:
        return unused.pop(rng.randrange(len(unused)))

    for _ in range(rng.randint(2, 4)):
        value = round(rng.uniform(-1, 1), 2)
        add("Source", None, None, {0: value}, value)
    for _ in range(rng.randint(0, 4)):
        operator, a = rng.randrange(5), take()
        b = None if operator == 4 else rng.choice([row for row in range(len(columns["arm"])) if row != a])
        if b in unused:
            unused.remove(b)
        _join(columns, add, operator, a, b)
    while len(unused) > 1:
        _join(columns, add, rng.randrange(4), take(), take())
    return {"Gate": columns, "root": unused[0]}


def _join(columns: dict[str, list[Any]], add: Any, operator: int, a: int, b: int | None) -> None:
    second = 0.0 if b is None else columns["target"][b]
    add("Join", a, b, {1 + operator: 1}, apply(operator, columns["target"][a], second))


def files() -> Iterator[tuple[str, str]]:
    """The name and content of the file."""
    rng = random.Random(SEED)
    yield "dags.jsonl", "".join(json.dumps(sample(rng), separators=(",", ":")) + "\n" for _ in range(COUNT))


if __name__ == "__main__":
    for file, content in files():
        (Path(__file__).parent / file).write_text(content, encoding="utf-8")
