"""Colours for Pygments: every example is coloured as the language reads it."""

from __future__ import annotations

import pytest
from pygments.token import Comment, Error, Keyword, Number, Token

from dnc.editing.highlight import DnLexer, keywords
from dnc.frontend.lines import tokens_of
from tests.support.models import EXAMPLES


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.dn")), ids=lambda path: path.stem)
def test_examples(path):
    text = path.read_text(encoding="utf-8")
    found = list(DnLexer().get_tokens(text))
    assert "".join(piece for _, piece in found) == text
    assert not [piece for kind, piece in found if kind in Error]
    read = [str(token) for token in tokens_of(text)]
    coloured = [piece for kind, piece in found if kind not in Token.Text]
    assert coloured == read
    for kind, piece in found:
        assert (kind in Keyword and kind not in Keyword.Type) == (piece in keywords()), piece
        assert (kind in Comment) == piece.startswith("#")
        assert (kind in Number) == (piece[0].isdigit() or (piece[0] == "." and piece[1:2].isdigit()))


def test_pygments_knows_it():
    lexers = pytest.importorskip("pygments.lexers")
    try:
        assert lexers.get_lexer_by_name("dn").name == "dnc"
    except lexers.ClassNotFound:
        pytest.skip("dnc was installed before it had an entry point for Pygments: pip install -e .")
