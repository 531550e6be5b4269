"""The `leave` instruction on a CPU: whether every list has the word that ends it.

In: the kernel's memory and the instruction's fields. Out: TIRx in the function under construction, and an
expression. Guaranteed: nothing is written, and only what the instruction's lists name is read, so all
workers of a replica find the same.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen.emit import Expr, both, let, local, put, when, wide


def all_ended(pool: Any, words: Any, lists: Expr, begins: Expr, ends: Expr, word: Expr) -> Expr:
    """Nonzero if the class `word` is in every list; the search ends at the first one where it is not."""
    number, found = local("list", "int32", 0), local("found", "int32", 1)
    end_word = let("end_word", T.cast(word, "float32"))
    with T.While(both(found[0] != 0, number[0] < lists)):
        put(found, 0, 0)
        at = local("entry_at", "int32", words[begins + number[0]])
        end = let("list_end", words[ends + number[0]])
        with T.While(both(found[0] == 0, at[0] < end)):
            with when(tirx.EQ(pool[wide(words[at[0]]) * 4], end_word)):
                put(found, 0, 1)
            put(at, 0, at[0] + 1)
        put(number, 0, number[0] + 1)
    return found[0]
