"""Makes dependencies-{train,dev}.jsonl: trees with any number of children, for examples/childsum.dn.

A head word has its dependents as children. The label of a vertex, 0..4, is 2 plus the polarity of
its word and those of its children, cut to -2..2; a "not" among the children turns the sum around.
In: nothing. Out: always the same bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEED, TRAIN, DEV = 555, 160, 40
ADJECTIVES = {"bright": 1, "kind": 1, "calm": 1, "round": 0, "old": 0, "wet": 0, "rude": -1, "broken": -1}
NOUNS = {"gift": 1, "friend": 1, "house": 0, "river": 0, "baker": 0, "thief": -1, "storm": -1}
VERBS = {"helps": 1, "sings": 1, "sees": 0, "walks": 0, "finds": 0, "breaks": -1, "cries": -1}


def vertex(word: str, polarity: int, children: list[Any]) -> Any:
    """A head with its dependents."""
    total = polarity + sum(child["label"] - 2 for child in children)
    if any(child["word"] == "not" for child in children):
        total = -total
    return {"word": word, "label": max(-2, min(2, total)) + 2, "children": children}


def pick(rng: random.Random, words: dict[str, int], children: list[Any]) -> Any:
    """A random head of a kind."""
    word = rng.choice(list(words))
    return vertex(word, words[word], children)


def noun(rng: random.Random, depth: int = 0) -> Any:
    """A noun with an article, adjectives, perhaps a noun that belongs to it."""
    children = [vertex("the", 0, [])] + [pick(rng, ADJECTIVES, []) for _ in range(rng.choice((0, 1, 1, 2)))]
    if depth < 2 and rng.random() < 0.25:
        children.append(noun(rng, depth + 1))
    return pick(rng, NOUNS, children)


def sentence(rng: random.Random) -> Any:
    """A verb with its subject, perhaps "not", perhaps objects."""
    children = [noun(rng)]
    if rng.random() < 0.3:
        children.append(vertex("not", 0, []))
    return pick(rng, VERBS, children + [noun(rng) for _ in range(rng.choice((0, 0, 1, 2)))])


def files() -> Iterator[tuple[str, str]]:
    """The names and contents of the files."""
    rng = random.Random(SEED)
    for name, count in (("train", TRAIN), ("dev", DEV)):
        lines = [json.dumps(sentence(rng), separators=(",", ":")) + "\n" for _ in range(count)]
        yield f"dependencies-{name}.jsonl", "".join(lines)


if __name__ == "__main__":
    for file, content in files():
        (Path(__file__).parent / file).write_text(content, encoding="utf-8")
