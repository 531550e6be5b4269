"""Makes words-{train,dev}.jsonl (a tag per word) and sentences-{train,dev}.jsonl (a label each).

The sentences are of an invented language: words are syllables with an ending, -o for nouns, -a for
verbs, -i for adjectives; a word in -u is a noun after an article or an adjective and a verb
elsewhere; "ne" is a negation before a verb and a conjunction elsewhere, so that a tagger needs both
neighbours. A sentence's label is 1 if it negates a verb. In: nothing. Out: always the same bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEED, TRAIN, DEV = 7411, 240, 60
SYLLABLES = ("ba", "de", "ki", "lo", "mu", "ne", "po", "ra", "si", "tu")
Word = tuple[str, str]


class Speaker:
    """Says random sentences as (form, tag) pairs."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        endings = {"NOUN": "o", "VERB": "a", "ADJ": "i", "EITHER": "u"}
        self.words = {tag: [self._word(end) for _ in range(18)] for tag, end in endings.items()}

    def _word(self, ending: str) -> str:
        stem = "".join(self.rng.choice(SYLLABLES) for _ in range(self.rng.randint(1, 2)))
        return stem + self.rng.choice("klmnst") + ending

    def say(self, tag: str) -> Word:
        """A word that has a tag in the right place; a third of nouns and verbs end in -u."""
        either = tag in ("NOUN", "VERB") and self.rng.random() < 0.33
        return self.rng.choice(self.words["EITHER" if either else tag]), tag

    def noun_phrase(self) -> list[Word]:
        """An article, adjectives, a noun."""
        adjectives = [self.say("ADJ") for _ in range(self.rng.choice((0, 0, 1, 1, 2)))]
        return [(self.rng.choice(("el", "ul")), "DET"), *adjectives, self.say("NOUN")]

    def sentence(self) -> list[Word]:
        """Subject, verb, perhaps an object."""
        subject = self.noun_phrase()
        if self.rng.random() < 0.3:
            subject += [("ne", "CONJ"), *self.noun_phrase()]
        verb = [self.say("VERB")]
        if self.rng.random() < 0.5:
            verb = [("ne", "NEG"), *verb]
        return subject + verb + (self.noun_phrase() if self.rng.random() < 0.6 else []) + [(".", "PUNCT")]


def tagged(sentence: list[Word]) -> Any:
    """For a tagger."""
    return {"words": [{"form": form, "tag": tag} for form, tag in sentence]}


def labelled(sentence: list[Word]) -> Any:
    """For a classifier."""
    return {
        "words": [{"form": form} for form, _ in sentence],
        "label": int(any(w[1] == "NEG" for w in sentence)),
    }


def files() -> Iterator[tuple[str, str]]:
    """The names and contents of the files."""
    speaker = Speaker(SEED)
    for name, count in (("train", TRAIN), ("dev", DEV)):
        said = [speaker.sentence() for _ in range(count)]
        for kind, sample in (("words", tagged), ("sentences", labelled)):
            lines = [json.dumps(sample(each), separators=(",", ":")) + "\n" for each in said]
            yield f"{kind}-{name}.jsonl", "".join(lines)


if __name__ == "__main__":
    for file, content in files():
        (Path(__file__).parent / file).write_text(content, encoding="utf-8")
