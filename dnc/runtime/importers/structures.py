"""The structures that are derived from a sentence: what does not stand in the data but follows from it.

In: sentences. Out: samples. Guaranteed: every word stands in its sample once, in order, with all its
fields; the same seed gives the same random trees.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dnc.diagnostics import fail
from dnc.runtime.importers.source import MOST_NESTED, Options, Sample, Sentence

Derive = Callable[[Sentence, random.Random, Options], Sample]


def sequence(sentence: Sentence, choice: random.Random, options: Options) -> Sample:
    """The words in a list."""
    return {"words": sentence.words, **sentence.rest}


def balanced(sentence: Sentence, choice: random.Random, options: Options) -> Sample:
    """A binary tree whose halves differ by one word at most: of 2^n words a complete one."""
    return _topped(_tree(_leaves(sentence), lambda size: (size + 1) // 2), sentence.rest)


def randomly(sentence: Sentence, choice: random.Random, options: Options) -> Sample:
    """A binary tree that is cut at a random place, again and again."""
    return _topped(_tree(_leaves(sentence), lambda size: choice.randint(1, size - 1)), sentence.rest)


def pyramid(sentence: Sentence, choice: random.Random, options: Options) -> Sample:
    """Neighbours are joined in pairs, layer by layer, until one vertex is left; in flat form.

    Every vertex but those at the edges belongs to two pairs: n words make n (n + 1) / 2 vertices.
    """
    words = _leaves(sentence)
    names = dict.fromkeys(name for word in words for name in word)
    leaves, pairs = len(words), len(words) * (len(words) - 1) // 2
    table: dict[str, list[Any]] = {"arm": ["Word"] * leaves + ["Pair"] * pairs}
    table |= {name: [word.get(name) for word in words] + [None] * pairs for name in names}
    left: list[int | None] = [None] * leaves
    right: list[int | None] = [None] * leaves
    begin = 0
    for width in range(leaves, 1, -1):
        left += range(begin, begin + width - 1)
        right += range(begin + 1, begin + width)
        begin += width
    table |= {"left": left, "right": right}
    top = leaves + pairs - 1
    if not sentence.rest:
        return {"Span": table, "root": top}
    rest = {name: [value] for name, value in sentence.rest.items()}
    return {"Span": table, "Sentence": {"top": [top], **rest}, "root": 0}


def grid(sentence: Sentence, choice: random.Random, options: Options) -> Sample:
    """A vertex for every layer at every word, above the word itself; in flat form.

    A vertex of a layer has the one below it, the one of its layer before it, and, at the end of every
    block of `skip` layers, what lies below the block. A step has its highest vertex, and what else belongs
    to the word.
    """
    layers, skip, steps = options.layers or 1, options.skip, len(sentence.words)
    height = layers + 1  # vertices of a step: the word, then the layers
    above = np.arange(steps * height).reshape(steps, height)
    columns: dict[str, Any] = {
        "arm": (["Input"] + ["Hidden"] * layers) * steps,
        "layer": [None, *range(layers)] * steps,
        "word": [each for word in sentence.words for each in (word["form"], *[None] * layers)],
    }
    level = np.arange(height) * np.ones((steps, 1), int)
    ends = (level > 0) & (level % skip == 0) if skip else np.zeros(level.shape, bool)
    for name, step, there in (
        ("below", 1, level > 0),
        ("before", height, (level > 0) & (above >= height)),
        ("skip", skip, ends),
    ):
        found = np.where(there, above - step, -1).ravel().tolist()
        columns[name] = [None if each < 0 else each for each in found]
    rows = {name: [word[name] for word in sentence.words] for name in sentence.words[0] if name != "form"}
    top = {"top": above[:, -1].tolist(), **rows}
    rest = {name: [value] for name, value in sentence.rest.items()}
    return {"Unit": columns, "Step": top, "Text": {"steps": [list(range(steps))], **rest}, "root": 0}


STRUCTURES: Mapping[str, Derive] = {
    "sequence": sequence,
    "pyramid": pyramid,
    "balanced": balanced,
    "random": randomly,
    "grid": grid,
}
FLAT = ("pyramid", "grid")

_TREE_FIELDS = ("word", "left", "right", "tree")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "sequence": ("words",),
    "pyramid": ("word", "left", "right", "top", "Span", "Word", "Pair", "Sentence"),
    "balanced": _TREE_FIELDS,
    "random": _TREE_FIELDS,
    "grid": (
        *("word", "layer", "below", "before", "skip", "top", "steps"),
        *("Unit", "Input", "Hidden", "Step", "Text"),
    ),
}
"""The names that each structure adds to those of the format; of vertices that are a word, "word"
takes the place of "form"."""

SPELLED_FIELDS = ("letters", "letter")


def spell(sentence: Sentence, seen: Counter[str], least: int) -> int:
    """Gives the words seen fewer than `least` times as their characters; how many those are."""
    spelled = 0
    for at, word in enumerate(sentence.words):
        if seen[word["form"]] < least:
            letters = [{"letter": each} for each in word["form"]]
            sentence.words[at] = {"letters": letters} | {k: v for k, v in word.items() if k != "form"}
            spelled += 1
    return spelled


def _topped(tree: dict[str, Any], rest: dict[str, Any]) -> Sample:
    return {"tree": tree, **rest} if rest else tree


def _leaves(sentence: Sentence) -> list[dict[str, Any]]:
    return [{"word" if name == "form" else name: word[name] for name in word} for word in sentence.words]


def _tree(words: list[dict[str, Any]], cut: Callable[[int], int]) -> dict[str, Any]:
    """A binary tree over words; `cut` says how many of so many words go to the left."""
    top: dict[str, Any] = {}
    stack = [(top, 0, len(words), 1)]
    while stack:
        vertex, begin, end, level = stack.pop()
        if level > MOST_NESTED:
            raise fail(f"a random tree over {len(words)} words has more than {MOST_NESTED} levels")
        if end - begin == 1:
            vertex |= words[begin]
            continue
        middle = begin + cut(end - begin)
        vertex |= {"left": {}, "right": {}}
        stack.append((vertex["right"], middle, end, level + 1))
        stack.append((vertex["left"], begin, middle, level + 1))
    return top
