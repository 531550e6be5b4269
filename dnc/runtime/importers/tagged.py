"""Format "tagged": sentences of words with their tags, as Vienna|I-LOC is|O quiet|O .|O

In: one sentence a line, as in WikiNER. Out: words {"form", "tag"}. Guaranteed: only the ASCII space
separates words, and the last separator of a word its tag; no word and no tag holds a tab.
"""

from __future__ import annotations

from collections.abc import Iterator

from dnc.runtime.importers.source import Counts, Options, Sentence, Source, shown

INSTEAD = "of a word and its tags a line: dnc import conll"


def read_tagged(source: Source, options: Options, counts: Counts) -> Iterator[Sentence]:
    """A sentence for every line."""
    for number, line in source.lines():
        words = []
        column = 1
        for piece in line.split(" "):
            form, _, tag = piece.rpartition(options.separator)
            if "\t" in piece:
                what = f"found a tab, but blanks separate words, and '{options.separator}' begins their tags"
                raise source.mistake(number, column + piece.index("\t"), f"{what}; {INSTEAD}")
            if piece and not (form and tag):
                what = f"expected word{options.separator}TAG, found '{shown(piece)}'"
                hint = "" if options.separator in line else f"; {INSTEAD}"
                raise source.mistake(number, column, what + hint)
            if piece:
                counts.words.add(form)
                counts.labels.add(tag)
                words.append({"form": form, "tag": tag})
            column += len(piece) + 1
        if words:
            yield Sentence(words)
        else:
            counts.leave_out("blank lines")
