"""Format "text": plain text for a language model, each token with the one that follows it.

In: a sentence a line. Out: sentences of words {"form", "target"}, or pieces of a fixed length.
Guaranteed: with targets a sentence begins with <s> and its last target is </s>; pieces go on where the
one before ends, across sentences, and every token but the first is a target once. Without targets a
sentence is its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from dnc.runtime.importers.source import Counts, Options, Sentence, Source
from dnc.runtime.importers.tokens import TOKENIZERS

BEGIN, END, END_OF_LINE = "<s>", "</s>", "<eos>"


def read_text(source: Source, options: Options, counts: Counts) -> Iterator[Sentence]:
    """The sentences, or the pieces."""
    sentences = _lines(source, options, counts)
    if options.length is None:
        for tokens in sentences:
            if "target" in options.written:
                yield _with_targets([BEGIN, *tokens, END])
            else:
                yield Sentence([{"form": token} for token in tokens])
        return
    end = "\n" if options.tokens == "characters" else END_OF_LINE
    stream = [token for tokens in sentences for token in (*tokens, end)]
    last = len(stream) - 1 if "target" in options.written else len(stream)
    whole = last - last % options.length
    for begin in range(0, whole, options.length):
        if "target" in options.written:
            yield _with_targets(stream[begin : begin + options.length + 1])
        else:
            yield Sentence([{"form": token} for token in stream[begin : begin + options.length]])
    if last % options.length:
        counts.leave_out("tokens at the end, too few for a piece", last % options.length)


def _lines(source: Source, options: Options, counts: Counts) -> Iterator[list[str]]:
    for _, line in source.lines():
        tokens = TOKENIZERS[options.tokens](line)
        counts.words.update(tokens)
        if tokens:
            yield tokens
        else:
            counts.leave_out("blank lines")


def _with_targets(tokens: list[str]) -> Sentence:
    return Sentence([{"form": token, "target": following} for token, following in pairwise(tokens)])
