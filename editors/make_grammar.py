"""Writes editors/vscode/syntaxes/dn.tmLanguage.json: how editors colour programs.

The words come from the grammar, the op table and the tables of the checker, so that a new op or keyword is
coloured without a line here. Run it after such a change: python editors/make_grammar.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dnc.editing.builtins import DOMAINS, PARAMETER_KINDS
from dnc.editing.highlight import NAMED, keywords
from dnc.frontend.declarations import BUILTINS
from dnc.frontend.initializers import RULES
from dnc.frontend.parser import grammar, terminal_texts
from dnc.frontend.reductions import ATTEND, REDUCTIONS
from dnc.frontend.structs import INDEXED_KINDS, LINKS
from dnc.ir.measures import MEASURES

PAGE = Path(__file__).parent / "vscode" / "syntaxes" / "dn.tmLanguage.json"
DECLARING = (*NAMED, "loss", "output", "param", "push")
"""Keywords that begin a declaration."""
NAME = "[A-Za-z_][A-Za-z_0-9]*"


def operators() -> list[str]:
    """The signs of the language that are no brackets, longest first."""
    texts = {text for text in terminal_texts().values() if not text.isidentifier()}
    signs = {text for text in texts if re.fullmatch(r"[-+*/@=|<>?.]+", text)}
    return sorted(signs - {"."}, key=lambda text: (-len(text), text))


def terminal(name: str) -> str:
    """The regular expression of a terminal."""
    return str(next(each.pattern.value for each in grammar().terminals if each.name == name))


def words(found: Iterable[str]) -> str:
    """One of the words."""
    return f"\\b({'|'.join(sorted(found))})\\b"


def patterns() -> list[dict[str, Any]]:
    """What is coloured, the first that fits."""
    missing = [word for word in DECLARING if word not in keywords()]
    assert not missing, f"no keywords: {missing}"
    calls = {*BUILTINS, *REDUCTIONS, ATTEND, *MEASURES}
    return [
        {"name": "comment.line.number-sign.dn", "match": terminal("COMMENT")},
        {
            "match": f"{words(NAMED)}\\s+({NAME})",
            "captures": {
                "1": {"name": "keyword.declaration.dn"},
                "2": {"name": "entity.name.dn"},
            },
        },
        {"name": "keyword.declaration.dn", "match": words(DECLARING)},
        {"name": "keyword.control.dn", "match": words(keywords())},
        {
            "match": f"(=)\\s*{words(RULES)}",
            "captures": {"1": {"name": "keyword.operator.dn"}, "2": {"name": "support.constant.dn"}},
        },
        {"name": "storage.type.dn", "match": f"{words(INDEXED_KINDS)}(?=\\s*<)"},
        {"match": ":\\s*\\b(float)\\b", "captures": {"1": {"name": "storage.type.dn"}}},
        {"name": "storage.type.dn", "match": f"{words(PARAMETER_KINDS)}(?=\\s*\\[)"},
        {"name": "support.function.dn", "match": f"{words(calls)}(?=\\s*\\()"},
        {"name": "variable.language.dn", "match": f"(?<=\\.){words(LINKS)}|{words(DOMAINS)}"},
        {"name": "constant.numeric.dn", "match": f"(?<![A-Za-z_0-9]){terminal('NUMBER')}"},
        {"name": "entity.name.function.dn", "match": f"\\b{NAME}(?=\\s*\\()"},
        {"name": "variable.parameter.dn", "match": f"\\b{NAME}(?=\\s*:)"},
        {"name": "keyword.operator.dn", "match": "|".join(re.escape(text) for text in operators())},
        {"name": "variable.other.dn", "match": f"\\b{NAME}\\b"},
    ]


def render() -> str:
    """The grammar as JSON."""
    found = {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "name": "dnc",
        "scopeName": "source.dn",
        "fileTypes": ["dn"],
        "patterns": patterns(),
    }
    return f"{json.dumps(found, indent=2)}\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
