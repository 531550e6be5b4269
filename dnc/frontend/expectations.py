"""Words for mistakes of form: what the parser found and what it could have accepted.

In: a token and the names of the terminals accepted in its place. Out: a sentence. Terminals that
only make sense together (all that begins a value, all operators) are named together.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from dnc.frontend.calls import CALLS_ELSEWHERE, JOINED_ELSEWHERE, STATEMENTS_ELSEWHERE

FORMS = {
    "model": "model Name(open, size = 256)",
    "struct": "struct Tree = Leaf(word: token<vocab>) | Node(left: Tree, more: [Tree], label: class<n>)",
    "param": "param W: [rows, columns] = uniform(0.1) density 0.5, E: table[rows, columns] lr * 0.1",
    "frozen": "frozen param W: [rows, columns]",
    "running": "running param m: [size] = zeros",
    "state": "state S = (h: [hidden], c: [hidden])",
    "cell": "cell name(x: [d], s: S) -> S: and a block, or cell name(x: [d]) = expression",
    "fn": "fn name(t: Struct) -> S = expression, or = match t: and one line an arm",
    "loss": "loss sum(t in all(Struct)) expression",
    "metric": "metric name = mean(t in root) expression, or pearson(t in root) expression, expression",
    "output": "output name = expression, name = [expression for t in all(Struct)]",
    "push": "push name = expression, name = [expression for t in all(Struct)]",
}
DECLARATION_WORDS = frozenset(FORMS)
DECLARATIONS_ELSEWHERE = {
    **dict.fromkeys(("def", "func", "function"), "fn"),
    **dict.fromkeys(("class", "data", "type", "enum"), "struct"),
    **dict.fromkeys(("let", "var", "parameter", "weight"), "param"),
}
"""What declarations begin with in other languages."""

_VALUE = {"NUMBER", "NAME", "LPAR", "MINUS"}
_OPERATORS = {"PLUS", "MINUS", "STAR", "SLASH", "FLOOR", "AT", "EQUAL", "DOT", "LSQB"}
_WORDS = {
    "NAME": "a name",
    "NUMBER": "a number",
    "_NEWLINE": "the end of the line",
    "_INDENT": "an indented block",
    "_DEDENT": "the end of the block",
    "$END": "the end of the declaration",
    "ELLIPSIS": "'...'",
}


def explain_character(line: str, column: int) -> str:
    """Why the character at `column` cannot stand there."""
    character = line[column - 1 : column]
    shown = f"'{character}'" if character.isprintable() else f"the character U+{ord(character or chr(0)):04X}"
    hints = {
        '"': "; there are no strings in a program",
        "'": "; there are no strings in a program",
        "%": "; the product of matrices is '@'",
        "!": "; there is no negation",
        ";": "; one statement stands on one line",
        "{": "; blocks are indented",
        "}": "; blocks are indented",
        "^": "; write x * x",
        "&": "",
    }
    hint = hints.get(character, "")
    if line[column - 1 : column + 1] == "!=":
        hint = "; write 1 - (a == b)"
    if not character.isascii():
        hint = "; outside comments a program is plain ASCII"
    return f"found {shown}, which is no part of the language{hint}"


OPERATORS_ELSEWHERE = {
    "**": "there are no powers; write x * x",
    **{f"{operator}=": "every name is assigned once: y = x + 1" for operator in "+-*/@"},
    **dict.fromkeys("<>", "nothing is compared but with a == b, of two classes or two tokens: 1 or 0"),
}
"""What is said of an operator that fits nowhere, or of two characters of which the second one does not."""


OF_ALL = "what all vertices have is a list: name = [f(t) for t in all(Struct)]"


def statement_elsewhere(token: Any, line: str, texts: Mapping[str, str]) -> tuple[int, int, str] | None:
    """The column of a statement of other languages, up to a token that fits nowhere, and what is said of it.

    What is a word of this one too is looked for at the token alone.
    """
    for found in re.finditer(r"(?<![\w.])[a-z]+\b", line):
        column, word = found.start() + 1, found[0]
        here = column == token.column or (column < token.column and word not in texts.values())
        if here and word in STATEMENTS_ELSEWHERE:
            of_all = word == "for" and re.match(r"(output|push)\s", line)
            instead = OF_ALL if of_all else STATEMENTS_ELSEWHERE[word]
            return column, len(word), f"found '{word}'; {instead}"
    return None


def explain_token(token: Any, line: str, accepted: set[str], texts: Mapping[str, str]) -> str:
    """`found X, expected Y` for a token that fits nowhere in its line; `texts` are those of the terminals."""
    text = str(token)
    pair = line[max(token.column - 2, 0) : token.column] if token.column else ""
    signs = (pair if text == pair[1:] else "", text if "PLUS" in accepted else "")
    for sign in signs:
        if sign in OPERATORS_ELSEWHERE:
            return f"found '{sign}'; {OPERATORS_ELSEWHERE[sign]}"
    before = line[: (token.column or 1) - 1]
    if (
        text in (",", ":")
        and "RSQB" in accepted
        and re.search(r"[\w)\]](?<!table)(?<!stack)\[[^\[\]]*$", before)
    ):
        one = "one token, class, index or number selects, of a matrix M[i][k]; split(x, 2) gives equal parts"
        return f"found '{text}', expected ']': {one}"
    if text == ":" and re.match(r"\s+\w+\([^()]*\)$", before):
        return "found ':', expected '->' and an expression; a block stands in a cell that the arm calls"
    if text == "?" and re.search(r"\[\w+\]$", before):
        return "found '?'; a list may be empty, and needs none"
    if text == "," and re.match(r"\s+\w+(\s*,\s*\w+)+\s*=[^=]", before):
        return "found ',', expected the end of the line; every name is assigned in a line of its own"
    method = re.search(r"\.(\w+)$", before)
    if text == "(" and method and "DOT" in accepted:
        instead = CALLS_ELSEWHERE.get(method[1].lower(), f"write {method[1]}(x)")
        return f"found '('; values have no methods, and functions no module: {instead}"
    called = re.search(r"\b(\w+)\($", before)
    if text == "[" and called and called[1] in ("concat", *JOINED_ELSEWHERE):
        return "found '[', expected a value; vectors are joined without brackets: concat(a, b)"
    kind = re.search(r"\b(token|class|index)\s*$", before)
    if text == "<" and kind:
        article = "an" if kind[1] == "index" else "a"
        return (
            f"found {article} {kind[1]}, expected a shape or a state: cells and functions take and return "
            f"values; {article} {kind[1]} is read where it is used, as in E[t.word] and argmax(scores(t))"
        )
    found = {
        "_NEWLINE": "the end of the line",
        "_INDENT": "an indentation",
        "_DEDENT": "the end of the block",
        "$END": "the end of the declaration",
    }
    shown = found.get(token.type, f"'{text}'")
    if {"FN", "CELL"} <= accepted:
        close = difflib.get_close_matches(text, sorted(DECLARATION_WORDS), 1)
        meant = DECLARATIONS_ELSEWHERE.get(text, close[0] if close else "")
        hint = f"; did you mean '{meant}'?" if meant else ""
        return f"found {shown}, expected a declaration ({', '.join(FORMS)}){hint}"
    keyword = token.type not in ("NAME", "NUMBER") and text.isidentifier()
    if keyword and "NAME" in accepted:
        return f"found {shown}, expected a name; '{text}' is a word of the language"
    return f"found {shown}, expected {_expected(accepted, texts)}"


def _expected(accepted: set[str], texts: Mapping[str, str]) -> str:
    """The accepted terminals in words, the most telling first."""
    rest = set(accepted)
    parts = []
    if "NUMBER" in rest and "NAME" in rest:
        parts.append("a value")
        rest -= _VALUE | {"LSQB"} if "RSQB" not in rest else _VALUE
    closing = sorted(rest - _OPERATORS - set(_WORDS))
    parts += [_WORDS[name] for name in sorted(rest & set(_WORDS))]
    parts += [f"'{texts[name]}'" for name in closing]
    operators = rest & _OPERATORS
    if len(operators) > 2:
        parts.append("an operator")
    else:
        parts += [f"'{texts[name]}'" for name in sorted(operators)]
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} or {parts[-1]}"


def form_of(text: str) -> tuple[str, ...]:
    """A note with the form of the declaration that `text` begins."""
    words = text.split(maxsplit=1)
    word = words[0].split("(")[0] if words else ""
    return (f"the form is: {FORMS[word]}",) if word in FORMS else ()
