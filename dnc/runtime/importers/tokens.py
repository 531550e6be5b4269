"""Cuts a text into tokens.

In: a line. Out: its tokens. Guaranteed: nothing is changed in a token; what is not in one is blank.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache

JOINERS = "\u200c\u200d"  # between letters of one word, as in Persian and in Indic scripts


@cache
def _words() -> re.Pattern[str]:
    """Words: `re` has no name for marks that combine with a letter (vowels of Indic scripts, accents)."""
    marks = "".join(
        chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M"
    )
    letter = rf"[\w{marks}{JOINERS}]"
    return re.compile(rf"{letter}+(?:['’]{letter}+)*|\S")


TOKENIZERS: Mapping[str, Callable[[str], list[str]]] = {
    "spaces": lambda text: [token for token in re.split(r"[ \t\r\n]+", text) if token],
    "words": lambda text: _words().findall(text),
    "characters": list,
}
"""spaces: what stands between blanks and tabs (other white space, as U+00A0, is part of a token).
words: runs of letters and digits with the marks that belong to them, and every other sign. characters: every
character, blanks too."""
