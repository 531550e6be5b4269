"""Formats "conllu-words" and "conllu-trees": sentences of Universal Dependencies.

In: CoNLL-U, a word a line in ten columns, a blank line behind a sentence. Out: the words in order, or
the dependency tree with the children of a word in the order of the sentence. Guaranteed: a tree holds
every word once; rows that are no words of the tree (multiword tokens 1-2, empty nodes 8.1) are
counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from dnc.runtime.importers.source import (
    MOST_NESTED,
    Counts,
    Options,
    Sample,
    Sentence,
    Source,
    shown,
)

COLUMNS = 10
# Fields of a word, with their columns.
FIELDS = {"tag": 3, "lemma": 2, "xpos": 4, "relation": 7}
FORM, HEAD = 1, 6


@attrs.frozen
class _Word:
    line: int
    cells: list[str]


def read_conllu_words(source: Source, options: Options, counts: Counts) -> Iterator[Sentence]:
    """The words of every sentence."""
    for words in _sentences(source, counts):
        counts.labels.update(word.cells[FIELDS["tag"]] for word in words)
        yield Sentence([{"form": word.cells[FORM]} | _fields(word) for word in words])


def read_conllu_trees(source: Source, options: Options, counts: Counts) -> Iterator[Sample]:
    """The dependency tree of every sentence."""
    for words in _sentences(source, counts):
        counts.labels.update(word.cells[FIELDS["tag"]] for word in words)
        vertices = [{"word": word.cells[FORM]} | _fields(word) for word in words]
        heads = [_head(source, word, len(words)) for word in words]
        lines = [word.line for word in words]
        tree = dependency_tree(source, vertices, heads, lines)
        yield tree


def dependency_tree(
    source: Source, vertices: list[dict[str, Any]], heads: Sequence[int | None], lines: list[int]
) -> dict[str, Any]:
    """The tree of words whose heads count from 1, 0 for the root, None for a word that is left out.

    Every vertex gets its children, in order. lines: where each word stands, for mistakes.
    """
    for vertex in vertices:
        vertex["children"] = []
    roots = [at for at, head in enumerate(heads) if head == 0]
    if len(roots) != 1:
        what = "no word of the sentence has the head 0" if not roots else "a second word with the head 0"
        raise source.mistake(lines[roots[1] if roots else 0], None, what)
    for vertex, head in zip(vertices, heads, strict=True):
        if head:
            vertices[head - 1]["children"].append(vertex)
    levels, level = {roots[0]: 0}, [roots[0]]
    place = {id(vertex): at for at, vertex in enumerate(vertices)}
    while level:
        below = [place[id(child)] for at in level for child in vertices[at]["children"]]
        levels |= dict.fromkeys(below, levels[level[0]] + 1)
        level = below
    for at, head in enumerate(heads):
        if head is not None and at not in levels:
            raise source.mistake(lines[at], None, f"word {at + 1} is not below the root: its heads go round")
    if 2 * max(levels.values()) >= MOST_NESTED:
        raise source.mistake(lines[roots[0]], None, f"a tree of more than {MOST_NESTED // 2} levels")
    return vertices[roots[0]]


def _sentences(source: Source, counts: Counts) -> Iterator[list[_Word]]:
    """The words of one sentence after the other."""
    words: list[_Word] = []
    for number, line in source.lines():
        if not line.strip():
            if words:
                yield words
            words = []
        elif line.startswith("#"):
            counts.leave_out("comments")
        else:
            cells = line.split("\t")
            if len(cells) != COLUMNS:
                found = f"{len(cells)} column{'s' if len(cells) > 1 else ''}"
                what = f"found {found} (separated by tabs), expected {COLUMNS}"
                raise source.mistake(number, None, what)
            if "-" in cells[0] or "." in cells[0]:
                kind = "rows of multiword tokens (as 1-2)" if "-" in cells[0] else "empty nodes (as 8.1)"
                counts.leave_out(kind)
                continue
            if cells[0] != str(len(words) + 1):
                raise source.mistake(number, 1, f"found word '{shown(cells[0])}', expected {len(words) + 1}")
            for field, column in (("form", FORM), *FIELDS.items()):
                if not cells[column].strip():
                    at = 1 + sum(len(cell) + 1 for cell in cells[:column])
                    raise source.mistake(
                        number, at, f"the {field} of word {cells[0]} is blank, expected a text or _"
                    )
            counts.words.add(cells[FORM])
            words.append(_Word(number, cells))
    if words:
        yield words


def _fields(word: _Word) -> dict[str, str]:
    return {name: word.cells[column] for name, column in FIELDS.items()}


def _head(source: Source, word: _Word, words: int) -> int:
    text = word.cells[HEAD]
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and int(text) <= words):
        column = 1 + sum(len(cell) + 1 for cell in word.cells[:HEAD])
        what = f"found the head '{shown(text)}', expected 0 to {words}"
        raise source.mistake(word.line, column, what)
    return int(text)
