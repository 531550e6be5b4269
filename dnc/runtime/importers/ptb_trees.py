"""Format "ptb-trees": binary trees in brackets with a label at every node, as (3 (2 not) (4 bad)).

In: one tree a line, as in the Stanford Sentiment Treebank (Socher et al. 2013). Out: nested samples,
leaves {"word", "label"} and inner nodes {"left", "right", "label"}. Guaranteed: tokens stay as they
stand in the file (only the ASCII space separates them), and no tree is left out silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dnc.runtime.importers.source import MOST_NESTED, Counts, Options, Sample, Source, shown

_PIECE = re.compile(r"[()]|[^() ]+")


def read_ptb_trees(source: Source, options: Options, counts: Counts) -> Iterator[Sample]:
    """A sample for every tree."""
    for number, line in source.lines():
        if line.strip(" "):
            yield _tree(source, number, line, counts)
        else:
            counts.leave_out("blank lines")


def _tree(source: Source, number: int, line: str, counts: Counts) -> dict[str, Any]:
    """The one tree of a line. `stack` holds, per open bracket, its column and what it holds."""
    stack: list[tuple[int, list[Any]]] = []
    tree: dict[str, Any] | None = None
    for piece in _PIECE.finditer(line):
        text, column = piece[0], piece.start() + 1
        if tree is not None:
            raise source.mistake(number, column, f"'{shown(text)}' after the end of the tree")
        if text == "(":
            if len(stack) == MOST_NESTED:
                raise source.mistake(number, column, f"a tree of more than {MOST_NESTED} levels")
            stack.append((column, []))
        elif not stack:
            raise source.mistake(number, column, f"expected '(', found '{shown(text)}'")
        elif text == ")":
            opened, parts = stack.pop()
            node = _node(source, number, opened, parts, counts)
            if stack:
                stack[-1][1].append(node)
            else:
                tree = node
        else:
            stack[-1][1].append(text)
    if tree is None:
        text = f"the line ends inside {len(stack)} open '('; a tree has to be on one line"
        raise source.mistake(number, len(line) + 1, text)
    return tree


def _node(source: Source, number: int, column: int, parts: list[Any], counts: Counts) -> dict[str, Any]:
    """A vertex from what stands between its brackets: a label, then a word or two subtrees."""
    words = [part for part in parts if isinstance(part, str)]
    children = [part for part in parts if not isinstance(part, str)]
    label = parts[0] if parts and isinstance(parts[0], str) else None
    if label is None or not re.fullmatch(r"[0-9]{1,9}", label):
        found = f", found '{shown(label)}'" if label is not None else ""
        raise source.mistake(number, column, f"a node starts with its label, a number{found}")
    counts.labels.add(label)
    if not children and len(words) == 2:
        counts.words.add(words[1])
        return {"word": words[1], "label": int(label)}
    if len(words) == 1 and len(children) == 2:
        return {"left": children[0], "right": children[1], "label": int(label)}
    held = f"{len(words) - 1} words and {len(children)} subtrees"
    raise source.mistake(number, column, f"a node holds one word or two subtrees, found {held}")
