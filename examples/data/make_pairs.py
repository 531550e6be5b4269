"""Makes pairs-{train,dev}/: pairs of sentences with a score, in the files of SICK, for `dnc import sick`.

The second sentence is the first one with words exchanged: another word of the same meaning costs
nothing, another adjective 0.5, another noun 1.2, another verb 1.6, a "not" 1.0. The score is 5 less that,
at least 1. In: nothing. Out: always the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

SEED, TRAIN, DEV = 909, 400, 100
# Each line holds words of one meaning.
ADJECTIVES = (("big", "large"), ("old", "aged"), ("quick", "fast"), ("red",), ("quiet", "silent"))
NOUNS = (("man", "guy"), ("boat", "ship"), ("child", "kid"), ("dog",), ("house", "home"), ("singer",))
VERBS = (("sees", "notices"), ("follows", "chases"), ("draws", "sketches"), ("leaves",))

Word = tuple[str, int]
"""A word, and the place of its head in the sentence (-1: the root)."""


def exchanged(
    rng: random.Random, words: tuple[tuple[str, ...], ...], own: tuple[str, ...]
) -> tuple[str, ...]:
    """Words of another meaning."""
    return rng.choice([each for each in words if each != own])


class Sentence:
    """Subject and object (an article, an adjective or none, a noun each), a verb, a negation."""

    def __init__(self, rng: random.Random) -> None:
        self.adjectives = [rng.choice((None, *ADJECTIVES)) for _ in range(2)]
        self.nouns = [rng.choice(NOUNS) for _ in range(2)]
        self.verb = rng.choice(VERBS)
        self.negated = False

    def changed(self, rng: random.Random) -> tuple[Sentence, float]:
        """The sentence with some words of other meanings, and the score."""
        other, score = Sentence(rng), 5.0
        other.adjectives, other.nouns, other.verb = list(self.adjectives), list(self.nouns), self.verb
        for place in range(2):
            adjective = self.adjectives[place]
            if adjective is not None and rng.random() < 0.4:
                other.adjectives[place], score = exchanged(rng, ADJECTIVES, adjective), score - 0.5
            if rng.random() < 0.35:
                other.nouns[place], score = exchanged(rng, NOUNS, self.nouns[place]), score - 1.2
        if rng.random() < 0.35:
            other.verb, score = exchanged(rng, VERBS, self.verb), score - 1.6
        if rng.random() < 0.2:
            other.negated, score = True, score - 1.0
        return other, max(score, 1.0)

    def words(self, rng: random.Random) -> list[Word]:
        """The words with their heads; of words of one meaning any."""
        found: list[Word] = []
        heads = []
        for place in range(2):
            adjective = self.adjectives[place]
            noun = len(found) + (2 if adjective else 1)
            found.append(("the", noun))
            if adjective:
                found.append((rng.choice(adjective), noun))
            heads.append(noun)
            found.append((rng.choice(self.nouns[place]), -1))
            if place == 0:
                if self.negated:
                    found.append(("never", len(found) + 1))
                verb = len(found)
                found.append((rng.choice(self.verb), -1))
        for noun in heads:
            found[noun] = (found[noun][0], verb)
        return found


def files() -> Iterator[tuple[str, str]]:
    """The names and contents of the files."""
    rng = random.Random(SEED)
    for name, count in (("train", TRAIN), ("dev", DEV)):
        lines: dict[str, list[str]] = {"a.toks": [], "a.parents": [], "b.toks": [], "b.parents": []}
        scores = []
        for _ in range(count):
            first = Sentence(rng)
            second, score = first.changed(rng)
            scores.append(f"{score:.1f}")
            for side, sentence in (("a", first), ("b", second)):
                words = sentence.words(rng)
                lines[f"{side}.toks"].append(" ".join(word for word, _ in words))
                lines[f"{side}.parents"].append(" ".join(str(head + 1) for _, head in words))
        for file, rows in (*lines.items(), ("sim.txt", scores)):
            yield f"pairs-{name}/{file}", "".join(f"{row}\n" for row in rows)


if __name__ == "__main__":
    for file, content in files():
        path = Path(__file__).parent / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
