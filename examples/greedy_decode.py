"""Greedy decoding with examples/encoder_decoder.dn or examples/attention.dn: a loop on the host.

    python examples/greedy_decode.py BUILD CHECKPOINT "a sentence of the source language"

The score of a target word depends on the words before it, not on itself: the last one may be any word.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import dnc


def greedy(model: dnc.Model, source: Sequence[str], end: str, limit: int = 50) -> list[str]:
    """The target words, each the most probable one after those before it, up to the word `end`."""
    words: list[str] = []
    while len(words) < limit:
        target = [{"form": word} for word in (*words, end)]
        sample = {"source": [{"form": word} for word in source], "target": target}
        chosen = model.predict([sample])["words"][0][-1]
        word = model.vocabularies["targets"].words[chosen]
        if word == end:
            break
        words.append(word)
    return words


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    build, checkpoint, text = sys.argv[1:]
    print(" ".join(greedy(dnc.load(build, checkpoint=checkpoint), text.split(), "</s>")))
