"""Cuts a text into tokens.

In: a line. Out: its tokens. Guaranteed: nothing is changed in a token; what is not in one is blank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_WORDS = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")

TOKENIZERS: Mapping[str, Callable[[str], list[str]]] = {
    "spaces": lambda text: [token for token in re.split(r"[ \t\r\n]+", text) if token],
    "words": _WORDS.findall,
    "characters": list,
}
"""spaces: what stands between blanks and tabs (other white space, as U+00A0, is part of a token).
words: runs of letters and digits, and every other sign. characters: every character, blanks too."""
