"""Format "conll": a word with its tags a line, as in the shared tasks of CoNLL-2000 to 2003.

In: rows of columns, separated by blanks or tabs; a blank line behind a sentence. Out: words {"form", "tag"}.
Guaranteed: every row has as many columns as the first one; lines of -DOCSTART- are counted, and end a
sentence as a blank line does; lines that begin as comments do are counted, if there are such. Only the ASCII
space and the tab separate columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dnc.runtime.importers.source import Counts, Options, Sentence, Source, shown

DOCUMENT = "-DOCSTART-"
COMMENT = "#"
AS_COMMENTS = f"where rows are comments: --comments '{COMMENT}'"
UNIVERSAL = 10
_CELL = re.compile(r"[^ \t]+")
_WHERE = "separated by blanks or tabs"


def read_conll(source: Source, options: Options, counts: Counts) -> Iterator[Sentence]:
    """The words of every sentence; of the first column and the last one, unless others are chosen."""
    words: list[dict[str, str]] = []
    chosen = [int(column) - 1 for column in options.columns] or [0, -1]
    width, first, marked, begun = 0, 0, 0, 0
    for number, line in source.lines():
        if options.comments and line.startswith(options.comments):
            counts.leave_out("comments")
            continue
        cells = _CELL.findall(line)
        if not cells or cells[0] == DOCUMENT:
            if cells:
                counts.leave_out(f"lines of {DOCUMENT}")
            if words:
                yield Sentence(words)
            words = []
            continue
        if not width:
            width, first = len(cells), number
            _check_width(source, number, cells, chosen, bool(options.columns))
        if len(cells) != width:
            what = f"found {_columns(len(cells))} ({_WHERE}), expected {width} as in line {first}"
            raise source.mistake(number, None, what, *_meant(line, marked))
        if not words:
            begun += 1
            marked += cells[0].startswith(COMMENT)
        word = dict(zip(("form", "tag"), (cells[at] for at in chosen), strict=False))
        counts.words.add(word["form"])
        if "tag" in word:
            counts.labels.add(word["tag"])
        words.append(word)
    if words:
        yield Sentence(words)
    if begun == marked:
        counts.notes.append(f"every sentence begins with a row that begins with '{COMMENT}'; {AS_COMMENTS}")


def _meant(line: str, marked: int) -> Iterator[str]:
    """What a file may be whose rows have other columns than the first."""
    if marked:
        yield AS_COMMENTS
    if line.count("\t") == UNIVERSAL - 1:
        yield f"of {UNIVERSAL} columns, as those of Universal Dependencies are: dnc import conllu-words"


def _check_width(source: Source, number: int, cells: list[str], chosen: list[int], given: bool) -> None:
    """DiagnosticError where the first row lacks a column."""
    least = max(chosen) + 1 if given else 2
    if len(cells) >= least:
        return
    found = f"found {_columns(len(cells))} ({_WHERE})"
    if given:
        raise source.mistake(number, None, f"{found}, but --columns names column {least}")
    what = f"'{shown(cells[0])}' has no tag: {found}, expected 2 or more (--columns 1: words without tags)"
    raise source.mistake(number, None, what)


def _columns(count: int) -> str:
    return f"{count} column{'s' if count > 1 else ''}"
