"""Makes sentiment-{train,dev}.jsonl: binary sentiment trees of a small invented grammar.

Every vertex has a polarity in -2..2 and the label polarity + 2. A leaf has that of its word; "not"
turns its sibling around, "very" strengthens and "slightly" weakens it, after "but" the second part
decides, and otherwise the parts add up. In: nothing. Out: the files, always the same bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEED, TRAIN, DEV = 20240613, 400, 100
Tree = dict[str, Any]

ADJECTIVES = {
    "wonderful": 2, "brilliant": 2, "moving": 2, "good": 1, "funny": 1, "warm": 1, "clever": 1, "fresh": 1,
    "long": 0, "new": 0, "quiet": 0, "second": 0, "green": 0,
    "dull": -1, "slow": -1, "weak": -1, "flat": -1, "silly": -1,
    "awful": -2, "terrible": -2, "unbearable": -2,
}  # fmt: skip
NOUNS = {
    "film": 0, "story": 0, "actor": 0, "song": 0, "scene": 0, "ending": 0, "book": 0, "plot": 0, "dog": 0,
    "masterpiece": 2, "delight": 1, "charm": 1, "mess": -1, "bore": -1, "disaster": -2,
}  # fmt: skip
VERBS = {"loves": 2, "enjoys": 1, "praises": 1, "shows": 0, "has": 0, "follows": 0, "spoils": -1, "ruins": -2}
OPERATORS = {"not": 0, "very": 0, "slightly": 0, "but": 0}
DETERMINERS = {"the": 0, "a": 0, "this": 0, "every": 0}


def clamp(polarity: int) -> int:
    """The nearest polarity in -2..2."""
    return max(-2, min(2, polarity))


def combine(left: Tree, right: Tree) -> int:
    """The polarity of a vertex from its two parts."""
    first, second = left["label"] - 2, right["label"] - 2
    operator = left.get("word")
    if operator == "not":
        return -second
    if operator == "very":
        return clamp(second + (second > 0) - (second < 0))
    if operator == "slightly":
        return (second > 0) - (second < 0)
    if right.get("left", {}).get("word") == "but":
        return second or first
    return clamp(first + second)


def node(left: Tree, right: Tree) -> Tree:
    """An inner vertex."""
    return {"left": left, "right": right, "label": combine(left, right) + 2}


class Speaker:
    """Says random sentences."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def leaf(self, words: dict[str, int], word: str | None = None) -> Tree:
        """A leaf with the given word, or with any."""
        word = word or self.rng.choice(list(words))
        return {"word": word, "label": words[word] + 2}

    def adjective(self, depth: int = 0) -> Tree:
        """An adjective, perhaps with "not", "very", "slightly" before it."""
        if depth < 2 and self.rng.random() < 0.4:
            operator = self.rng.choice(["not", "very", "slightly"])
            return node(self.leaf(OPERATORS, operator), self.adjective(depth + 1))
        return self.leaf(ADJECTIVES)

    def noun_phrase(self) -> Tree:
        """A determiner and a noun with an adjective or without."""
        noun = self.leaf(NOUNS)
        if self.rng.random() < 0.5:
            noun = node(self.adjective(), noun)
        return node(self.leaf(DETERMINERS), noun)

    def verb_phrase(self) -> Tree:
        """ "is" with an adjective, or a verb with its object; perhaps after "not"."""
        if self.rng.random() < 0.5:
            return node({"word": "is", "label": 2}, self.adjective())
        phrase = node(self.leaf(VERBS), self.noun_phrase())
        return node(self.leaf(OPERATORS, "not"), phrase) if self.rng.random() < 0.2 else phrase

    def sentence(self) -> Tree:
        """A clause, or two joined by "but"."""
        clause = node(self.noun_phrase(), self.verb_phrase())
        if self.rng.random() < 0.25:
            second = node(self.noun_phrase(), self.verb_phrase())
            return node(clause, node(self.leaf(OPERATORS, "but"), second))
        return clause


def files() -> Iterator[tuple[str, str]]:
    """The names and contents of the files."""
    speaker = Speaker(SEED)
    for name, count in (("train", TRAIN), ("dev", DEV)):
        lines = [json.dumps(speaker.sentence(), separators=(",", ":")) + "\n" for _ in range(count)]
        yield f"sentiment-{name}.jsonl", "".join(lines)


if __name__ == "__main__":
    for file, content in files():
        (Path(__file__).parent / file).write_text(content, encoding="utf-8")
