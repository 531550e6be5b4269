"""Colours of programs for Pygments, and with it for the site of the documentation, Sphinx and rich.

In: a text. Out: tokens by kind. Guaranteed: the words come from the grammar, the op table and the tables of
the checker, as those of the TextMate grammar (editors/make_grammar.py) do.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pygments.lexer import RegexLexer, bygroups, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, Whitespace

from dnc.editing.builtins import DOMAINS, INITIALIZERS, KINDS, LINKS, MEASURES, PARAMETER_KINDS, REDUCTIONS
from dnc.frontend.declarations import BUILTINS
from dnc.frontend.parser import terminal_texts

NAMED = ("model", "struct", "state", "cell", "fn", "metric")
"""Keywords of declarations behind which a name stands."""


def keywords() -> tuple[str, ...]:
    """The words of the language."""
    return tuple(sorted(text for text in terminal_texts().values() if text.isidentifier()))


class DnLexer(RegexLexer):  # type: ignore[misc]
    """Programs of dnc."""

    name = "dnc"
    aliases: ClassVar[list[str]] = ["dn"]
    filenames: ClassVar[list[str]] = ["*.dn"]
    url = ""
    tokens: ClassVar[dict[str, list[Any]]] = {
        "root": [
            (r"\s+", Whitespace),
            (r"#[^\n]*", Comment.Single),
            (rf"\b({'|'.join(NAMED)})(\s+)([A-Za-z_]\w*)", bygroups(Keyword, Whitespace, Name.Class)),
            (words(keywords(), prefix=r"\b", suffix=r"\b"), Keyword),
            (words((*KINDS, *PARAMETER_KINDS), prefix=r"\b", suffix=r"\b(?=\s*[<\[,)])"), Keyword.Type),
            (words(tuple(INITIALIZERS), prefix=r"(?<== )", suffix=r"\b"), Name.Builtin),
            (words((*BUILTINS, *REDUCTIONS, *MEASURES), prefix=r"\b", suffix=r"(?=\s*\()"), Name.Builtin),
            (words(tuple(LINKS), prefix=r"(?<=\.)", suffix=r"\b"), Name.Builtin.Pseudo),
            (words(tuple(DOMAINS), prefix=r"\b", suffix=r"\b"), Name.Builtin.Pseudo),
            (r"(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?", Number),
            (r"[A-Za-z_]\w*(?=\s*\()", Name.Function),
            (r"[A-Za-z_]\w*", Name),
            (r"->|==|//|\.\.\.|[-+*/@=|<>?]", Operator),
            (r"[()\[\],:.]", Punctuation),
        ]
    }
