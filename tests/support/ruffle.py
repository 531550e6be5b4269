"""Programs whose layout is disturbed: other spaces, line breaks, empty lines and comments, same tokens.

In: the text of a right program, and a source of numbers. Out: a text with the same syntax tree.
"""

from __future__ import annotations

from typing import Any

from dnc.frontend.layout import CLOSING, OPENING, is_joined
from dnc.frontend.lines import lines_of
from tests.support.mutations import Choices

COMMENTS = ("# plain", "#tight", "#", "# a, b -> (", "# \ttab  ", "# é 𝒙", "### = |", "# fn f(x):")


def ruffled(choices: Choices, text: str) -> str:
    """The text with another layout."""
    depths = [choices.number(1, 7) for _ in range(9)]
    parts: list[str] = []
    brackets = 0
    lines = lines_of(text)
    for at, line in enumerate(lines):
        begins = bool(line.stack)
        if begins and parts:
            parts += _between(choices)
        if begins:
            parts.append(" " * sum(depths[: len(line.stack) - 1]))
        previous: Any = None
        for token in line.tokens:
            if previous is not None or line.continues:
                parts += _gap(choices, parts, brackets, previous, token)
            parts.append(str(token))
            brackets += (token.type in OPENING) - (token.type in CLOSING)
            previous = token
        if line.comment and not line.tokens:
            parts += [*_between(choices), line.comment]
        elif line.comment:
            parts += [" " * choices.number(0, 3), line.comment]
        behind = next((later for later in lines[at + 1 :] if later.tokens), None)
        if line.comment and behind is not None and behind.continues:
            parts += ["\n", " " * choices.number(1, 9)]
    return "".join([*parts, "\n" * choices.number(0, 2)])


def _gap(choices: Choices, parts: list[str], brackets: int, previous: Any, token: Any) -> list[str]:
    """What stands between two tokens of a statement."""
    breaks = brackets or (previous is not None and is_joined(previous, token))
    if breaks and not choices.number(0, 5):
        return [*_between(choices), " " * choices.number(1, 12)]
    needed = previous is None or (str(previous)[-1:].isalnum() and str(token)[:1].isalnum())
    needed = needed or str(previous)[-1:] == "_" or str(token)[:1] == "_"
    glued = f"{previous}{token}" in ("->", "==", "//", "...") or "." in (str(token)[:1], str(previous)[-1:])
    return [choices.pick((" ", "  ", "\t", "   ") if needed or glued else ("", "", " ", "  ", "\t "))]


def _between(choices: Choices) -> list[str]:
    """The end of a line, empty lines and comments."""
    found = [f" {choices.pick(COMMENTS)}"] if not choices.number(0, 7) else []
    found.append(choices.pick(("\n", "\n", "\n", "  \n")))
    for _ in range(choices.pick((0, 0, 0, 0, 1, 3))):
        comment = choices.pick(COMMENTS) if choices.number(0, 1) else ""
        found.append(f"{' ' * choices.number(0, 9)}{comment}\n")
    return found
