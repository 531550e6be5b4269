"""Format "text": plain text, above all for predicting the next word.

In: a sentence a line. Out: sentences of words {"form"}, or pieces of a fixed length; with "target" each
word has the one that follows it. Guaranteed: with marks a sentence stands between <s> and </s>, and in
pieces every line ends with <eos> (or, of characters, with the end of the line itself). Pieces go on
where the one before ends, across sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from dnc.runtime.importers.source import Counts, Options, Sentence, Source
from dnc.runtime.importers.tokens import TOKENIZERS

BEGIN, END, END_OF_LINE = "<s>", "</s>", "<eos>"


def read_text(source: Source, options: Options, counts: Counts) -> Iterator[Sentence]:
    """The sentences, or the pieces."""
    marks = options.marks and options.structure in ("sequence", "grid")
    lines = _lines(source, options, counts)
    following = 1 if "target" in options.written else 0  # tokens behind the last word
    if options.length is None:
        for tokens in lines:
            marked = [BEGIN, *tokens, END] if marks else tokens
            if len(marked) > following:
                yield _sentence(marked, following)
            else:
                counts.leave_out("sentences of one word, which none follows")
        return
    end = [] if not marks else ["\n"] if options.tokens == "characters" else [END_OF_LINE]
    stream = [token for tokens in lines for token in (*tokens, *end)]
    last = max(len(stream) - following, 0)
    rest = last % options.length
    for begin in range(0, last - rest, options.length):
        yield _sentence(stream[begin : begin + options.length + following], following)
    if rest:
        counts.leave_out("tokens at the end, too few for a piece", rest)


def _lines(source: Source, options: Options, counts: Counts) -> Iterator[list[str]]:
    for _, line in source.lines():
        tokens = TOKENIZERS[options.tokens](line)
        counts.words.update(tokens)
        if tokens:
            yield tokens
        else:
            counts.leave_out("blank lines")


def _sentence(tokens: list[str], following: int) -> Sentence:
    if following:
        return Sentence([{"form": token, "target": target} for token, target in pairwise(tokens)])
    return Sentence([{"form": token} for token in tokens])
