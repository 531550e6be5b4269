"""Format "sick": pairs of dependency trees with a score of how close they are in meaning.

In: a folder with a.toks, b.toks (a sentence a line), a.parents, b.parents (per word the number of its
head; 0: the root, -1: in no tree) and sim.txt (a score a line), as Tai et al. (2015) prepare SICK.
Out: {"left", "right", "score", "target"}, trees of {"word", "children"}. Guaranteed: target is the
distribution over 1..classes of their equation 15, whose mean is the score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dnc.runtime.importers.conllu import dependency_tree
from dnc.runtime.importers.source import Counts, Options, Sample, Source, shown
from dnc.runtime.importers.tokens import TOKENIZERS

FILES = ("a.toks", "a.parents", "b.toks", "b.parents", "sim.txt")


def read_sick(files: Mapping[str, Source], options: Options, counts: Counts) -> Iterator[Sample]:
    """A sample for every line of the files."""
    lines = {name: list(source.lines()) for name, source in files.items()}
    for name, found in lines.items():
        if len(found) != len(lines[FILES[0]]):
            what = f"found {len(found)} lines, expected {len(lines[FILES[0]])} as in {FILES[0]}"
            raise files[name].mistake(min(len(found), len(lines[FILES[0]])) + 1, None, what)
    for at, (number, text) in enumerate(lines["sim.txt"]):
        trees = [
            _tree(files[f"{side}.parents"], number, lines[f"{side}.toks"][at][1], heads, counts)
            for side, heads in (("a", lines["a.parents"][at][1]), ("b", lines["b.parents"][at][1]))
        ]
        score = _score(files["sim.txt"], number, text, options.classes)
        yield {
            "left": trees[0],
            "right": trees[1],
            "score": score,
            "target": distribution(score, options.classes),
        }


def distribution(score: float, classes: int) -> list[float]:
    """Probabilities of 1..classes: the two whole numbers around the score share it."""
    lower = math.floor(score)
    found = [0.0] * classes
    found[lower - 1] = lower - score + 1
    if lower < classes:
        found[lower] = score - lower
    return found


def _tree(source: Source, number: int, tokens: str, heads: str, counts: Counts) -> dict[str, Any]:
    words, found = (TOKENIZERS["spaces"](line) for line in (tokens, heads))
    if len(words) != len(found) or not words:
        what = f"found {len(found)} heads, expected one for each of the {len(words)} words"
        raise source.mistake(number, None, what)
    for head in found:
        if not head.removeprefix("-").isdecimal() or len(head) > 10 or not -1 <= int(head) <= len(words):
            what = f"found the head '{shown(head)}', expected 0 to {len(words)}, or -1 for a word in no tree"
            raise source.mistake(number, None, what)
    outside = found.count("-1")
    if outside:
        counts.leave_out("words in no tree (head -1)", outside)
    kept = [None if head == "-1" else int(head) for head in found]
    if any(head and kept[head - 1] is None for head in kept):
        raise source.mistake(number, None, "a word's head is in no tree")
    counts.words.update(word for word, head in zip(words, kept, strict=True) if head is not None)
    vertices: list[dict[str, Any]] = [{"word": word} for word in words]
    return dependency_tree(source, vertices, kept, [number] * len(words))


def _score(source: Source, number: int, text: str, classes: int) -> float:
    try:
        score = math.nan if "_" in text else float(text)
    except ValueError:
        score = math.nan
    if not 1 <= score <= classes:
        raise source.mistake(
            number, None, f"found the score '{shown(text.strip())}', expected 1 to {classes}"
        )
    return score
