"""Damage: programs and data files that are nearly right.

In: a valid text, and a source of numbers (Hypothesis, or a seed). Out: the text with one to four edits:
characters, tokens, names, numbers, lines; of JSON also keys, values, nesting and indices. An edit is an
entry of `PROGRAM_EDITS`, `JSON_EDITS` or `BYTE_EDITS`.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, Sequence
from typing import Any, TypeVar

from dnc.frontend.declarations import BUILTINS

T = TypeVar("T")
TOKEN = re.compile(r"[ \t]+|\n|#[^\n]*|[A-Za-z_]\w*|[0-9]+(?:\.[0-9]+)?|\.\.\.|->|==|//|.", re.DOTALL)
KEYWORDS = """model struct param frozen running state cell fn match loss metric output in for all root mean
sum max prev next parent first last token class index vector float table stack split zeros pieces"""
WORDS = (*KEYWORDS.split(), *sorted(BUILTINS))
NUMBERS = ("0", "1", "-1", "2", "7", "0.5", "1e9", "1e400", "1e-400", "99999999999999999999", "2147483648")
SIGNS = (
    *"()[]<>{},:.=+-*/@?|_#\"'\\\t\r\0;$",
    "...",
    "->",
    "==",
    "//",
    "\n",
    "\n    ",
    "é",
    "\u2028",
    "𝒙",
    "\ufeff",
)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 10**20, 10**400, 0.5, -0.0, 1e300, float("nan"), float("inf")),
    *("", "x", "\0", "é", [], {}, [[]], [0], [None], {"": 0}, {"arm": "x"}, {"root": 0}, [[[[[[]]]]]]),
)


class Choices:
    """Draws from a source of numbers."""

    def __init__(self, number: Callable[[int, int], int]) -> None:
        self.number = number

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.number(0, len(options) - 1)]


def seeded(seed: int) -> Choices:
    """Choices that follow from a seed."""
    return Choices(random.Random(seed).randint)


# ---- programs ------------------------------------------------------------------------------------


def damaged_program(choices: Choices, text: str) -> str:
    """The text with one to four edits."""
    tokens = TOKEN.findall(text)
    for _ in range(choices.pick((1, 1, 1, 2, 4))):
        if tokens:
            choices.pick(PROGRAM_EDITS)(choices, tokens)
    return "".join(tokens)


def _at(choices: Choices, tokens: Sequence[str], kind: str = r"\S") -> int:
    """Where a token of a kind stands; anywhere if there is none."""
    places = [index for index, token in enumerate(tokens) if re.match(kind, token)]
    return choices.pick(places) if places else choices.number(0, len(tokens) - 1)


def _delete(choices: Choices, tokens: list[str]) -> None:
    del tokens[_at(choices, tokens)]


def _duplicate(choices: Choices, tokens: list[str]) -> None:
    at = _at(choices, tokens)
    tokens[at:at] = [tokens[at]] * choices.pick((1, 1, 1, 3, 400))


def _swap(choices: Choices, tokens: list[str]) -> None:
    one, other = _at(choices, tokens), _at(choices, tokens)
    tokens[one], tokens[other] = tokens[other], tokens[one]


def _rename(choices: Choices, tokens: list[str]) -> None:
    names = [token for token in tokens if token[0].isalpha()] or ["x"]
    tokens[_at(choices, tokens, r"[A-Za-z_]")] = choices.pick(names)


def _word(choices: Choices, tokens: list[str]) -> None:
    tokens[_at(choices, tokens, r"[A-Za-z_]")] = choices.pick(WORDS)


def _number(choices: Choices, tokens: list[str]) -> None:
    tokens[_at(choices, tokens, r"[0-9]")] = choices.pick(NUMBERS)


def _sign(choices: Choices, tokens: list[str]) -> None:
    tokens[_at(choices, tokens)] = choices.pick(SIGNS)


def _insert(choices: Choices, tokens: list[str]) -> None:
    new = choices.pick((*SIGNS, *WORDS, *NUMBERS))
    tokens.insert(_at(choices, tokens), new * choices.pick((1, 1, 1, 1, 300)))


def _lines(tokens: Sequence[str]) -> list[str]:
    return "".join(tokens).split("\n")


def _line(choices: Choices, tokens: list[str]) -> None:
    """Deletes, doubles, moves, indents or cuts a line, or joins it with the next."""
    lines = _lines(tokens)
    at, other = choices.number(0, len(lines) - 1), choices.number(0, len(lines) - 1)
    kind = choices.pick(("delete", "double", "swap", "indent", "dedent", "cut", "join", "truncate"))
    if kind == "delete":
        del lines[at]
    elif kind == "double":
        lines.insert(other, lines[at])
    elif kind == "swap":
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == "indent":
        lines[at] = " " * choices.number(1, 5) + lines[at]
    elif kind == "dedent":
        lines[at] = lines[at].lstrip()
    elif kind == "cut":
        lines[at] = lines[at][: choices.number(0, len(lines[at]))]
    elif kind == "join" and at + 1 < len(lines):
        lines[at : at + 2] = [lines[at] + lines[at + 1]]
    elif kind == "truncate":
        del lines[at:]
    tokens[:] = TOKEN.findall("\n".join(lines))


PROGRAM_EDITS: tuple[Callable[[Choices, list[str]], None], ...] = (
    *(_delete, _duplicate, _swap, _rename, _rename, _word, _number, _sign, _insert, _line, _line),
)


# ---- data ----------------------------------------------------------------------------------------


def damaged_line(choices: Choices, sample: Any) -> bytes:
    """A sample as a line of JSON with one to four edits of its values, or of its bytes."""
    if choices.number(0, 2):
        held = [json.loads(json.dumps(sample))]
        for _ in range(choices.pick((1, 1, 2, 3))):
            choices.pick(JSON_EDITS)(choices, held)
        sample = held[0]
        if choices.number(0, 3):
            return json.dumps(sample, ensure_ascii=bool(choices.number(0, 1))).encode(
                "utf-8", "surrogatepass"
            )
    line = bytearray(json.dumps(sample).encode())
    for _ in range(choices.number(1, 3)):
        if line:
            choices.pick(BYTE_EDITS)(choices, line)
    return bytes(line)


def _holders(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value below."""
    if isinstance(value, MutableMapping):
        for key in value:
            yield value, key
            yield from _holders(value[key])
    elif isinstance(value, MutableSequence):
        for index in range(len(value)):
            yield value, index
            yield from _holders(value[index])


def _place(choices: Choices, held: Any) -> tuple[Any, Any]:
    return choices.pick(list(_holders(held)))


def _replace(choices: Choices, held: Any) -> None:
    holder, key = _place(choices, held)
    holder[key] = copy.deepcopy(choices.pick(VALUES))


def _other(choices: Choices, held: Any) -> None:
    """A value takes the place of another."""
    (one, at), (other, there) = _place(choices, held), _place(choices, held)
    one[at] = json.loads(json.dumps(other[there]))


def _remove(choices: Choices, held: Any) -> None:
    below = [(holder, key) for holder, key in _holders(held) if holder is not held]
    if below:
        holder, key = choices.pick(below)
        del holder[key]


def _key(choices: Choices, held: Any) -> None:
    """A key is renamed, or added."""
    maps = [value for holder, key in _holders(held) if isinstance(value := holder[key], dict)]
    if maps:
        chosen = choices.pick(maps)
        keys = [*{key for each in maps for key in each}, "arm", "root", "", "é"]
        value = chosen.pop(choices.pick(list(chosen)), 0) if chosen and choices.number(0, 1) else 1
        chosen[choices.pick(keys)] = value


def _nest(choices: Choices, held: Any) -> None:
    """A value is wrapped, once or very often."""
    holder, key = _place(choices, held)
    for _ in range(choices.pick((1, 1, 1, 60))):
        holder[key] = [holder[key]] if choices.number(0, 1) else {"x": holder[key]}


def _index(choices: Choices, held: Any) -> None:
    numbers = [(h, k) for h, k in _holders(held) if isinstance(h[k], int) and not isinstance(h[k], bool)]
    if numbers:
        holder, key = choices.pick(numbers)
        holder[key] += choices.pick((1, -1, 2, 1000, -(2**31), 2**31, 2**63))


JSON_EDITS: tuple[Callable[[Choices, Any], None], ...] = (
    _replace,
    _replace,
    _other,
    _remove,
    _key,
    _nest,
    _index,
)


def _set_byte(choices: Choices, line: bytearray) -> None:
    line[choices.number(0, len(line) - 1)] = choices.pick(b'0123456789{}[]",:-.eEnNaIt \\\n\r\x00\xff\x80')


def _delete_bytes(choices: Choices, line: bytearray) -> None:
    at = choices.number(0, len(line) - 1)
    del line[at : at + choices.number(1, 4)]


def _insert_bytes(choices: Choices, line: bytearray) -> None:
    at = choices.number(0, len(line))
    pieces = (
        b"null",
        b"1e99",
        b"99999999999",
        b"[]",
        b"{}",
        b'"',
        b"-1",
        b"true",
        b"NaN",
        b"\\ud800",
        b"\xef\xbb\xbf",
    )
    line[at:at] = choices.pick(pieces) * choices.pick((1, 1, 1, 200))


def _double_bytes(choices: Choices, line: bytearray) -> None:
    at = choices.number(0, len(line) - 1)
    end = choices.number(at, min(len(line), at + 20))
    line[at:at] = line[at:end]


BYTE_EDITS: tuple[Callable[[Choices, bytearray], None], ...] = (
    _set_byte,
    _delete_bytes,
    _insert_bytes,
    _double_bytes,
)
